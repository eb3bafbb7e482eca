//! The files of enrolments: one each, written atomically, readable by the sidecar's user alone.
//!
//! What must stay true: a file under a record's name is complete and synced; a file that cannot be read is logged, left in
//! place and skipped, so that one bad file does not lock all sandboxes out.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{Replace, TEMPORARY_SUFFIX, read_bounded, sync_directory, write_file};

use super::record::Record;

#[derive(Debug, thiserror::Error)]
#[error("{action} `{path}`")]
pub(crate) struct StoreError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl StoreError {
    pub(super) fn new(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { action, path: path.into(), source }
    }
}

/// A record has a few hundred bytes; a much longer file is not a record.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// Creates the directory with mode 0700, or sets that mode: only the sidecar's user may read it.
pub(super) fn create_private_directory(directory: &Path) -> Result<(), StoreError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(StoreError::new("create the directory", directory))?;
    fs::set_permissions(directory, Permissions::from_mode(0o700))
        .map_err(StoreError::new("set mode 0700 on", directory))
}

/// Reads all records that can be read; logs and skips the others.
pub(super) fn read_all(directory: &Path) -> Result<Vec<Record>, StoreError> {
    let mut records = Vec::new();
    let list = fs::read_dir(directory).map_err(StoreError::new("list", directory))?;
    for entry in list {
        let path = entry.map_err(StoreError::new("list", directory))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX) {
            // Left over from a write that a crash interrupted; the previous record is intact.
            let _ = fs::remove_file(&path);
            continue;
        }
        match read(&path) {
            Ok(record) if name == file_name(&record.id) => records.push(record),
            Ok(record) => {
                tracing::error!(path = %path.display(), id = record.id, "skipped: the file's name differs from the enrolment's id");
            }
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "skipped: cannot read this file as an enrolment")
            }
        }
    }
    Ok(records)
}

/// Reads the records that can be read, without any change: a sidecar that runs may be writing there.
pub(super) fn read_unchanged(directory: &Path) -> io::Result<Vec<Record>> {
    let paths = fs::read_dir(directory)?.filter_map(|entry| Some(entry.ok()?.path()));
    let complete = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    Ok(complete.filter_map(|path| read(&path).ok()).collect())
}

/// Writes a temporary file, syncs it, renames it and syncs the directory: when this returns, the record is durable.
pub(super) fn write(directory: &Path, record: &Record) -> Result<(), StoreError> {
    let path = directory.join(file_name(&record.id));
    let mut bytes = serde_json::to_vec_pretty(record).expect("a record is plain data");
    bytes.push(b'\n');
    write_file(directory, &path, &bytes, Replace::Always)
        .map_err(StoreError::new("write the enrolment", &path))
}

pub(super) fn remove(directory: &Path, id: &str) -> Result<(), StoreError> {
    let path = directory.join(file_name(id));
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::new("remove the enrolment", &path)(error))
        }
        _ => sync_directory(directory).map_err(StoreError::new("sync", directory)),
    }
}

fn read(path: &Path) -> io::Result<Record> {
    Ok(serde_json::from_slice(&read_bounded(path, MAX_FILE_BYTES)?)?)
}

fn file_name(id: &str) -> String {
    format!("{id}.json")
}
