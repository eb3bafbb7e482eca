//! The key under which arguments are recorded: 32 random bytes in `key`, 0600, made at the first start.
//!
//! Without it the short arguments of a call could be guessed from their plain hash. It never leaves this directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

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
            create(directory, &path, &*bytes)
                .map_err(AuditError::prepare("create the audit's key", &path))?;
        }
        Err(error) => return Err(AuditError::read(&path)(error)),
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &*bytes))
}

const KEY_BYTES: usize = 32;

/// Written aside and renamed: there is a whole key or none, even after a crash.
fn create(directory: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let aside = directory.join("key.new");
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&aside, path)?;
    File::open(directory)?.sync_all()
}
