//! One attachment whose sandbox connects to the sidecar itself: the shim is uploaded and enrolled in the sandbox, and from
//! then on the enrolment and the state of the sandbox are watched.
//!
//! What must stay true: the enrolment ends with the attachment, at whichever step that ends; a restarted sidecar knows which
//! attachment the enrolment belongs to; a ticket is created only when the sandbox is ready to use it, and its enrolment ends at
//! once if the sandbox did not use it; sandboxes connect to a `wss://` address, because platforms permit such connections.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cofferdam_base::clock;
use cofferdam_platforms::{EarlierKey, PlatformError, PreparedSandbox, Progress, SandboxState};
use relay_proto::address::Address;
use relay_proto::name::Name;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;
use zeroize::Zeroizing;

use super::activity::{ActivityReports, report_activity};
use super::client::{ClientFactory as _, ConfiguredPlatform, PlatformClient};
use super::keeper::{AttachmentKeeper, call_counter};
use super::keys::KeyUse;
use super::pacing::{AttemptError, Outcome, Step};
use super::run::{Attaching, FINISH_TIMEOUT, OPEN_TIMEOUT, retries_with_reread_key, timed_out};
use super::status::{AttachmentState, Lifetime, OverCause};
use super::table::Entry;
use crate::daemon::attach_table::{GONE_WITHIN, KILL_TIMEOUT};
use crate::daemon::enrolling::{EnrollError, EnrollRequest, EnrollVia, Enrolled};
use crate::enrolment::{Denied, EndCause};

pub(super) struct DialOut<'a> {
    keeper: &'a AttachmentKeeper,
    entry: &'a Entry,
    attaching: Attaching<ConfiguredPlatform>,
    /// The enrolment of the sandbox, if it is enrolled.
    enrolment: watch::Sender<Option<Arc<str>>>,
    key_possession: KeyPossession,
    /// The tasks that create an enrolment and put it into `enrolment`; they finish even if the attachment ends meanwhile.
    enrolling: TaskTracker,
    /// The client of the current attempt, which removes from the sandbox what an interrupted attempt left there.
    client: Option<Arc<PlatformClient>>,
}

/// Whether the sandbox is known to have the key of its enrolment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum KeyPossession {
    /// After a restart of the sidecar the sandbox is asked first.
    Unconfirmed,
    Confirmed,
}

/// Why the sandbox is no longer kept enrolled with the current enrolment.
enum KeepEnd {
    /// No further attempt is made; the state of the attachment has the reason.
    Over,
    EnrolmentEnded(Denied),
    SidecarStopped,
    /// The attachment was told to stop: its command disconnected, or `attach end` found no enrolment to end.
    Stopped,
}

/// How long the sandbox has to use its ticket: the default of `cofferdam enroll` too.
const TICKET_TTL: Duration = Duration::from_secs(120);
/// How often the enrolment is checked, which is cheap.
const ENROLMENT_POLL: Duration = Duration::from_secs(1);
/// After a kill the attachment notices the end of its enrolment, removes what it left in the sandbox, and is over.
const _: () = assert!(
    KILL_TIMEOUT.saturating_add(ENROLMENT_POLL).saturating_add(FINISH_TIMEOUT).as_millis()
        < GONE_WITHIN.as_millis()
);
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
            key_possession: KeyPossession::Unconfirmed,
            enrolling: TaskTracker::new(),
            client: None,
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
                () = sidecar_stop.cancelled() => KeepEnd::SidecarStopped,
            };
            if let KeepEnd::SidecarStopped = end {
                self.finish_client().await;
                return None;
            }
            let lifetime = self.entry.status.borrow().lifetime;
            if let (KeepEnd::EnrolmentEnded(Denied::Ended(EndCause::Expired)), Lifetime::Configured) =
                (&end, lifetime)
            {
                // A configured attachment is enrolled anew.
                self.enrolment.send_replace(None);
                continue;
            }
            self.end_enrolment().await;
            self.finish_client().await;
            return Some(match end {
                KeepEnd::EnrolmentEnded(Denied::Ended(EndCause::Expired)) => {
                    ("the enrolment has expired".into(), OverCause::Ended)
                }
                KeepEnd::EnrolmentEnded(_) | KeepEnd::Stopped | KeepEnd::SidecarStopped => {
                    (self.entry.end_reason_text(), OverCause::Ended)
                }
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
        let mut api_key = KeyUse::Held;
        let mut step = Step::Open { after: Duration::ZERO };
        while let Step::QueryState { after } | Step::Open { after } = step {
            sleep(after).await;
            let outcome = match step {
                Step::QueryState { .. } => match self.attaching.query_state(api_key).await {
                    Ok(state) => Outcome::State(state),
                    Err(error) => Outcome::Failed(error),
                },
                _ => self.attempt(api_key).await,
            };
            if retries_with_reread_key(&mut api_key, &outcome) {
                continue;
            }
            step = self.attaching.next_step(outcome, began);
        }
    }

    /// Enrols the sandbox if it is not enrolled, and watches it until it is suspended or gone.
    async fn attempt(&mut self, api_key: KeyUse) -> Outcome {
        self.attaching.show(AttachmentState::FINDING);
        let enrolled = self.ensure_enrolled(api_key).await;
        self.finish_client().await;
        if let Err(error) = enrolled {
            return Outcome::Failed(error);
        }
        let enrolment = self.enrolment.borrow().clone().unwrap_or_default();
        let public_key = self.keeper.daemon.enrolments.key(&enrolment, clock::now());
        let attached =
            AttachmentState::Attached { key: public_key.map(|key| key.to_string()).unwrap_or_default() };
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
                Ok(state @ SandboxState::Suspended(_)) => return Outcome::State(state),
                Err(AttemptError::Platform(error @ PlatformError::NoSandbox { .. })) => {
                    return Outcome::Failed(error.into());
                }
                // A failed query does not matter: the links work without the platform's control API.
                Ok(SandboxState::Running) | Err(_) => {}
            }
            sleep(STATE_POLL).await;
        }
    }

    async fn ensure_enrolled(&mut self, api_key: KeyUse) -> Result<(), AttemptError> {
        let earlier = self.enrolment.borrow().clone();
        if earlier.is_some() && self.key_possession == KeyPossession::Confirmed {
            return Ok(());
        }
        self.check_address()?;
        let server = self.first_server()?;
        let client = Arc::new(self.attaching.clients.create_client(api_key).await?);
        self.client = Some(Arc::clone(&client));
        let prepared = self.prepare(&client).await?;
        // The settings of the harness are written once: later the user may have changed them on purpose.
        self.attaching.setup.harness = None;
        self.attaching.show(AttachmentState::Opening(Progress::Connecting));
        if let Some(earlier) = earlier {
            if prepared.earlier_key().await? == EarlierKey::Accepted {
                self.key_possession = KeyPossession::Confirmed;
                return Ok(());
            }
            // A sandbox has one key: that of the earlier enrolment ends before another is issued, whatever the sandbox says.
            self.discard_enrolment(&earlier).await;
        }
        let spec = &self.entry.spec;
        // This error is shown for a second at most: then `await_enrolment_end` ends the attachment for the same reason.
        let expired = || AttemptError::Configuration("the enrolment has expired".to_owned());
        let ttl = self.keeper.enrolment_ttl(spec).ok_or_else(expired)?;
        let request = EnrollRequest {
            grant: spec.grant.clone(),
            name: Some(spec.name.clone()),
            ttl,
            via: EnrollVia::Ticket { ttl: TICKET_TTL },
        };
        let enrolled = self.enrol(request).await;
        let enrolled = enrolled.map_err(|error| AttemptError::Configuration(error.to_string()))?;
        let (id, enrolment_string) = (enrolled.enrolment.id, Zeroizing::new(enrolled.connect_string));
        self.show_enrolment(Some(&id));
        // Stored before the ticket is used, so that no sandbox has a key of which a restarted sidecar does not know.
        let lifetime = self.entry.status.borrow().lifetime;
        if let Err(why) = self.keeper.store(self.entry, lifetime).await {
            self.discard_enrolment(&id).await;
            return Err(AttemptError::Configuration(format!("the attachment cannot be stored: {why}")));
        }
        let is_ticket_redeemed = || self.keeper.daemon.enrolments.key(&id, clock::now()).is_some();
        let enrolled = prepared.enrol(&enrolment_string, server.as_str(), &is_ticket_redeemed).await;
        // A redeemed ticket enrols the sandbox even if `prepared.enrol` failed afterwards.
        if is_ticket_redeemed() {
            self.key_possession = KeyPossession::Confirmed;
            return Ok(());
        }
        self.discard_enrolment(&id).await;
        Ok(enrolled?)
    }

    /// Creates an enrolment, which ends with the attachment from then on.
    async fn enrol(&self, request: EnrollRequest) -> Result<Enrolled, EnrollError> {
        let (daemon, enrolment) = (Arc::clone(&self.keeper.daemon), self.enrolment.clone());
        let enrolling = self.enrolling.spawn(async move {
            let enrolled = daemon.enroll(request).await?;
            enrolment.send_replace(Some(Arc::clone(&enrolled.enrolment.id)));
            Ok(enrolled)
        });
        enrolling.await.map_err(|_| EnrollError::Failed)?
    }

    /// Ends this enrolment without ending the attachment.
    async fn discard_enrolment(&self, enrolment: &Arc<str>) {
        // First, because otherwise the end of the enrolment would end the attachment.
        self.show_enrolment(None);
        self.enrolment.send_replace(None);
        // Failures are logged where they occur. The enrolment ends even if this future is dropped meanwhile.
        let _ = self.keeper.daemon.kill(enrolment).await;
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

    /// Ends the enrolment with the attachment.
    async fn end_enrolment(&self) {
        self.enrolling.close();
        self.enrolling.wait().await;
        let enrolment = self.enrolment.borrow().clone();
        if let Some(enrolment) = enrolment {
            // Failures are logged where they occur; nothing happens if the enrolment has ended.
            let _ = self.keeper.daemon.kill(&enrolment).await;
        }
    }

    async fn finish_client(&mut self) {
        if let Some(client) = self.client.take() {
            self.attaching.finish(&client).await;
        }
    }
}

/// Waits until the current enrolment has ended, or until `expires`: the expiry that was stored with the attachment before
/// the sidecar was restarted.
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
