//! The image of a container: looked for on this machine, and pulled if it is not there.
//!
//! What must stay true: the image is pulled before the command starts, never by the program that runs the command, whose
//! progress would mix with the command's output; an interrupted pull gets SIGTERM before it is killed, so that it can remove
//! its partial files.

use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::kinds::CommandLine;
use super::last_output::wait_with_stderr;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::progress::Progress;

/// An image, and the command lines to inspect and pull it.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) name: String,
    /// Prints the architecture of the image; fails where the image is not on this machine.
    pub(super) inspect: CommandLine,
    pub(super) pull: CommandLine,
}

/// A pull that may still run.
#[derive(Default)]
pub(super) struct Pull(Option<Child>);

const INSPECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Enough for a large image over a slow network; a user who does not want to wait can interrupt it.
const PULL_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// For an interrupted pull to remove its partial files.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl Image {
    /// Pulls the image unless it is on this machine. The running pull is stored in `pull`, so that the caller can stop it.
    pub(super) async fn ensure_present(&self, pull: &mut Pull, progress: &Progress) -> Result<(), Failure> {
        let mut architecture = self.architecture().await;
        if architecture.is_none() {
            progress.step(&format!("pulling the image `{}`", self.name));
            self.pull(pull).await?;
            architecture = self.architecture().await;
        }
        if let Some(architecture) = architecture.filter(|architecture| architecture != machine_architecture())
        {
            progress.line(&format!(
                "warning: the image `{}` is for {architecture} and this machine is {}: its programs need an emulator",
                self.name,
                machine_architecture()
            ));
        }
        Ok(())
    }

    async fn architecture(&self) -> Option<String> {
        let mut command = self.inspect.command();
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let output = timeout(INSPECT_TIMEOUT, Command::from(command).kill_on_drop(true).output()).await;
        let output = output.ok()?.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    async fn pull(&self, pull: &mut Pull) -> Result<(), Failure> {
        let failed = |why: String| {
            Failure::new(Sysexit::Unavailable, format!("cannot pull the image `{}`: {why}", self.name)).hint(
                "check the name, and that this machine can reach the registry; an image that was built on this machine is named \
                 `localhost/NAME`",
            )
        };
        let mut command = self.pull.command();
        // In its own process group: Ctrl-C at the terminal reaches only this process, which then stops the pull.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let child = Command::from(command).kill_on_drop(true).spawn();
        let child = pull.0.insert(child.map_err(|error| failed(error.to_string()))?);
        let result = match timeout(PULL_TIMEOUT, wait_with_stderr(child)).await {
            Ok(Ok((status, _))) if status.success() => Ok(()),
            Ok(Ok((_, messages))) => Err(failed(messages)),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed(format!("it took longer than {} minutes", PULL_TIMEOUT.as_secs() / 60))),
        };
        pull.stop().await;
        result
    }
}

impl Pull {
    /// Stops the pull, if it is still running.
    pub(super) async fn stop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
            // The child was not waited for yet, so its id cannot belong to another process.
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
        // A pull that does not exit in time is killed on drop.
        let _ = timeout(STOP_TIMEOUT, child.wait()).await;
    }
}

/// This machine's architecture as images name it.
fn machine_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
