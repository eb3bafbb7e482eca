//! The sidecar that a run uses: one that is running already, or one that concurrent runs start and share.
//!
//! What must stay true: concurrent runs start one sidecar; it exits after the last of these runs, which waits for that. A
//! sidecar that no run has started is used, and neither restarted nor stopped.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use tokio::process::{Child, Command};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::daemon::admin::client::{self, AdminError};
use crate::daemon::admin::{AdminRequest, AdminResponse};
use crate::daemon::while_held::{HoldFiles, try_lock};
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::progress::{Output, Progress};

/// A sidecar that this run uses.
#[derive(Debug)]
pub(super) struct SharedSidecar {
    admin: PathBuf,
    config_file: PathBuf,
    files: HoldFiles,
    /// The shared lock of a holder: while any run has one, a sidecar that a run has started does not exit.
    holding: Option<Flock<fs::File>>,
    /// The sidecar's process, if this run has started it.
    child: Option<Child>,
}

/// For the sidecar to start, or to stop with its servers.
const SIDECAR_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How often a run checks that the sidecar still runs.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// The pause after a failed restart of the sidecar.
const RESTART_PAUSE: Duration = Duration::from_secs(5);
/// How much of the end of the log is shown when the sidecar does not start.
const SHOWN_LOG_BYTES: usize = 2_000;

impl SharedSidecar {
    /// Takes the lock that keeps the sidecar of this configuration from exiting, whether it runs already or not.
    pub(super) async fn hold(admin: &Path, state_dir: &Path, config_file: &Path) -> Result<Self, Failure> {
        let files = HoldFiles::in_state(state_dir);
        files.create().map_err(|error| cannot_write(state_dir, &error))?;
        let deadline = Instant::now() + SIDECAR_TIMEOUT;
        let holding = loop {
            // A sidecar that is stopping holds the lock exclusively until it has exited.
            match try_lock(&files.holders(), FlockArg::LockSharedNonblock) {
                Ok(Some(holding)) => break holding,
                Ok(None) if Instant::now() < deadline => sleep(POLL_INTERVAL).await,
                Ok(None) => return Err(still_stopping(&files)),
                Err(error) => return Err(cannot_write(state_dir, &error)),
            }
        };
        Ok(Self {
            admin: admin.to_owned(),
            config_file: config_file.to_owned(),
            files,
            holding: Some(holding),
            child: None,
        })
    }

    /// Starts the sidecar unless one responds.
    pub(super) async fn ensure_running(&mut self, progress: &Progress) -> Result<(), Failure> {
        if self.responds().await? {
            return Ok(());
        }
        let deadline = Instant::now() + SIDECAR_TIMEOUT;
        // Only one of several runs starts the sidecar.
        let _starting = loop {
            match try_lock(&self.files.start(), FlockArg::LockExclusiveNonblock) {
                Ok(Some(starting)) => break starting,
                Ok(None) if Instant::now() < deadline => sleep(POLL_INTERVAL).await,
                Ok(None) => return Err(self.not_started("another run has been starting it for too long")),
                Err(error) => return Err(cannot_write(&self.files.start(), &error)),
            }
        };
        if self.responds().await? {
            return Ok(());
        }
        progress.step("starting the sidecar");
        self.child = Some(self.spawn()?);
        loop {
            if self.responds().await? {
                return Ok(());
            }
            let child = self.child.as_mut().map(Child::try_wait);
            match child {
                Some(Ok(None)) if Instant::now() < deadline => sleep(POLL_INTERVAL).await,
                Some(Ok(Some(status))) => return Err(self.not_started(&format!("it exited: {status}"))),
                _ => return Err(self.not_started("it does not respond")),
            }
        }
    }

    /// Restarts a sidecar that a run has started, whenever it has exited. Never returns.
    pub(super) async fn keep_running(&mut self) {
        // A sidecar that no run has started is not restarted: that is up to its operator.
        let shared = self.child.is_some() || self.is_started_by_run();
        // Nothing is printed, because the command uses the terminal.
        let progress = Progress::new("cofferdam", Output::Quiet);
        loop {
            sleep(WATCH_INTERVAL).await;
            if shared && !self.is_started_by_run() && self.ensure_running(&progress).await.is_err() {
                sleep(RESTART_PAUSE).await;
            }
        }
    }

    pub(super) async fn send(&self, request: AdminRequest) -> Result<AdminResponse, AdminError> {
        let admin = self.admin.clone();
        match spawn_blocking(move || client::send(&admin, &request)).await {
            Ok(response) => response,
            Err(error) => Err(AdminError::Io(io::Error::other(error))),
        }
    }

    pub(super) fn admin(&self) -> &Path {
        &self.admin
    }

    /// Releases the lock. The last run waits until the sidecar has exited.
    pub(super) async fn leave(mut self) -> Result<(), Failure> {
        self.holding = None;
        let deadline = Instant::now() + SIDECAR_TIMEOUT;
        loop {
            let lock = |how| try_lock(&self.files.holders(), how).ok().flatten();
            let alone = lock(FlockArg::LockExclusiveNonblock).is_some();
            if !alone && lock(FlockArg::LockSharedNonblock).is_some() {
                // Another run still uses the sidecar.
                return Ok(());
            }
            let running = match &mut self.child {
                Some(child) => matches!(child.try_wait(), Ok(None)),
                None => false,
            };
            if alone && !running && !self.is_started_by_run() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(still_stopping(&self.files));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether a sidecar is running that a run has started.
    fn is_started_by_run(&self) -> bool {
        matches!(try_lock(&self.files.sidecar(), FlockArg::LockSharedNonblock), Ok(None))
    }

    async fn responds(&self) -> Result<bool, Failure> {
        match self.send(AdminRequest::Sessions).await {
            Ok(_) => Ok(true),
            Err(AdminError::Connect { source, .. })
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Ok(false)
            }
            Err(AdminError::Connect { path, source }) => {
                let code = match source.kind() {
                    io::ErrorKind::PermissionDenied => Sysexit::NoPermission,
                    _ => Sysexit::Unavailable,
                };
                Err(Failure::new(code, AdminError::Connect { path, source })
                    .hint("a sidecar of another user may have this socket; use a configuration with another `admin.socket`"))
            }
            // The sidecar has probably just exited; the caller starts one or tries again.
            Err(AdminError::Io(_)) => Ok(false),
            Err(error @ AdminError::Response(_)) => {
                Err(Failure::new(Sysexit::Unavailable, error).hint("restart the sidecar with this version"))
            }
        }
    }

    /// The process id of the sidecar, if this run has started it.
    pub(super) fn child_id(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    fn spawn(&self) -> Result<Child, Failure> {
        let failed = |error: io::Error| {
            Failure::new(Sysexit::Unavailable, format!("cannot start the sidecar: {error}"))
        };
        let log = self.files.log();
        let log = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(log);
        let log = log.map_err(|error| cannot_write(&self.files.log(), &error))?;
        let mut command = cofferdam_process::user_command(std::env::current_exe().map_err(failed)?);
        command.args(["serve", "--while-held", "-c"]).arg(&self.config_file);
        // So that relative paths in the configuration do not depend on which run starts the sidecar.
        command.current_dir(self.config_file.parent().unwrap_or(Path::new("/")));
        // In its own process group, so that Ctrl-C at the terminal does not reach it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        Command::from(command).spawn().map_err(failed)
    }

    fn not_started(&self, why: &str) -> Failure {
        let log = fs::read(self.files.log()).unwrap_or_default();
        let end = String::from_utf8_lossy(&log[log.len().saturating_sub(SHOWN_LOG_BYTES)..]).into_owned();
        let text = format!("the sidecar did not start: {why}; its log ends with:\n{}", end.trim_end());
        Failure::new(Sysexit::Unavailable, text)
            .hint(format!("the whole log is `{}`", self.files.log().display()))
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Sysexit::CannotCreate, format!("cannot write to `{}`: {error}", path.display()))
        .hint("set `state-dir` to a directory that this user can write")
}

fn still_stopping(files: &HoldFiles) -> Failure {
    let why = "the sidecar of earlier runs did not exit in time";
    Failure::new(Sysexit::Unavailable, why).hint(format!("look at its log, `{}`", files.log().display()))
}
