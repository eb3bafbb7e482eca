//! Reads files, and replaces them unless another program has changed them meanwhile.
//!
//! What must stay true: a file is replaced as a whole or not at all; while it is written, only this user can read it; the new
//! file has the mode and the owner of the old one. No symbolic link is followed.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{self, TEMPORARY_SUFFIX};
use cofferdam_base::random;
use nix::unistd::{Gid, Uid, fchown};
use ring::digest::{SHA256, digest};
use zeroize::Zeroizing;

/// Claude Code stores a history of projects in its settings.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// What a file was when it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileVersion {
    /// SHA-256, in hexadecimal digits.
    pub digest: String,
    mode: u32,
    owner: (u32, u32),
}

/// A file that may be absent.
pub enum FileState {
    Absent,
    Present { version: FileVersion, bytes: Zeroizing<Vec<u8>> },
}

#[derive(Debug, thiserror::Error)]
pub enum ReadFileError {
    #[error("it is a symbolic link to `{}`", target.display())]
    SymbolicLink { target: PathBuf },
    #[error("it cannot be read")]
    Read(#[source] io::Error),
}

/// Why a file was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    #[error("another program has changed it meanwhile")]
    Changed,
    #[error("it cannot be written")]
    Write(#[source] io::Error),
}

/// Reads a file with its version.
pub fn read_version(path: &Path) -> Result<FileState, ReadFileError> {
    if let Ok(target) = fs::read_link(path) {
        return Err(ReadFileError::SymbolicLink { target });
    }
    let (mut mode, mut owner) = (0, (0, 0));
    let bytes = atomic_file::read_checked(path, MAX_BYTES, |metadata| {
        (mode, owner) = (metadata.mode() & 0o7777, (metadata.uid(), metadata.gid()));
        Ok(())
    });
    match bytes.map(Zeroizing::new) {
        Ok(bytes) => Ok(FileState::Present {
            version: FileVersion { digest: hexadecimal(&bytes), mode, owner },
            bytes,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FileState::Absent),
        Err(error) => Err(ReadFileError::Read(error)),
    }
}

/// The digest of bytes as [`FileVersion`] has it.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    cofferdam_base::text::hex(digest(&SHA256, bytes).as_ref())
}

/// Whether a file is still as it was when it was read; `None` stands for a file that was absent.
pub(crate) fn is_unchanged(path: &Path, version: Option<&FileVersion>) -> bool {
    match (read_version(path), version) {
        (Ok(FileState::Absent), None) => true,
        (Ok(FileState::Present { version, .. }), Some(expected)) => version.digest == expected.digest,
        _ => false,
    }
}

/// Replaces a file that is still as it was read. A new file gets the mode 0600.
pub fn replace(path: &Path, bytes: &[u8], expected: Option<&FileVersion>) -> Result<(), ReplaceError> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let temporary = directory.join(format!(".{}{TEMPORARY_SUFFIX}", random::hex::<8>()));
    let replaced = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(ReplaceError::Write)?;
        write(&mut file, bytes, expected).map_err(ReplaceError::Write)?;
        if !is_unchanged(path, expected) {
            return Err(ReplaceError::Changed);
        }
        let placed = match expected {
            Some(_) => fs::rename(&temporary, path),
            // A link is made only if there is no such file.
            None => fs::hard_link(&temporary, path).and_then(|()| fs::remove_file(&temporary)),
        };
        placed.and_then(|()| atomic_file::sync_directory(directory)).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => ReplaceError::Changed,
            _ => ReplaceError::Write(error),
        })
    })();
    replaced.inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

fn write(file: &mut File, bytes: &[u8], like: Option<&FileVersion>) -> io::Result<()> {
    file.write_all(bytes)?;
    if let Some(FileVersion { mode, owner: (user, group), .. }) = like {
        let metadata = file.metadata()?;
        if (metadata.uid(), metadata.gid()) != (*user, *group) {
            fchown(file.as_fd(), Some(Uid::from_raw(*user)), Some(Gid::from_raw(*group)))?;
        }
        file.set_permissions(Permissions::from_mode(*mode))?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_as_it_was_read_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("settings.json");
        fs::write(&path, "first").unwrap();
        let FileState::Present { version, .. } = read_version(&path).unwrap() else { panic!("it is there") };
        for change in [Some("second"), None] {
            match change {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let replaced = replace(&path, b"mine", Some(&version));
            assert!(matches!(replaced, Err(ReplaceError::Changed)), "{replaced:?}");
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), change);
        }
        fs::write(&path, "made meanwhile").unwrap();
        assert!(matches!(replace(&path, b"mine", None), Err(ReplaceError::Changed)));
        assert_eq!(fs::read_to_string(&path).unwrap(), "made meanwhile");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "a temporary file is left");
        let FileState::Present { version, .. } = read_version(&path).unwrap() else { panic!("it is there") };
        replace(&path, b"mine", Some(&version)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
