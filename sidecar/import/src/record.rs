//! The record of rewritten settings files, and their backups.
//!
//! What must stay true: a file is recorded, and its backup written, before it is rewritten; the record has digests and paths
//! in it, no content of a file; a backup is removed only by `forget`, or once its file has its bytes again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{self, Replace};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::edit::EntryPath;
use crate::file_change::{
    FileState, FileVersion, ReadFileError, ReplaceError, hexadecimal, read_version, replace,
};
use crate::settings::{HarnessEditError, Settings};
use crate::store::{Store, StoreError};

const FILE: &str = "record.json";
const VERSION: u32 = 1;
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// The rewritten settings files, the oldest first.
#[derive(Debug)]
pub struct Record {
    directory: PathBuf,
    content: Content,
}

/// What every version of the record has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Debug, Deserialize, Serialize)]
struct Content {
    version: u32,
    rewritings: Vec<Rewriting>,
}

/// One rewriting of a settings file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Rewriting {
    /// Absolute.
    pub settings: PathBuf,
    /// The digest before, which is also the name of the backup.
    before: String,
    /// The digest of the rewritten file.
    after: String,
    entries: Vec<Vec<String>>,
}

/// How a settings file was restored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Undone {
    /// It has the bytes that it had before.
    Bytes,
    /// Another program has changed it since, so that its entries alone were restored, without those that are listed.
    Entries { left: Vec<String> },
    /// It was not rewritten.
    Unchanged,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("`{}` cannot be restored", settings.display())]
    Entries {
        settings: PathBuf,
        #[source]
        source: HarnessEditError,
    },
    #[error("no import of `{}` is recorded", .0.display())]
    NotRecorded(PathBuf),
    #[error("`{}` cannot be restored", settings.display())]
    Read {
        settings: PathBuf,
        #[source]
        source: ReadFileError,
    },
    #[error("`{}` cannot be restored", settings.display())]
    Replace {
        settings: PathBuf,
        #[source]
        source: ReplaceError,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Record {
    /// Reads the record; it is empty if there is none.
    pub fn read(store: &Store) -> Result<Self, StoreError> {
        let directory = store.imports();
        let path = directory.join(FILE);
        let unreadable = |source| StoreError::Read { path: path.clone(), source };
        let content = match atomic_file::read_bounded(&path, MAX_BYTES) {
            Ok(bytes) => {
                let parsed = serde_json::from_slice::<Versioned>(&bytes);
                let format = parsed.map_err(|error| unreadable(io::Error::other(error)))?.version;
                if format > VERSION {
                    return Err(StoreError::Newer { path, format, known: VERSION });
                }
                serde_json::from_slice(&bytes).map_err(|error| unreadable(io::Error::other(error)))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Content { version: VERSION, rewritings: Vec::new() }
            }
            Err(error) => return Err(unreadable(error)),
        };
        Ok(Self { directory, content })
    }

    pub fn rewritings(&self) -> &[Rewriting] {
        &self.content.rewritings
    }

    /// Stores the backup of a file, then records it.
    pub(crate) fn add(
        &mut self,
        settings: &Path,
        original: &[u8],
        rewritten: &[u8],
        entries: &[EntryPath],
    ) -> Result<(), StoreError> {
        let rewriting = Rewriting {
            settings: settings.to_owned(),
            before: hexadecimal(original),
            after: hexadecimal(rewritten),
            entries: entries.iter().map(|entry| entry.0.clone()).collect(),
        };
        let backup = self.backup_of(&rewriting);
        atomic_file::write_file(&self.directory, &backup, original, Replace::Always)
            .map_err(|source| StoreError::Write { path: backup, source })?;
        // An import that was interrupted before the file was rewritten is recorded already.
        self.content
            .rewritings
            .retain(|other| (&other.settings, &other.before) != (&rewriting.settings, &rewriting.before));
        self.content.rewritings.push(rewriting);
        self.write()
    }

    /// Restores a settings file as it was before its last rewriting.
    pub fn undo(&mut self, store: &Store, settings: &Path) -> Result<Undone, RecordError> {
        if !self.rewritings().iter().any(|rewriting| rewriting.settings == settings) {
            return Err(RecordError::NotRecorded(settings.to_owned()));
        }
        let _lock = store.open()?;
        // Another import may have changed it before the lock was held.
        *self = Self::read(store)?;
        let Some(index) =
            self.content.rewritings.iter().rposition(|rewriting| rewriting.settings == settings)
        else {
            return Err(RecordError::NotRecorded(settings.to_owned()));
        };
        let rewriting = self.content.rewritings[index].clone();
        let backup = self.backup_of(&rewriting);
        let original = atomic_file::read_bounded(&backup, MAX_BYTES)
            .map(Zeroizing::new)
            .map_err(|source| StoreError::Read { path: backup.clone(), source })?;
        let failed = |source| RecordError::Read { settings: settings.to_owned(), source };
        let (undone, bytes, version) = match read_version(settings).map_err(failed)? {
            FileState::Absent => (Undone::Bytes, original, None),
            FileState::Present { version, .. } if version.digest == rewriting.before => {
                (Undone::Unchanged, original, Some(version))
            }
            FileState::Present { version, .. } if version.digest == rewriting.after => {
                (Undone::Bytes, original, Some(version))
            }
            FileState::Present { version, bytes } => {
                let entries: Vec<EntryPath> = rewriting.entries.iter().cloned().map(EntryPath).collect();
                let restored = Settings::restored(settings, &bytes, &original, &entries)
                    .map_err(|source| RecordError::Entries { settings: settings.to_owned(), source })?;
                let left = restored.left.iter().filter_map(|entry| entry.0.last().cloned()).collect();
                (Undone::Entries { left }, restored.bytes, Some(version))
            }
        };
        if undone != Undone::Unchanged {
            replace_settings(settings, &bytes, version.as_ref())?;
        }
        // While one entry is left, the backup is the only place with its definition.
        if !matches!(&undone, Undone::Entries { left } if !left.is_empty()) {
            self.content.rewritings.remove(index);
            self.write()?;
            self.remove_backup(&rewriting)?;
        }
        Ok(undone)
    }

    /// Deletes all backups and the record.
    pub fn forget(mut self, store: &Store) -> Result<usize, StoreError> {
        let _lock = store.open()?;
        self = Self::read(store)?;
        let rewritings = std::mem::take(&mut self.content.rewritings);
        for rewriting in &rewritings {
            self.remove_backup(rewriting)?;
        }
        // Backups that an interrupted import has not recorded.
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "backup") {
                remove(&entry.path())?;
            }
        }
        remove(&self.directory.join(FILE))?;
        Ok(rewritings.len())
    }

    fn backup_of(&self, rewriting: &Rewriting) -> PathBuf {
        let path = hexadecimal(rewriting.settings.as_os_str().as_encoded_bytes());
        self.directory.join(format!("{}-{}.backup", &path[..16], &rewriting.before[..16]))
    }

    fn remove_backup(&self, rewriting: &Rewriting) -> Result<(), StoreError> {
        let backup = self.backup_of(rewriting);
        match self.content.rewritings.iter().any(|other| self.backup_of(other) == backup) {
            true => Ok(()),
            false => remove(&backup),
        }
    }

    fn write(&self) -> Result<(), StoreError> {
        let path = self.directory.join(FILE);
        let bytes = serde_json::to_vec_pretty(&self.content).expect("paths and digests are JSON");
        atomic_file::write_file(&self.directory, &path, &bytes, Replace::Always)
            .map_err(|source| StoreError::Write { path, source })
    }
}

fn replace_settings(settings: &Path, bytes: &[u8], version: Option<&FileVersion>) -> Result<(), RecordError> {
    replace(settings, bytes, version)
        .map_err(|source| RecordError::Replace { settings: settings.to_owned(), source })
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::Write { path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}
