//! Lets one shim at a time present the key: a file lock in the state directory, which the kernel releases when its holder
//! exits.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{StateError, file};

#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// The lock is held for one round trip to the sidecar, and every shim of the sandbox may be ahead in the queue.
const TIMEOUT: Duration = Duration::from_secs(8);
const RETRY_PAUSE: Duration = Duration::from_millis(10);

impl Lock {
    /// Waits for the lock without blocking the thread.
    pub(super) async fn acquire(directory: &Path) -> Result<Self, StateError> {
        file::create_directory(directory)?;
        let path = directory.join("lock");
        let failed = |action| {
            let path = path.clone();
            move |source| StateError::Io { action, path, source }
        };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open"))?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::Error(error)) => return Err(failed("lock")(error)),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(RETRY_PAUSE).await,
                Err(TryLockError::WouldBlock) => {
                    return Err(StateError::Busy { lock: path.clone(), seconds: TIMEOUT.as_secs() });
                }
            }
        }
    }
}
