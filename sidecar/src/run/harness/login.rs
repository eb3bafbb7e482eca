//! The copy of a harness's login in the sandbox's home, and the way back of a refreshed one.
//!
//! What must stay true: only the entries that are the login enter the sandbox. What comes back was written by the sandbox:
//! it is read without following links, is bounded, has to be a login of the same form, and never replaces a login that
//! changed outside meanwhile. No text of a login is in an error.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{Replace, write_file};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use serde_json::value::RawValue;
use zeroize::Zeroizing;

use super::LoginPlace;

/// A login that was copied into a sandbox's home.
#[derive(Debug)]
pub(in crate::run) struct Login {
    place: LoginPlace,
    /// The user's file, links resolved.
    outside: PathBuf,
    /// The directory on the host that is the sandbox's home.
    home: PathBuf,
    /// What was copied.
    copied: Zeroizing<Vec<u8>>,
}

/// What became of a login when the sandbox ended.
#[derive(Debug, Eq, PartialEq)]
pub(in crate::run) enum Returned {
    Unchanged,
    /// The harness refreshed it, and the user's file has the new one.
    Refreshed,
    /// It changed but was not taken; the reason is for the user.
    NotTaken(String),
}

/// Logins have a few kilobytes.
const MAX_BYTES: u64 = 256 * 1024;

type Entries<'a> = BTreeMap<String, &'a RawValue>;

impl Login {
    /// Copies the login into the directory that becomes the sandbox's home. `None` if the user has none.
    pub(in crate::run) fn copy_in(place: LoginPlace, home: &Path) -> io::Result<Option<Self>> {
        let outside = match place.outside.canonicalize() {
            Ok(outside) => outside,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let whole = read(File::open(&outside)?)?;
        let entries = entries(&whole).ok_or_else(|| io::Error::other("it is not a JSON object"))?;
        let copied = text(&own(entries, &place));
        let inside = home.join(place.inside);
        let directory = inside.parent().unwrap_or(home);
        fs::create_dir_all(directory)?;
        write_file(directory, &inside, &copied, Replace::Always)?;
        Ok(Some(Self { place, outside, home: home.to_owned(), copied }))
    }

    /// Writes a login that the harness has refreshed to the user's file.
    pub(in crate::run) fn copy_back(&self) -> Returned {
        let not_taken = |why: &str| Returned::NotTaken(why.to_owned());
        let Ok(inside) = self.read_inside() else {
            return not_taken("the sandbox removed its file or replaced it by something else");
        };
        if *inside == *self.copied {
            return Returned::Unchanged;
        }
        let (Some(before), Some(after)) = (entries(&self.copied), entries(&inside)) else {
            return not_taken("the sandbox left a file that is not a login");
        };
        if !before.keys().eq(own(after.clone(), &self.place).keys()) {
            return not_taken("the sandbox left a file with other entries than a login has");
        }
        let after = own(after, &self.place);
        if text(&after) == self.copied {
            return Returned::Unchanged;
        }
        let Ok(current) = File::open(&self.outside).and_then(read) else {
            return not_taken("the file outside cannot be read any more");
        };
        let Some(mut whole) = entries(&current) else {
            return not_taken("the file outside is not a login any more");
        };
        if text(&own(whole.clone(), &self.place)) != self.copied {
            return not_taken("the login outside changed meanwhile and was kept");
        }
        whole.extend(after);
        let directory = self.outside.parent().unwrap_or(Path::new("/"));
        match write_file(directory, &self.outside, &text(&whole), Replace::Always) {
            Ok(()) => Returned::Refreshed,
            Err(error) => Returned::NotTaken(format!("write `{}`: {error}", self.outside.display())),
        }
    }

    /// The sandbox may have put links into its home; none is followed.
    fn read_inside(&self) -> io::Result<Zeroizing<Vec<u8>>> {
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        let home = File::open(&self.home)?;
        read(File::from(openat2(&home, self.place.inside, how)?))
    }
}

fn read(file: File) -> io::Result<Zeroizing<Vec<u8>>> {
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(io::Error::other("it is not a regular file of at most 256 KiB"));
    }
    // Allocated at once, because a growing buffer leaves copies that are not wiped.
    let mut bytes = Zeroizing::new(Vec::with_capacity(metadata.len() as usize + 1));
    file.take(metadata.len()).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The entries of the object, each as it is written.
fn entries(bytes: &[u8]) -> Option<Entries<'_>> {
    serde_json::from_slice(bytes).ok()
}

fn own<'a>(mut entries: Entries<'a>, place: &LoginPlace) -> Entries<'a> {
    entries.retain(|name, _| place.entries.is_empty() || place.entries.contains(&name.as_str()));
    entries
}

fn text(entries: &Entries<'_>) -> Zeroizing<Vec<u8>> {
    let length: usize = entries.iter().map(|(name, value)| 2 * name.len() + value.get().len() + 8).sum();
    let mut bytes = Zeroizing::new(Vec::with_capacity(length + 8));
    serde_json::to_writer(&mut *bytes, entries).expect("writing to memory cannot fail");
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A user's login file and a sandbox's home, removed on drop.
    struct Homes(PathBuf);

    const BEFORE: &str = r#"{"claudeAiOauth":{"accessToken":"old"},"mcpOAuth":{"x":"another token"}}"#;

    impl Homes {
        fn new() -> (Self, Login) {
            let path = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-login-"));
            fs::create_dir_all(path.join("user")).unwrap();
            fs::create_dir_all(path.join("inside")).unwrap();
            let homes = Self(path);
            fs::write(homes.outside(), BEFORE).unwrap();
            let place = LoginPlace {
                outside: homes.outside(),
                inside: ".claude/.credentials.json",
                entries: &["claudeAiOauth"],
            };
            let login = Login::copy_in(place, &homes.0.join("inside")).unwrap().unwrap();
            (homes, login)
        }

        fn outside(&self) -> PathBuf {
            self.0.join("user/credentials.json")
        }

        fn inside(&self) -> PathBuf {
            self.0.join("inside/.claude/.credentials.json")
        }
    }

    impl Drop for Homes {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_the_login_is_copied_and_the_copy_is_private() {
        let (homes, login) = Homes::new();
        assert_eq!(fs::read_to_string(homes.inside()).unwrap(), r#"{"claudeAiOauth":{"accessToken":"old"}}"#);
        assert_eq!(fs::metadata(homes.inside()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(login.copy_back(), Returned::Unchanged);
        assert_eq!(fs::read_to_string(homes.outside()).unwrap(), BEFORE);
    }

    #[test]
    fn a_refreshed_login_comes_back_and_other_entries_stay() {
        let (homes, login) = Homes::new();
        fs::write(homes.inside(), r#"{"mcpOAuth":{"x":"planted"},"claudeAiOauth":{"accessToken":"new"}}"#)
            .unwrap();
        assert_eq!(login.copy_back(), Returned::Refreshed);
        let after = r#"{"claudeAiOauth":{"accessToken":"new"},"mcpOAuth":{"x":"another token"}}"#;
        assert_eq!(fs::read_to_string(homes.outside()).unwrap(), after);
    }

    #[test]
    fn what_is_not_a_refreshed_login_does_not_come_back() {
        let large = format!("{{\"claudeAiOauth\":\"{}\"}}", "x".repeat(300 * 1024));
        for left in ["", "not JSON", "[]", "{}", r#"{"other":1}"#, &large] {
            let (homes, login) = Homes::new();
            fs::write(homes.inside(), left).unwrap();
            assert!(matches!(login.copy_back(), Returned::NotTaken(_)), "{}", &left[..left.len().min(40)]);
            assert_eq!(fs::read_to_string(homes.outside()).unwrap(), BEFORE);
        }
    }

    #[test]
    fn links_that_the_sandbox_left_are_not_followed() {
        let (homes, login) = Homes::new();
        let planted = homes.0.join("planted.json");
        fs::write(&planted, r#"{"claudeAiOauth":{"accessToken":"planted"}}"#).unwrap();
        fs::remove_file(homes.inside()).unwrap();
        symlink(&planted, homes.inside()).unwrap();
        assert!(matches!(login.copy_back(), Returned::NotTaken(_)));
        fs::remove_dir_all(homes.0.join("inside/.claude")).unwrap();
        fs::create_dir(homes.0.join("elsewhere")).unwrap();
        fs::rename(&planted, homes.0.join("elsewhere/.credentials.json")).unwrap();
        symlink(homes.0.join("elsewhere"), homes.0.join("inside/.claude")).unwrap();
        assert!(matches!(login.copy_back(), Returned::NotTaken(_)));
        assert_eq!(fs::read_to_string(homes.outside()).unwrap(), BEFORE);
    }

    #[test]
    fn a_login_that_changed_outside_is_kept() {
        let (homes, login) = Homes::new();
        fs::write(homes.inside(), r#"{"claudeAiOauth":{"accessToken":"inside"}}"#).unwrap();
        let newer = r#"{"claudeAiOauth":{"accessToken":"outside"}}"#;
        fs::write(homes.outside(), newer).unwrap();
        assert!(matches!(login.copy_back(), Returned::NotTaken(_)));
        assert_eq!(fs::read_to_string(homes.outside()).unwrap(), newer);
    }
}
