//! Attachments created with `--detach`, which survive restarts of the sidecar: one file each in `state-dir/attachments`,
//! readable by the sidecar's user alone.
//!
//! What must stay true: a file is complete or absent and holds no credential; a file that cannot be read is logged, left in
//! place and skipped. All functions block on the disk.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cofferdam_base::atomic_file::{Replace, TEMPORARY_SUFFIX, read_bounded, sync_directory, write_file};
use cofferdam_base::text::hex;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::request::{AttachmentKey, AttachmentRequest};
use crate::enrolment::Enrolment;

/// An attachment as it is stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct AttachmentRecord {
    /// Its `name` is always set.
    pub(super) request: AttachmentRequest,
    /// When the enrolment of the attachment expires. `None` if the file was written by an earlier version.
    pub(super) expires: Option<SystemTime>,
    /// The id of that enrolment. `None` if the file was written by an earlier version.
    pub(super) enrolment: Option<String>,
}

/// The content of a file, as this version writes it.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct StoredRecord {
    request: AttachmentRequest,
    /// Milliseconds since 1970: the record outlives processes and boots.
    expires_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    enrolment: Option<String>,
}

/// The content of a file of this version or an earlier one.
#[derive(Deserialize)]
#[serde(untagged)]
enum FileContent {
    Current(StoredRecord),
    WithoutExpiry(AttachmentRequest),
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{path}`")]
pub(super) struct RecordError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// A record has a few hundred bytes; a much longer file is not a record.
const MAX_FILE_BYTES: u64 = 64 * 1024;

pub(super) fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("attachments")
}

/// Reads all records, skipping files that cannot be read. A missing directory counts as empty.
pub(super) fn read_all(directory: &Path) -> Vec<AttachmentRecord> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::error!(path = %directory.display(), %error, "cannot list the stored attachments");
            return Vec::new();
        }
    };
    let mut records = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if file.starts_with('.') && file.ends_with(TEMPORARY_SUFFIX) {
            // Left over from a write that a crash interrupted.
            let _ = fs::remove_file(&path);
            continue;
        }
        let record = match read(&path) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "skipped: cannot read this file as an attachment");
                continue;
            }
        };
        let AttachmentRequest { grant, name, .. } = &record.request;
        let name = name.as_deref().unwrap_or_default();
        let current_name = file_name(grant, name);
        if file == earlier_file_name(name) {
            if let Err(error) = fs::rename(&path, directory.join(current_name)) {
                tracing::error!(path = %path.display(), %error, "cannot rename the file of an attachment: it will not be removed when the attachment ends");
            }
        } else if file != current_name {
            tracing::error!(path = %path.display(), "skipped: the file name does not match the attachment's grant and name");
            continue;
        }
        records.push(record);
    }
    let key = |record: &AttachmentRecord| (record.request.grant.clone(), record.request.name.clone());
    records.sort_by_key(key);
    records
}

/// Writes the record to its file. After `Ok` the file is on disk.
pub(super) fn write(
    directory: &Path,
    key: &AttachmentKey,
    request: AttachmentRequest,
    enrolment: &Enrolment,
) -> Result<(), RecordError> {
    let path = directory.join(file_name(key.grant.as_str(), &key.name));
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| RecordError { action, path, source }
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .and_then(|()| fs::set_permissions(directory, Permissions::from_mode(0o700)))
        .map_err(failed("create the directory", directory))?;
    let since_1970 = enrolment.expires.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let expires_ms = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
    let record = StoredRecord { request, expires_ms, enrolment: Some(enrolment.id.to_string()) };
    let mut bytes = serde_json::to_vec_pretty(&record).expect("a record is plain data");
    bytes.push(b'\n');
    write_file(directory, &path, &bytes, Replace::Always)
        .map_err(failed("write the attachment's file", &path))
}

/// Deletes the file of this attachment, if there is one.
pub(super) fn remove(directory: &Path, key: &AttachmentKey) -> Result<(), RecordError> {
    let path = directory.join(file_name(key.grant.as_str(), &key.name));
    let removed = match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        removed => removed.and_then(|()| sync_directory(directory)),
    };
    removed.map_err(|source| RecordError { action: "remove the attachment's file", path, source })
}

fn read(path: &Path) -> io::Result<AttachmentRecord> {
    Ok(match serde_json::from_slice(&read_bounded(path, MAX_FILE_BYTES)?)? {
        FileContent::Current(StoredRecord { request, expires_ms, enrolment }) => {
            let expires = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(expires_ms));
            // A time that cannot be represented is not trusted: the attachment counts as expired.
            AttachmentRecord { request, expires: Some(expires.unwrap_or(SystemTime::UNIX_EPOCH)), enrolment }
        }
        FileContent::WithoutExpiry(request) => AttachmentRecord { request, expires: None, enrolment: None },
    })
}

/// The name of a sandbox may contain any character but control characters, so the file is named by a hash. The name of a
/// grant has no slash, so the hashed texts of two attachments differ.
fn file_name(grant: &str, name: &str) -> String {
    hashed_file_name(&format!("{grant}/{name}"))
}

/// The file name in earlier versions, in which all grants shared one set of names.
fn earlier_file_name(name: &str) -> String {
    hashed_file_name(name)
}

fn hashed_file_name(text: &str) -> String {
    format!("{}.json", hex(&digest(&SHA256, text.as_bytes()).as_ref()[..16]))
}

#[cfg(test)]
mod tests {
    use super::super::request::Route;
    use super::super::status::Kind;
    use super::*;

    fn request(grant: &str, name: &str) -> AttachmentRequest {
        AttachmentRequest {
            kind: Kind::E2b,
            platform: Some("e2b".into()),
            sandbox: "i4x9k2".into(),
            grant: grant.into(),
            name: Some(name.into()),
            ttl_ms: None,
            resume: true,
            keep_awake: false,
            via: Route::Preview,
            shim: None,
            harness: None,
        }
    }

    fn key(grant: &str, name: &str) -> AttachmentKey {
        AttachmentKey { grant: grant.parse().unwrap(), name: name.into() }
    }

    fn expiry() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_123)
    }

    /// A temporary directory, removed on drop.
    struct Directory(PathBuf);

    impl Directory {
        fn new() -> Self {
            Self(std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-attachments-")))
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn enrolment(grant: &str) -> Enrolment {
        Enrolment { id: "e-1".into(), grant: grant.parse().unwrap(), name: None, expires: expiry() }
    }

    #[test]
    fn records_are_read_as_they_were_written_until_they_are_removed() {
        let state = Directory::new();
        let directory = directory(&state.0);
        assert_eq!(read_all(&directory), []);
        let all = [("dev", "box 1"), ("dev", "box/../2"), ("other", "box 1")];
        for (grant, name) in all {
            write(&directory, &key(grant, name), request(grant, name), &enrolment(grant)).unwrap();
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        assert!(fs::read_dir(&directory).unwrap().all(|entry| mode(&entry.unwrap().path()) == 0o600));
        fs::write(directory.join("other.json"), "{}").unwrap();
        fs::write(directory.join(format!(".x{TEMPORARY_SUFFIX}")), "{").unwrap();
        let record = |(grant, name): (&str, &str)| AttachmentRecord {
            request: request(grant, name),
            expires: Some(expiry()),
            enrolment: Some("e-1".into()),
        };
        assert_eq!(read_all(&directory), all.map(record));
        remove(&directory, &key("dev", "box 1")).unwrap();
        remove(&directory, &key("dev", "box 1")).unwrap();
        assert_eq!(read_all(&directory), all[1..].iter().copied().map(record).collect::<Vec<_>>());
    }

    #[test]
    fn a_file_of_an_earlier_version_is_read_and_removed() {
        let state = Directory::new();
        let directory = directory(&state.0);
        fs::create_dir_all(&directory).unwrap();
        let text = serde_json::to_string(&request("dev", "box 1")).unwrap();
        fs::write(directory.join(earlier_file_name("box 1")), text).unwrap();
        for _ in 0..2 {
            let record =
                AttachmentRecord { request: request("dev", "box 1"), expires: None, enrolment: None };
            assert_eq!(read_all(&directory), [record]);
        }
        remove(&directory, &key("dev", "box 1")).unwrap();
        assert_eq!(read_all(&directory), []);
    }
}
