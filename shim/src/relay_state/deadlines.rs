//! When the next action is due: heartbeats, acknowledgements, and error responses to requests that have timed out.

use tokio::time::Instant;

use super::RelayState;
use super::sidecar_side::{AttemptState, ConnectionAction, Phase, Reading};

impl RelayState {
    /// When [`Self::tick`] or [`Self::should_connect`] next has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let sidecar = &self.sidecar;
        let first_timeout = || self.harness.pending.first_timeout(sidecar.lost_at, &sidecar.timing);
        let due = match &sidecar.phase {
            // The attempt has its own timeout.
            Phase::Down if sidecar.attempt == AttemptState::UnderWay => first_timeout(),
            Phase::Refused { .. } if sidecar.attempt == AttemptState::UnderWay => None,
            Phase::Down => Some(earlier(sidecar.next_attempt(self.harness.waiting()), first_timeout())),
            Phase::AwaitingWelcome { deadline } => Some(earlier(*deadline, first_timeout())),
            Phase::Up(up) => {
                let beat = up.heartbeat.map(|_| up.next_beat);
                up.acknowledge_at.map(|at| earlier(at, beat)).or(beat)
            }
            Phase::Refused { again, .. } => *again,
        };
        self.free_spare_at.map(|at| earlier(at, due)).or(due)
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Instant) -> ConnectionAction {
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
            Phase::AwaitingWelcome { deadline } if *deadline <= now && reading == Reading::Stopped => {
                *deadline = now + sidecar.timing.welcome_timeout;
                self.harness.respond_to_overdue(sidecar, now);
                ConnectionAction::Keep
            }
            Phase::AwaitingWelcome { deadline } if *deadline <= now => {
                sidecar.disconnected("the sidecar accepted the connection but did not respond".into(), now);
                self.harness.respond_to_overdue(sidecar, now);
                ConnectionAction::Close
            }
            Phase::Down | Phase::AwaitingWelcome { .. } => {
                self.harness.respond_to_overdue(sidecar, now);
                ConnectionAction::Keep
            }
            Phase::Refused { .. } => ConnectionAction::Keep,
        }
    }
}

fn earlier(one: Instant, other: Option<Instant>) -> Instant {
    other.map_or(one, |other| one.min(other))
}
