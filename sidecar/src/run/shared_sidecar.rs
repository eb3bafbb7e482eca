//! The sidecar of a run: one that is running already, or one that runs start and share.
//!
//! What must stay true: concurrent runs start one sidecar; it ends with the last of them, and the last one waits for its end;
//! one that was started otherwise is used and left alone.

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
    /// While this exists, a sidecar that runs have started goes on.
    holding: Option<Flock<fs::File>>,
    /// The sidecar, where this run has started it.
    child: Option<Child>,
}

/// For the sidecar to start, or to stop with everything that it runs.
const SIDECAR_TIMEOUT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);
/// How often a run looks whether the sidecar is still there.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// After a sidecar could not be started again.
const RESTART_PAUSE: Duration = Duration::from_secs(5);
/// The end of the log that is shown when the sidecar does not start.
const SHOWN_LOG_BYTES: usize = 2_000;

impl SharedSidecar {
    /// Holds the sidecar of this configuration, whether it runs already or not.
    pub(super) async fn hold(admin: &Path, state_dir: &Path, config_file: &Path) -> Result<Self, Failure> {
        let files = HoldFiles::in_state(state_dir);
        files.create().map_err(|error| cannot_write(state_dir, &error))?;
        let deadline = Instant::now() + SIDECAR_TIMEOUT;
        let holding = loop {
            // A sidecar that stops has it alone until it is gone.
            match try_lock(&files.holders(), FlockArg::LockSharedNonblock) {
                Ok(Some(holding)) => break holding,
                Ok(None) if Instant::now() < deadline => sleep(PAUSE).await,
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

    /// Starts the sidecar unless one answers.
    pub(super) async fn ensure_running(&mut self, progress: &Progress) -> Result<(), Failure> {
        if self.answers().await? {
            return Ok(());
        }
        let deadline = Instant::now() + SIDECAR_TIMEOUT;
        // Of several runs one starts it.
        let _starting = loop {
            match try_lock(&self.files.start(), FlockArg::LockExclusiveNonblock) {
                Ok(Some(starting)) => break starting,
                Ok(None) if Instant::now() < deadline => sleep(PAUSE).await,
                Ok(None) => return Err(self.not_started("another run has been starting it for too long")),
                Err(error) => return Err(cannot_write(&self.files.start(), &error)),
            }
        };
        if self.answers().await? {
            return Ok(());
        }
        progress.step("starting the sidecar");
        self.child = Some(self.spawn()?);
        loop {
            if self.answers().await? {
                return Ok(());
            }
            let child = self.child.as_mut().map(Child::try_wait);
            match child {
                Some(Ok(None)) if Instant::now() < deadline => sleep(PAUSE).await,
                Some(Ok(Some(status))) => return Err(self.not_started(&format!("it ended: {status}"))),
                _ => return Err(self.not_started("it does not answer")),
            }
        }
    }

    /// Starts a sidecar again that runs have started and that has gone. Never returns.
    pub(super) async fn keep_running(&mut self) {
        // One that was started otherwise is its operator's to start again.
        let shared = self.child.is_some() || self.is_started_by_run();
        // The terminal is the command's.
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

    /// Releases the sidecar. The last run waits until it is gone.
    pub(super) async fn leave(mut self) -> Result<(), Failure> {
        self.holding = None;
        let deadline = Instant::now() + SIDECAR_TIMEOUT;
        loop {
            let lock = |how| try_lock(&self.files.holders(), how).ok().flatten();
            let alone = lock(FlockArg::LockExclusiveNonblock).is_some();
            if !alone && lock(FlockArg::LockSharedNonblock).is_some() {
                // Another run goes on with it.
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
            sleep(PAUSE).await;
        }
    }

    /// Whether a sidecar is there that a run has started.
    fn is_started_by_run(&self) -> bool {
        matches!(try_lock(&self.files.sidecar(), FlockArg::LockSharedNonblock), Ok(None))
    }

    async fn answers(&self) -> Result<bool, Failure> {
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
                    .hint("a sidecar of another user has this socket; use a configuration with another `admin.socket`"))
            }
            // It has just gone, or it is of another version; the next step finds out.
            Err(AdminError::Io(_)) => Ok(false),
            Err(error @ AdminError::Response(_)) => {
                Err(Failure::new(Sysexit::Unavailable, error).hint("restart the sidecar with this version"))
            }
        }
    }

    /// The process of the sidecar, if this run has started it.
    pub(super) fn child_id(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    fn spawn(&self) -> Result<Child, Failure> {
        let failed =
            |error: io::Error| Failure::new(Sysexit::Unavailable, format!("start the sidecar: {error}"));
        let log = self.files.log();
        let log = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(log);
        let log = log.map_err(|error| cannot_write(&self.files.log(), &error))?;
        let mut command = cofferdam_process::user_command(std::env::current_exe().map_err(failed)?);
        command.args(["serve", "--while-held", "-c"]).arg(&self.config_file);
        // Relative paths mean the same for every run that shares it.
        command.current_dir(self.config_file.parent().unwrap_or(Path::new("/")));
        // In a group of its own: a ctrl-C at the terminal is not for it.
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
    Failure::new(Sysexit::CannotCreate, format!("write to `{}`: {error}", path.display()))
        .hint("set `state-dir` to a directory that this user can write")
}

fn still_stopping(files: &HoldFiles) -> Failure {
    let why = "the sidecar of the runs before has not ended in time";
    Failure::new(Sysexit::Unavailable, why).hint(format!("look at its log, `{}`", files.log().display()))
}
