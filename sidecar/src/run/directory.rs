//! The directory of one run on the host: the relay's socket, the sandbox's home, and files for the sandbox's program.
//!
//! What must stay true: only its user can open it, because the home holds a login; it is removed at the end of the run, and
//! one whose run was killed is removed by the next run.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::harness::LOGINS_INSIDE;
use super::kinds::{CommandLine, FileContent, GeneratedFile};
use super::removal::remove_tree;

/// Removed on drop.
#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    /// Held while the run lives, so that no other run removes the directory.
    _lock: Flock<File>,
}

/// The leftovers of a run that was killed.
#[derive(Debug)]
pub(super) struct Leftover {
    path: PathBuf,
    /// What its sidecar knows it by, if it got that far.
    pub(super) enrolment: Option<String>,
    /// The command that removes what its sandbox's program may have left.
    pub(super) removal: Vec<String>,
    _lock: Flock<File>,
}

const PREFIX: &str = "cofferdam-run-";
const LOCK: &str = "lock";
const ENROLMENT: &str = "enrolment";
const REMOVAL: &str = "removal";

impl RunDirectory {
    /// The path for a run of this name.
    pub(super) fn path_for(temporary: &Path, name: &str) -> PathBuf {
        temporary.join(format!("{PREFIX}{name}"))
    }

    pub(super) fn create(path: &Path) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(path)?;
        let made = (|| {
            let unlocked = path.join("unlocked");
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unlocked)?;
            let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
                .map_err(|(_, errno)| io::Error::from(errno))?;
            // It gets its name with the lock held, so that no other run takes this directory for a leftover.
            fs::rename(unlocked, path.join(LOCK))?;
            for name in [HOME, RELAY] {
                DirBuilder::new().mode(0o700).create(path.join(name))?;
            }
            Ok(lock)
        })();
        match made {
            Ok(lock) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(error) => {
                // No sandbox has written to it.
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

    /// Notes what the sidecar calls this run, for the run that has to clean up after this one was killed.
    pub(super) fn note_enrolment(&self, enrolment: &str) -> io::Result<()> {
        write_private(&self.path.join(ENROLMENT), enrolment.as_bytes())
    }

    /// Notes how to remove what the sandbox's program leaves when it is killed.
    pub(super) fn note_removal(&self, command: &CommandLine) -> io::Result<()> {
        let words: Vec<_> = command.words().map(|word| word.to_string_lossy()).collect();
        write_private(&self.path.join(REMOVAL), &serde_json::to_vec(&words)?)
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
    /// Removes its files. Its enrolment has to be over: a sidecar would make the directory again for the socket.
    pub(super) fn remove(self) {
        // What cannot be removed now is tried again by the next run.
        remove(&self.path);
    }
}

/// Directories of this user's runs that were killed.
pub(super) fn leftovers(temporary: &Path) -> Vec<Leftover> {
    let own = nix::unistd::geteuid().as_raw();
    let entries = fs::read_dir(temporary).into_iter().flatten().flatten();
    let candidates = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    candidates
        .filter_map(|entry| {
            // Not following a link, and no directory of another user.
            let metadata = fs::symlink_metadata(entry.path()).ok()?;
            if !metadata.is_dir() || metadata.uid() != own || metadata.mode() & 0o077 != 0 {
                return None;
            }
            let path = entry.path();
            let file = File::open(path.join(LOCK)).ok()?;
            let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
            let enrolment = fs::read_to_string(path.join(ENROLMENT)).ok();
            let removal = fs::read(path.join(REMOVAL)).unwrap_or_default();
            let removal = serde_json::from_slice(&removal).unwrap_or_default();
            // It may hold a login, so it goes before the sidecar is asked about the rest, which takes time and may fail.
            if let Err(remaining) = remove_tree(&path.join(HOME), LOGINS_INSIDE.map(Path::new)) {
                eprintln!("cofferdam: after a run that was killed: {remaining}");
            }
            Some(Leftover { path, enrolment, removal, _lock: lock })
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

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_a_killed_run_is_found_and_that_of_a_living_one_is_not() {
        let temporary = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-directories-"));
        fs::create_dir(&temporary).unwrap();
        let living = RunDirectory::create(&RunDirectory::path_for(&temporary, "a")).unwrap();
        assert_eq!(living.path.metadata().unwrap().mode() & 0o777, 0o700);
        let killed = RunDirectory::path_for(&temporary, "b");
        fs::create_dir(&killed).unwrap();
        fs::set_permissions(&killed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        fs::write(killed.join(LOCK), "").unwrap();
        fs::write(killed.join(ENROLMENT), "e1").unwrap();
        let found = leftovers(&temporary);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].enrolment.as_deref(), Some("e1"));
        found.into_iter().for_each(Leftover::remove);
        assert!(!killed.exists() && living.path.exists());
        drop(living);
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
        fs::remove_dir(temporary).unwrap();
    }
}
