//! What a run has set up, and its removal.
//!
//! What must stay true: whether a run succeeds, fails or is interrupted by a signal, [`ActiveRun::end`] removes what was set
//! up until then, and nothing else.

use std::io;
use std::ops::RangeInclusive;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus, Stdio as ProcessStdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::directory::{Leftover, RunDirectory, leftovers};
use super::executable::find;
use super::harness::login::{CopyBackResult, Login};
use super::harness::project_entries::ProjectEntries;
use super::host::Host;
use super::image::Pull;
use super::kind_check::KindCheck;
use super::kinds::{GeneratedFile, Orphans, Prepared, Stdio};
use super::plan::Plan;
use super::shared_sidecar::SharedSidecar;
use super::signals::Signals;
use super::terminal_relay::{self, ContainerState, Interruption};
use super::trial::Trials;
use super::{ended_by, run_quietly};
use crate::daemon::admin::client::{self, AdminError};
use crate::daemon::admin::{AdminRequest, AdminResponse};
use crate::harness::ShimCommand;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::progress::Progress;

/// What a run has set up so far.
#[derive(Default)]
pub(super) struct ActiveRun {
    directory: Option<RunDirectory>,
    login: Option<Login>,
    sidecar: Option<SharedSidecar>,
    /// The pending request for the relay's socket. A run that ends meanwhile still waits for the response, so that no socket
    /// is left behind.
    enrolling: Option<JoinHandle<Result<AdminResponse, AdminError>>>,
    enrolment: Option<String>,
    trials: Trials,
    pull: Pull,
    removal: Removal,
}

/// Whether the sandbox's program may have left something behind.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Removal {
    #[default]
    NotNeeded,
    Needed,
}

/// The exit codes of podman and docker when they could not create the container or start its command.
const NOT_STARTED: RangeInclusive<i32> = 125..=127;
/// For a program that removes what a sandbox has left behind.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(20);
/// For podman or docker to say whether a container has started.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// The statuses of a container whose command has not started: `configured` and `initialized` are podman's only.
const STATUSES_BEFORE_START: [&str; 3] = ["configured", "created", "initialized"];

impl ActiveRun {
    pub(super) async fn set_up(
        &mut self,
        plan: &Plan,
        prepared: &Prepared,
        checks: &KindCheck<'_>,
        progress: &Progress,
    ) -> Result<(), Failure> {
        let KindCheck { config, config_file, host, .. } = *checks;
        let leftovers = leftovers(&host.temporary);
        self.write_files(plan, prepared).map_err(|error| {
            let path = plan.run_directory.display();
            Failure::new(
                Sysexit::CannotCreate,
                format!("cannot create the directory `{path}` of this run: {error}"),
            )
            .hint("set TMPDIR to a directory that this user can write")
        })?;
        self.copy_login(plan)?;
        if plan.kind.is_tried_before_each_run() {
            checks.try_prepared(plan.kind, prepared, &mut self.trials).await?;
        }
        if let Some(image) = &prepared.image
            && let Err(failure) = image.ensure_present(&mut self.pull, progress).await
        {
            checks.try_after_failure(plan.kind, &mut self.trials).await?;
            return Err(failure);
        }
        let held = SharedSidecar::hold(&config.admin.socket, &config.state_dir, config_file).await?;
        let sidecar = self.sidecar.insert(held);
        sidecar.ensure_running(progress).await?;
        remove_leftovers(leftovers, host, sidecar).await;
        self.enrol(plan).await
    }

    /// Runs the command, and restarts the sidecar meanwhile if it exits.
    pub(super) async fn run_command(
        &mut self,
        plan: &Plan,
        prepared: &Prepared,
        checks: &KindCheck<'_>,
        stdio: Stdio,
        signals: &mut Signals,
    ) -> Result<ExitCode, Failure> {
        let Some(sidecar) = &mut self.sidecar else {
            return Err(Failure::new(Sysexit::Software, "no sidecar"));
        };
        self.removal = Removal::Needed;
        let program = &prepared.command.program;
        let ended = tokio::select! {
            ended = terminal_relay::run(prepared, stdio, signals) => ended,
            () = sidecar.keep_running() => unreachable!("it never returns"),
        };
        self.trials.sidecar = sidecar.child_id();
        let ended = ended.map_err(|error| {
            Failure::new(Sysexit::Unavailable, format!("cannot run `{}`: {error}", program.display()))
        })?;
        if ended.interruption.is_none() && ended.status.code().is_some() {
            self.removal = Removal::NotNeeded;
        }
        if let Some(interruption) = ended.interruption
            && !ended.status.success()
            && was_interrupted_before_start(prepared, interruption).await
        {
            return Ok(ended_by(interruption.signal));
        }
        if let (Some(advice), Some(code)) = (prepared.advice, ended.status.code())
            && NOT_STARTED.contains(&code)
        {
            tokio::select! {
                works = checks.try_after_failure(plan.kind, &mut self.trials) => works?,
                signal = signals.interruption() => return Ok(ended_by(signal)),
            }
            eprintln!("cofferdam: exit code {code}: {advice}");
        }
        Ok(exit_code(ended.status))
    }

    /// Removes what was set up.
    pub(super) async fn end(mut self, plan: &Plan, prepared: &Prepared, host: &Host) -> Result<(), Failure> {
        self.trials.stop().await;
        self.pull.stop().await;
        if let Some(container) = &prepared.left
            && self.removal == Removal::Needed
            && let Some(program) = find(container.program(), &host.search_path, &host.directory)
        {
            run_quietly(&container.removal(program, &plan.run_directory, host), REMOVAL_TIMEOUT).await;
        }
        let enrolment_ended = self.end_enrolment().await;
        // Orphaned processes could still write to the directory, so they are killed before it is removed.
        if prepared.orphans == Orphans::Kill {
            // The sidecar, if this run started it, is the only child that is spared.
            let spared_sidecar = self.sidecar.as_ref().and_then(SharedSidecar::child_id);
            if let Err(error) = cofferdam_process::kill_adopted(spared_sidecar) {
                eprintln!("cofferdam: processes of the sandbox may still run: {error}");
            }
        }
        match self.login.as_ref().map(Login::copy_back) {
            None | Some(CopyBackResult::Unchanged) => {}
            Some(CopyBackResult::Refreshed) => {
                eprintln!("cofferdam: the harness refreshed its login; the new tokens were copied back")
            }
            Some(CopyBackResult::NotCopied(why)) => eprintln!(
                "cofferdam: warning: the login in the sandbox changed and was not copied back: {why}; if the harness outside \
                 is no longer logged in, log in there again"
            ),
        }
        self.login = None;
        self.directory = None;
        let sidecar_left = match self.sidecar.take() {
            Some(sidecar) => sidecar.leave().await,
            None => Ok(()),
        };
        enrolment_ended.and(sidecar_left)
    }

    fn write_files(&mut self, plan: &Plan, prepared: &Prepared) -> io::Result<()> {
        let directory = self.directory.insert(RunDirectory::create(&plan.run_directory)?);
        if let Some(content) = &plan.shim.content {
            directory.write_program(&plan.shim.path, content)?;
        }
        directory.write(&prepared.files)?;
        if let Some(container) = &prepared.left {
            directory.save_container(container)?;
        }
        let shim = plan.paths.shim();
        let shim = ShimCommand { program: &shim.to_string_lossy(), relay: Some(&plan.relay_address()) };
        let login = plan.login_state();
        let settings = plan.harness.map(|harness| {
            let project = ProjectEntries::read(harness, &plan.directory, &plan.servers);
            harness.settings(&plan.servers, shim, login, &project)
        });
        let home = directory.home();
        let settings: Vec<GeneratedFile> = settings
            .unwrap_or_default()
            .into_iter()
            .map(|file| GeneratedFile::text(home.join(file.path), file.text))
            .collect();
        directory.write(&settings)
    }

    fn copy_login(&mut self, plan: &Plan) -> Result<(), Failure> {
        let (Some(location), Some(directory)) = (&plan.login, &self.directory) else { return Ok(()) };
        let file = location.outside.display().to_string();
        self.login = Login::copy_in(location.clone(), &directory.home()).map_err(|error| {
            Failure::new(Sysexit::NoInput, format!("cannot copy the harness's login `{file}`: {error}"))
                .hint("log in again outside of the sandbox, or move the file away to run without a login")
        })?;
        Ok(())
    }

    /// Enrols the sandbox: the sidecar creates a relay socket for this sandbox only.
    async fn enrol(&mut self, plan: &Plan) -> Result<(), Failure> {
        let (Some(sidecar), Some(directory)) = (&self.sidecar, &self.directory) else { return Ok(()) };
        let request = AdminRequest::Enroll {
            grant: plan.grant.to_string(),
            name: Some(plan.name.clone()),
            ttl_ms: None,
            // A socket has no ticket.
            ticket_ttl_ms: 0,
            socket: Some(directory.relay()),
        };
        let admin = sidecar.admin().to_owned();
        let enrolling = self.enrolling.insert(spawn_blocking(move || client::send(&admin, &request)));
        let response = enrolling.await;
        self.enrolling = None;
        match self
            .record_enrolment(response.map_err(|error| AdminError::Io(io::Error::other(error))).flatten())
        {
            Ok(()) => Ok(()),
            Err(why) => {
                Err(Failure::new(Sysexit::Unavailable, format!("cannot create the relay's socket: {why}"))
                    .hint("look at the sidecar's log"))
            }
        }
    }

    fn record_enrolment(&mut self, response: Result<AdminResponse, AdminError>) -> Result<(), String> {
        match response {
            Ok(AdminResponse::Enrolled { enrolment, .. }) => {
                if let Some(directory) = &self.directory {
                    // If this fails and the run is killed, its enrolment stays until it expires.
                    let _ = directory.save_enrolment(&enrolment);
                }
                self.enrolment = Some(enrolment);
                Ok(())
            }
            Ok(AdminResponse::Refused { why, .. }) => Err(why),
            Ok(_) => Err("the sidecar sent an unexpected response: does it have the same version?".into()),
            Err(error) => Err(cofferdam_base::text::error_chain(&error)),
        }
    }

    /// Ends the sandbox's sessions with their servers, and removes the socket.
    async fn end_enrolment(&mut self) -> Result<(), Failure> {
        if let Some(enrolling) = self.enrolling.take()
            && let Ok(response) = enrolling.await
        {
            // If the sidecar refused, there is no enrolment to end.
            let _ = self.record_enrolment(response);
        }
        let (Some(sidecar), Some(enrolment)) = (&self.sidecar, self.enrolment.take()) else { return Ok(()) };
        // `Kill` also takes the id of an enrolment, and then ends the enrolment with all its sessions.
        let why = match sidecar.send(AdminRequest::Kill { session: enrolment }).await {
            Ok(AdminResponse::Refused { why, .. }) => why,
            Ok(_) => return Ok(()),
            Err(error) => cofferdam_base::text::error_chain(&error),
        };
        Err(Failure::new(Sysexit::Unavailable, format!("cannot end the sandbox's session: {why}"))
            .hint("`cofferdam sessions` lists the remaining sessions, `cofferdam kill` ends one"))
    }
}

/// Removes what killed runs have left behind.
async fn remove_leftovers(leftovers: Vec<Leftover>, host: &Host, sidecar: &SharedSidecar) {
    for leftover in leftovers {
        if let Some(container) = &leftover.container
            && let Some(program) = find(container.program(), &host.search_path, &host.directory)
        {
            run_quietly(&container.removal(program, &leftover.path, host), REMOVAL_TIMEOUT).await;
        }
        let ended = match leftover.enrolment.clone() {
            // If the sidecar refuses, the enrolment has ended already.
            Some(enrolment) => sidecar.send(AdminRequest::Kill { session: enrolment }).await.is_ok(),
            None => true,
        };
        if ended {
            leftover.remove();
        }
    }
}

/// Whether a container was interrupted before its command has started. The exit code of podman or docker does not say that.
async fn was_interrupted_before_start(prepared: &Prepared, interruption: Interruption) -> bool {
    let Some(check) = &prepared.start_check else { return false };
    if interruption.container == ContainerState::NotCreated {
        return true;
    }
    let mut command = check.status.command();
    command.stdin(ProcessStdio::null()).stderr(ProcessStdio::null());
    let output = timeout(STATUS_TIMEOUT, Command::from(command).kill_on_drop(true).output()).await;
    // A container whose command has exited is removed, so its status cannot be read.
    output.is_ok_and(|output| {
        output.is_ok_and(|output| {
            STATUSES_BEFORE_START.contains(&String::from_utf8_lossy(&output.stdout).trim())
        })
    })
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1))
}
