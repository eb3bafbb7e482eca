//! The directory of one run on the host: the relay's socket, the sandbox's home, and files for the sandbox's program.
//!
//! What must stay true: only the user can open the directory, because the home in it may hold a login. The run removes it at
//! its end; the directory of a killed run is removed by the next run.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::harness::LOGINS_INSIDE;
use super::kinds::{FileContent, GeneratedFile, LeftContainer};
use super::removal::remove_tree;

/// The directory of this run, removed on drop.
#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    /// Held while the run lives, so that no other run removes the directory.
    _lock: Flock<File>,
}

/// The directory of a run that was killed.
#[derive(Debug)]
pub(super) struct Leftover {
    pub(super) path: PathBuf,
    /// The id of the run's enrolment, if the run had one.
    pub(super) enrolment: Option<String>,
    /// The container that the sandbox's program may have left.
    pub(super) container: Option<LeftContainer>,
    _lock: Flock<File>,
}

const PREFIX: &str = "cofferdam-run-";
const LOCK: &str = "lock";
const ENROLMENT: &str = "enrolment";
/// Holds the kind of the container that is to be removed.
const CONTAINER: &str = "container";
/// Both files have a few characters.
const MAX_STORED_BYTES: u64 = 64;

impl RunDirectory {
    /// The path for a run of this name.
    pub(super) fn path_for(temporary: &Path, name: &str) -> PathBuf {
        temporary.join(format!("{PREFIX}{name}"))
    }

    pub(super) fn create(path: &Path) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(path)?;
        let created = (|| {
            let unlocked = path.join("unlocked");
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unlocked)?;
            let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
                .map_err(|(_, errno)| io::Error::from(errno))?;
            // The file is renamed to its final name once it is locked, so that no other run can lock it and remove this directory.
            fs::rename(unlocked, path.join(LOCK))?;
            for name in [HOME, RELAY] {
                DirBuilder::new().mode(0o700).create(path.join(name))?;
            }
            Ok(lock)
        })();
        match created {
            Ok(lock) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(error) => {
                // `remove_tree` is not needed: no sandbox has written to the directory yet.
                let _ = fs::remove_dir_all(path);
                Err(error)
            }
        }
    }

    pub(super) fn home(&self) -> PathBuf {
        self.path.join(HOME)
    }

    pub(super) fn relay(&self) -> PathBuf {
        self.path.join(RELAY)
    }

    /// Saves the id of this run's enrolment, for the run that cleans up if this one is killed.
    pub(super) fn save_enrolment(&self, enrolment: &str) -> io::Result<()> {
        write_private(&self.path.join(ENROLMENT), enrolment.as_bytes())
    }

    /// Saves which container the sandbox's program leaves when it is killed.
    pub(super) fn save_container(&self, container: &LeftContainer) -> io::Result<()> {
        write_private(&self.path.join(CONTAINER), container.stored().as_bytes())
    }

    /// Writes a program for the sandbox, below this directory.
    pub(super) fn write_program(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        write_new(path, content, 0o755)
    }

    /// Writes files for the sandbox's program, all below this directory.
    pub(super) fn write(&self, files: &[GeneratedFile]) -> io::Result<()> {
        for GeneratedFile { path, content } in files {
            if let Some(parent) = path.parent() {
                DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            }
            match content {
                FileContent::Directory => DirBuilder::new().recursive(true).mode(0o700).create(path)?,
                FileContent::Link(target) => symlink(target, path)?,
                FileContent::Program(source) => drop(fs::copy(source, path)?),
                FileContent::Text(text) => write_private(path, text.as_bytes())?,
            }
        }
        Ok(())
    }
}

/// The sandbox's home in a run's directory.
pub(super) const HOME: &str = "home";
/// The directory of the relay's socket in a run's directory.
pub(super) const RELAY: &str = "relay";

impl Drop for RunDirectory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

impl Leftover {
    /// Removes the directory. The enrolment must have ended before: for its socket the sidecar would create the directory again.
    pub(super) fn remove(self) {
        // The next run tries again to remove what cannot be removed now.
        remove(&self.path);
    }
}

/// Finds and locks the directories of this user's killed runs, and removes the homes in them.
pub(super) fn leftovers(temporary: &Path) -> Vec<Leftover> {
    let user = nix::unistd::geteuid().as_raw();
    let entries = fs::read_dir(temporary).into_iter().flatten().flatten();
    let candidates = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    candidates
        .filter_map(|entry| {
            // Symbolic links and directories of other users are skipped.
            let metadata = fs::symlink_metadata(entry.path()).ok()?;
            if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o077 != 0 {
                return None;
            }
            let path = entry.path();
            let file = File::open(path.join(LOCK)).ok()?;
            let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
            let is_id = |text: &String| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
            let enrolment = read_stored(&path.join(ENROLMENT)).filter(is_id);
            let sandbox = entry.file_name().to_str()?.strip_prefix(PREFIX)?.to_owned();
            let container = read_stored(&path.join(CONTAINER));
            let container = container.and_then(|stored| LeftContainer::load(&stored, &sandbox));
            // The home may hold a login, so it is removed first: ending the enrolment takes time and may fail.
            if let Err(remaining) = remove_tree(&path.join(HOME), LOGINS_INSIDE.map(Path::new)) {
                eprintln!("cofferdam: cleaning up after a killed run: {remaining}");
            }
            Some(Leftover { path, enrolment, container, _lock: lock })
        })
        .collect()
}

/// Removes the directory of a run, the copy of a login first.
fn remove(path: &Path) {
    let logins = LOGINS_INSIDE.map(|login| Path::new(HOME).join(login));
    if let Err(remaining) = remove_tree(path, logins.iter().map(PathBuf::as_path)) {
        eprintln!("cofferdam: {remaining}");
    }
}

fn read_stored(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_STORED_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_new(path, bytes, 0o600)
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_a_killed_run_is_found_and_that_of_an_active_run_is_not() {
        let temporary = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-directories-"));
        fs::create_dir(&temporary).unwrap();
        let active = RunDirectory::create(&RunDirectory::path_for(&temporary, "a")).unwrap();
        assert_eq!(active.path.metadata().unwrap().mode() & 0o777, 0o700);
        let killed = RunDirectory::path_for(&temporary, "b-0a1b2c3d");
        fs::create_dir(&killed).unwrap();
        fs::set_permissions(&killed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        fs::write(killed.join(LOCK), "").unwrap();
        fs::write(killed.join(ENROLMENT), "e1").unwrap();
        fs::write(killed.join(CONTAINER), "podman").unwrap();
        let found = leftovers(&temporary);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].enrolment.as_deref(), Some("e1"));
        assert_eq!(found[0].container, LeftContainer::load("podman", "b-0a1b2c3d"));
        assert!(found[0].container.is_some());
        drop(found);
        // What a run cannot have written is ignored.
        fs::write(killed.join(ENROLMENT), "e1 \n").unwrap();
        fs::write(killed.join(CONTAINER), r#"["sh","-c","touch oops"]"#).unwrap();
        let found = leftovers(&temporary);
        assert_eq!((found[0].enrolment.as_deref(), found[0].container.as_ref()), (None, None));
        found.into_iter().for_each(Leftover::remove);
        assert!(!killed.exists() && active.path.exists());
        drop(active);
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
        fs::remove_dir(temporary).unwrap();
    }
}
