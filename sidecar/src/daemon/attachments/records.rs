//! The attachments that `--detach` left in the sidecar: one file each in `state-dir/attachments`, readable by the sidecar's
//! user alone.
//!
//! What must stay true: a file is complete or absent and holds no credential; a file that cannot be read is logged, left in
//! place and skipped. All functions block on the disk.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{Replace, TEMPORARY_SUFFIX, read_bounded, sync, write_file};
use cofferdam_base::text::hex;
use ring::digest::{SHA256, digest};

use super::request::AttachmentRequest;

#[derive(Debug, thiserror::Error)]
#[error("{doing} `{path}`")]
pub(super) struct RecordError {
    doing: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// A record has a few hundred bytes; a much longer file is not one.
const MAX_FILE_BYTES: u64 = 64 * 1024;

pub(super) fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("attachments")
}

/// All records that can be read. A directory that does not exist holds none.
pub(super) fn read_all(directory: &Path) -> Vec<AttachmentRequest> {
    let list = match fs::read_dir(directory) {
        Ok(list) => list,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::error!(path = %directory.display(), %error, "list kept attachments");
            return Vec::new();
        }
    };
    let mut records = Vec::new();
    for path in list.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX) {
            // Left over from a write that a crash interrupted.
            let _ = fs::remove_file(&path);
            continue;
        }
        match read(&path) {
            Ok(record) if record.name.as_deref().map(file_name).as_deref() == Some(&name) => {
                records.push(record)
            }
            Ok(_) => {
                tracing::error!(path = %path.display(), "the file's name does not fit the attachment's: skipped")
            }
            Err(error) => tracing::error!(path = %path.display(), %error, "not an attachment: skipped"),
        }
    }
    records.sort_by(|left, right| left.name.cmp(&right.name));
    records
}

/// Keeps a request, which must have a name. When this returns, it is durable.
pub(super) fn write(directory: &Path, request: &AttachmentRequest) -> Result<(), RecordError> {
    let path = directory.join(file_name(request.name.as_deref().unwrap_or_default()));
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| RecordError { doing, path, source }
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .and_then(|()| fs::set_permissions(directory, Permissions::from_mode(0o700)))
        .map_err(failed("create the directory", directory))?;
    let mut bytes = serde_json::to_vec_pretty(request).expect("a request is plain data");
    bytes.push(b'\n');
    write_file(directory, &path, &bytes, Replace::Always).map_err(failed("write the attachment", &path))
}

/// Forgets the attachment of this name.
pub(super) fn remove(directory: &Path, name: &str) -> Result<(), RecordError> {
    let path = directory.join(file_name(name));
    let removed = match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        removed => removed.and_then(|()| sync(directory)),
    };
    removed.map_err(|source| RecordError { doing: "remove the attachment", path, source })
}

fn read(path: &Path) -> io::Result<AttachmentRequest> {
    Ok(serde_json::from_slice(&read_bounded(path, MAX_FILE_BYTES)?)?)
}

/// A name may contain any character that is not a control character, so the file is named by its hash.
fn file_name(name: &str) -> String {
    format!("{}.json", hex(&digest(&SHA256, name.as_bytes()).as_ref()[..16]))
}

#[cfg(test)]
mod tests {
    use super::super::request::Route;
    use super::super::status::Kind;
    use super::*;

    fn request(name: &str) -> AttachmentRequest {
        AttachmentRequest {
            kind: Kind::E2b,
            platform: Some("e2b".into()),
            sandbox: "i4x9k2".into(),
            grant: "dev".into(),
            name: Some(name.into()),
            ttl_ms: None,
            resume: true,
            keep_awake: false,
            via: Route::Preview,
            shim: None,
            harness: None,
        }
    }

    #[test]
    fn what_is_written_is_read_again_until_it_is_removed() {
        let state = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-attachments-"));
        let directory = directory(&state);
        assert_eq!(read_all(&directory), []);
        for name in ["box/../2", "box 1"] {
            write(&directory, &request(name)).unwrap();
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700);
        assert!(fs::read_dir(&directory).unwrap().all(|entry| mode(&entry.unwrap().path()) == 0o600));
        fs::write(directory.join("other.json"), "{}").unwrap();
        fs::write(directory.join(format!(".x{TEMPORARY_SUFFIX}")), "{").unwrap();
        assert_eq!(read_all(&directory), [request("box 1"), request("box/../2")]);
        remove(&directory, "box 1").unwrap();
        remove(&directory, "box 1").unwrap();
        assert_eq!(read_all(&directory), [request("box/../2")]);
        fs::remove_dir_all(state).unwrap();
    }
}
