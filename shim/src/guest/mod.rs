//! What to do with a line from the harness, a frame from the sidecar, or a deadline. No I/O and no clock of its own.
//!
//! `from_harness` takes lines, `from_sidecar` takes frames, `introduction` tells a new server process what the old one
//! knew; all leave bytes in [`Guest::to_harness`] and
//! [`Guest::to_sidecar`], which the loop writes.
//!
//! What must stay true: a request that the shim answers with "did not run" is in no outbox, so that nothing runs it
//! later; a request that was handed out and whose link is over is `outcome_unknown`; and each has one answer.

mod from_harness;
mod from_sidecar;
mod introduction;
#[cfg(any(test, fuzzing))]
pub(crate) mod model;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use relay_proto::control::{Epoch, Goodbye, Hello, Proof, Purpose, Resume, ResumeToken, Retry};
use relay_proto::delivery::{Inbox, Outbox};
use relay_proto::envelope::IdValue;
use relay_proto::frame::{Ack, Frame, PREFACE};
use relay_proto::limits::{DEFAULT_WINDOW, MAX_MESSAGE, VERSION};
use relay_proto::memory::Memory;
use relay_proto::name::Name;
use relay_proto::notice;
use tokio::time::Instant;

use crate::answer::Answer;
use crate::options::SOFTWARE;
use crate::pacing::{Pacing, Waiting};
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
pub(crate) struct Guest {
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

impl Guest {
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

    /// Whether it is time to connect.
    pub(crate) fn wants_connection(&self, now: Instant) -> bool {
        if self.attempt == Attempt::UnderWay {
            return false;
        }
        match &self.phase {
            Phase::Down => self.next_attempt() <= now,
            Phase::Refused { again, .. } => again.is_some_and(|again| again <= now),
            Phase::Greeting { .. } | Phase::Up(_) => false,
        }
    }

    /// Whether the sidecar said that we need not come again.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.phase, Phase::Refused { again: None, .. })
    }

    /// Somebody is connecting; [`Self::connected`] or [`Self::disconnected`] says how that went.
    pub(crate) fn connecting(&mut self) {
        self.attempt = Attempt::UnderWay;
    }

    /// There is a connection: say who we are.
    pub(crate) fn connected(&mut self, proof: Proof, now: Instant) {
        self.attempt = Attempt::None;
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
        self.to_sidecar.clear();
        self.to_sidecar.back().extend_from_slice(PREFACE);
        Frame::Hello(hello).encode(self.to_sidecar.back());
        self.phase = Phase::Greeting { give_up: now + self.timing.welcome };
    }

    /// There is no connection, or no longer one. The link stays, to be resumed.
    pub(crate) fn disconnected(&mut self, why: String, now: Instant) {
        self.attempt = Attempt::None;
        self.to_sidecar.clear();
        self.pacing.failed(now);
        self.news = Some(why.clone());
        self.trouble = why;
        match &mut self.phase {
            Phase::Down => {}
            Phase::Up(_) => {
                self.lost = now;
                self.phase = Phase::Down;
            }
            Phase::Greeting { .. } => self.phase = Phase::Down,
            Phase::Refused { again, .. } => *again = again.map(|_| now + self.timing.longest_retry_idle),
        }
    }

    /// There is no way to connect, now or ever: say so to everyone.
    pub(crate) fn give_up(&mut self, why: &str) {
        self.attempt = Attempt::None;
        let answer = Answer::relay_unavailable(why);
        self.refuse(answer, None);
    }

    /// The Welcome that has just come, once. What it brought is kept before anything is written to the sidecar.
    pub(crate) fn take_welcomed(&mut self) -> Option<Welcomed> {
        self.welcomed.take()
    }

    /// What the Welcome brought could not be kept: it was not confirmed and must not be, so its link is none.
    pub(crate) fn not_kept(&mut self, why: String, now: Instant) {
        self.disconnected(why, now);
        self.forget_link_and_requeue();
    }

    /// The sandbox was enrolled anew: what belonged to the old enrolment is over.
    pub(crate) fn enrolled_anew(&mut self) {
        self.forget_link_and_requeue();
    }

    /// After a refusal for good: looks now and then whether another attempt makes sense after all.
    pub(crate) fn keep_looking(&mut self, now: Instant) {
        if let Phase::Refused { again, .. } = &mut self.phase {
            *again = Some(now + self.timing.longest_retry_waiting);
        }
    }

    /// A trouble that nobody was told yet.
    pub(crate) fn take_news(&mut self) -> Option<String> {
        self.news.take()
    }

    /// When [`Self::tick`] or [`Self::wants_connection`] has something new to say.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let give_up = || self.pending.first_to_give_up(self.lost, &self.timing);
        let due = match &self.phase {
            // Whoever connects has a deadline of its own.
            Phase::Down if self.attempt == Attempt::UnderWay => give_up(),
            Phase::Refused { .. } if self.attempt == Attempt::UnderWay => None,
            Phase::Down => Some(earlier(self.next_attempt(), give_up())),
            Phase::Greeting { give_up: greeting } => Some(earlier(*greeting, give_up())),
            Phase::Up(up) => {
                let beat = up.heartbeat.map(|_| up.next_beat);
                up.acknowledge_at.map(|at| earlier(at, beat)).or(beat)
            }
            Phase::Refused { again, .. } => *again,
        };
        self.tidy_at.map(|at| earlier(at, due)).or(due)
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Instant) -> Connected {
        let is_deaf = !self.wants_frames();
        if self.tidy_at.is_some_and(|at| at <= now) {
            self.tidy_at = None;
            self.to_harness.give_back();
        }
        match &mut self.phase {
            Phase::Up(up) => {
                if up.acknowledge_at.is_some_and(|at| at <= now) {
                    up.acknowledge_at = None;
                    self.acknowledge();
                }
                self.beat(now)
            }
            // Its answer may be waiting to be read.
            Phase::Greeting { give_up } if *give_up <= now && is_deaf => {
                *give_up = now + self.timing.welcome;
                self.answer_the_impatient(now);
                Connected::Keep
            }
            Phase::Greeting { give_up } if *give_up <= now => {
                self.disconnected("the sidecar took the connection but did not answer".into(), now);
                self.answer_the_impatient(now);
                Connected::Close
            }
            Phase::Down | Phase::Greeting { .. } => {
                self.answer_the_impatient(now);
                Connected::Keep
            }
            Phase::Refused { .. } => Connected::Keep,
        }
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

    /// The harness is gone: the link ends at once.
    pub(crate) fn goodbye(&mut self) {
        if let Phase::Up(_) | Phase::Greeting { .. } = self.phase {
            let goodbye = Goodbye { code: "done".into(), message: String::new(), retry: Retry::Never };
            Frame::Goodbye(goodbye).encode(self.to_sidecar.back());
        }
    }

    fn next_attempt(&self) -> Instant {
        let waiting = if self.pending.len() > 0 { Waiting::Yes } else { Waiting::No };
        self.pacing.next_attempt(waiting, &self.timing)
    }

    fn acknowledge(&mut self) {
        if let Some(ack) = self.inbox.take_ack() {
            self.say(Frame::Ack(ack));
        }
    }

    /// The first frame after a Welcome confirms it; where nothing else goes, this does.
    fn confirm(&mut self) {
        let ack = Ack { seq: self.inbox.received(), window: DEFAULT_WINDOW };
        self.say(Frame::Ack(ack));
    }

    fn say(&mut self, frame: Frame) {
        if let Phase::Up(up) = &mut self.phase {
            up.sent = true;
        }
        frame.encode(self.to_sidecar.back());
    }

    /// Counts beats without a sign of life, not time: after a pause of the whole sandbox the first beat is late, and
    /// the sidecar's bytes may be waiting to be read. So they may be while a slow harness keeps us from reading.
    fn beat(&mut self, now: Instant) -> Connected {
        let is_deaf = !self.wants_frames();
        let Phase::Up(up) = &mut self.phase else { return Connected::Keep };
        let Some(heartbeat) = up.heartbeat.filter(|_| up.next_beat <= now) else { return Connected::Keep };
        up.silent_beats = if up.heard || is_deaf { 0 } else { up.silent_beats + 1 };
        if up.silent_beats >= DEAD_AFTER {
            self.disconnected("the sidecar fell silent".into(), now);
            return Connected::Close;
        }
        let quiet = !up.sent;
        (up.heard, up.sent) = (false, false);
        up.next_beat = now + heartbeat;
        if quiet {
            self.say(Frame::Ping);
        }
        Connected::Keep
    }

    /// Answers what has waited for a sidecar as long as the harness can be expected to.
    fn answer_the_impatient(&mut self, now: Instant) {
        let (lost, timing) = (self.lost, &self.timing);
        let due = self.pending.ids(|request| request.gives_up(lost, timing) <= now);
        let trouble = self.trouble.clone();
        for id in due {
            self.answer(&id, &Answer::relay_unavailable(&trouble), &Answer::outcome_unknown(&trouble));
        }
    }

    /// Answers one request: with `did_not_run` where that is certain.
    fn answer(&mut self, id: &IdValue, did_not_run: &Answer, may_run: &Answer) {
        let Some(request) = self.pending.remove(id) else { return };
        self.memory.forget(id);
        self.unqueue(id, request.bytes.as_deref());
        let answer = if request.may_run() { may_run } else { did_not_run };
        self.write_line(&answer.to(Some(request.id.as_bytes())));
    }

    /// Nobody will take requests: answers all that wait, and from now on each that comes.
    fn refuse(&mut self, answer: Answer, again: Option<Instant>) {
        let unknown = Answer::outcome_unknown(&answer.sentence);
        self.forget_link();
        for id in self.pending.ids(|_| true) {
            self.answer(&id, &answer, &unknown);
        }
        self.backlog.clear();
        self.backlog_bytes = 0;
        self.news = Some(format!("{}: {}", answer.code.as_str(), answer.sentence));
        self.trouble = answer.sentence.clone();
        self.phase = Phase::Refused { answer, again };
    }

    /// The link cannot be resumed: what it carried is sent again on another, or answered. Its server process is gone,
    /// and what that asked of the harness with it.
    fn forget_link(&mut self) {
        for id in self.server_requests.drain() {
            self.write_line(&notice::cancelled(&id, "the server that asked is gone"));
        }
        if let Some(link) = &self.link {
            self.pending.unsend(&link.name, self.outbox.handed_out());
            self.introduction = Introduction::Due;
        }
        self.outbox.restart(DEFAULT_WINDOW);
        self.inbox.restart();
        self.link = None;
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
/// Beats in a row without a sign of life.
const DEAD_AFTER: u32 = 3;

fn earlier(one: Instant, other: Option<Instant>) -> Instant {
    other.map_or(one, |other| one.min(other))
}
