//! How long to wait, for what.
//!
//! What must stay true: no wait is shorter than [`SHORTEST`], whatever lives Vault gives out, so nothing spins; the waits
//! of many sidecars that started together drift apart.

use std::time::Duration;

use cofferdam_base::{Backoff, Jitter, JitteredBackoff};
use tokio::time::Instant;

use cofferdam_base::random::fraction;

/// Between two requests of one keeper.
pub(super) const SHORTEST: Duration = Duration::from_millis(500);
/// While a caller waits for a token, Vault is tried at least this often.
pub(super) const WHILE_AWAITED: Duration = Duration::from_secs(5);
/// While no caller does.
const LONGEST: Duration = Duration::from_secs(60);
/// What a busy Vault asks for is honoured up to this.
const LONGEST_ASKED: Duration = Duration::from_secs(30);

/// The delays between attempts that fail.
#[derive(Debug)]
pub(super) struct Pace(JitteredBackoff);

impl Pace {
    pub(super) fn succeeded(&mut self) {
        self.0.reset();
    }

    /// The wait after one more failure: half a second, doubled each time, up to a minute, less up to a quarter.
    pub(super) fn failed(&mut self) -> Duration {
        self.0.next_delay(fraction()).max(SHORTEST)
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self(Backoff::new(SHORTEST, LONGEST).with_jitter(Jitter::Earlier(0.25)))
    }
}

/// When to turn to a token that was given `life` at `start`: at two thirds, or up to a tenth of them earlier.
pub(super) fn turn(start: Instant, life: Duration) -> Instant {
    start + life.mul_f64((2.0 / 3.0) * (1.0 - fraction() / 10.0)).max(SHORTEST)
}

/// A wait that leaves some tries before the end of what is still held.
pub(super) fn before_the_end(wait: Duration, left: Duration) -> Duration {
    wait.min(left / 4).max(SHORTEST)
}

/// What a busy Vault asked for, as far as it is honoured.
pub(super) fn asked_for(retry_after: Option<Duration>) -> Duration {
    retry_after.unwrap_or_default().min(LONGEST_ASKED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn two_thirds_and_never_later() {
        let start = Instant::now();
        let life = Duration::from_secs(3600);
        let turns: Vec<Duration> = (0..200).map(|_| turn(start, life) - start).collect();
        assert!(turns.iter().all(|turn| (2160..=2400).contains(&turn.as_secs())), "{turns:?}");
        assert!(turns.iter().max() > turns.iter().min());
        assert_eq!(turn(start, Duration::from_millis(1)) - start, SHORTEST);
    }

    #[test]
    fn waits_grow_to_a_minute_and_are_forgotten_after_a_success() {
        let mut pace = Pace::default();
        let waits: Vec<Duration> = (0..40).map(|_| pace.failed()).collect();
        assert!(waits.iter().all(|wait| (SHORTEST..=LONGEST).contains(wait)), "{waits:?}");
        assert!(waits[39] >= LONGEST.mul_f64(0.75), "{waits:?}");
        pace.succeeded();
        assert_eq!(pace.failed(), SHORTEST);
    }
}
