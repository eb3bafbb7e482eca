//! What is due when: heartbeats, acknowledgements, and answers to those who have waited long enough.

use relay_proto::frame::Frame;
use tokio::time::Instant;

use super::{Attempt, Connected, Phase, RelayState};
use crate::answer::Answer;

impl RelayState {
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

    /// Counts beats without a sign of life, not time: after a pause of the whole sandbox the first beat is late, and
    /// the sidecar's bytes may be waiting to be read. So they may be while a slow harness keeps us from reading.
    pub(super) fn beat(&mut self, now: Instant) -> Connected {
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
    pub(super) fn answer_the_impatient(&mut self, now: Instant) {
        let (lost, timing) = (self.lost, &self.timing);
        let due = self.pending.ids(|request| request.gives_up(lost, timing) <= now);
        let trouble = self.trouble.clone();
        for id in due {
            self.answer(&id, &Answer::relay_unavailable(&trouble), &Answer::outcome_unknown(&trouble));
        }
    }
}

/// Beats in a row without a sign of life.
const DEAD_AFTER: u32 = 3;

fn earlier(one: Instant, other: Option<Instant>) -> Instant {
    other.map_or(one, |other| one.min(other))
}
