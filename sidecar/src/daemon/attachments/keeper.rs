//! Starts, holds and ends attachments, with the enrolments of their sandboxes.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::clock;
use cofferdam_base::text::error_chain;
use cofferdam_platforms::{HarnessSettings, HubSetup, ShimSource};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use super::activity::{CallCounter, CallCounts};
use super::client::{ConfiguredPlatform, RemainingHub};
use super::dial_out::DialOut;
use super::follow::Follower;
use super::pacing::{History, Pacing};
use super::request::{AttachmentKey, AttachmentRequest, AttachmentSpec, RequestedBy, Route};
use super::run::{Attaching, AttachingEnd, CLOSE_TIMEOUT, FINISH_TIMEOUT, HeldSandbox};
use super::status::{AttachmentState, AttachmentStatus, Kind, Lifetime, OverCause};
use super::table::{AttachmentLimits, EndReason, Entry};
use super::{AttachmentError, choose_platform, records};
use crate::daemon::attach::hold::{Hold, HoldError, HoldEvent, HoldRequest};
use crate::daemon::attach_table::{GONE_WITHIN, GOODBYE_TIMEOUT, KILL_TIMEOUT};
use crate::daemon::enrolling::{EnrollError, Killed};
use crate::daemon::state::Daemon;
use crate::enrolment::{Denied, EndCause};
use crate::harness::sandbox_settings::{ReportWarning, SandboxSettings};
use crate::link::registry::END_TIMEOUT as END_LINKS_TIMEOUT;

/// Starts and ends the attachments of a daemon. Cheap to clone.
#[derive(Clone)]
pub(crate) struct AttachmentKeeper {
    pub(super) daemon: Arc<Daemon>,
}

/// How long a new attachment waits for a conflicting one that is ending, whose command may have been killed just before.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the sidecar may take to notice that a command has disconnected. A program that attaches a sandbox, gives up and
/// attaches it again at once must not be refused because of its own first attempt.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long ending an attachment may take after its links have ended: the last bytes of its pipe, and the hub.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// After a kill the links end, then the pipe, then the hub, and then the attachment is over.
const _: () = {
    let after_links = GOODBYE_TIMEOUT.saturating_add(CLOSE_TIMEOUT).saturating_add(FINISH_TIMEOUT);
    assert!(after_links.as_millis() < END_TIMEOUT.as_millis());
    // `attach end` waits for the links, and then for the rest.
    assert!(END_LINKS_TIMEOUT.saturating_add(END_TIMEOUT).as_millis() <= GONE_WITHIN.as_millis());
    let after_kill = KILL_TIMEOUT.saturating_add(CLOSE_TIMEOUT).saturating_add(FINISH_TIMEOUT);
    assert!(after_kill.as_millis() < GONE_WITHIN.as_millis());
};
/// Between attempts to enrol a sandbox whose attachment is stored or configured.
const ENROL_DELAY: Duration = Duration::from_secs(10);

impl AttachmentKeeper {
    pub(crate) fn of(daemon: &Arc<Daemon>) -> Self {
        Self { daemon: Arc::clone(daemon) }
    }

    /// Starts an attachment that a command follows. Waits a short time for a conflicting one that is ending.
    pub(crate) async fn attach_platform(
        &self,
        request: &AttachmentRequest,
        requested_by: RequestedBy,
    ) -> Result<Follower, AttachmentError> {
        let mut spec = {
            let config = self.daemon.context.config.load();
            request.check(choose_platform(&config, request, requested_by)?)?
        };
        self.take_over_enrolment(&mut spec).await;
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        loop {
            let error = match self.start(spec.clone(), Lifetime::Followed, History::NeverAttached) {
                Ok(entry) => return Ok(Follower::new(self.clone(), entry)),
                Err(error) => error,
            };
            let is_conflict =
                matches!(&error, AttachmentError::NotEntered(not_entered) if not_entered.is_conflict());
            // The other attachment may be ending because its command was just interrupted.
            let config = self.daemon.context.config.load_full();
            let is_ending = match self.daemon.attachments.table.find_conflict(&spec, &config.platforms) {
                Some(other) if is_conflict => is_ending_soon(&other).await,
                Some(_) => false,
                None => true,
            };
            let time_left = deadline.saturating_duration_since(Instant::now());
            if !is_conflict
                || !is_ending
                || timeout(time_left, self.daemon.attachments.table.await_removal()).await.is_err()
            {
                if let Some(enrolment) = &spec.enrolment {
                    self.end_stored(spec.key(), Some(enrolment)).await;
                }
                return Err(error);
            }
        }
    }

    pub(super) fn start(
        &self,
        spec: AttachmentSpec,
        lifetime: Lifetime,
        history: History,
    ) -> Result<Entry, AttachmentError> {
        if self.daemon.stop.is_cancelled() {
            return Err(AttachmentError::Stopping);
        }
        let config = self.daemon.context.config.load();
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
            warning: None,
            state: AttachmentState::FINDING,
        };
        let entry = Entry::new(spec, status);
        self.daemon.attachments.table.enter(
            entry.clone(),
            AttachmentLimits::of(&config),
            &config.platforms,
        )?;
        self.daemon.context.tasks.spawn(self.clone().run(entry.clone(), history));
        Ok(entry)
    }

    /// Ends an attachment with its enrolment, if it has one. `None` if there is no such attachment.
    pub(crate) async fn end(
        &self,
        key: &AttachmentKey,
        reason: EndReason,
    ) -> Option<(Lifetime, Option<Killed>)> {
        let entry = self.daemon.attachments.table.find(key)?;
        entry.set_end_reason(reason);
        let (lifetime, enrolment) = {
            let status = entry.status.borrow();
            (status.lifetime, status.enrolment.clone())
        };
        let killed = match enrolment {
            Some(enrolment) => self.daemon.kill(&enrolment).await,
            None => None,
        };
        // If an enrolment was ended, the task ends by itself after the last bytes were sent to the sandbox.
        if killed.is_none() {
            entry.stop.cancel();
        }
        let mut status = entry.status.subscribe();
        let over = status.wait_for(|status| matches!(status.state, AttachmentState::Over { .. }));
        if timeout(END_TIMEOUT, over).await.is_err() {
            tracing::error!(sandbox = key.name, "an attachment did not end in time");
            entry.stop.cancel();
        }
        Some((lifetime, killed))
    }

    async fn run(self, entry: Entry, history: History) {
        let spec = (*entry.spec).clone();
        let (lifetime, kind) = {
            let status = entry.status.borrow();
            (status.lifetime, status.kind)
        };
        let mut attaching = Attaching {
            clients: ConfiguredPlatform {
                context: Arc::clone(&self.daemon.context),
                keys: Arc::clone(&self.daemon.attachments.keys),
                platform: spec.platform.clone(),
                grant: spec.grant.clone(),
            },
            setup: HubSetup {
                shim: self.shim_source(&spec),
                pin: self.daemon.identity.public().to_string(),
                harness: self.harness_settings(&entry),
            },
            status: entry.status.clone(),
            pacing: Pacing::new(lifetime, history),
            hub: match history {
                History::Attached => RemainingHub::after_pipe(kind),
                History::NeverAttached => RemainingHub::None,
            },
            stop: entry.stop.clone(),
            sidecar_stop: self.daemon.stop.clone(),
            spec,
        };
        let over = match entry.spec.via {
            Route::DialOut => DialOut::of(&self, &entry, attaching).keep().await,
            Route::Preview | Route::Ssh => self.keep_attached(&entry, &mut attaching).await,
        };
        if let Some((why, cause)) = over {
            tracing::info!(sandbox = entry.spec.name, why, "attachment over");
            self.show_over(&entry, why, cause).await;
        }
        if entry.status.borrow().lifetime != Lifetime::Configured {
            self.daemon.attachments.table.remove(&entry);
        }
    }

    /// The settings of the harness in the sandbox, with the servers that the grant has now.
    fn harness_settings(&self, entry: &Entry) -> Option<Arc<dyn HarnessSettings>> {
        let AttachmentSpec { harness, grant, name, .. } = &*entry.spec;
        let config = self.daemon.context.config.load();
        let servers = config.grants.get(grant)?.servers.clone();
        let (status, name) = (entry.status.clone(), name.clone());
        let report: ReportWarning = Arc::new(move |warning| {
            if let Some(warning) = &warning {
                tracing::warn!(sandbox = name, warning, "the settings of the harness lack entries");
            }
            status.send_modify(|status| status.warning = warning);
        });
        Some(Arc::new(SandboxSettings { harness: (*harness)?, servers, report }))
    }

    /// Finds the shim that the request names, that the platform's table names, or that is beside the sidecar's program.
    fn shim_source(&self, spec: &AttachmentSpec) -> ShimSource {
        let (context, shims) = (Arc::clone(&self.daemon.context), Arc::clone(&self.daemon.attachments.shims));
        let (given, platform) = (spec.shim.clone(), spec.platform.clone());
        Arc::new(move |architecture| {
            let config = context.config.load();
            let of_platform = || config.platforms.get(&platform).and_then(|platform| platform.shim.clone());
            shims.find(given.clone().or_else(of_platform).as_deref(), architecture)
        })
    }

    /// Holds the sandbox's enrolment and opens pipes; returns why the attachment ended. `None` when the sidecar stops.
    async fn keep_attached(
        &self,
        entry: &Entry,
        attaching: &mut Attaching<ConfiguredPlatform>,
    ) -> Option<(String, OverCause)> {
        loop {
            let mut hold = match self.hold_sandbox(entry).await {
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
                    match (self.daemon.enrolments.find(&enrolment, clock::now()), lifetime) {
                        // A configured attachment is enrolled anew.
                        (Err(Denied::Ended(EndCause::Expired)), Lifetime::Configured) => {}
                        (Err(Denied::Ended(EndCause::Expired)), _) => {
                            return Some(("the enrolment has expired".into(), OverCause::Ended));
                        }
                        _ => return Some((entry.end_reason_text(), OverCause::Ended)),
                    }
                }
                AttachingEnd::Over => {
                    // The sandbox does not exist or cannot be attached, so its enrolment is not needed.
                    let _ = self.daemon.kill(&enrolment).await;
                    return match state {
                        AttachmentState::Over { why, cause } => Some((why, cause)),
                        _ => Some(("it was refused".into(), OverCause::Unavailable)),
                    };
                }
                AttachingEnd::Stopped if self.daemon.stop.is_cancelled() => return None,
                AttachingEnd::Stopped => {
                    if attaching.pacing.history() == History::NeverAttached {
                        let _ = self.daemon.kill(&enrolment).await;
                    }
                    return Some((entry.end_reason_text(), OverCause::Ended));
                }
            }
        }
    }

    /// Enrols the sandbox and holds it. `Ok(None)` when the sidecar stops; `Err` with the reason if the attachment is over.
    async fn hold_sandbox(&self, entry: &Entry) -> Result<Option<Hold>, (String, OverCause)> {
        let AttachmentSpec { grant, name, .. } = &*entry.spec;
        loop {
            if self.daemon.stop.is_cancelled() {
                return Ok(None);
            }
            if entry.stop.is_cancelled() {
                return Err((entry.end_reason_text(), OverCause::Ended));
            }
            let Some(ttl) = self.enrolment_ttl(&entry.spec) else {
                return Err(("the enrolment has expired".into(), OverCause::Ended));
            };
            let request = HoldRequest { grant: grant.clone(), name: name.clone(), ttl };
            // Not cancelled at a stop, so that this task knows of every enrolment that it created: the caller notices the
            // stop and ends the enrolment. `hold` takes at most two seconds, and a write to disk.
            let held = self.daemon.hold(request).await;
            let error = match held {
                Ok(hold) => return Ok(Some(hold)),
                Err(error) => error,
            };
            let (why, lifetime) = (error_chain(&error), entry.status.borrow().lifetime);
            if lifetime == Lifetime::Followed {
                let cause = match error {
                    HoldError::HeldByAnother(_) => OverCause::Taken,
                    HoldError::NotCreated(EnrollError::UnknownGrant(..)) => OverCause::Configuration,
                    HoldError::NotCreated(_) => OverCause::Unavailable,
                };
                return Err((why, cause));
            }
            tracing::warn!(sandbox = name, why, "a sandbox was not enrolled; trying again");
            let retry_in_ms = ENROL_DELAY.as_millis() as u64;
            entry.status.send_modify(|status| status.state = AttachmentState::Refused { why, retry_in_ms });
            tokio::select! {
                () = self.daemon.stop.cancelled() => return Ok(None),
                () = entry.stop.cancelled() => return Err((entry.end_reason_text(), OverCause::Ended)),
                () = sleep(ENROL_DELAY) => {}
            }
        }
    }

    /// The lifetime of a new enrolment: not beyond the expiry of the stored one, and not longer than the grant allows now.
    /// `Some(None)`: the grant's `ttl`. `None` if the stored enrolment has expired.
    pub(super) fn enrolment_ttl(&self, spec: &AttachmentSpec) -> Option<Option<Duration>> {
        let Some(expires) = spec.expires else { return Some(spec.ttl) };
        let left = expires.duration_since(clock::now()).ok()?;
        let config = self.daemon.context.config.load();
        Some(Some(config.grants.get(&spec.grant).map_or(left, |grant| left.min(grant.ttl))))
    }

    pub(super) async fn remove_record(&self, key: AttachmentKey) {
        let (directory, name) = (self.daemon.attachments.directory.clone(), key.name.clone());
        let removed =
            self.daemon.context.tasks.spawn_blocking(move || records::remove(&directory, &key)).await;
        if let Ok(Err(error)) = removed {
            let why = error_chain(&error);
            tracing::error!(
                sandbox = name,
                why,
                "the file of an attachment that is over was not removed; remove it by hand"
            );
        }
    }

    /// Shows that the attachment is over, and removes its file.
    async fn show_over(&self, entry: &Entry, why: String, cause: OverCause) {
        let lifetime = entry.status.borrow().lifetime;
        if lifetime == Lifetime::Detached || entry.spec.via == Route::DialOut {
            self.remove_record(entry.spec.key()).await;
        }
        entry.status.send_modify(|status| status.state = AttachmentState::Over { why, cause });
    }

    /// Detaches an attachment from the command that follows it: stores it, so that it survives the command and restarts.
    pub(super) async fn detach(&self, entry: &Entry) -> Result<(), String> {
        self.store(entry, Lifetime::Detached).await?;
        entry.status.send_modify(|status| status.lifetime = Lifetime::Detached);
        Ok(())
    }

    /// Stores the attachment and its enrolment, for the time after a restart of the sidecar.
    pub(super) async fn store(&self, entry: &Entry, lifetime: Lifetime) -> Result<(), String> {
        let (request, enrolment) = {
            let status = entry.status.borrow();
            (entry.spec.to_request(status.kind), status.enrolment.clone().unwrap_or_default())
        };
        let enrolment = match self.daemon.enrolments.find(&enrolment, clock::now()) {
            Ok(enrolment) => enrolment,
            Err(denied) => return Err(denied.to_string()),
        };
        let (directory, key) = (self.daemon.attachments.directory.clone(), entry.spec.key());
        let write = move || records::write(&directory, &key, request, &enrolment, lifetime);
        match self.daemon.context.tasks.spawn_blocking(write).await {
            Ok(Ok(())) => Ok(()),
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

    fn call_counter(&self) -> CallCounter {
        call_counter(self.daemon(), &self.enrolment)
    }
}

/// Whether an attachment is ending, or ends as soon as the sidecar notices that its command has disconnected.
async fn is_ending_soon(entry: &Entry) -> bool {
    let is_followed = entry.status.borrow().lifetime == Lifetime::Followed;
    entry.stop.is_cancelled()
        || is_followed && timeout(DISCONNECT_TIMEOUT, entry.stop.cancelled()).await.is_ok()
}

/// Returns a function that counts the calls of the sandbox with this enrolment.
pub(super) fn call_counter(daemon: &Arc<Daemon>, enrolment: &Arc<str>) -> CallCounter {
    let (daemon, enrolment) = (Arc::clone(daemon), Arc::clone(enrolment));
    Box::new(move || {
        let (daemon, enrolment) = (Arc::clone(&daemon), Arc::clone(&enrolment));
        Box::pin(async move {
            let links = daemon.registry.describe_enrolment(&enrolment).await;
            CallCounts {
                made: links.iter().map(|link| link.calls).sum(),
                in_flight: links.iter().map(|link| link.in_flight).sum(),
            }
        })
    })
}
