//! What was made, in the state directory, so that it can be undone and recognised.
//!
//! What must stay true: an object is recorded before it is made, with the fingerprint that it will have; the fingerprints
//! before a change stay until the change is made; the file has no secret in it (the fingerprint of a credential file is a
//! hash of at least 122 random bits).

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{self, Replace};
use cofferdam_base::text::hex;
use cofferdam_base::{FileLock, FileLockError, random};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::objects::ObjectId;

const FILE_NAME: &str = "vault-setup.json";
const LOCK_NAME: &str = "vault-setup.lock";
/// A record has a few hundred bytes for each object.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
const VERSION: u32 = 1;

/// What one configuration's set-up has made in one Vault.
#[derive(Debug)]
pub struct Record {
    state_dir: PathBuf,
    content: Content,
}

/// Held while a set-up runs: two at once would overwrite each other's record.
#[derive(Debug)]
pub struct SetupLock {
    _lock: FileLock,
}

/// What every version of the record has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    address: String,
    namespace: String,
    /// The name of the sidecar's policy, and of its AppRole.
    name: String,
    /// Random; written into what is made, where there is a place for it.
    mark: String,
    /// In the order in which it was made.
    made: Vec<Made>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Made {
    object: ObjectId,
    /// What the object may look like: one fingerprint, or two if a change was interrupted.
    fingerprints: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("another `cofferdam vault setup` runs with the same `state-dir`")]
    Busy,
    #[error("the record `{}` is of another Vault: {theirs}", file.display())]
    OtherVault { file: PathBuf, theirs: String },
    #[error("the record `{}` is of a newer version: its format is {format}, and this version knows {VERSION}", file.display())]
    Newer { file: PathBuf, format: u32 },
    #[error("cannot read the record `{}`", file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("cannot write the record `{}`", file.display())]
    Write { file: PathBuf, source: io::Error },
}

impl SetupLock {
    pub fn take(state_dir: &Path) -> Result<Self, RecordError> {
        let path = state_dir.join(LOCK_NAME);
        let failed = |source| RecordError::Write { file: path.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(state_dir).map_err(failed)?;
        match FileLock::take(&path) {
            Ok(lock) => Ok(Self { _lock: lock }),
            Err(FileLockError::Held) => Err(RecordError::Busy),
            Err(FileLockError::Io(error)) => Err(failed(error)),
        }
    }
}

impl Record {
    /// Reads the record, or begins an empty one, which is not written yet.
    pub fn open(state_dir: &Path, address: &str, namespace: &str) -> Result<Self, RecordError> {
        let file = state_dir.join(FILE_NAME);
        let failed = |source| RecordError::Read { file: file.clone(), source };
        let content = match atomic_file::read_bounded(&file, MAX_FILE_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Content {
                version: VERSION,
                address: address.to_owned(),
                namespace: namespace.to_owned(),
                name: String::new(),
                mark: random::hex::<8>(),
                made: Vec::new(),
            },
            read => {
                let bytes = read.map_err(failed)?;
                let invalid = |error| failed(io::Error::new(io::ErrorKind::InvalidData, error));
                let Versioned { version: format } = serde_json::from_slice(&bytes).map_err(invalid)?;
                if format > VERSION {
                    return Err(RecordError::Newer { file, format });
                }
                serde_json::from_slice(&bytes).map_err(invalid)?
            }
        };
        if (content.address.as_str(), content.namespace.as_str()) != (address, namespace) {
            let theirs = match content.namespace.as_str() {
                "" => content.address,
                namespace => format!("{}, namespace `{namespace}`", content.address),
            };
            return Err(RecordError::OtherVault { file, theirs });
        }
        Ok(Self { state_dir: state_dir.to_owned(), content })
    }

    /// Written into what is made.
    pub fn mark(&self) -> &str {
        &self.content.mark
    }

    /// The name of the sidecar's policy and AppRole in earlier runs.
    pub fn name(&self) -> Option<&str> {
        Some(self.content.name.as_str()).filter(|name| !name.is_empty())
    }

    pub fn set_name(&mut self, name: &str) {
        self.content.name = name.to_owned();
    }

    pub fn is_empty(&self) -> bool {
        self.content.made.is_empty()
    }

    /// What was made, the last first.
    pub fn made(&self) -> impl Iterator<Item = &ObjectId> {
        self.content.made.iter().rev().map(|made| &made.object)
    }

    pub fn contains(&self, object: &ObjectId) -> bool {
        self.content.made.iter().any(|made| made.object == *object)
    }

    /// Whether the object is one that was made here and looks as it was made.
    pub fn recognises(&self, object: &ObjectId, fingerprint: &str) -> bool {
        let mut made = self.content.made.iter().filter(|made| made.object == *object);
        made.any(|made| made.fingerprints.iter().any(|known| known == fingerprint))
    }

    /// To be called before the object is made or changed.
    pub fn intend(&mut self, object: &ObjectId, fingerprint: &str) -> Result<(), RecordError> {
        match self.content.made.iter_mut().find(|made| made.object == *object) {
            Some(made) if made.fingerprints.iter().any(|known| known == fingerprint) => {}
            Some(made) => made.fingerprints.push(fingerprint.to_owned()),
            None => {
                let made = Made { object: object.clone(), fingerprints: vec![fingerprint.to_owned()] };
                self.content.made.push(made);
            }
        }
        self.write()
    }

    /// To be called when the object is made or changed.
    pub fn confirm(&mut self, object: &ObjectId, fingerprint: &str) -> Result<(), RecordError> {
        if let Some(made) = self.content.made.iter_mut().find(|made| made.object == *object) {
            made.fingerprints = vec![fingerprint.to_owned()];
        }
        self.write()
    }

    /// To be called when the object is removed. An empty record is deleted.
    pub fn forget(&mut self, object: &ObjectId) -> Result<(), RecordError> {
        self.content.made.retain(|made| made.object != *object);
        self.write()
    }

    fn write(&self) -> Result<(), RecordError> {
        let file = self.state_dir.join(FILE_NAME);
        let written = match self.content.made.is_empty() {
            true => fs::remove_file(&file).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
            false => serde_json::to_vec_pretty(&self.content)
                .map_err(io::Error::other)
                .and_then(|bytes| atomic_file::write_file(&self.state_dir, &file, &bytes, Replace::Always)),
        };
        written.map_err(|source| RecordError::Write { file, source })
    }
}

/// Identifies the lines of an object.
pub(crate) fn fingerprint(lines: &[String]) -> String {
    content_fingerprint(lines.join("\n").as_bytes())
}

/// Identifies the content of a file.
pub(crate) fn content_fingerprint(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(directory: &Path) -> Record {
        Record::open(directory, "http://127.0.0.1:8200", "").unwrap()
    }

    #[test]
    fn an_interrupted_change_is_recognised_before_and_after() {
        let directory = tempfile::tempdir().unwrap();
        let policy = ObjectId::Policy { name: "agent".into() };
        let mut record = open(directory.path());
        record.intend(&policy, "one").unwrap();
        record.confirm(&policy, "one").unwrap();
        record.intend(&policy, "two").unwrap();
        let mark = record.mark().to_owned();
        let mut record = open(directory.path());
        assert_eq!(record.mark(), mark);
        assert!(record.recognises(&policy, "one") && record.recognises(&policy, "two"));
        assert!(!record.recognises(&policy, "three"));
        record.confirm(&policy, "two").unwrap();
        assert!(!record.recognises(&policy, "one"));
        record.forget(&policy).unwrap();
        assert!(!directory.path().join(FILE_NAME).exists());
    }

    #[test]
    fn a_record_of_a_newer_version_is_refused_although_it_has_other_members() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE_NAME), r#"{"version": 2, "new": {}}"#).unwrap();
        let refused = Record::open(directory.path(), "http://127.0.0.1:8200", "");
        assert!(matches!(refused, Err(RecordError::Newer { format: 2, .. })), "{refused:?}");
    }

    #[test]
    fn the_record_of_another_vault_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut record = open(directory.path());
        record.intend(&ObjectId::Policy { name: "agent".into() }, "one").unwrap();
        let error = Record::open(directory.path(), "http://127.0.0.1:8300", "").unwrap_err();
        assert!(error.to_string().ends_with("is of another Vault: http://127.0.0.1:8200"), "{error}");
        assert!(Record::open(directory.path(), "http://127.0.0.1:8200", "team-a").is_err());
        fs::write(directory.path().join(FILE_NAME), "{").unwrap();
        assert!(matches!(
            Record::open(directory.path(), "http://127.0.0.1:8200", ""),
            Err(RecordError::Read { .. })
        ));
    }

    #[test]
    fn two_runs_at_once_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let first = SetupLock::take(directory.path()).unwrap();
        assert!(matches!(SetupLock::take(directory.path()), Err(RecordError::Busy)));
        drop(first);
        assert!(SetupLock::take(directory.path()).is_ok());
    }
}
