//! What is due when: heartbeats, acknowledgements, and answers to requests that have waited long enough.

use tokio::time::Instant;

use super::RelayState;
use super::sidecar_side::{Attempt, Connected, Phase, Reading};
use crate::answer::Answer;

impl RelayState {
    /// When [`Self::tick`] or [`Self::wants_connection`] next has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let sidecar = &self.sidecar;
        let give_up = || self.harness.pending.first_to_give_up(sidecar.lost, &sidecar.timing);
        let due = match &sidecar.phase {
            // The attempt has its own timeout.
            Phase::Down if sidecar.attempt == Attempt::UnderWay => give_up(),
            Phase::Refused { .. } if sidecar.attempt == Attempt::UnderWay => None,
            Phase::Down => Some(earlier(sidecar.next_attempt(self.waiting()), give_up())),
            Phase::AwaitingWelcome { give_up: welcome } => Some(earlier(*welcome, give_up())),
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
        let reading = if self.harness.wants_frames() { Reading::Active } else { Reading::Stopped };
        if self.tidy_at.is_some_and(|at| at <= now) {
            self.tidy_at = None;
            self.harness.output.give_back();
        }
        let sidecar = &mut self.sidecar;
        match &mut sidecar.phase {
            Phase::Up(up) => {
                if up.acknowledge_at.is_some_and(|at| at <= now) {
                    up.acknowledge_at = None;
                    sidecar.acknowledge();
                }
                sidecar.beat(now, reading)
            }
            // Its response may be waiting to be read.
            Phase::AwaitingWelcome { give_up } if *give_up <= now && reading == Reading::Stopped => {
                *give_up = now + sidecar.timing.welcome;
                self.answer_overdue(now);
                Connected::Keep
            }
            Phase::AwaitingWelcome { give_up } if *give_up <= now => {
                sidecar.disconnected("the sidecar took the connection but did not answer".into(), now);
                self.answer_overdue(now);
                Connected::Close
            }
            Phase::Down | Phase::AwaitingWelcome { .. } => {
                self.answer_overdue(now);
                Connected::Keep
            }
            Phase::Refused { .. } => Connected::Keep,
        }
    }

    /// Answers what has waited for a sidecar as long as the harness can be expected to.
    fn answer_overdue(&mut self, now: Instant) {
        let (lost, timing) = (self.sidecar.lost, &self.sidecar.timing);
        let due = self.harness.pending.ids(|request| request.gives_up(lost, timing) <= now);
        let problem = &self.sidecar.problem;
        for id in due {
            let (did_not_run, may_have_run) =
                (Answer::relay_unavailable(problem), Answer::outcome_unknown(problem));
            self.harness.answer(&id, &did_not_run, &may_have_run);
        }
    }
}

fn earlier(one: Instant, other: Option<Instant>) -> Instant {
    other.map_or(one, |other| one.min(other))
}
