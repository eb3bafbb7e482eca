//! A lock that one process at a time holds, on a file that exists for it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Held until it is dropped, or the process exits.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

#[derive(Debug, thiserror::Error)]
pub enum FileLockError {
    #[error("another process holds it")]
    Held,
    #[error("it cannot be opened or locked")]
    Io(#[source] io::Error),
}

impl FileLock {
    /// Takes the lock without waiting. Creates the file for this user only.
    pub fn take(path: &Path) -> Result<Self, FileLockError> {
        let mut options = File::options();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(path);
        let file = file.map_err(FileLockError::Io)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(FileLockError::Held),
            Err(TryLockError::Error(error)) => Err(FileLockError::Io(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_once_until_it_is_dropped_and_other_errors_are_told_apart() {
        let path = std::env::temp_dir().join(crate::random::id("cofferdam-lock-"));
        let held = FileLock::take(&path).unwrap();
        assert!(matches!(FileLock::take(&path), Err(FileLockError::Held)));
        drop(held);
        drop(FileLock::take(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(FileLock::take(&path.join("lock")), Err(FileLockError::Io(_))));
    }
}
