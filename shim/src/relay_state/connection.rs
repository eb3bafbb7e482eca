//! The connection to the sidecar as it comes and goes: when to make one, what is said first and last on it, and what
//! becomes of the link when there is none, or will be none.

use relay_proto::control::{Goodbye, Hello, Proof, Purpose, Resume, Retry};
use relay_proto::frame::{Ack, Frame, PREFACE};
use relay_proto::limits::{DEFAULT_WINDOW, VERSION};
use relay_proto::notice;
use tokio::time::Instant;

use super::{Attempt, Introduction, Phase, RelayState, Welcomed};
use crate::answer::Answer;
use crate::options::SOFTWARE;
use crate::pacing::Waiting;

impl RelayState {
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

    /// The harness is gone: the link ends at once.
    pub(crate) fn goodbye(&mut self) {
        if let Phase::Up(_) | Phase::Greeting { .. } = self.phase {
            let goodbye = Goodbye { code: "done".into(), message: String::new(), retry: Retry::Never };
            Frame::Goodbye(goodbye).encode(self.to_sidecar.back());
        }
    }

    pub(super) fn next_attempt(&self) -> Instant {
        let waiting = if self.pending.len() > 0 { Waiting::Yes } else { Waiting::No };
        self.pacing.next_attempt(waiting, &self.timing)
    }

    /// The first frame after a Welcome confirms it; where nothing else goes, this does.
    pub(super) fn confirm(&mut self) {
        let ack = Ack { seq: self.inbox.received(), window: DEFAULT_WINDOW };
        self.say(Frame::Ack(ack));
    }

    /// Nobody will take requests: answers all that wait, and from now on each that comes.
    pub(super) fn refuse(&mut self, answer: Answer, again: Option<Instant>) {
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
    pub(super) fn forget_link(&mut self) {
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
}
