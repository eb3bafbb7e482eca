//! `enrolment.json`: the sandbox's key and its latest epoch. Written atomically, readable by its owner only.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use relay_carriage::identity::Identity;
use relay_proto::control::{Epoch, Ticket};
use relay_proto::key::PublicKey;
use serde::{Deserialize, Serialize};

use super::{SavedEnrolment, StateError};

/// The format on disk; fields of later versions are ignored.
#[derive(Deserialize, Serialize)]
struct Content {
    relay: String,
    pin: PublicKey,
    /// PKCS#8, in hex.
    key: String,
    ticket: Ticket,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    epoch: Option<Epoch>,
}

/// The file has a few hundred bytes; a much longer file was not written by a shim.
const MAX_BYTES: u64 = 64 * 1024;

/// Reads the stored enrolment; `None` if there is none yet.
pub(super) fn read(directory: &Path) -> Result<Option<SavedEnrolment>, StateError> {
    let path = path(directory);
    let damaged =
        |why: &dyn std::fmt::Display| StateError::Damaged { path: path.clone(), why: why.to_string() };
    let bytes = match read_bounded(&path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(damaged(&error)),
    };
    let content: Content = serde_json::from_slice(&bytes).map_err(|error| damaged(&error))?;
    let pkcs8 = decode_hex(&content.key).ok_or_else(|| damaged(&"its key is not hexadecimal"))?;
    Ok(Some(SavedEnrolment {
        relay: content.relay.parse().map_err(|error| damaged(&error))?,
        pin: content.pin,
        identity: Identity::from_pkcs8(&pkcs8).map_err(|error| damaged(&error))?,
        ticket: content.ticket,
        epoch: content.epoch,
    }))
}

/// Writes a temporary file, syncs and renames it, and syncs the directory: a crash leaves the old file or the new one.
/// Must be called with the lock held.
pub(super) fn write(directory: &Path, saved: &SavedEnrolment) -> Result<(), StateError> {
    let path = path(directory);
    let content = Content {
        relay: saved.relay.to_string(),
        pin: saved.pin,
        key: saved.identity.to_pkcs8().iter().map(|byte| format!("{byte:02x}")).collect(),
        ticket: saved.ticket.clone(),
        epoch: saved.epoch.clone(),
    };
    let bytes = serde_json::to_vec(&content).expect("strings always serialise");
    write_atomically(directory, &path, &bytes).map_err(|source| StateError::Io {
        action: "write",
        path: path.clone(),
        source,
    })
}

/// Creates the directory, for its owner only, if it does not exist.
pub(super) fn create_directory(directory: &Path) -> Result<(), StateError> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|source| StateError::Io {
        action: "create",
        path: directory.into(),
        source,
    })
}

/// Reads a regular file of at most [`MAX_BYTES`]; does not block on a FIFO.
pub(super) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_BYTES {
        true => Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes"))),
        false => Ok(bytes),
    }
}

fn write_atomically(directory: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = directory.join(".enrolment.json.new");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(directory)?.sync_all()
}

fn path(directory: &Path) -> PathBuf {
    directory.join("enrolment.json")
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    pairs.iter().map(|[high, low]| Some((digit(*high)? * 16 + digit(*low)?) as u8)).collect()
}
