//! What to do with a line from the harness, a frame from the sidecar, or a deadline. No I/O and no clock of its own.
//!
//! `from_harness` takes lines, `from_sidecar` takes frames, `connection` and `deadlines` what their names say, and
//! `introduction` tells a new server process what the old one knew; all leave bytes in [`RelayState::to_harness`] and
//! [`RelayState::to_sidecar`], which the loop writes.
//!
//! What must stay true: a request that the shim answers with "did not run" is in no outbox, so that nothing runs it
//! later; a request that was handed out and whose link is over is `outcome_unknown`; and each has one answer.

mod connection;
mod deadlines;
mod from_harness;
mod from_sidecar;
mod introduction;
#[cfg(any(test, fuzzing))]
pub(crate) mod model;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use relay_proto::control::{Epoch, ResumeToken};
use relay_proto::delivery::{Inbox, Outbox};
use relay_proto::envelope::IdValue;
use relay_proto::frame::Frame;
use relay_proto::limits::{DEFAULT_WINDOW, MAX_MESSAGE};
use relay_proto::memory::Memory;
use relay_proto::name::Name;
use tokio::time::Instant;

use crate::answer::Answer;
use crate::pacing::Pacing;
use crate::pending::Pending;
use crate::queue::Queue;
use crate::server_requests::ServerRequests;
use crate::timing::Timing;

/// Above this much for the harness to read, nothing more is read for it.
pub(crate) const MAX_TO_HARNESS: usize = 1024 * 1024;
/// Above this much waiting for a link or for credit, the harness is not read.
pub(crate) const MAX_BACKLOG: usize = 1024 * 1024;
/// The largest message taken from a sidecar: its own limit is what counts, this is against a broken one.
const MAX_INCOMING: usize = 64 * 1024 * 1024;

/// The whole state of a shim.
#[derive(Debug)]
pub(crate) struct RelayState {
    pub(crate) to_harness: Queue,
    pub(crate) to_sidecar: Queue,
    timing: Timing,
    server: Option<Name>,
    phase: Phase,
    attempt: Attempt,
    pacing: Pacing,
    /// The link to take up again.
    link: Option<Link>,
    outbox: Outbox,
    inbox: Inbox,
    pending: Pending,
    backlog: VecDeque<Queued>,
    backlog_bytes: usize,
    memory: Memory,
    introduction: Introduction,
    server_requests: ServerRequests,
    /// The sidecar's limit for a message.
    max_message: usize,
    /// A Welcome that the loop has not heard of yet.
    welcomed: Option<Welcomed>,
    /// When memory that was kept for another long message goes back.
    tidy_at: Option<Instant>,
    /// Since when there is no connection, and why.
    lost: Instant,
    trouble: String,
    /// A trouble that nobody was told yet.
    news: Option<String>,
}

/// What the loop does with the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub(crate) enum Connected {
    Close,
    Keep,
}

/// What of a Welcome is kept outside, before it is confirmed.
#[derive(Debug)]
pub(crate) struct Welcomed {
    /// The key's new epoch.
    pub(crate) epoch: Option<Epoch>,
}

#[derive(Debug)]
enum Phase {
    Down,
    /// Hello is said.
    Greeting {
        give_up: Instant,
    },
    Up(Up),
    /// Every request is answered at once; `again` is when to ask anew, if ever.
    Refused {
        answer: Answer,
        again: Option<Instant>,
    },
}

/// Whether somebody is connecting for us.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Attempt {
    None,
    UnderWay,
}

#[derive(Debug)]
struct Up {
    heartbeat: Option<Duration>,
    next_beat: Instant,
    /// Since the last beat.
    heard: bool,
    sent: bool,
    silent_beats: u32,
    /// When an acknowledgement goes alone.
    acknowledge_at: Option<Instant>,
}

#[derive(Debug)]
struct Link {
    name: String,
    token: ResumeToken,
}

/// Whether the link's server process knows what the harness said to the one before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Introduction {
    /// It is made before the next request.
    Due,
    Made,
    /// The handshake is said again and not answered yet: everything else waits.
    UnderWay,
}

/// What waits for a link or for credit, in the order in which it came.
#[derive(Debug)]
enum Queued {
    Other(Box<[u8]>),
    Request(IdValue),
}

impl RelayState {
    pub(crate) fn new(server: Option<Name>, timing: Timing, now: Instant) -> Self {
        Self {
            to_harness: Queue::default(),
            to_sidecar: Queue::default(),
            timing,
            server,
            phase: Phase::Down,
            attempt: Attempt::None,
            pacing: Pacing::new(now),
            link: None,
            outbox: Outbox::new(DEFAULT_WINDOW),
            inbox: Inbox::new(MAX_INCOMING, DEFAULT_WINDOW),
            pending: Pending::default(),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            memory: Memory::new(OWN_IDS),
            introduction: Introduction::Made,
            server_requests: ServerRequests::default(),
            max_message: MAX_MESSAGE,
            welcomed: None,
            tidy_at: None,
            lost: now,
            trouble: "no sidecar was reached".into(),
            news: None,
        }
    }

    /// Whether the harness's next bytes can be taken.
    pub(crate) fn wants_lines(&self) -> bool {
        self.backlog_bytes <= MAX_BACKLOG && self.to_harness.len() <= MAX_TO_HARNESS
    }

    /// Whether the sidecar's next bytes can be taken.
    pub(crate) fn wants_frames(&self) -> bool {
        self.to_harness.len() <= MAX_TO_HARNESS
    }

    /// A trouble that nobody was told yet.
    pub(crate) fn take_news(&mut self) -> Option<String> {
        self.news.take()
    }

    /// Puts into [`Self::to_sidecar`] what can go now. An acknowledgement travels along, or alone when it is due.
    pub(crate) fn fill(&mut self) {
        let Phase::Up(up) = &mut self.phase else { return };
        if !self.to_sidecar.is_empty() {
            return;
        }
        self.outbox.take_ready(self.to_sidecar.back());
        if !self.to_sidecar.is_empty() || self.inbox.ack_due() {
            up.sent = true;
            up.acknowledge_at = None;
            self.acknowledge();
        }
    }

    fn acknowledge(&mut self) {
        if let Some(ack) = self.inbox.take_ack() {
            self.say(Frame::Ack(ack));
        }
    }

    fn say(&mut self, frame: Frame) {
        if let Phase::Up(up) = &mut self.phase {
            up.sent = true;
        }
        frame.encode(self.to_sidecar.back());
    }

    /// Answers one request: with `did_not_run` where that is certain.
    fn answer(&mut self, id: &IdValue, did_not_run: &Answer, may_run: &Answer) {
        let Some(request) = self.pending.remove(id) else { return };
        self.memory.forget(id);
        self.unqueue(id, request.bytes.as_deref());
        let answer = if request.may_run() { may_run } else { did_not_run };
        self.write_line(&answer.to(Some(request.id.as_bytes())));
    }

    fn unqueue(&mut self, id: &IdValue, bytes: Option<&[u8]>) {
        let before = self.backlog.len();
        self.backlog.retain(|queued| !matches!(queued, Queued::Request(other) if other == id));
        if self.backlog.len() < before {
            self.backlog_bytes -= bytes.map_or(0, <[u8]>::len);
        }
    }

    fn write_line(&mut self, line: &[u8]) {
        let out = self.to_harness.back();
        out.reserve(line.len() + 1);
        out.extend_from_slice(line);
        out.push(b'\n');
    }
}

/// Ids of requests that the shim makes by itself begin with this.
const OWN_IDS: &str = "cofferdam-shim:replay:";
