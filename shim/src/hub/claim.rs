//! The right to serve a local address, by a lock that the kernel releases when the hub exits.
//!
//! Must stay true: one hub at a time has it; a lock file that another user of the directory planted is not used; of the
//! default addresses only one in a directory is taken that no other user can change.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::time::{Instant, sleep};

use super::local::{Local, LocalError, with_suffix};
use super::options::LocalListener;
use crate::default_socket;

/// The right to serve an address, for as long as it is held.
#[derive(Debug)]
pub(super) struct Claim {
    place: Place,
    _lock: File,
}

/// An address that shims can connect to.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Loopback(PathBuf),
    Unix(PathBuf),
}

/// How long a hub whose pipe is closed may take to exit.
const RELEASE_TIME: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

impl Claim {
    /// Claims the address for this process. A previous hub may be about to exit, so this waits a little.
    pub(super) async fn take(listener: &LocalListener) -> Result<Self, LocalError> {
        let give_up = Instant::now() + RELEASE_TIME;
        loop {
            match Self::try_take(listener) {
                Err(LocalError::Held { .. }) if Instant::now() < give_up => sleep(PAUSE).await,
                taken => return taken,
            }
        }
    }

    pub(super) fn try_take(listener: &LocalListener) -> Result<Self, LocalError> {
        let sockets = match listener {
            LocalListener::Loopback(path) => return Self::lock(Place::Loopback(path.clone())),
            LocalListener::Unix(path) => return Self::lock(Place::Unix(path.clone())),
            LocalListener::Search(sockets) => sockets,
        };
        let mut problem = None;
        for path in sockets.places() {
            match Self::lock_trusted(path) {
                // The next place is for users that may not write to this one, and for a system that does not have it.
                Err(error @ (LocalError::Io { .. } | LocalError::Untrusted { .. })) => problem = Some(error),
                taken => return taken,
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
        Self::lock(Place::Unix(path.into()))
    }

    fn lock(place: Place) -> Result<Self, LocalError> {
        let (Place::Loopback(path) | Place::Unix(path)) = &place;
        make_directory(path)?;
        let failed = |source| LocalError::Io { path: path.clone(), source };
        let lock_path = with_suffix(path, ".lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // Another user of the directory must not redirect us by a symbolic link, nor block us with a FIFO.
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
        let mut lock = match options.open(&lock_path) {
            Ok(lock) if lock.metadata().is_ok_and(|file| file.is_file()) => lock,
            Ok(_) => return Err(LocalError::Taken { path: lock_path }),
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                return Err(LocalError::Taken { path: lock_path });
            }
            Err(source) => return Err(LocalError::Io { path: lock_path, source }),
        };
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let mut text = String::new();
                let _ = lock.take(20).read_to_string(&mut text);
                return Err(LocalError::Held { path: path.clone(), process: text.trim().parse().ok() });
            }
            Err(fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
        // For the error message of another hub; the lock itself is the kernel's.
        let _ = lock.set_len(0).and_then(|()| lock.rewind());
        let _ = writeln!(lock, "{}", std::process::id());
        Ok(Self { place, _lock: lock })
    }

    /// Starts to listen.
    pub(super) async fn open(&self) -> Result<Local, LocalError> {
        Local::open(&self.place).await
    }

    /// The path that identifies the address.
    pub(super) fn path(&self) -> &Path {
        let (Place::Loopback(path) | Place::Unix(path)) = &self.place;
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
