//! The key under which arguments are recorded: 32 random bytes in `key`, 0600, made at the first start.
//!
//! Without it the short arguments of a call could be guessed from their plain hash. It never leaves this directory.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use cofferdam_base::atomic_file::{Replace, place};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

use super::error::AuditError;

/// Call it under the directory's lock.
pub(super) fn load_or_create(directory: &Path) -> Result<hmac::Key, AuditError> {
    let path = directory.join("key");
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    match OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path) {
        Ok(mut file) => {
            let length = file.metadata().map_err(AuditError::read(&path))?.len();
            if length != KEY_BYTES as u64 {
                return Err(AuditError::Key { path, length, expected: KEY_BYTES as u64 });
            }
            file.read_exact(&mut *bytes).map_err(AuditError::read(&path))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            SystemRandom::new().fill(&mut *bytes).map_err(|_| {
                AuditError::prepare("find random bytes for", &path)(io::Error::other("no randomness"))
            })?;
            place(directory, &path, &*bytes, Replace::Always)
                .map_err(AuditError::prepare("create the audit's key", &path))?;
        }
        Err(error) => return Err(AuditError::read(&path)(error)),
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &*bytes))
}

const KEY_BYTES: usize = 32;
