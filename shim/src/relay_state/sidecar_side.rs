//! The connection to the sidecar and the link that it carries: bytes to write, numbering, heartbeats, and when to
//! connect again.
//!
//! What must stay true: a link survives its connections; only [`SidecarSide::forget_link`] ends it.

use std::time::Duration;

use relay_proto::control::{Epoch, Goodbye, Hello, Proof, Purpose, Resume, ResumeToken, Retry};
use relay_proto::delivery::{Inbox, Outbox};
use relay_proto::frame::{Ack, Frame, PREFACE};
use relay_proto::limits::{DEFAULT_WINDOW, VERSION};
use relay_proto::name::Name;
use tokio::time::Instant;

use crate::options::SOFTWARE;
use crate::queue::Queue;
use crate::reconnect_backoff::{ReconnectBackoff, Waiting};
use crate::shim_error::ShimError;
use crate::timing::Timing;

/// The largest message accepted. The sidecar enforces its own limit; this one guards against a faulty sidecar.
const MAX_INCOMING: usize = 64 * 1024 * 1024;
/// The number of heartbeats in a row without a byte received after which the connection is closed.
const DEAD_AFTER: u32 = 3;

#[derive(Debug)]
pub(crate) struct SidecarSide {
    /// Bytes for the sidecar.
    pub(crate) output: Queue,
    pub(super) timing: Timing,
    /// The server that Hello asks for.
    server: Option<Name>,
    pub(super) phase: Phase,
    pub(super) attempt: AttemptState,
    pub(super) backoff: ReconnectBackoff,
    /// The link to resume.
    pub(super) link: Option<Link>,
    pub(super) outbox: Outbox,
    pub(super) inbox: Inbox,
    /// A `Welcome` that the loop has not handled yet.
    pub(super) welcomed: Option<Welcomed>,
    /// When the last working connection was lost, or else when the shim started.
    pub(super) lost_at: Instant,
    /// Why there is no connection.
    pub(super) problem: String,
    /// A problem that was not reported yet.
    pub(super) unreported: Option<String>,
}

/// What the loop does with the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub(crate) enum ConnectionAction {
    Close,
    Keep,
}

/// The part of a Welcome that must be stored before the Welcome is confirmed.
#[derive(Debug)]
pub(crate) struct Welcomed {
    /// The key's new epoch.
    pub(crate) epoch: Option<Epoch>,
}

/// The phase of the connection.
#[derive(Debug)]
pub(super) enum Phase {
    /// There is no connection.
    Down,
    /// Hello was sent.
    AwaitingWelcome {
        deadline: Instant,
    },
    Up(Up),
    /// Every request is answered at once with `error`; `again` is when to connect again, if ever.
    Refused {
        error: ShimError,
        again: Option<Instant>,
    },
}

/// Whether the loop is opening a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AttemptState {
    None,
    UnderWay,
}

/// A connection after its Welcome.
#[derive(Debug)]
pub(super) struct Up {
    /// The interval of heartbeats.
    pub(super) heartbeat: Option<Duration>,
    pub(super) next_beat: Instant,
    /// Whether anything was received since the last heartbeat.
    pub(super) received: bool,
    /// Whether anything was sent since the last heartbeat.
    pub(super) sent: bool,
    /// Heartbeats in a row without a byte received.
    pub(super) silent_beats: u32,
    /// When an acknowledgement is sent, if no other frame is sent before.
    pub(super) acknowledge_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) token: ResumeToken,
}

impl SidecarSide {
    pub(super) fn new(server: Option<Name>, timing: Timing, now: Instant) -> Self {
        Self {
            output: Queue::default(),
            timing,
            server,
            phase: Phase::Down,
            attempt: AttemptState::None,
            backoff: ReconnectBackoff::new(now),
            link: None,
            outbox: Outbox::new(DEFAULT_WINDOW),
            inbox: Inbox::new(MAX_INCOMING, DEFAULT_WINDOW),
            welcomed: None,
            lost_at: now,
            problem: "no sidecar was reached".into(),
            unreported: None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up(_))
    }

    /// Whether the sidecar refused this shim for good.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.phase, Phase::Refused { again: None, .. })
    }

    pub(super) fn should_connect(&self, now: Instant, waiting: Waiting) -> bool {
        if self.attempt == AttemptState::UnderWay {
            return false;
        }
        match &self.phase {
            Phase::Down => self.next_attempt(waiting) <= now,
            Phase::Refused { again, .. } => again.is_some_and(|again| again <= now),
            Phase::AwaitingWelcome { .. } | Phase::Up(_) => false,
        }
    }

    pub(super) fn next_attempt(&self, waiting: Waiting) -> Instant {
        self.backoff.next_attempt(waiting, &self.timing)
    }

    /// Records that the loop is connecting; [`Self::connected`] or [`Self::disconnected`] follows.
    pub(crate) fn connecting(&mut self) {
        self.attempt = AttemptState::UnderWay;
    }

    /// Queues Hello for a connection that is open.
    pub(crate) fn connected(&mut self, proof: Proof, now: Instant) {
        self.attempt = AttemptState::None;
        let resume = self.link.as_ref().map(|link| Resume {
            link: link.name.clone(),
            token: link.token.clone(),
            received: self.inbox.received(),
        });
        let hello = Hello {
            versions: vec![VERSION],
            proof,
            purpose: Purpose::Link,
            server: self.server.clone(),
            resume,
            capabilities: Vec::new(),
            software: SOFTWARE.into(),
        };
        self.output.clear();
        self.output.back().extend_from_slice(PREFACE);
        Frame::Hello(hello).encode(self.output.back());
        self.phase = Phase::AwaitingWelcome { deadline: now + self.timing.welcome_timeout };
    }

    /// Records that there is no connection, or no longer one. The link stays, to be resumed.
    pub(crate) fn disconnected(&mut self, why: String, now: Instant) {
        self.attempt = AttemptState::None;
        self.output.clear();
        self.backoff.failed(now);
        self.unreported = Some(why.clone());
        self.problem = why;
        match &mut self.phase {
            Phase::Down => {}
            Phase::Up(_) => {
                self.lost_at = now;
                self.phase = Phase::Down;
            }
            Phase::AwaitingWelcome { .. } => self.phase = Phase::Down,
            Phase::Refused { again, .. } => *again = again.map(|_| now + self.timing.longest_retry_idle),
        }
    }

    /// Takes the latest Welcome. Its contents must be stored before anything is written to the sidecar.
    pub(crate) fn take_welcomed(&mut self) -> Option<Welcomed> {
        self.welcomed.take()
    }

    /// Takes the problem that was not reported yet.
    pub(crate) fn take_unreported(&mut self) -> Option<String> {
        self.unreported.take()
    }

    /// After a final refusal: lets another attempt be made soon, since a new enrolment may have arrived.
    pub(crate) fn retry_after_refusal(&mut self, now: Instant) {
        if let Phase::Refused { again, .. } = &mut self.phase {
            *again = Some(now + self.timing.longest_retry_waiting);
        }
    }

    /// Queues a Goodbye, which ends the link at once: the shim is about to exit.
    pub(crate) fn queue_goodbye(&mut self) {
        if let Phase::Up(_) | Phase::AwaitingWelcome { .. } = self.phase {
            let goodbye = Goodbye { code: "done".into(), message: String::new(), retry: Retry::Never };
            Frame::Goodbye(goodbye).encode(self.output.back());
        }
    }

    /// Records that bytes were received: the sidecar is alive.
    pub(crate) fn bytes_received(&mut self) {
        if let Phase::Up(up) = &mut self.phase {
            up.received = true;
        }
    }

    /// Moves the frames that can be sent now into [`Self::output`], with an acknowledgement. An acknowledgement that is
    /// due is sent alone.
    pub(crate) fn fill(&mut self) {
        let Phase::Up(up) = &mut self.phase else { return };
        if !self.output.is_empty() {
            return;
        }
        self.outbox.take_ready(self.output.back());
        if !self.output.is_empty() || self.inbox.ack_due() {
            up.sent = true;
            up.acknowledge_at = None;
            self.acknowledge();
        }
    }

    pub(super) fn acknowledge(&mut self) {
        if let Some(ack) = self.inbox.take_ack() {
            self.send_control(Frame::Ack(ack));
        }
    }

    /// Confirms a Welcome by an acknowledgement: any first frame after the Welcome does.
    pub(super) fn confirm(&mut self) {
        let ack = Ack { seq: self.inbox.received(), window: DEFAULT_WINDOW };
        self.send_control(Frame::Ack(ack));
    }

    pub(super) fn send_control(&mut self, frame: Frame) {
        if let Phase::Up(up) = &mut self.phase {
            up.sent = true;
        }
        frame.encode(self.output.back());
    }

    /// Sends a heartbeat that is due, or closes a silent connection. Counts heartbeats without a byte received, not
    /// time: after a pause of the whole sandbox the first heartbeat is late, and the sidecar's bytes may be waiting to
    /// be read. While a slow harness stops the reading, they may be waiting too.
    pub(super) fn beat(&mut self, now: Instant, reading: Reading) -> ConnectionAction {
        let Phase::Up(up) = &mut self.phase else { return ConnectionAction::Keep };
        let Some(heartbeat) = up.heartbeat.filter(|_| up.next_beat <= now) else {
            return ConnectionAction::Keep;
        };
        let may_be_alive = up.received || reading == Reading::Stopped;
        up.silent_beats = if may_be_alive { 0 } else { up.silent_beats + 1 };
        if up.silent_beats >= DEAD_AFTER {
            self.disconnected("the sidecar stopped responding".into(), now);
            return ConnectionAction::Close;
        }
        let was_idle = !up.sent;
        (up.received, up.sent) = (false, false);
        up.next_beat = now + heartbeat;
        if was_idle {
            self.send_control(Frame::Ping);
        }
        ConnectionAction::Keep
    }

    /// Forgets a link that cannot be resumed.
    pub(super) fn forget_link(&mut self) {
        self.outbox.restart(DEFAULT_WINDOW);
        self.inbox.restart();
        self.link = None;
    }
}

/// Whether the sidecar's bytes are being read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reading {
    Active,
    /// Paused, because the harness does not read its output.
    Stopped,
}
