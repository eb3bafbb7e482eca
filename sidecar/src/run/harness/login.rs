//! Copies a harness's login into the sandbox's home, and a refreshed login back to the user's file.
//!
//! What must stay true: of the user's file only the entries of the login enter the sandbox. The file that is copied back was
//! written by the sandbox: it is read without following links, its size is limited, it must have the same entries, and it
//! never replaces a login that changed outside meanwhile. No error contains a part of a login.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{Replace, write_file};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use serde_json::value::RawValue;
use zeroize::Zeroizing;

use super::LoginLocation;

/// A login that was copied into a sandbox's home.
#[derive(Debug)]
pub(in crate::run) struct Login {
    location: LoginLocation,
    /// The user's file, symbolic links resolved.
    outside: PathBuf,
    /// The directory on the host that is the sandbox's home.
    home: PathBuf,
    /// The file that was written into the sandbox's home.
    copied: Zeroizing<Vec<u8>>,
}

/// The result of copying a login back when the sandbox has ended.
#[derive(Debug, Eq, PartialEq)]
pub(in crate::run) enum CopyBackResult {
    Unchanged,
    /// The harness refreshed the login, and it was written to the user's file.
    Refreshed,
    /// The login changed but was not written to the user's file; the reason is shown to the user.
    NotCopied(String),
}

/// Login files have a few kilobytes.
const MAX_BYTES: u64 = 256 * 1024;

type Entries<'a> = BTreeMap<String, &'a RawValue>;

impl Login {
    /// Copies the login into `home`, the directory that becomes the sandbox's home. `None` if the user has no login.
    pub(in crate::run) fn copy_in(location: LoginLocation, home: &Path) -> io::Result<Option<Self>> {
        let outside = match location.outside.canonicalize() {
            Ok(outside) => outside,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let whole = read(File::open(&outside)?)?;
        let entries = entries(&whole).ok_or_else(|| io::Error::other("it is not a JSON object"))?;
        let copied = serialize(&login_entries(entries, &location));
        let inside = home.join(location.inside);
        let directory = inside.parent().unwrap_or(home);
        fs::create_dir_all(directory)?;
        write_file(directory, &inside, &copied, Replace::Always)?;
        Ok(Some(Self { location, outside, home: home.to_owned(), copied }))
    }

    /// Writes the login to the user's file if the harness has refreshed it.
    pub(in crate::run) fn copy_back(&self) -> CopyBackResult {
        let not_copied = |why: &str| CopyBackResult::NotCopied(why.to_owned());
        let Ok(inside) = self.read_inside() else {
            return not_copied("the sandbox removed its file or replaced it by something else");
        };
        if *inside == *self.copied {
            return CopyBackResult::Unchanged;
        }
        let (Some(before), Some(after)) = (entries(&self.copied), entries(&inside)) else {
            return not_copied("the sandbox left a file that is not a login");
        };
        if !before.keys().eq(login_entries(after.clone(), &self.location).keys()) {
            return not_copied("the sandbox left a file with other entries than a login has");
        }
        let after = login_entries(after, &self.location);
        if serialize(&after) == self.copied {
            return CopyBackResult::Unchanged;
        }
        let Ok(current) = File::open(&self.outside).and_then(read) else {
            return not_copied("the file outside cannot be read any more");
        };
        let Some(mut whole) = entries(&current) else {
            return not_copied("the file outside is not a login any more");
        };
        if serialize(&login_entries(whole.clone(), &self.location)) != self.copied {
            return not_copied("the login outside changed meanwhile, so it was not overwritten");
        }
        whole.extend(after);
        let directory = self.outside.parent().unwrap_or(Path::new("/"));
        match write_file(directory, &self.outside, &serialize(&whole), Replace::Always) {
            Ok(()) => CopyBackResult::Refreshed,
            Err(error) => {
                CopyBackResult::NotCopied(format!("cannot write `{}`: {error}", self.outside.display()))
            }
        }
    }

    /// Reads the login file in the sandbox's home, following no symbolic link: the sandbox may have created some.
    fn read_inside(&self) -> io::Result<Zeroizing<Vec<u8>>> {
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        let home = File::open(&self.home)?;
        read(File::from(openat2(&home, self.location.inside, how)?))
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

/// The entries of a JSON object, with the text of each value unchanged.
fn entries(bytes: &[u8]) -> Option<Entries<'_>> {
    serde_json::from_slice(bytes).ok()
}

fn login_entries<'a>(mut entries: Entries<'a>, location: &LoginLocation) -> Entries<'a> {
    entries.retain(|name, _| location.entries.is_empty() || location.entries.contains(&name.as_str()));
    entries
}

fn serialize(entries: &Entries<'_>) -> Zeroizing<Vec<u8>> {
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
            let location = LoginLocation {
                outside: homes.outside(),
                inside: ".claude/.credentials.json",
                entries: &["claudeAiOauth"],
            };
            let login = Login::copy_in(location, &homes.0.join("inside")).unwrap().unwrap();
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
        assert_eq!(login.copy_back(), CopyBackResult::Unchanged);
        assert_eq!(fs::read_to_string(homes.outside()).unwrap(), BEFORE);
    }

    #[test]
    fn a_refreshed_login_is_copied_back_and_other_entries_are_unchanged() {
        let (homes, login) = Homes::new();
        fs::write(homes.inside(), r#"{"mcpOAuth":{"x":"planted"},"claudeAiOauth":{"accessToken":"new"}}"#)
            .unwrap();
        assert_eq!(login.copy_back(), CopyBackResult::Refreshed);
        let after = r#"{"claudeAiOauth":{"accessToken":"new"},"mcpOAuth":{"x":"another token"}}"#;
        assert_eq!(fs::read_to_string(homes.outside()).unwrap(), after);
    }

    #[test]
    fn a_file_that_is_not_a_login_is_not_copied_back() {
        let large = format!("{{\"claudeAiOauth\":\"{}\"}}", "x".repeat(300 * 1024));
        for left in ["", "not JSON", "[]", "{}", r#"{"other":1}"#, &large] {
            let (homes, login) = Homes::new();
            fs::write(homes.inside(), left).unwrap();
            assert!(
                matches!(login.copy_back(), CopyBackResult::NotCopied(_)),
                "{}",
                &left[..left.len().min(40)]
            );
            assert_eq!(fs::read_to_string(homes.outside()).unwrap(), BEFORE);
        }
    }

    #[test]
    fn links_that_the_sandbox_created_are_not_followed() {
        let (homes, login) = Homes::new();
        let planted = homes.0.join("planted.json");
        fs::write(&planted, r#"{"claudeAiOauth":{"accessToken":"planted"}}"#).unwrap();
        fs::remove_file(homes.inside()).unwrap();
        symlink(&planted, homes.inside()).unwrap();
        assert!(matches!(login.copy_back(), CopyBackResult::NotCopied(_)));
        fs::remove_dir_all(homes.0.join("inside/.claude")).unwrap();
        fs::create_dir(homes.0.join("elsewhere")).unwrap();
        fs::rename(&planted, homes.0.join("elsewhere/.credentials.json")).unwrap();
        symlink(homes.0.join("elsewhere"), homes.0.join("inside/.claude")).unwrap();
        assert!(matches!(login.copy_back(), CopyBackResult::NotCopied(_)));
        assert_eq!(fs::read_to_string(homes.outside()).unwrap(), BEFORE);
    }

    #[test]
    fn a_login_that_changed_outside_is_not_overwritten() {
        let (homes, login) = Homes::new();
        fs::write(homes.inside(), r#"{"claudeAiOauth":{"accessToken":"inside"}}"#).unwrap();
        let newer = r#"{"claudeAiOauth":{"accessToken":"outside"}}"#;
        fs::write(homes.outside(), newer).unwrap();
        assert!(matches!(login.copy_back(), CopyBackResult::NotCopied(_)));
        assert_eq!(fs::read_to_string(homes.outside()).unwrap(), newer);
    }
}
