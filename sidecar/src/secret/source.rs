//! Reads the bytes of a secret from a file, a variable or a command.
//!
//! What must stay true: never more than `secret-bytes` in memory; a source that hangs or floods is an error; no
//! error holds what was read.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use zeroize::Zeroizing;

use super::spec::{Origin, SourceLimits};
use crate::process::{RunError, run_bounded};

/// Others may read the file.
const READABLE_BY_OTHERS: u32 = 0o004;

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("it is in Vault, not on this host")]
    Elsewhere,
    #[error("run it")]
    Exec(#[from] RunError),
    #[error("it is not a regular file")]
    NotAFile,
    #[error("read it")]
    Read(#[source] io::Error),
    #[error("it holds more than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("it is not set for the sidecar")]
    Unset,
}

/// Who may read a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Readers {
    /// It is no secret.
    Anybody,
    /// It is one: a warning is logged if every user of the host can read it.
    Few,
}

pub(super) async fn read(origin: &Origin, limits: SourceLimits) -> Result<Zeroizing<Vec<u8>>, SourceError> {
    let limit = limits.bytes;
    match origin {
        Origin::Env(name) => check_variable(std::env::var_os(name), limit),
        Origin::Exec(command) => match run_bounded(command, limits.exec_timeout, limit).await {
            Err(RunError::Output { limit }) => Err(SourceError::TooLarge { limit }),
            result => Ok(result?),
        },
        Origin::File(path) => {
            let path = path.clone();
            // A file system may hang; the runtime's threads may not.
            let read = tokio::task::spawn_blocking(move || read_file(&path, limit, Readers::Few)).await;
            read.map_err(|panic| SourceError::Read(io::Error::other(panic)))?
        }
        Origin::Kv { .. } | Origin::Vault { .. } => Err(SourceError::Elsewhere),
    }
}

fn check_variable(value: Option<OsString>, limit: usize) -> Result<Zeroizing<Vec<u8>>, SourceError> {
    let value = Zeroizing::new(value.ok_or(SourceError::Unset)?.into_vec());
    match value.len() > limit {
        true => Err(SourceError::TooLarge { limit }),
        false => Ok(value),
    }
}

/// Reads a regular file of at most `limit` bytes into wiped memory. May block.
pub(crate) fn read_file(
    path: &Path,
    limit: usize,
    readers: Readers,
) -> Result<Zeroizing<Vec<u8>>, SourceError> {
    // Without waiting: a pipe in the file's place would hold the thread for ever.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut file =
        File::options().read(true).custom_flags(flags.bits()).open(path).map_err(SourceError::Read)?;
    let metadata = file.metadata().map_err(SourceError::Read)?;
    if !metadata.is_file() {
        return Err(SourceError::NotAFile);
    }
    if readers == Readers::Few && metadata.mode() & READABLE_BY_OTHERS != 0 {
        let path = PathBuf::from(path);
        tracing::warn!(path = %path.display(), "every user of this host can read a secret: chmod o-r");
    }
    if metadata.len() > limit as u64 {
        return Err(SourceError::TooLarge { limit });
    }
    // All of it at once: growing would leave copies behind that are not wiped. It may have grown since.
    let mut bytes = Zeroizing::new(vec![0; limit + 1]);
    let mut length = 0;
    loop {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(SourceError::Read(error)),
        }
    }
    if length > limit {
        return Err(SourceError::TooLarge { limit });
    }
    bytes.truncate(length);
    Ok(bytes)
}
