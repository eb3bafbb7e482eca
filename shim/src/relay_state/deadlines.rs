//! What is due when: heartbeats, acknowledgements, and answers to requests that have waited long enough.

use tokio::time::Instant;

use super::RelayState;
use super::sidecar_side::{Attempt, Connected, Phase, Reading};

impl RelayState {
    /// When [`Self::tick`] or [`Self::should_connect`] next has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let sidecar = &self.sidecar;
        let give_up = || self.harness.pending.first_timeout(sidecar.lost, &sidecar.timing);
        let due = match &sidecar.phase {
            // The attempt has its own timeout.
            Phase::Down if sidecar.attempt == Attempt::UnderWay => give_up(),
            Phase::Refused { .. } if sidecar.attempt == Attempt::UnderWay => None,
            Phase::Down => Some(earlier(sidecar.next_attempt(self.harness.waiting()), give_up())),
            Phase::AwaitingWelcome { give_up: welcome } => Some(earlier(*welcome, give_up())),
            Phase::Up(up) => {
                let beat = up.heartbeat.map(|_| up.next_beat);
                up.acknowledge_at.map(|at| earlier(at, beat)).or(beat)
            }
            Phase::Refused { again, .. } => *again,
        };
        self.free_spare_at.map(|at| earlier(at, due)).or(due)
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Instant) -> Connected {
        let reading = if self.harness.accepts_frames() { Reading::Active } else { Reading::Stopped };
        if self.free_spare_at.is_some_and(|at| at <= now) {
            self.free_spare_at = None;
            self.harness.output.free_spare();
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
            // The sidecar's response may be waiting to be read.
            Phase::AwaitingWelcome { give_up } if *give_up <= now && reading == Reading::Stopped => {
                *give_up = now + sidecar.timing.welcome;
                self.harness.answer_overdue(sidecar, now);
                Connected::Keep
            }
            Phase::AwaitingWelcome { give_up } if *give_up <= now => {
                sidecar.disconnected("the sidecar accepted the connection but did not respond".into(), now);
                self.harness.answer_overdue(sidecar, now);
                Connected::Close
            }
            Phase::Down | Phase::AwaitingWelcome { .. } => {
                self.harness.answer_overdue(sidecar, now);
                Connected::Keep
            }
            Phase::Refused { .. } => Connected::Keep,
        }
    }
}

fn earlier(one: Instant, other: Option<Instant>) -> Instant {
    other.map_or(one, |other| one.min(other))
}
