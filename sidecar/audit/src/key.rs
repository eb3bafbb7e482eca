//! The key for the hashes of arguments: 32 random bytes in the file `key`, mode 0600, created at the first start.
//!
//! Short arguments could be guessed from a hash without a key. The key never leaves this directory, except as a value that
//! scrubbers search for.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use cofferdam_base::atomic_file::{Replace, write_file};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

use super::error::AuditError;

/// Reads the key, or creates it if there is none. The caller holds the directory's lock.
pub(super) fn load_or_create(directory: &Path) -> Result<hmac::Key, AuditError> {
    match load(directory) {
        Err(AuditError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => create(directory),
        loaded => loaded,
    }
}

/// Reads the key.
pub(super) fn load(directory: &Path) -> Result<hmac::Key, AuditError> {
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &*key_bytes(directory)?))
}

/// The bytes of the key, for scrubbers: a server may be able to read the file.
pub fn key_bytes(directory: &Path) -> Result<Zeroizing<[u8; KEY_BYTES]>, AuditError> {
    let path = directory.join("key");
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    let opened = OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path);
    let mut file = opened.map_err(AuditError::read(&path))?;
    let length = file.metadata().map_err(AuditError::read(&path))?.len();
    if length != KEY_BYTES as u64 {
        return Err(AuditError::Key { path, length, expected: KEY_BYTES as u64 });
    }
    file.read_exact(&mut *bytes).map_err(AuditError::read(&path))?;
    Ok(bytes)
}

fn create(directory: &Path) -> Result<hmac::Key, AuditError> {
    let path = directory.join("key");
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    SystemRandom::new().fill(&mut *bytes).map_err(|_| {
        AuditError::prepare("cannot get random bytes for", &path)(io::Error::other(
            "the system has no random numbers",
        ))
    })?;
    write_file(directory, &path, &*bytes, Replace::Always)
        .map_err(AuditError::prepare("cannot create the audit's key", &path))?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &*bytes))
}

const KEY_BYTES: usize = 32;
