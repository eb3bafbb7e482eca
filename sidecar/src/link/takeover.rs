//! A shim that comes back to its link on a new connection.
//!
//! Where the old connection seems to be there still, it is asked for a sign of life: a connection that died behind a NAT
//! looks just like one that is quiet. What must stay true: a connection that answers keeps its link, and the new one is
//! refused, as a clone would be; one that does not answer is dropped and the new one has the link at once; and the link
//! serves on while it waits for that.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_audit::{Event, EventRecord};
use cofferdam_base::RateLimiter;
use futures_util::FutureExt;
use relay_proto::code::Code;
use relay_proto::control::{Refusal, Resume, Resumed, Retry};
use relay_proto::delivery::Received;
use relay_proto::frame::Frame;
use relay_proto::limits::DEFAULT_WINDOW;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::command::EndReason;
use super::connection::{Connection, LEAVING_TIME};
use super::peer::{GOODBYE_TIME, Peer};
use crate::session::Session;
use crate::session::principal::{Enrolled, EnrolledBy};

/// New connections that want a link which has one.
pub(super) struct Takeover {
    pending: Option<PendingTakeover>,
    /// Permits to wait whether a connection with a former token closes by itself.
    late: Arc<Semaphore>,
}

/// A connection with the token of a link that another connection has. There is one at most.
struct PendingTakeover {
    connection: Connection,
    resume: Resume,
    /// The Ping that the old connection must answer.
    ping: u64,
    until: Instant,
}

/// How much a link may fill the log and the audit with its connections.
pub(super) struct ReportLimits {
    log: RateLimiter,
    alerts: Arc<Mutex<RateLimiter>>,
}

/// How long the old connection has to answer, unless a heartbeat is shorter. A shim waits five times as long for its
/// Welcome.
const SIGN_OF_LIFE_TIME: Duration = Duration::from_secs(2);
/// When a connection that comes meanwhile may try again: the test is over then.
const TRY_AGAIN: Retry = Retry::AfterMs(SIGN_OF_LIFE_TIME.as_millis() as u64);
/// Frames looked through for the end of a connection; one that has more to say is alive.
const MAX_FRAMES: usize = 64;
/// Why a connection is given up that neither side closed.
pub(super) const NO_SIGN_OF_LIFE: &str = "the peer gave no sign of life";
/// No harm is done, though it may have been a clone that left in time: it is in the log, and no alert.
const LATE: &str =
    "a connection with a link's former token closed before it was answered: its Hello was delayed on the way";
const FOREIGN_TOKEN: &str = "the resume token is not this link's: another shim may hold a copy of its state";
/// Lines in the log about one link's connections, within a minute.
const LOG_LINES_PER_MINUTE: u32 = 60;
/// Alerts in the audit about one link, within a minute: each is worth one look, not a thousand.
const ALERTS_PER_MINUTE: u32 = 6;
/// An honest shim gives up a few connections in a row at most.
const MAX_LATE: usize = 8;

impl Default for Takeover {
    fn default() -> Self {
        Self { pending: None, late: Arc::new(Semaphore::new(MAX_LATE)) }
    }
}

impl Takeover {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.until)
    }
}

impl PendingTakeover {
    /// One whose own connection is over makes room for the next.
    fn still_waits(&mut self) -> bool {
        self.connection.next().now_or_never().is_none()
    }
}

impl Default for ReportLimits {
    fn default() -> Self {
        Self {
            log: RateLimiter::per_minute(LOG_LINES_PER_MINUTE),
            alerts: Arc::new(Mutex::new(RateLimiter::per_minute(ALERTS_PER_MINUTE))),
        }
    }
}

impl ReportLimits {
    pub(super) fn may_log(&mut self) -> bool {
        self.log.allows(Instant::now())
    }
}

impl Peer {
    /// A connection that wants to resume this link. Gives the last messages of the old connection, and whether they end
    /// the link.
    pub(super) fn attach(
        &mut self,
        connection: Connection,
        resume: Resume,
    ) -> (Vec<Received>, Option<EndReason>) {
        if !self.tokens.accept(&resume.token) {
            match self.tokens.has_just_turned(&resume.token) {
                true => self.refuse_clone_unless_late(connection),
                false => self.refuse_clone(connection, FOREIGN_TOKEN),
            }
            return (Vec::new(), None);
        }
        let (messages, end) = self.drain_old_connection();
        if end.is_some() {
            return (messages, end);
        }
        match &mut self.connection {
            None => self.take_up(connection, resume),
            Some(_) if self.takeover.pending.as_mut().is_some_and(PendingTakeover::still_waits) => {
                let message = "the link is in use, and another connection that wants it came first".into();
                let code = Code::RelayUnavailable.as_str().into();
                self.send_refusal(connection, Refusal { code, message, retry: TRY_AGAIN });
            }
            Some(old) => {
                let ping = old.ping();
                let time = self.session.context.config.load().relay.heartbeat.min(SIGN_OF_LIFE_TIME);
                let until = Instant::now() + time;
                self.takeover.pending = Some(PendingTakeover { connection, resume, ping, until });
            }
        }
        (messages, None)
    }

    /// Decides between the old connection and a pending one, as soon as that can be done.
    pub(super) fn settle_takeover(&mut self) {
        let Some(pending) = &self.takeover.pending else { return };
        let alive = match &self.connection {
            Some(old) if old.has_answered(pending.ping) => true,
            Some(_) if Instant::now() < pending.until => return,
            Some(_) | None => false,
        };
        let Some(mut pending) = self.takeover.pending.take() else { return };
        // The new connection is over: there is no reason to take the link from the old one.
        if !pending.still_waits() {
            if self.reports.may_log() {
                tracing::warn!(link = %self.link, session = %self.session.id, "{LATE}");
            }
            return;
        }
        let PendingTakeover { connection, resume, .. } = pending;
        if alive {
            return self.refuse_clone(connection, "the link is in use on another connection, which answers");
        }
        if self.connection.is_some() {
            self.disconnected(&NO_SIGN_OF_LIFE);
        }
        // The last frames of the old connection may have turned the token.
        match self.tokens.accept(&resume.token) {
            true => self.take_up(connection, resume),
            false => self.refuse_clone(connection, FOREIGN_TOKEN),
        }
    }

    fn take_up(&mut self, connection: Connection, resume: Resume) {
        if self.outbox.resume(resume.received, DEFAULT_WINDOW).is_err() {
            return self.refuse_clone(connection, "the shim claims to have received what was never sent");
        }
        let token = self.tokens.offer(resume.token);
        self.inbox.resume();
        let welcome = self.welcome(Resumed::Resumed, token);
        self.connection = Some(connection);
        self.lost = None;
        self.push(&Frame::Welcome(welcome));
    }

    /// The old connection may be over without the link having noticed: then it is not in the way.
    fn drain_old_connection(&mut self) -> (Vec<Received>, Option<EndReason>) {
        let mut messages = Vec::new();
        for _ in 0..MAX_FRAMES {
            let Some(connection) = &mut self.connection else { break };
            match connection.next().now_or_never() {
                None => break,
                Some(Ok(frame)) => {
                    let (more, end) = self.receive(frame);
                    messages.extend(more);
                    if end.is_some() {
                        return (messages, end);
                    }
                }
                Some(Err(lost)) => self.disconnected(&lost),
            }
        }
        (messages, None)
    }

    /// Another shim may hold a copy of this shim's memory. Of two copies of a key one is enough; elsewhere every shim can
    /// have a link of its own.
    fn refuse_clone(&mut self, connection: Connection, reason: &str) {
        self.alert(reason);
        self.send_refusal(connection, self.clone_refusal(reason));
    }

    /// The same, where it may be a delayed Hello of the shim itself: then it closes the connection without an answer.
    /// Where too many are waited for already, it is refused at once.
    fn refuse_clone_unless_late(&mut self, mut connection: Connection) {
        let Ok(permit) = Arc::clone(&self.takeover.late).try_acquire_owned() else {
            return self.refuse_clone(connection, FOREIGN_TOKEN);
        };
        let refusal = self.clone_refusal(FOREIGN_TOKEN);
        let may_log = self.reports.may_log();
        let (session, link, alerts) =
            (Arc::clone(&self.session), Arc::clone(&self.link), Arc::clone(&self.reports.alerts));
        self.session.context.tasks.spawn(async move {
            let _permit = permit;
            if connection.leaves_within(LEAVING_TIME).await {
                if may_log {
                    tracing::warn!(%link, session = %session.id, "{LATE}");
                }
                return;
            }
            // Not before: a connection that closes must not use up the alerts about the next one.
            if allows(&alerts) {
                record_alert(&session, &link, FOREIGN_TOKEN);
            }
            connection.push(&Frame::Refusal(refusal));
            let _ = timeout(GOODBYE_TIME, connection.flush()).await;
        });
    }

    fn clone_refusal(&self, reason: &str) -> Refusal {
        let (next, retry) = match &self.session.enrolment {
            Some(Enrolled { kind: EnrolledBy::Key, next_step, .. }) => (*next_step, Retry::Never),
            _ => ("a new link is given to a shim that asks for none", Retry::AfterMs(1000)),
        };
        let code = Code::CloneRefused.as_str().into();
        Refusal { code, message: format!("{reason}; {next}"), retry }
    }

    /// The link does not wait until the refusal is read.
    fn send_refusal(&self, mut connection: Connection, refusal: Refusal) {
        connection.push(&Frame::Refusal(refusal));
        self.session.context.tasks.spawn(async move {
            let _ = timeout(GOODBYE_TIME, connection.flush()).await;
        });
    }

    /// Two shims used what belongs to one.
    pub(super) fn alert(&self, reason: &str) {
        if allows(&self.reports.alerts) {
            record_alert(&self.session, &self.link, reason);
        }
    }
}

fn allows(alerts: &Mutex<RateLimiter>) -> bool {
    alerts.lock().unwrap_or_else(PoisonError::into_inner).allows(Instant::now())
}

fn record_alert(session: &Session, link: &str, reason: &str) {
    tracing::warn!(link, session = %session.id, reason, "link or key used twice");
    let record = EventRecord {
        session: Some(&session.id),
        link: Some(link),
        detail: Some(reason),
        ..EventRecord::new(Event::Alert)
    };
    if let Err(error) = session.context.audit.event(&record) {
        tracing::error!(%error, "an alert was not recorded");
    }
}

#[cfg(test)]
mod tests;
