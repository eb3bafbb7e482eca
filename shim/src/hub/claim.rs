//! The right to serve a local address, by a lock that the kernel releases when the hub exits.
//!
//! Must stay true: one hub at a time holds an address; a lock file that another user of the directory planted is not used;
//! a default address is used only if no other user can change its directory.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::time::{Instant, sleep};

use super::local::{LocalEndpoint, LocalError, with_suffix};
use super::options::LocalListener;
use crate::default_socket;

/// The right to serve an address, for as long as it is held.
#[derive(Debug)]
pub(super) struct Claim {
    address: LocalAddress,
    _lock: File,
}

/// An address that shims can connect to.
#[derive(Clone, Debug)]
pub(super) enum LocalAddress {
    Loopback(PathBuf),
    Unix(PathBuf),
}

/// How long a hub whose pipe is closed may take to exit.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_PAUSE: Duration = Duration::from_millis(10);

impl Claim {
    /// Claims the address for this process. A previous hub may be about to exit, so this waits a little.
    pub(super) async fn acquire(listener: &LocalListener) -> Result<Self, LocalError> {
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        loop {
            match Self::try_acquire(listener) {
                Err(LocalError::HeldByHub { .. }) if Instant::now() < deadline => sleep(RETRY_PAUSE).await,
                claimed => return claimed,
            }
        }
    }

    pub(super) fn try_acquire(listener: &LocalListener) -> Result<Self, LocalError> {
        let sockets = match listener {
            LocalListener::Loopback(path) => return Self::lock(LocalAddress::Loopback(path.clone())),
            LocalListener::Unix(path) => return Self::lock(LocalAddress::Unix(path.clone())),
            LocalListener::Search(sockets) => sockets,
        };
        let mut problem = None;
        for path in sockets.paths() {
            match Self::lock_trusted(path) {
                // The next path is for users that may not write to this directory, and for systems that do not have it.
                Err(error @ (LocalError::Io { .. } | LocalError::Untrusted { .. })) => problem = Some(error),
                claimed => return claimed,
            }
        }
        Err(problem.unwrap_or_else(|| LocalError::Io {
            path: PathBuf::new(),
            source: io::ErrorKind::NotFound.into(),
        }))
    }

    fn lock_trusted(path: &Path) -> Result<Self, LocalError> {
        make_directory(path)?;
        default_socket::check(path).map_err(|source| LocalError::Untrusted { path: path.into(), source })?;
        Self::lock(LocalAddress::Unix(path.into()))
    }

    fn lock(address: LocalAddress) -> Result<Self, LocalError> {
        let (LocalAddress::Loopback(path) | LocalAddress::Unix(path)) = &address;
        make_directory(path)?;
        let failed = |source| LocalError::Io { path: path.clone(), source };
        let lock_path = with_suffix(path, ".lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // Another user of the directory must not redirect the hub by a symbolic link, nor block it with a FIFO.
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
        let mut lock = match options.open(&lock_path) {
            Ok(lock) if lock.metadata().is_ok_and(|file| file.is_file()) => lock,
            Ok(_) => return Err(LocalError::ForeignFile { path: lock_path }),
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                return Err(LocalError::ForeignFile { path: lock_path });
            }
            Err(source) => return Err(LocalError::Io { path: lock_path, source }),
        };
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let mut text = String::new();
                let _ = lock.take(20).read_to_string(&mut text);
                return Err(LocalError::HeldByHub { path: path.clone(), process: text.trim().parse().ok() });
            }
            Err(fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
        // For the error message of another hub; the lock itself is the kernel's.
        let _ = lock.set_len(0).and_then(|()| lock.rewind());
        let _ = writeln!(lock, "{}", std::process::id());
        Ok(Self { address, _lock: lock })
    }

    /// Starts to listen on the address.
    pub(super) async fn open(&self) -> Result<LocalEndpoint, LocalError> {
        LocalEndpoint::open(&self.address).await
    }

    /// The path that identifies the address.
    pub(super) fn path(&self) -> &Path {
        let (LocalAddress::Loopback(path) | LocalAddress::Unix(path)) = &self.address;
        path
    }
}

fn make_directory(path: &Path) -> Result<(), LocalError> {
    let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) else {
        return Ok(());
    };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|source| LocalError::Io { path: path.into(), source })
}
