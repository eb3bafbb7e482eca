//! Runs trials: short starts of a sandbox, which show whether its kind works on this machine.
//!
//! What must stay true: when a trial has ended or was stopped, its processes, containers and files are gone. A trial that is
//! interrupted is stopped with [`Trials::stop`], because a dropped future cannot wait for that.

use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Duration;

use cofferdam_process::{OrphanAdoption, kill_adopted};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::directory::RunDirectory;
use super::kinds::{CommandLine, Trial};
use super::last_output::wait_with_stderr;
use super::run_quietly;

/// Runs one trial at a time.
#[derive(Default)]
pub(super) struct Trials {
    running: Option<RunningTrial>,
    /// The process id of a sidecar that this run has started, which is not a process of a trial.
    pub(super) sidecar: Option<u32>,
}

struct RunningTrial {
    child: Child,
    removal: Option<CommandLine>,
    /// The directory of a trial that does not use the run's own.
    _directory: Option<RunDirectory>,
    /// Podman starts processes that outlive it.
    _adoption: OrphanAdoption,
}

/// For the program that removes what a stopped trial has left. Its processes are killed in any case.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(3);

impl Trials {
    /// Returns why the sandbox does not work, as its program says. `directory` is removed after the trial.
    pub(super) async fn run(
        &mut self,
        trial: &Trial,
        directory: Option<RunDirectory>,
        limit: Duration,
    ) -> Result<(), String> {
        let mut command = trial.command.command();
        // In its own process group: Ctrl-C at the terminal reaches only this process, which then stops the trial.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let adoption = OrphanAdoption::begin().map_err(|error| error.to_string())?;
        let child = Command::from(command).kill_on_drop(true).spawn().map_err(|error| error.to_string())?;
        let running = self.running.insert(RunningTrial {
            child,
            removal: trial.removal.clone(),
            _directory: directory,
            _adoption: adoption,
        });
        let result = match timeout(limit, wait_with_stderr(&mut running.child)).await {
            Ok(Ok((status, _))) if status.success() => Ok(()),
            Ok(Ok((status, messages))) if messages.is_empty() => Err(status.to_string()),
            Ok(Ok((_, messages))) => Err(messages),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no result within {} s", limit.as_secs())),
        };
        self.stop().await;
        result
    }

    /// Ends the running trial, if there is one, and removes what it has created.
    pub(super) async fn stop(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        if running.child.id().is_some() {
            // An error means that the process has exited.
            let _ = running.child.kill().await;
            if let Some(removal) = &running.removal {
                run_quietly(removal, REMOVAL_TIMEOUT).await;
            }
        }
        if let Err(error) = kill_adopted(self.sidecar) {
            eprintln!("cofferdam: processes of a trial may still run: {error}");
        }
    }
}
