//! Attachments: sandboxes on platforms that the sidecar itself connects to and keeps connected.
//!
//! An attachment is asked for by a command, which follows it or leaves it in the sidecar, or by the configuration. Each has
//! one task, which holds the sandbox's enrolment and opens pipes into the sandbox, one after the other.
//!
//! | module | what it holds |
//! |---|---|
//! | [`request`] | what is to be attached |
//! | [`status`] | the state of an attachment, as commands show it |
//! | `table` | all attachments by name |
//! | `run` | one attachment's pipes |
//! | `pacing` | what follows each outcome |
//! | `client` | the platforms' clients and their API keys |
//! | `records` | the attachments that are kept on disk |
//! | `shim_file` | the static shim for upload |
//! | `follow` | a command that follows its attachment |
//!
//! What must stay true: an attachment that was ended does not come back, except one of the configuration at the next reload
//! or restart; a command that disconnects takes its attachment with it unless that was left in the sidecar on purpose.

mod client;
mod follow;
mod pacing;
mod records;
pub(crate) mod request;
mod run;
#[cfg(test)]
mod scripted;
mod shim_file;
pub(crate) mod status;
mod table;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::text::error_chain;
use cofferdam_platforms::e2b::E2b;
use cofferdam_platforms::{Architecture, HubSetup, ShimSource};
use relay_proto::name::Name;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::attach::hold::{AttachRequest, Hold, HoldError, HoldEvent};
use super::enrolling::{EnrollError, Killed};
use super::state::Daemon;
use crate::config::Config;
use crate::enrolment::{Denied, EndCause};
use crate::session::Context;
use client::{ConfiguredPlatform, PlatformKeys};
pub(crate) use follow::{Detach, Follower};
use pacing::{History, Pacing};
use request::{AttachmentRequest, AttachmentSpec, InvalidRequest};
use run::{Attaching, AttachingEnd, HeldSandbox};
use shim_file::ShimFiles;
use status::{AttachmentState, AttachmentStatus, Kind, Lifetime, OverCause};
use table::{AttachmentTable, Entry, NotEntered};

/// The attachments of a daemon.
pub(crate) struct Attachments {
    table: AttachmentTable,
    keys: Arc<PlatformKeys>,
    shims: Arc<ShimFiles>,
    /// The directory of the kept ones.
    directory: PathBuf,
    /// Signalled when the configuration was reloaded.
    reconfigured: Notify,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachmentError {
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    #[error(transparent)]
    NotEntered(#[from] NotEntered),
    #[error(
        "the configuration has no platform of the kind `{0}`; add a table `[platforms.{0}]` with its `api-key`, then `cofferdam reload`"
    )]
    NoPlatform(&'static str),
    #[error("the platform `{0}` is not of the kind `{1}`")]
    OtherKind(Name, &'static str),
    #[error("there are several platforms of the kind `{0}`; choose one with `--platform`: {1}")]
    SeveralPlatforms(&'static str, String),
    #[error("the sidecar is stopping")]
    Stopping,
}

/// How long a new attachment waits for one that is ending: its command may have been killed just before.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long ending an attachment may take, the hub in the sandbox included.
const END_TIMEOUT: Duration = Duration::from_secs(8);
/// Between attempts to enrol a sandbox that is kept.
const ENROL_DELAY: Duration = Duration::from_secs(10);

impl Attachments {
    pub(super) fn new(context: &Context) -> Self {
        Self {
            table: AttachmentTable::default(),
            keys: Arc::new(PlatformKeys::new(context)),
            shims: Arc::default(),
            directory: records::directory(&context.config.load().state_dir),
            reconfigured: Notify::new(),
        }
    }

    /// The configuration was reloaded.
    pub(super) fn reconfigure(&self) {
        self.reconfigured.notify_one();
    }

    pub(crate) fn statuses(&self) -> Vec<AttachmentStatus> {
        self.table.all().iter().map(|entry| entry.status.borrow().clone()).collect()
    }
}

impl Daemon {
    /// Starts an attachment that a command follows.
    pub(crate) async fn attach_platform(
        self: &Arc<Self>,
        request: &AttachmentRequest,
    ) -> Result<Follower, AttachmentError> {
        let spec = {
            let config = self.context.config.load();
            request.check(platform_of(&config, request)?)?
        };
        let give_up = Instant::now() + RELEASE_TIMEOUT;
        loop {
            let error = match self.start_attachment(spec.clone(), Lifetime::Followed, History::NeverAttached)
            {
                Ok(entry) => return Ok(Follower::new(Arc::clone(self), entry)),
                Err(error) => error,
            };
            // The command before may have been interrupted a moment ago.
            let other = self.attachments.table.conflicting(&spec.platform, &spec.sandbox, &spec.name);
            let is_ending = other.is_none_or(|other| other.stop.is_cancelled());
            let left = give_up.saturating_duration_since(Instant::now());
            let conflicts = matches!(
                error,
                AttachmentError::NotEntered(NotEntered::Name(_) | NotEntered::Sandbox { .. })
            );
            if !conflicts || !is_ending || timeout(left, self.attachments.table.removal()).await.is_err() {
                return Err(error);
            }
        }
    }

    /// Starts the kept and the configured attachments, and follows the configuration until the stop.
    pub(super) async fn keep_attachments(self: Arc<Self>) {
        let directory = self.attachments.directory.clone();
        let records = self.context.tasks.spawn_blocking(move || records::read_all(&directory)).await;
        for record in records.unwrap_or_default() {
            self.restore(&record);
        }
        loop {
            self.apply_configuration().await;
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.attachments.reconfigured.notified() => self.attachments.keys.forget(&self.context),
            }
        }
    }

    fn restore(self: &Arc<Self>, record: &AttachmentRequest) {
        let name = record.name.as_deref().unwrap_or_default();
        // A platform that is missing now may come with a reload: the attachment says so in its state.
        let platform = record.platform.as_deref().unwrap_or(record.kind.as_str()).parse();
        let spec = platform.map_err(InvalidRequest::Platform).and_then(|platform| record.check(platform));
        let started = spec
            .map_err(AttachmentError::from)
            .and_then(|spec| self.start_attachment(spec, Lifetime::Detached, History::Attached));
        if let Err(error) = started {
            tracing::error!(sandbox = name, why = error_chain(&error), "a kept attachment was not started");
        }
    }

    /// Starts what the configuration has gained, and ends what it has lost.
    async fn apply_configuration(self: &Arc<Self>) {
        let config = self.context.config.load_full();
        let wanted: Vec<AttachmentSpec> = config
            .attachments
            .iter()
            .map(|(name, attachment)| AttachmentSpec::configured(name, attachment))
            .collect();
        for entry in self.attachments.table.configured() {
            let is_over = matches!(entry.status.borrow().state, AttachmentState::Over { .. });
            if is_over || !wanted.contains(&entry.spec) {
                // Failures are in the log.
                let _ = self.end_attachment(&entry.spec.name).await;
                self.attachments.table.remove(&entry);
            }
        }
        for spec in wanted {
            if self.attachments.table.find(&spec.name).is_some_and(|entry| *entry.spec == spec) {
                continue;
            }
            let name = spec.name.clone();
            if let Err(error) = self.start_attachment(spec, Lifetime::Configured, History::NeverAttached) {
                tracing::error!(
                    sandbox = name,
                    why = error_chain(&error),
                    "a configured attachment was not started"
                );
            }
        }
    }

    fn start_attachment(
        self: &Arc<Self>,
        spec: AttachmentSpec,
        lifetime: Lifetime,
        history: History,
    ) -> Result<Entry, AttachmentError> {
        if self.stop.is_cancelled() {
            return Err(AttachmentError::Stopping);
        }
        let config = self.context.config.load();
        let kind =
            config.platforms.get(&spec.platform).map_or(Kind::E2b, |platform| platform.settings.kind.into());
        let status = AttachmentStatus {
            name: spec.name.clone(),
            platform: spec.platform.to_string(),
            kind,
            sandbox: spec.sandbox.to_string(),
            grant: spec.grant.to_string(),
            lifetime,
            enrolment: None,
            state: AttachmentState::Finding,
        };
        let entry = Entry::new(spec, status);
        self.attachments.table.enter(entry.clone(), config.limits.attachments)?;
        self.context.tasks.spawn(Arc::clone(self).run_attachment(entry.clone(), history));
        Ok(entry)
    }

    /// Ends an attachment with its enrolment, if it has one. `None` if there is none of this name.
    pub(crate) async fn end_attachment(self: &Arc<Self>, name: &str) -> Option<(Lifetime, Option<Killed>)> {
        let entry = self.attachments.table.find(name)?;
        let (lifetime, enrolment) = {
            let status = entry.status.borrow();
            (status.lifetime, status.enrolment.clone())
        };
        let killed = match enrolment {
            Some(enrolment) => self.kill(&enrolment).await,
            None => None,
        };
        // With an enrolment, its end ends the task, after the last bytes for the sandbox.
        if killed.is_none() {
            entry.stop.cancel();
        }
        let mut status = entry.status.subscribe();
        let over = status.wait_for(|status| matches!(status.state, AttachmentState::Over { .. }));
        if timeout(END_TIMEOUT, over).await.is_err() {
            tracing::error!(sandbox = name, "an attachment did not end in time");
            entry.stop.cancel();
        }
        Some((lifetime, killed))
    }

    async fn run_attachment(self: Arc<Self>, entry: Entry, history: History) {
        let spec = (*entry.spec).clone();
        let lifetime = entry.status.borrow().lifetime;
        let mut attaching = Attaching {
            clients: ConfiguredPlatform {
                context: Arc::clone(&self.context),
                keys: Arc::clone(&self.attachments.keys),
                platform: spec.platform.clone(),
            },
            setup: HubSetup {
                shim: self.shim_source(&spec),
                pin: self.identity.public().to_string(),
                harness_files: Vec::new(),
            },
            status: entry.status.clone(),
            pacing: Pacing::new(lifetime, history),
            stop: entry.stop.clone(),
            sidecar_stop: self.stop.clone(),
            spec,
        };
        let over = self.keep_attached(&entry, &mut attaching).await;
        if let Some((why, cause)) = over {
            tracing::info!(sandbox = entry.spec.name, why, "attachment over");
            self.forget(&entry, why, cause).await;
        }
        if entry.status.borrow().lifetime != Lifetime::Configured {
            self.attachments.table.remove(&entry);
        }
    }

    /// The shim of the request, that of the platform, or the one beside the sidecar's program.
    fn shim_source(&self, spec: &AttachmentSpec) -> ShimSource {
        let (context, shims) = (Arc::clone(&self.context), Arc::clone(&self.attachments.shims));
        let (given, platform) = (spec.shim.clone(), spec.platform.clone());
        Arc::new(move |architecture| {
            let config = context.config.load();
            let of_platform = || config.platforms.get(&platform).and_then(|platform| platform.shim.clone());
            shims.find(given.clone().or_else(of_platform).as_deref(), architecture)
        })
    }

    /// Holds the sandbox's enrolment and opens pipes. `None` when the sidecar stops.
    async fn keep_attached(
        self: &Arc<Self>,
        entry: &Entry,
        attaching: &mut Attaching<ConfiguredPlatform>,
    ) -> Option<(String, OverCause)> {
        loop {
            let mut hold = match self.hold_for(entry).await {
                Ok(hold) => hold?,
                Err(over) => return Some(over),
            };
            let enrolment = Arc::clone(&hold.enrolment);
            entry.status.send_modify(|status| status.enrolment = Some(enrolment.to_string()));
            let end = attaching.run(&mut hold).await;
            drop(hold);
            let (lifetime, state) = {
                let status = entry.status.borrow();
                (status.lifetime, status.state.clone())
            };
            match end {
                AttachingEnd::EnrolmentEnded => {
                    match (self.enrolments.find(&enrolment, cofferdam_base::clock::now()), lifetime) {
                        // The configuration still grants it.
                        (Err(Denied::Over(EndCause::Expired)), Lifetime::Configured) => {}
                        (Err(Denied::Over(EndCause::Expired)), _) => {
                            return Some(("the enrolment has expired".into(), OverCause::Ended));
                        }
                        _ => return Some(("it was ended".into(), OverCause::Ended)),
                    }
                }
                AttachingEnd::Over => {
                    // No sandbox, or none that can be attached: nothing is to be left behind.
                    let _ = self.kill(&enrolment).await;
                    return match state {
                        AttachmentState::Over { why, cause } => Some((why, cause)),
                        _ => Some(("it was refused".into(), OverCause::Unavailable)),
                    };
                }
                AttachingEnd::Stopped if self.stop.is_cancelled() => return None,
                AttachingEnd::Stopped => {
                    if attaching.pacing.history() == History::NeverAttached {
                        let _ = self.kill(&enrolment).await;
                    }
                    return Some(("its command disconnected".into(), OverCause::Ended));
                }
            }
        }
    }

    /// Enrols the sandbox. `Ok(None)` when the sidecar stops.
    async fn hold_for(self: &Arc<Self>, entry: &Entry) -> Result<Option<Hold>, (String, OverCause)> {
        let AttachmentSpec { grant, name, ttl, .. } = &*entry.spec;
        let request = AttachRequest { grant: grant.clone(), name: name.clone(), ttl: *ttl };
        loop {
            let held = tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                () = entry.stop.cancelled() => return Err(("it was ended".into(), OverCause::Ended)),
                held = self.hold(request.clone()) => held,
            };
            let error = match held {
                Ok(hold) => return Ok(Some(hold)),
                Err(error) => error,
            };
            let (why, lifetime) = (error_chain(&error), entry.status.borrow().lifetime);
            if lifetime == Lifetime::Followed {
                let cause = match error {
                    HoldError::HeldByAnother(_) => OverCause::Taken,
                    HoldError::NotCreated(EnrollError::Grant(..)) => OverCause::Configuration,
                    HoldError::NotCreated(_) => OverCause::Unavailable,
                };
                return Err((why, cause));
            }
            tracing::warn!(sandbox = name, why, "a sandbox was not enrolled; trying again");
            let retry_in_ms = ENROL_DELAY.as_millis() as u64;
            entry.status.send_modify(|status| status.state = AttachmentState::Refused { why, retry_in_ms });
            tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                () = entry.stop.cancelled() => return Err(("it was ended".into(), OverCause::Ended)),
                () = sleep(ENROL_DELAY) => {}
            }
        }
    }

    /// Shows that the attachment is over, and removes its file.
    async fn forget(&self, entry: &Entry, why: String, cause: OverCause) {
        if entry.status.borrow().lifetime == Lifetime::Detached {
            let (directory, name) = (self.attachments.directory.clone(), entry.spec.name.clone());
            let removed = self.context.tasks.spawn_blocking(move || records::remove(&directory, &name)).await;
            if let Ok(Err(error)) = removed {
                let why = error_chain(&error);
                tracing::error!(
                    sandbox = entry.spec.name,
                    why,
                    "the end of an attachment was not saved: it would come back after a restart"
                );
            }
        }
        entry.status.send_modify(|status| status.state = AttachmentState::Over { why, cause });
    }

    /// Leaves a followed attachment in the sidecar.
    async fn detach(&self, entry: &Entry) -> Result<(), String> {
        let request = {
            let status = entry.status.borrow();
            entry.spec.to_request(status.kind)
        };
        let directory = self.attachments.directory.clone();
        let written = self.context.tasks.spawn_blocking(move || records::write(&directory, &request)).await;
        match written {
            Ok(Ok(())) => {
                entry.status.send_modify(|status| status.lifetime = Lifetime::Detached);
                Ok(())
            }
            Ok(Err(error)) => Err(error_chain(&error)),
            Err(_) => Err("the sidecar failed; see its log".into()),
        }
    }
}

impl HeldSandbox for Hold {
    fn serve(&self, stream: UnixStream) {
        Hold::serve(self, stream);
    }

    async fn next_event(&mut self) -> HoldEvent {
        Hold::next_event(self).await
    }
}

/// The platform of a request: the one that it names, the one with the name of its kind, or the only one of its kind.
fn platform_of(config: &Config, request: &AttachmentRequest) -> Result<Name, AttachmentError> {
    let kind = request.kind;
    let of_kind: Vec<&Name> = config
        .platforms
        .values()
        .filter(|platform| Kind::from(platform.settings.kind) == kind)
        .map(|platform| &platform.name)
        .collect();
    if let Some(name) = &request.platform {
        let name: Name = name.parse().map_err(InvalidRequest::Platform)?;
        return match of_kind.contains(&&name) {
            true => Ok(name),
            false => Err(AttachmentError::OtherKind(name, kind.as_str())),
        };
    }
    match (of_kind.iter().find(|name| name.as_str() == kind.as_str()), of_kind.as_slice()) {
        (Some(name), _) => Ok((*name).clone()),
        (None, [only]) => Ok((*only).clone()),
        (None, []) => Err(AttachmentError::NoPlatform(kind.as_str())),
        (None, several) => {
            let names = several.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            Err(AttachmentError::SeveralPlatforms(kind.as_str(), names))
        }
    }
}

impl AttachmentError {
    /// For the exit code of the command.
    pub(crate) fn cause(&self) -> OverCause {
        match self {
            Self::Invalid(InvalidRequest::Sandbox(_)) => OverCause::NoSandbox,
            Self::Invalid(_) | Self::NoPlatform(_) | Self::OtherKind(..) | Self::SeveralPlatforms(..) => {
                OverCause::Configuration
            }
            Self::NotEntered(NotEntered::Name(_) | NotEntered::Sandbox { .. }) => OverCause::Taken,
            Self::NotEntered(NotEntered::Full(_)) | Self::Stopping => OverCause::Unavailable,
        }
    }
}

/// What to add to a template of E2B so that nothing is uploaded later. The error is a sentence with the next step.
pub(crate) fn e2b_template(shim: Option<PathBuf>) -> Result<String, String> {
    // E2B's own sandboxes have this processor.
    let shim = ShimFiles::default().find(shim.as_deref(), Architecture::X86_64)?;
    Ok(E2b::template(&shim))
}
