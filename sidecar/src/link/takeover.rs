//! A shim that reconnects to its link while the link may still have another connection.
//!
//! The old connection is probed with a Ping: a connection that died behind a NAT looks just like an idle one.
//!
//! What must stay true: a connection that answers keeps its link, and the new one is refused, as a clone would be; one
//! that does not answer is dropped, and the new one gets the link at once; the link keeps working during the probe.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_audit::{Event, EventRecord};
use cofferdam_base::{PacedLines, RateLimiter};
use futures_util::FutureExt;
use relay_proto::code::Code;
use relay_proto::control::{Refusal, Resume, Resumed, Retry};
use relay_proto::delivery::Received;
use relay_proto::frame::Frame;
use relay_proto::limits::DEFAULT_WINDOW;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::command::EndReason;
use super::connection::{Connection, LATE_CLOSE_TIME};
use super::peer::{GOODBYE_TIMEOUT, Peer};
use crate::session::Session;
use crate::session::principal::{Enrolled, EnrolledBy};

/// New connections that ask to resume a link which still has a connection.
pub(super) struct Takeover {
    pending: Option<PendingTakeover>,
    /// Limits how many connections with the previous token are given time to close.
    late_hello_permits: Arc<Semaphore>,
}

/// A connection that waits for the probe of the old connection. A link has at most one.
struct PendingTakeover {
    connection: Connection,
    resume: Resume,
    /// The Ping that the old connection must answer.
    ping: u64,
    deadline: Instant,
}

/// Rate limits of log lines and alerts about the connections of one link.
#[derive(Clone)]
pub(super) struct ReportLimits {
    log: Arc<Mutex<RateLimiter>>,
    alerts: Arc<Mutex<RateLimiter>>,
}

/// How long the old connection has to answer, unless the heartbeat interval is shorter. A shim waits five times as long
/// for its Welcome.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// When a connection that arrives during a probe may retry.
const RETRY_AFTER_PROBE: Retry = Retry::AfterMs(PROBE_TIMEOUT.as_millis() as u64);
/// Buffered frames that are read to find the end of a connection; one with more frames is alive.
const MAX_FRAMES: usize = 64;
/// Why a connection was dropped that neither side closed.
pub(super) const PEER_SILENT: &str = "the peer stopped responding";
/// Logged without an alert: a clone that closes its connection in time looks the same, and does no harm.
const LATE_HELLO: &str =
    "a connection with a link's previous token closed before it was answered: its Hello was delayed";
static LATE_HELLO_LINES: PacedLines = PacedLines::new(LATE_HELLO);
// A sandbox can cause these lines for each of the links that it opens.
static TWO_SHIMS_LINES: PacedLines = PacedLines::new("a link or key is used by two shims");
const FOREIGN_TOKEN: &str = "the resume token is not this link's: another shim may hold a copy of its state";
/// Lines in the log about one link's connections, within a minute.
const LOG_LINES_PER_MINUTE: u32 = 60;
/// Alerts in the audit about one link, within a minute, so that repeated attempts do not fill the audit.
const ALERTS_PER_MINUTE: u32 = 6;
/// An honest shim abandons only a few connections in a row.
const MAX_LATE_HELLOS: usize = 8;

impl Default for Takeover {
    fn default() -> Self {
        Self { pending: None, late_hello_permits: Arc::new(Semaphore::new(MAX_LATE_HELLOS)) }
    }
}

impl Takeover {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.pending.as_ref().map(|pending| pending.deadline)
    }
}

impl PendingTakeover {
    /// Whether its connection is still open; a closed one makes room for the next.
    fn is_open(&mut self) -> bool {
        self.connection.next().now_or_never().is_none()
    }
}

impl Default for ReportLimits {
    fn default() -> Self {
        let per_minute = |count| Arc::new(Mutex::new(RateLimiter::per_minute(count)));
        Self { log: per_minute(LOG_LINES_PER_MINUTE), alerts: per_minute(ALERTS_PER_MINUTE) }
    }
}

impl ReportLimits {
    /// `None` if a line about this link is to be left out; else how many of its kind were left out since a count was told.
    pub(super) fn admit(&self, lines: &'static PacedLines) -> Option<u64> {
        lines.admit_within(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn may_alert(&self) -> bool {
        self.alerts.lock().unwrap_or_else(PoisonError::into_inner).allows(Instant::now())
    }
}

impl Peer {
    /// Handles a connection that asks to resume this link. Returns the last messages of the old connection, and whether
    /// they end the link.
    pub(super) fn attach(
        &mut self,
        connection: Connection,
        resume: Resume,
    ) -> (Vec<Received>, Option<EndReason>) {
        if !self.tokens.accepts(&resume.token) {
            match self.tokens.is_previous(&resume.token) {
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
            None => self.resume_on(connection, resume),
            Some(_) if self.takeover.pending.as_mut().is_some_and(PendingTakeover::is_open) => {
                let message = "the link is in use, and another connection waits for it already".into();
                let code = Code::RelayUnavailable.as_str().into();
                self.send_refusal(connection, Refusal { code, message, retry: RETRY_AFTER_PROBE });
            }
            Some(old) => {
                let ping = old.ping();
                let time = self.session.context.config.load().relay.heartbeat.min(PROBE_TIMEOUT);
                let deadline = Instant::now() + time;
                self.takeover.pending = Some(PendingTakeover { connection, resume, ping, deadline });
            }
        }
        (messages, None)
    }

    /// Decides between the old connection and a pending one, once the probe is answered or has timed out.
    pub(super) fn settle_takeover(&mut self) {
        let Some(pending) = &self.takeover.pending else { return };
        let is_alive = match &self.connection {
            Some(old) if old.has_answered(pending.ping) => true,
            Some(_) if Instant::now() < pending.deadline => return,
            Some(_) | None => false,
        };
        let Some(mut pending) = self.takeover.pending.take() else { return };
        // The new connection was closed: the old one keeps the link.
        if !pending.is_open() {
            report_late_hello(&self.reports, &self.session, &self.link);
            return;
        }
        let PendingTakeover { connection, resume, .. } = pending;
        if is_alive {
            return self.refuse_clone(connection, "the link is in use on another connection, which answers");
        }
        if self.connection.is_some() {
            self.on_disconnect(&PEER_SILENT);
        }
        // The last frames of the old connection may have rotated the token.
        match self.tokens.accepts(&resume.token) {
            true => self.resume_on(connection, resume),
            false => self.refuse_clone(connection, FOREIGN_TOKEN),
        }
    }

    /// Continues the link on this connection.
    fn resume_on(&mut self, connection: Connection, resume: Resume) {
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

    /// Reads the buffered frames of the old connection, to find out whether it was closed already.
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
                Some(Err(lost)) => self.on_disconnect(&lost),
            }
        }
        (messages, None)
    }

    /// Refuses a connection that may come from a copy of this shim's memory. A copy of a key may not continue; on the
    /// shared socket every shim can open a link of its own.
    fn refuse_clone(&mut self, connection: Connection, reason: &str) {
        self.alert(reason);
        self.send_refusal(connection, self.clone_refusal(reason));
    }

    /// The same, unless the connection closes soon: then it was a delayed Hello of the shim itself. Where too many are
    /// given time to close already, the connection is refused at once.
    fn refuse_clone_unless_late(&mut self, mut connection: Connection) {
        let Ok(permit) = Arc::clone(&self.takeover.late_hello_permits).try_acquire_owned() else {
            return self.refuse_clone(connection, FOREIGN_TOKEN);
        };
        let refusal = self.clone_refusal(FOREIGN_TOKEN);
        let (session, link, reports) =
            (Arc::clone(&self.session), Arc::clone(&self.link), self.reports.clone());
        self.session.context.tasks.spawn(async move {
            let _permit = permit;
            if connection.closes_within(LATE_CLOSE_TIME).await {
                return report_late_hello(&reports, &session, &link);
            }
            // Checked only now: a connection that closes must not use up the alerts about later ones.
            if reports.may_alert() {
                record_alert(&session, &link, FOREIGN_TOKEN);
            }
            connection.push(&Frame::Refusal(refusal));
            let _ = timeout(GOODBYE_TIMEOUT, connection.flush()).await;
        });
    }

    fn clone_refusal(&self, reason: &str) -> Refusal {
        let (next, retry) = match &self.session.enrolment {
            Some(Enrolled { kind: EnrolledBy::Key, next_step, .. }) => (*next_step, Retry::Never),
            _ => ("connect without a resume token to get a new link", Retry::AfterMs(1000)),
        };
        let code = Code::CloneRefused.as_str().into();
        Refusal { code, message: format!("{reason}; {next}"), retry }
    }

    /// Sends a refusal from a separate task, so that the link does not wait until it is read.
    fn send_refusal(&self, mut connection: Connection, refusal: Refusal) {
        connection.push(&Frame::Refusal(refusal));
        self.session.context.tasks.spawn(async move {
            let _ = timeout(GOODBYE_TIMEOUT, connection.flush()).await;
        });
    }

    /// Raises an alert: two shims used the same link or key.
    pub(super) fn alert(&self, reason: &str) {
        if self.reports.may_alert() {
            record_alert(&self.session, &self.link, reason);
        }
    }
}

fn report_late_hello(reports: &ReportLimits, session: &Session, link: &str) {
    if let Some(left_out) = reports.admit(&LATE_HELLO_LINES) {
        tracing::warn!(link, session = %session.id, left_out, "{LATE_HELLO}");
    }
}

fn record_alert(session: &Session, link: &str, reason: &str) {
    if let Some(left_out) = TWO_SHIMS_LINES.admit() {
        tracing::warn!(link, session = %session.id, reason, left_out, "a link or key is used by two shims");
    }
    let record = EventRecord {
        session: Some(&session.id),
        link: Some(link),
        detail: Some(reason),
        ..EventRecord::new(Event::Alert)
    };
    session.record_alert(&record);
}

#[cfg(test)]
mod tests;
