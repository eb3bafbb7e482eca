//! A sidecar that `cofferdam run` has started: it runs for as long as at least one run holds it.
//!
//! Holding is a shared lock on a file. The kernel releases it when a process ends, however it ends, so a killed run is
//! noticed at once. What must stay true: the sidecar takes the exclusive lock before it stops and keeps it until it is gone,
//! so a run that starts meanwhile waits for the end of this one and starts its own.

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
    /// When no run holds it any more.
    WhileHeld(HoldFiles),
}

/// The files by which runs and their sidecar know of each other.
#[derive(Clone, Debug)]
pub(crate) struct HoldFiles(PathBuf);

#[derive(Debug, thiserror::Error)]
#[error("lock `{path}` in the state directory")]
pub(crate) struct HoldError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Half a second in all.
const LOCK_ATTEMPTS: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

impl HoldFiles {
    pub(crate) fn in_state(state_dir: &Path) -> Self {
        Self(state_dir.join("run"))
    }

    pub(crate) fn create(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)
    }

    /// Each run has it shared; a sidecar that stops has it alone.
    pub(crate) fn holders(&self) -> PathBuf {
        self.0.join("holders.lock")
    }

    /// The sidecar has it for as long as it runs.
    pub(crate) fn sidecar(&self) -> PathBuf {
        self.0.join("sidecar.lock")
    }

    /// A run has it while it starts the sidecar.
    pub(crate) fn start(&self) -> PathBuf {
        self.0.join("start.lock")
    }

    /// The sidecar's log.
    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("sidecar.log")
    }
}

/// Locks a file, which is made if it is not there. `None` if another process has it.
pub(crate) fn try_lock(path: &Path, how: FlockArg) -> io::Result<Option<Flock<File>>> {
    match Flock::lock(open(path)?, how) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

impl Lifetime {
    /// Takes the sidecar's lock, and cancels `stop` when no run holds this sidecar any more.
    pub(crate) fn begin(&self, stop: &CancellationToken) -> Result<(), HoldError> {
        let Self::WhileHeld(files) = self else { return Ok(()) };
        let failed = |path: PathBuf| move |source| HoldError { path, source };
        let mut attempts = LOCK_ATTEMPTS;
        let own = loop {
            let own = try_lock(&files.sidecar(), FlockArg::LockExclusiveNonblock);
            match own.map_err(failed(files.sidecar()))? {
                Some(own) => break own,
                // A run that looks whether a sidecar is there has it for a moment.
                None if attempts > 0 => std::thread::sleep(LOCK_PAUSE),
                None => {
                    let taken = io::Error::other("another sidecar that `cofferdam run` started has it");
                    return Err(failed(files.sidecar())(taken));
                }
            }
            attempts -= 1;
        };
        let holders = open(&files.holders()).map_err(failed(files.holders()))?;
        let stop = stop.clone();
        // Waits in the kernel; it ends with the process, which keeps both locks until then.
        let watch = std::thread::Builder::new().name("run-holders".into()).spawn(move || {
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
                        tracing::error!(%errno, "watch for runs that use this sidecar");
                        break;
                    }
                }
            }
            std::mem::forget(own);
            stop.cancel();
        });
        watch.map(drop).map_err(failed(files.holders()))
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}
