//! One attachment whose sandbox connects to the sidecar itself: the shim is uploaded and enrolled in the sandbox, and from
//! then on the enrolment and the state of the sandbox are watched.
//!
//! What must stay true: the enrolment ends with the attachment; a ticket is created only when the sandbox is ready to use
//! it, and its enrolment ends at once if the sandbox did not use it; sandboxes connect to a `wss://` address, because
//! platforms permit such connections.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cofferdam_base::clock;
use cofferdam_platforms::{EarlierKey, PlatformError, PreparedSandbox, Progress, SandboxState};
use relay_proto::address::Address;
use relay_proto::name::Name;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use zeroize::Zeroizing;

use super::activity::{ActivityReports, report_activity};
use super::client::{ClientFactory as _, ConfiguredPlatform, PlatformClient};
use super::keeper::{AttachmentKeeper, call_counter};
use super::keys::KeyUse;
use super::pacing::{AttemptError, Outcome, Step};
use super::run::{Attaching, OPEN_TIMEOUT, retries_with_reread_key, timed_out};
use super::status::{AttachmentState, Lifetime, OverCause};
use super::table::Entry;
use crate::daemon::enrolling::{EnrollRequest, EnrollVia};
use crate::enrolment::{Denied, EndCause};

pub(super) struct DialOut<'a> {
    keeper: &'a AttachmentKeeper,
    entry: &'a Entry,
    attaching: Attaching<ConfiguredPlatform>,
    /// The enrolment of the sandbox, if it is enrolled.
    enrolment: watch::Sender<Option<Arc<str>>>,
    key: SandboxKey,
}

/// Whether the sandbox is known to have the key of its enrolment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SandboxKey {
    /// After a restart of the sidecar the sandbox is asked first.
    Unconfirmed,
    Confirmed,
}

/// Why the sandbox is no longer kept enrolled with the current enrolment.
enum KeepEnd {
    /// No further attempt is made; the state of the attachment has the reason.
    Over,
    EnrolmentEnded(Denied),
    /// The attachment's `stop` was cancelled.
    Stopped,
}

/// How long the sandbox has to use its ticket: the default of `cofferdam enroll` too.
const TICKET_TTL: Duration = Duration::from_secs(120);
/// How often the enrolment is checked, which is cheap.
const ENROLMENT_POLL: Duration = Duration::from_secs(1);
/// How often the state of an attached sandbox is queried.
const STATE_POLL: Duration = Duration::from_secs(30);

impl<'a> DialOut<'a> {
    pub(super) fn of(
        keeper: &'a AttachmentKeeper,
        entry: &'a Entry,
        attaching: Attaching<ConfiguredPlatform>,
    ) -> Self {
        // The enrolment of a stored attachment is known before the platform responds, so that `attach end` and `kill` end it.
        let enrolment = entry.spec.enrolment.clone();
        let dial_out = Self {
            keeper,
            entry,
            attaching,
            enrolment: watch::Sender::new(enrolment.clone()),
            key: SandboxKey::Unconfirmed,
        };
        dial_out.show_enrolment(enrolment.as_ref());
        dial_out
    }

    /// Keeps the sandbox enrolled; returns why the attachment ended. `None` when the sidecar stops: the enrolment then lasts.
    pub(super) async fn keep(mut self) -> Option<(String, OverCause)> {
        loop {
            let (stop, sidecar_stop) = (self.attaching.stop.clone(), self.attaching.sidecar_stop.clone());
            let enrolment_end =
                await_enrolment_end(self.keeper, self.entry.spec.expires, self.enrolment.subscribe());
            let end = tokio::select! {
                () = self.follow_steps() => KeepEnd::Over,
                denied = enrolment_end => KeepEnd::EnrolmentEnded(denied),
                () = stop.cancelled() => KeepEnd::Stopped,
                () = sidecar_stop.cancelled() => return None,
            };
            let lifetime = self.entry.status.borrow().lifetime;
            if let (KeepEnd::EnrolmentEnded(Denied::Ended(EndCause::Expired)), Lifetime::Configured) =
                (&end, lifetime)
            {
                // A configured attachment is enrolled anew.
                self.enrolment.send_replace(None);
                continue;
            }
            self.end_enrolment().await;
            return Some(match end {
                KeepEnd::EnrolmentEnded(Denied::Ended(EndCause::Expired)) => {
                    ("the enrolment has expired".into(), OverCause::Ended)
                }
                KeepEnd::EnrolmentEnded(_) => ("it was ended".into(), OverCause::Ended),
                KeepEnd::Stopped => ("its command disconnected".into(), OverCause::Ended),
                KeepEnd::Over => match self.entry.status.borrow().state.clone() {
                    AttachmentState::Over { why, cause } => (why, cause),
                    _ => ("it was refused".into(), OverCause::Unavailable),
                },
            });
        }
    }

    /// Enrols the sandbox and watches it, with delays after failures, until the attachment is over.
    async fn follow_steps(&mut self) {
        let began = Instant::now();
        let mut key = KeyUse::Held;
        let mut step = Step::Open { after: Duration::ZERO };
        while let Step::QueryState { after } | Step::Open { after } = step {
            sleep(after).await;
            let outcome = match step {
                Step::QueryState { .. } => match self.attaching.query_state(key).await {
                    Ok(state) => Outcome::State(state),
                    Err(error) => Outcome::Failed(error),
                },
                _ => self.attempt(key).await,
            };
            if retries_with_reread_key(&mut key, &outcome) {
                continue;
            }
            step = self.attaching.next_step(outcome, began);
        }
    }

    /// Enrols the sandbox if it is not enrolled, and watches it until it is suspended or gone.
    async fn attempt(&mut self, key: KeyUse) -> Outcome {
        self.attaching.show(AttachmentState::FINDING);
        if let Err(error) = self.ensure_enrolled(key).await {
            return Outcome::Failed(error);
        }
        let enrolment = self.enrolment.borrow().clone().unwrap_or_default();
        let key = self.keeper.daemon.enrolments.key(&enrolment, clock::now());
        let attached = AttachmentState::Attached { key: key.map(|key| key.to_string()).unwrap_or_default() };
        self.attaching.pacing.record_attached();
        tracing::info!(sandbox = self.entry.spec.name, "attached: the sandbox dials out");
        let client = match self.attaching.clients.create_client(KeyUse::Held).await {
            Ok(client) => client,
            Err(error) => return Outcome::Failed(error),
        };
        let reports = ActivityReports::of(&self.entry.spec, &client);
        let calls = call_counter(&self.keeper.daemon, &enrolment);
        tokio::select! {
            outcome = self.watch_sandbox(attached) => outcome,
            never = report_activity(reports, &client, &self.entry.spec.sandbox, calls) => match never {},
        }
    }

    /// Polls the state of the attached sandbox until it is suspended or gone.
    async fn watch_sandbox(&self, attached: AttachmentState) -> Outcome {
        loop {
            self.attaching.show(attached.clone());
            match self.attaching.query_state(KeyUse::Held).await {
                Ok(SandboxState::Suspended) => return Outcome::State(SandboxState::Suspended),
                Err(AttemptError::Platform(error @ PlatformError::NoSandbox { .. })) => {
                    return Outcome::Failed(error.into());
                }
                // A failed query does not matter: the links work without the platform's control API.
                Ok(SandboxState::Running) | Err(_) => {}
            }
            sleep(STATE_POLL).await;
        }
    }

    async fn ensure_enrolled(&mut self, key: KeyUse) -> Result<(), AttemptError> {
        let earlier = self.enrolment.borrow().clone();
        if earlier.is_some() && self.key == SandboxKey::Confirmed {
            return Ok(());
        }
        self.check_address()?;
        let server = self.first_server()?;
        let client = self.attaching.clients.create_client(key).await?;
        let prepared = self.prepare(&client).await?;
        // The settings of the harness are written once: later the user may have changed them on purpose.
        self.attaching.setup.harness = None;
        self.attaching.show(AttachmentState::Opening(Progress::Connecting));
        if let Some(earlier) = earlier {
            if prepared.earlier_key().await? == EarlierKey::Accepted {
                self.key = SandboxKey::Confirmed;
                return Ok(());
            }
            // A sandbox has one key: that of the earlier enrolment ends before another is issued, whatever the sandbox says.
            self.show_enrolment(None);
            self.enrolment.send_replace(None);
            let _ = self.keeper.daemon.kill(&earlier).await;
        }
        let spec = &self.entry.spec;
        // When the enrolment expires, the attachment ends, whatever this error causes.
        let expired = || AttemptError::Configuration("the enrolment has expired".to_owned());
        let ttl = self.keeper.enrolment_ttl(spec).ok_or_else(expired)?;
        let request = EnrollRequest {
            grant: spec.grant.clone(),
            name: Some(spec.name.clone()),
            ttl,
            via: EnrollVia::Ticket { ttl: TICKET_TTL },
        };
        let enrolled = self.keeper.daemon.enroll(request).await;
        let enrolled = enrolled.map_err(|error| AttemptError::Configuration(error.to_string()))?;
        let (id, enrolment_string) = (enrolled.enrolment.id, Zeroizing::new(enrolled.connect_string));
        // Set before the ticket is used: if this future is dropped, the enrolment ends with the attachment.
        self.show_enrolment(Some(&id));
        self.enrolment.send_replace(Some(Arc::clone(&id)));
        let is_used = || self.keeper.daemon.enrolments.key(&id, clock::now()).is_some();
        let enrolled = prepared.enrol(&enrolment_string, server.as_str(), &is_used).await;
        if is_used() {
            self.key = SandboxKey::Confirmed;
            self.store_enrolment().await;
            return Ok(());
        }
        // Failures are logged where they occur.
        let _ = self.keeper.daemon.kill(&id).await;
        self.show_enrolment(None);
        self.enrolment.send_replace(None);
        Ok(enrolled?)
    }

    async fn prepare(&self, client: &PlatformClient) -> Result<PreparedSandbox, PlatformError> {
        let progress = |progress: Progress| self.attaching.show(AttachmentState::Opening(progress));
        let prepared = timeout(OPEN_TIMEOUT, client.prepare(self.attaching.open_options(&progress))).await;
        prepared.unwrap_or_else(|_| Err(timed_out("put the shim into the sandbox", OPEN_TIMEOUT)))
    }

    fn check_address(&self) -> Result<(), AttemptError> {
        match self.keeper.daemon.advertised_address() {
            Some(Address::WebSocket(_)) => Ok(()),
            _ => Err(AttemptError::Configuration(
                "a sandbox that dials out needs a `wss://` address of this sidecar; set `relay.tls`, and `relay.advertise` to an address \
                 such as \"wss://relay.example.com/\", then restart the sidecar"
                    .to_owned(),
            )),
        }
    }

    /// The first server of the grant, for the link with which the sandbox redeems its ticket.
    fn first_server(&self) -> Result<Name, AttemptError> {
        let config = self.keeper.daemon.context.config.load();
        let grant = config.grants.get(&self.entry.spec.grant);
        grant.and_then(|grant| grant.servers.first().cloned()).ok_or_else(|| {
            let grant = &self.entry.spec.grant;
            AttemptError::Configuration(format!(
                "the grant `{grant}` has no server; add one to `grants.{grant}`"
            ))
        })
    }

    fn show_enrolment(&self, enrolment: Option<&Arc<str>>) {
        let enrolment = enrolment.map(ToString::to_string);
        self.entry.status.send_modify(|status| status.enrolment = enrolment);
    }

    /// Writes the new enrolment to the file of an attachment that has one.
    async fn store_enrolment(&self) {
        let lifetime = self.entry.status.borrow().lifetime;
        if lifetime == Lifetime::Detached
            && let Err(why) = self.keeper.detach(self.entry).await
        {
            let sandbox = &self.entry.spec.name;
            tracing::error!(
                sandbox,
                why,
                "the new enrolment of an attachment was not stored: a restart ends it"
            );
        }
    }

    async fn end_enrolment(&self) {
        let enrolment = self.enrolment.borrow().clone();
        if let Some(enrolment) = enrolment {
            // Failures are logged where they occur; nothing happens if the enrolment has ended.
            let _ = self.keeper.daemon.kill(&enrolment).await;
        }
    }
}

/// Waits until the current enrolment has ended, or until `expires`, when the enrolment that the attachment had before a
/// restart would have expired.
async fn await_enrolment_end(
    keeper: &AttachmentKeeper,
    expires: Option<SystemTime>,
    enrolment: watch::Receiver<Option<Arc<str>>>,
) -> Denied {
    loop {
        sleep(ENROLMENT_POLL).await;
        let now = clock::now();
        if expires.is_some_and(|expires| expires <= now) {
            return Denied::Ended(EndCause::Expired);
        }
        let current = enrolment.borrow().clone();
        if let Some(current) = current
            && let Err(denied) = keeper.daemon.enrolments.find(&current, now)
        {
            return denied;
        }
    }
}
