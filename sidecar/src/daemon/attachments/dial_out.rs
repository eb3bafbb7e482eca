//! One attachment whose sandbox connects to the sidecar by itself: the shim is uploaded with an enrolment string, and from then
//! on the enrolment and the state of the sandbox are watched.
//!
//! What must stay true: the enrolment ends with the attachment; a ticket is made only when the sandbox is ready for it and
//! ends at once if the sandbox did not use it; the link that sandboxes dial is `wss://`, because platforms permit that one.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cofferdam_base::{clock, random};
use cofferdam_platforms::{EarlierKey, PlatformError, PreparedSandbox, Progress, SandboxState};
use relay_proto::address::Address;
use relay_proto::name::Name;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use zeroize::Zeroizing;

use super::activity::{ActivityReports, report_activity};
use super::client::{Clients as _, ConfiguredPlatform, PlatformClient};
use super::keeper::{AttachmentKeeper, call_counter};
use super::keys::KeyUse;
use super::pacing::{AttemptError, Outcome, Step};
use super::run::{ASK_TIMEOUT, Attaching, OPEN_TIMEOUT, is_key_to_be_reread, too_late};
use super::status::{AttachmentState, Lifetime, OverCause};
use super::table::Entry;
use crate::daemon::enrolling::{EnrollRequest, EnrollVia};
use crate::enrolment::{Denied, EndCause, EnrolmentKind};

pub(super) struct DialOut<'a> {
    keeper: &'a AttachmentKeeper,
    entry: &'a Entry,
    attaching: Attaching<ConfiguredPlatform>,
    /// The enrolment that the sandbox has a key of.
    enrolment: watch::Sender<Option<Arc<str>>>,
}

/// Why the sandbox is not kept any longer, or not with this enrolment.
enum KeepEnd {
    /// The state says why.
    Over,
    EnrolmentEnded(Denied),
    Stopped,
}

/// How long the sandbox has to use its ticket: the time that `cofferdam enroll` gives it too.
const TICKET_TTL: Duration = Duration::from_secs(120);
/// Between looks at the enrolment. They are cheap.
const ENROLMENT_POLL: Duration = Duration::from_secs(1);
/// Between questions about a sandbox that is attached.
const STATE_POLL: Duration = Duration::from_secs(30);

impl<'a> DialOut<'a> {
    pub(super) fn of(
        keeper: &'a AttachmentKeeper,
        entry: &'a Entry,
        attaching: Attaching<ConfiguredPlatform>,
    ) -> Self {
        Self { keeper, entry, attaching, enrolment: watch::Sender::new(None) }
    }

    /// Keeps the sandbox enrolled. `None` when the sidecar stops: the enrolment outlives that.
    pub(super) async fn keep(mut self) -> Option<(String, OverCause)> {
        loop {
            let (stop, sidecar_stop) = (self.attaching.stop.clone(), self.attaching.sidecar_stop.clone());
            let enrolment_end =
                enrolment_end(self.keeper, self.entry.spec.expires, self.enrolment.subscribe());
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
                // The configuration still grants it.
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

    /// Enrols the sandbox and watches it, with pauses after failures, until the attachment is over.
    async fn follow_steps(&mut self) {
        let began = Instant::now();
        let mut key = KeyUse::Held;
        let mut step = Step::Open { after: Duration::ZERO };
        while let Step::Ask { after } | Step::Open { after } = step {
            sleep(after).await;
            let outcome = match step {
                Step::Ask { .. } => match self.ask(key).await {
                    Ok(state) => Outcome::Asked(state),
                    Err(error) => Outcome::Failed(error),
                },
                _ => self.attempt(key).await,
            };
            if is_key_to_be_reread(&mut key, &outcome) {
                continue;
            }
            self.attaching.pacing.lifetime = self.entry.status.borrow().lifetime;
            let (state, next) = self.attaching.pacing.next(outcome, began.elapsed(), random::fraction());
            if let Some(why) = state.reason() {
                tracing::info!(sandbox = self.entry.spec.name, state = state.name(), why, "attachment");
            }
            self.attaching.show(state);
            step = next;
        }
    }

    async fn ask(&self, key: KeyUse) -> Result<SandboxState, AttemptError> {
        let client = self.attaching.clients.client(key).await?;
        let asked = timeout(ASK_TIMEOUT, client.state(&self.entry.spec.sandbox)).await;
        Ok(asked.unwrap_or_else(|_| Err(too_late("ask about the sandbox", ASK_TIMEOUT)))?)
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
        self.attaching.pacing.attached();
        tracing::info!(sandbox = self.entry.spec.name, "attached: the sandbox dials out");
        let client = match self.attaching.clients.client(KeyUse::Held).await {
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

    /// Asks for the state of the attached sandbox until it is suspended or gone.
    async fn watch_sandbox(&self, attached: AttachmentState) -> Outcome {
        loop {
            self.attaching.show(attached.clone());
            match self.ask(KeyUse::Held).await {
                Ok(SandboxState::Suspended) => return Outcome::Asked(SandboxState::Suspended),
                Err(AttemptError::Platform(error @ PlatformError::NoSandbox { .. })) => {
                    return Outcome::Failed(error.into());
                }
                // The links work without the platform's control API.
                Ok(SandboxState::Running) | Err(_) => {}
            }
            sleep(STATE_POLL).await;
        }
    }

    async fn ensure_enrolled(&mut self, key: KeyUse) -> Result<(), AttemptError> {
        if self.enrolment.borrow().is_some() {
            return Ok(());
        }
        self.check_address()?;
        let server = self.first_server()?;
        let client = self.attaching.clients.client(key).await?;
        let prepared = self.prepare(&client).await?;
        // They are written once: later the harness's user may have changed them on purpose.
        self.attaching.setup.harness = None;
        self.attaching.show(AttachmentState::Opening(Progress::Connecting));
        if let Some(earlier) = self.earlier_enrolment()
            && prepared.earlier_key().await? == EarlierKey::Accepted
        {
            self.show_enrolment(Some(&earlier));
            self.enrolment.send_replace(Some(earlier));
            return Ok(());
        }
        let spec = &self.entry.spec;
        // At its expiry the attachment ends, whatever comes of this attempt.
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
        let (id, text) = (enrolled.enrolment.id, Zeroizing::new(enrolled.text));
        // If this attempt is given up, the enrolment ends with the attachment.
        self.show_enrolment(Some(&id));
        self.enrolment.send_replace(Some(Arc::clone(&id)));
        let is_used = || self.keeper.daemon.enrolments.key(&id, clock::now()).is_some();
        let connected = prepared.enrol(&text, server.as_str(), &is_used).await;
        if is_used() {
            return Ok(());
        }
        // Failures are in the log.
        let _ = self.keeper.daemon.kill(&id).await;
        self.show_enrolment(None);
        self.enrolment.send_replace(None);
        Ok(connected?)
    }

    /// The enrolment of this attachment from before a restart of the sidecar: the sandbox has its key, and its links go on.
    fn earlier_enrolment(&self) -> Option<Arc<str>> {
        let spec = &self.entry.spec;
        let live = self.keeper.daemon.enrolments.list(clock::now());
        let mut own = live.into_iter().filter(|(enrolment, kind)| {
            *kind == EnrolmentKind::Key
                && enrolment.grant == spec.grant
                && enrolment.name.as_deref() == Some(&spec.name)
        });
        match (own.next(), own.next()) {
            (Some((enrolment, _)), None) => Some(enrolment.id),
            _ => None,
        }
    }

    async fn prepare(&self, client: &PlatformClient) -> Result<PreparedSandbox, PlatformError> {
        let progress = |progress: Progress| self.attaching.show(AttachmentState::Opening(progress));
        let prepared = timeout(OPEN_TIMEOUT, client.prepare(self.attaching.opening(&progress))).await;
        prepared.unwrap_or_else(|_| Err(too_late("put the shim into the sandbox", OPEN_TIMEOUT)))
    }

    fn check_address(&self) -> Result<(), AttemptError> {
        match self.keeper.daemon.advertised_address() {
            Some(Address::WebSocket(_)) => Ok(()),
            _ => Err(AttemptError::Configuration(
                "a sandbox that dials out needs a `wss://` link to this sidecar; set `relay.tls`, and `relay.advertise` to a link \
                 such as \"wss://relay.example.com/\", then restart the sidecar"
                    .to_owned(),
            )),
        }
    }

    /// A server of the grant, for the link with which the sandbox shows its ticket.
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

    async fn end_enrolment(&self) {
        let enrolment = self.enrolment.borrow().clone();
        if let Some(enrolment) = enrolment {
            // Failures are in the log; an enrolment that has ended is not found.
            let _ = self.keeper.daemon.kill(&enrolment).await;
        }
    }
}

/// Waits until the enrolment has ended, or until the expiry of the enrolment that the attachment had before a restart.
async fn enrolment_end(
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
