//! Stores the accessors of tokens of sessions and of the sidecar's login on disk, so that after a crash the next sidecar process can revoke the
//! tokens.
//!
//! What must stay true: no token is ever written, only its accessor; a file is written before its token is first used,
//! and is removed only when Vault has confirmed that the token is gone; only the sidecar's user can read it.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{self, Replace};
use cofferdam_base::text::hex;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::token::Accessor;

/// A file holds two short texts.
const MAX_FILE_BYTES: u64 = 4096;
/// At most this many files are read: more than a sidecar has tokens.
const MAX_FILES: usize = 10_000;

pub(crate) struct AccessorFiles {
    directory: PathBuf,
}

/// A token that an earlier sidecar made and did not revoke.
pub(crate) struct LeftoverToken {
    pub(crate) accessor: Accessor,
    /// The session that it was issued for; `None` for a token of the sidecar's login.
    pub(crate) session: Option<String>,
    file: PathBuf,
}

/// What a token was created for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AccessorOwner<'a> {
    Login,
    Session(&'a str),
}

#[derive(Deserialize, Serialize)]
struct AccessorFile {
    accessor: String,
    /// `None` for a token of the login.
    session: Option<String>,
}

impl AccessorFiles {
    /// Opens the directory and returns the tokens that an earlier sidecar left. Deletes unfinished files (any without
    /// `.json`).
    pub(crate) fn open(state: &Path) -> io::Result<(Self, Vec<LeftoverToken>)> {
        let directory = state.join("vault");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let mut leftover = Vec::new();
        for entry in fs::read_dir(&directory)?.take(MAX_FILES).flatten() {
            let file = entry.path();
            if file.extension().is_none_or(|end| end != "json") {
                let _ = fs::remove_file(&file);
                continue;
            }
            let read = atomic_file::read_bounded(&file, MAX_FILE_BYTES);
            match read.ok().and_then(|bytes| serde_json::from_slice::<AccessorFile>(&bytes).ok()) {
                Some(AccessorFile { accessor, session }) => {
                    leftover.push(LeftoverToken { accessor: Accessor::new(accessor), session, file });
                }
                None => {
                    tracing::error!(file = %file.display(), "not a file with a Vault accessor; remove it");
                }
            }
        }
        Ok((Self { directory }, leftover))
    }

    /// Blocks.
    pub(crate) fn write(&self, accessor: &Accessor, owner: AccessorOwner<'_>) -> io::Result<()> {
        let session = match owner {
            AccessorOwner::Login => None,
            AccessorOwner::Session(session) => Some(session.to_owned()),
        };
        let contents = AccessorFile { accessor: accessor.as_str().into(), session };
        let bytes = serde_json::to_vec(&contents)?;
        atomic_file::write_file(&self.directory, &self.file(accessor), &bytes, Replace::Always)
    }

    /// Blocks.
    pub(crate) fn remove(&self, accessor: &Accessor) {
        let _ = fs::remove_file(self.file(accessor));
    }

    fn file(&self, accessor: &Accessor) -> PathBuf {
        let hash = digest(&SHA256, accessor.as_str().as_bytes());
        self.directory.join(format!("{}.json", hex(&hash.as_ref()[..16])))
    }
}

impl LeftoverToken {
    /// Blocks.
    pub(crate) fn remove_file(&self) {
        let _ = fs::remove_file(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn accessors_are_private_and_found_by_the_next_sidecar() {
        let state =
            std::env::temp_dir().join(format!("cofferdam-accessors-{}", cofferdam_base::random::hex::<8>()));
        let (files, leftover) = AccessorFiles::open(&state).unwrap();
        assert!(leftover.is_empty());
        let accessor = Accessor::new("abcdefgh12345678");
        files.write(&accessor, AccessorOwner::Session("s1")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&files.file(&accessor)), mode(&state.join("vault"))), (0o600, 0o700));
        assert!(!files.file(&accessor).to_string_lossy().contains("abcdefgh"));
        fs::write(state.join("vault/broken.json"), "{").unwrap();
        let (_, leftover) = AccessorFiles::open(&state).unwrap();
        assert_eq!(leftover.len(), 1);
        let found = &leftover[0];
        assert_eq!((found.accessor.as_str(), found.session.as_deref()), ("abcdefgh12345678", Some("s1")));
        files.remove(&accessor);
        files.write(&accessor, AccessorOwner::Login).unwrap();
        assert_eq!(AccessorFiles::open(&state).unwrap().1[0].session, None);
        files.remove(&accessor);
        assert!(AccessorFiles::open(&state).unwrap().1.is_empty());
        fs::remove_dir_all(&state).unwrap();
    }
}
