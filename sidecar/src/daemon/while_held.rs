//! The lifetime of a sidecar that `cofferdam run` has started: it runs while at least one `cofferdam run` holds it.
//!
//! A run holds the sidecar by a shared lock on a file. The kernel releases the lock when the process exits, for whatever
//! reason, so the end of a killed run is noticed at once. What must stay true: the sidecar takes the exclusive lock
//! before it stops and holds it until its process exits, so a run that starts meanwhile waits for that and then starts
//! another sidecar.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tokio_util::sync::CancellationToken;

/// When the sidecar stops, besides at a signal.
#[derive(Clone, Debug)]
pub(crate) enum Lifetime {
    UntilSignal,
    /// Until no run holds the sidecar any more.
    WhileHeld(HoldFiles),
}

/// The lock files by which runs and their sidecar coordinate, and the sidecar's log.
#[derive(Clone, Debug)]
pub(crate) struct HoldFiles(PathBuf);

#[derive(Debug, thiserror::Error)]
#[error("cannot lock `{path}` in the state directory")]
pub(crate) struct LifetimeError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// With [`LOCK_PAUSE`], half a second in all.
const LOCK_ATTEMPTS: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

impl HoldFiles {
    pub(crate) fn in_state(state_dir: &Path) -> Self {
        Self(state_dir.join("run"))
    }

    pub(crate) fn create(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)
    }

    /// Locked shared by each run, and exclusively by a sidecar that stops.
    pub(crate) fn holders(&self) -> PathBuf {
        self.0.join("holders.lock")
    }

    /// Locked by the sidecar for as long as it runs.
    pub(crate) fn sidecar(&self) -> PathBuf {
        self.0.join("sidecar.lock")
    }

    /// Locked by a run while it starts the sidecar.
    pub(crate) fn start(&self) -> PathBuf {
        self.0.join("start.lock")
    }

    /// The sidecar's log.
    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("sidecar.log")
    }
}

/// Locks a file, which is created if it does not exist. `None` if another process holds the lock.
pub(crate) fn try_lock(path: &Path, how: FlockArg) -> io::Result<Option<Flock<File>>> {
    match Flock::lock(open(path)?, how) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

impl Lifetime {
    /// Takes the sidecar's lock, and cancels `stop` when no run holds this sidecar any more.
    pub(crate) fn watch(&self, stop: &CancellationToken) -> Result<(), LifetimeError> {
        let Self::WhileHeld(files) = self else { return Ok(()) };
        let failed = |path: PathBuf| move |source| LifetimeError { path, source };
        let mut attempts = LOCK_ATTEMPTS;
        let own = loop {
            let own = try_lock(&files.sidecar(), FlockArg::LockExclusiveNonblock);
            match own.map_err(failed(files.sidecar()))? {
                Some(own) => break own,
                // A run that checks whether a sidecar runs holds this lock briefly.
                None if attempts > 0 => std::thread::sleep(LOCK_PAUSE),
                None => {
                    let held =
                        io::Error::other("another sidecar that `cofferdam run` started holds the lock");
                    return Err(failed(files.sidecar())(held));
                }
            }
            attempts -= 1;
        };
        let holders = open(&files.holders()).map_err(failed(files.holders()))?;
        let stop = stop.clone();
        // This thread blocks in the kernel until it gets the lock. The process holds both locks until it exits.
        let thread = std::thread::Builder::new().name("run-holders".into()).spawn(move || {
            let mut holders = holders;
            loop {
                match Flock::lock(holders, FlockArg::LockExclusive) {
                    Ok(lock) => {
                        tracing::info!("no `cofferdam run` uses this sidecar any more");
                        std::mem::forget(lock);
                        break;
                    }
                    Err((file, Errno::EINTR)) => holders = file,
                    Err((_, errno)) => {
                        tracing::error!(%errno, "cannot watch for runs that use this sidecar; stopping");
                        break;
                    }
                }
            }
            std::mem::forget(own);
            stop.cancel();
        });
        thread.map(drop).map_err(failed(files.holders()))
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}
