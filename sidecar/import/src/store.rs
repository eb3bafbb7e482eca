//! The directory `secrets/` beside the configuration: files with secrets, and `import/` with backups and their record.
//!
//! What must stay true: its directories have mode 0700 and its files 0600 from the moment they exist, or before a secret is
//! written to a directory that existed before; a file with other content is not replaced; one import at a time writes here.
//! `.gitignore` keeps it out of repositories.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{self, Replace, TEMPORARY_SUFFIX};
use cofferdam_base::{FileLock, FileLockError};
use zeroize::Zeroizing;

use crate::plan::{Fields, Held};

const DIRECTORY: &str = "secrets";
const IMPORTS: &str = "import";
const LOCK: &str = "lock";
/// The permission bits of group and others.
const OTHERS: u32 = 0o077;
const MAX_IGNORE_BYTES: u64 = 1024 * 1024;
const MAX_SECRET_BYTES: u64 = 1024 * 1024;
/// Each byte of a text becomes at most this many bytes in JSON.
const MAX_ESCAPED_BYTES: usize = 6;

/// The store beside one configuration. It may not exist yet.
#[derive(Clone)]
pub struct Store {
    directory: PathBuf,
}

/// Holds off other imports until it is dropped.
pub(crate) struct StoreLock {
    _lock: FileLock,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("another import is running: it holds `{}`", lock.display())]
    Busy { lock: PathBuf },
    #[error("`{}` is of a newer version: its format is {format}, and this version knows {known}", path.display())]
    Newer { path: PathBuf, format: u32, known: u32 },
    #[error("cannot read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Store {
    /// The store of the configuration at this path.
    pub fn beside(configuration: &Path) -> Self {
        let directory = configuration.parent().unwrap_or(Path::new(""));
        Self { directory: directory.join(DIRECTORY) }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn imports(&self) -> PathBuf {
        self.directory.join(IMPORTS)
    }

    /// Makes the directories, or closes them to others, and locks them. Removes what an interrupted import has not finished
    /// writing.
    pub(crate) fn open(&self) -> Result<StoreLock, StoreError> {
        let imports = self.imports();
        let written = |path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Write { path, source }
        };
        for directory in [&self.directory, &imports] {
            DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(written(directory))?;
            close_to_others(directory).map_err(written(directory))?;
        }
        let path = imports.join(LOCK);
        let lock = FileLock::take(&path).map_err(|error| match error {
            FileLockError::Held => StoreError::Busy { lock: path.clone() },
            FileLockError::Io(source) => written(&path)(source),
        })?;
        for directory in [&self.directory, &imports] {
            remove_temporary_files(directory);
        }
        let ignore = self.directory.join(".gitignore");
        ignore_everything(&self.directory, &ignore).map_err(written(&ignore))?;
        Ok(StoreLock { _lock: lock })
    }

    /// What a file of the store holds. `place` is relative to the directory of the configuration.
    pub fn held(&self, place: &str, fields: &Fields) -> Result<Held, StoreError> {
        let path = self.path_of(place);
        match atomic_file::read_bounded(&path, MAX_SECRET_BYTES).map(Zeroizing::new) {
            Ok(bytes) if *bytes == *encode_fields(fields) => Ok(Held::Same),
            Ok(_) => Ok(Held::Other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Held::Nothing),
            // Not a file of ours.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Ok(Held::Other),
            Err(source) => Err(StoreError::Read { path, source }),
        }
    }

    pub(crate) fn write_secret(&self, place: &str, fields: &Fields) -> Result<(), StoreError> {
        let path = self.path_of(place);
        match atomic_file::write_file(&self.directory, &path, &encode_fields(fields), Replace::Never) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match self.held(place, fields)? {
                Held::Same => Ok(()),
                Held::Nothing | Held::Other => Err(StoreError::Write { path, source: error }),
            },
            Err(source) => Err(StoreError::Write { path, source }),
        }
    }

    fn path_of(&self, place: &str) -> PathBuf {
        self.directory.parent().unwrap_or(Path::new("")).join(place)
    }
}

/// A JSON object, in memory that is wiped.
pub fn encode_fields(fields: &Fields) -> Zeroizing<Vec<u8>> {
    let length =
        |(name, value): (&String, &Zeroizing<String>)| (name.len() + value.len()) * MAX_ESCAPED_BYTES + 8;
    // Allocated at once: growing would leave copies that are not wiped.
    let mut encoded = Zeroizing::new(Vec::with_capacity(4 + fields.iter().map(length).sum::<usize>()));
    encoded.push(b'{');
    for (index, (name, value)) in fields.iter().enumerate() {
        if index > 0 {
            encoded.push(b',');
        }
        let written = serde_json::to_writer(&mut *encoded, name).and_then(|()| {
            encoded.push(b':');
            serde_json::to_writer(&mut *encoded, value.as_str())
        });
        written.expect("writing to memory does not fail");
    }
    encoded.extend_from_slice(b"}\n");
    encoded
}

/// A directory that existed before may have another mode.
fn close_to_others(directory: &Path) -> io::Result<()> {
    let mode = fs::metadata(directory)?.mode();
    if mode & OTHERS == 0 {
        return Ok(());
    }
    fs::set_permissions(directory, Permissions::from_mode(mode & 0o7777 & !OTHERS))
}

/// Writes the file `.gitignore`. In one that is there, the last pattern that matches a file decides about it, so the line is
/// added unless it is the last.
fn ignore_everything(directory: &Path, ignore: &Path) -> io::Result<()> {
    let present = match atomic_file::read_bounded(ignore, MAX_IGNORE_BYTES) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let mut patterns = present.lines().rev().filter(|line| !line.is_empty() && !line.starts_with('#'));
    if patterns.next() == Some("*") {
        return Ok(());
    }
    let separator = if present.is_empty() || present.ends_with('\n') { "" } else { "\n" };
    let text = format!("{present}{separator}*\n");
    atomic_file::write_file(directory, ignore, text.as_bytes(), Replace::Always)
}

fn remove_temporary_files(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_temporary =
            name.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX));
        if is_temporary {
            // What cannot be removed is found again by the next import.
            let _ = fs::remove_file(entry.path());
        }
    }
}
