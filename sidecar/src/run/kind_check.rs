//! Which kinds of sandbox work on this machine: why the chosen one does not, and which other one does.
//!
//! What must stay true: a kind is recommended only after a sandbox of that kind, with the mounts and the network of this run,
//! has really started (of docker only its daemon is tried, because a container needs an image).

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::directory::RunDirectory;
use super::executable;
use super::host::Host;
use super::kinds::{Kind, Prepared, Stdio};
use super::obstacle::find_obstacle;
use super::plan::{Plan, SHIM};
use super::request::RunRequest;
use super::trial::Trials;
use crate::config::Config;
use crate::terminal::failure::{Failure, Sysexit};

/// What was requested and where, for plans of other kinds than the chosen one.
#[derive(Clone, Copy)]
pub(super) struct KindCheck<'a> {
    pub(super) request: &'a RunRequest,
    pub(super) config: &'a Config,
    pub(super) config_file: &'a Path,
    pub(super) host: &'a Host,
}

/// The kinds in the order in which they are recommended: first those that need no image and in which harnesses were tested,
/// last the one that needs an image.
const RECOMMENDED: [Kind; 5] = [Kind::Bwrap, Kind::Podman, Kind::Gvisor, Kind::Srt, Kind::Docker];
/// For the trial of the chosen kind.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(20);
/// For the trial of another kind, so that the error of the chosen one is not delayed for long.
const ALTERNATIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Stands for the image that the user has to name.
const ANY_IMAGE: &str = "IMAGE";

impl KindCheck<'_> {
    /// The path of a kind's program on this machine.
    pub(super) fn find_program(&self, kind: Kind) -> Option<PathBuf> {
        executable::find(kind.program().as_ref(), &self.host.search_path, &self.host.directory)
    }

    /// The failure of a kind whose program is not installed.
    pub(super) async fn program_is_missing(&self, kind: Kind, trials: &mut Trials) -> Failure {
        let why = format!("`{}` is not on the PATH, and {} needs it", kind.program(), kind.name());
        let hint = self.advise(kind, how_to_install(kind), trials).await;
        Failure::new(Sysexit::Unavailable, why).hint(hint)
    }

    /// Tries the sandbox of this run, whose files were written.
    pub(super) async fn try_prepared(
        &self,
        kind: Kind,
        prepared: &Prepared,
        trials: &mut Trials,
    ) -> Result<(), Failure> {
        let Some(trial) = &prepared.trial else { return Ok(()) };
        match trials.run(trial, None, TRIAL_TIMEOUT).await {
            Ok(()) => Ok(()),
            Err(message) => Err(self.does_not_work(kind, &message, trials).await),
        }
    }

    /// Tries a container engine after it has failed. Succeeds if the engine works, so that the failure has another reason.
    pub(super) async fn try_after_failure(&self, kind: Kind, trials: &mut Trials) -> Result<(), Failure> {
        match self.try_kind(kind, TRIAL_TIMEOUT, trials).await {
            Ok(()) => Ok(()),
            Err(message) => Err(self.does_not_work(kind, &message, trials).await),
        }
    }

    /// The failure of a kind whose trial has failed with this message of its program.
    async fn does_not_work(&self, kind: Kind, message: &str, trials: &mut Trials) -> Failure {
        let name = kind.name();
        match find_obstacle(kind, self.host) {
            Some(obstacle) => {
                let why = format!("{name} cannot create this sandbox on this machine: {}", obstacle.why);
                let why = format!("{why}; `{}` failed with: {message}", kind.program());
                let hint = self.advise(kind, &obstacle.remedy, trials).await;
                Failure::new(Sysexit::NoPermission, why).hint(hint)
            }
            None => {
                let why = format!("{name} cannot create this sandbox on this machine: {message}");
                let hint = self.advise(kind, how_to_check(kind), trials).await;
                Failure::new(Sysexit::Unavailable, why).hint(hint)
            }
        }
    }

    /// Completes a hint with another kind that works on this machine.
    async fn advise(&self, failed: Kind, first: &str, trials: &mut Trials) -> String {
        for kind in RECOMMENDED.into_iter().filter(|kind| *kind != failed) {
            if self.try_kind(kind, ALTERNATIVE_TIMEOUT, trials).await.is_ok() {
                return match (kind, &self.request.image) {
                    (Kind::Docker, None) => {
                        format!(
                            "{first}; or use `--sandbox docker --image IMAGE`: docker works here, and needs an image"
                        )
                    }
                    _ => format!("{first}; or use `--sandbox {}`, which works here", kind.argument()),
                };
            }
        }
        format!("{first}; no other kind of sandbox works here either")
    }

    /// Starts a sandbox of this kind in a directory of its own. Returns why that is not possible.
    async fn try_kind(&self, kind: Kind, limit: Duration, trials: &mut Trials) -> Result<(), String> {
        let program = self.find_program(kind).ok_or("its program is not installed")?;
        let mut request = RunRequest { kind, ..self.request.clone() };
        match kind {
            // An image may have to be pulled first; without one the container has this machine's system directories, and
            // the shim is a command that it has for sure.
            Kind::Podman if request.image.is_some() => {
                request.image = None;
                request.command = vec![SHIM.into()];
            }
            Kind::Docker if request.image.is_none() => request.image = Some(ANY_IMAGE.to_owned()),
            _ => {}
        }
        let name = format!("try-{}", cofferdam_base::random::hex::<4>());
        let path = RunDirectory::path_for(&self.host.temporary, &name);
        let plan = Plan::new(&request, self.config, self.config_file, self.host, &path, name);
        let plan = plan.map_err(|_| "it does not support these options")?;
        let prepared = kind.prepare(&plan, self.host, program, &path, Stdio::Inherited);
        let directory = RunDirectory::create(&path).map_err(|error| error.to_string())?;
        directory.write(&prepared.files).map_err(|error| error.to_string())?;
        match &prepared.trial {
            Some(trial) => trials.run(trial, Some(directory), limit).await,
            None => Err("it cannot be tried".to_owned()),
        }
    }
}

pub(super) fn how_to_install(kind: Kind) -> &'static str {
    match kind {
        Kind::Bwrap => "install `bubblewrap`",
        Kind::Podman => "install `podman`",
        Kind::Docker => "install docker, and start its daemon",
        Kind::Gvisor => "install `runsc`",
        Kind::Srt => "install `srt` (npm: @anthropic-ai/sandbox-runtime)",
    }
}

/// The next step where nothing is known that this machine forbids.
pub(super) fn how_to_check(kind: Kind) -> &'static str {
    match kind {
        Kind::Bwrap => "check that `bwrap --unshare-all --ro-bind / / true` works for this user",
        Kind::Podman => "check that `podman info` and `podman run` work for this user",
        Kind::Docker => "start docker's daemon, and check that `docker info` works for this user",
        Kind::Gvisor => {
            "check that `runsc do true` works for this user (without root: `runsc --rootless do true`)"
        }
        Kind::Srt => "check that `srt true` works for this user; srt needs `bwrap`, `socat` and `rg`",
    }
}
