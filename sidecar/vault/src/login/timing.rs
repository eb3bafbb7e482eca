//! How long to wait, for what.
//!
//! What must stay true: no wait is shorter than [`MIN_DELAY`], whatever lives Vault gives out, so nothing spins; the waits
//! of many sidecars that started together drift apart.

use std::time::Duration;

use cofferdam_base::random::fraction;
use cofferdam_base::{Backoff, Jitter, JitteredBackoff};
use tokio::time::Instant;

/// Between two requests of one keeper.
pub(super) const MIN_DELAY: Duration = Duration::from_millis(500);
/// While a caller waits for a token, Vault is tried at least this often.
pub(super) const AWAITED_DELAY: Duration = Duration::from_secs(5);
/// While no caller does.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// What a busy Vault asks for is honoured up to this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The delays between attempts that fail.
#[derive(Debug)]
pub(super) struct LoginBackoff(JitteredBackoff);

impl LoginBackoff {
    pub(super) fn succeeded(&mut self) {
        self.0.reset();
    }

    /// The wait after one more failure: half a second, doubled each time, up to a minute, less up to a quarter.
    pub(super) fn failed(&mut self) -> Duration {
        self.0.next_delay(fraction()).max(MIN_DELAY)
    }
}

impl Default for LoginBackoff {
    fn default() -> Self {
        Self(Backoff::new(MIN_DELAY, MAX_DELAY).with_jitter(Jitter::Earlier(0.25)))
    }
}

/// When to turn to a token that was given `life` at `start`: at two thirds, or up to a tenth of them earlier.
pub(super) fn renew_at(start: Instant, life: Duration) -> Instant {
    start + life.mul_f64((2.0 / 3.0) * (1.0 - fraction() / 10.0)).max(MIN_DELAY)
}

/// A wait that leaves some tries before the end of what is still held.
pub(super) fn before_expiry(wait: Duration, left: Duration) -> Duration {
    wait.min(left / 4).max(MIN_DELAY)
}

/// What a busy Vault asked for, as far as it is honoured.
pub(super) fn retry_pause(retry_after: Option<Duration>) -> Duration {
    retry_after.unwrap_or_default().min(MAX_RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn two_thirds_and_never_later() {
        let start = Instant::now();
        let life = Duration::from_secs(3600);
        let turns: Vec<Duration> = (0..200).map(|_| renew_at(start, life) - start).collect();
        assert!(turns.iter().all(|turn| (2160..=2400).contains(&turn.as_secs())), "{turns:?}");
        assert!(turns.iter().max() > turns.iter().min());
        assert_eq!(renew_at(start, Duration::from_millis(1)) - start, MIN_DELAY);
    }

    #[test]
    fn waits_grow_to_a_minute_and_are_forgotten_after_a_success() {
        let mut backoff = LoginBackoff::default();
        let waits: Vec<Duration> = (0..40).map(|_| backoff.failed()).collect();
        assert!(waits.iter().all(|wait| (MIN_DELAY..=MAX_DELAY).contains(wait)), "{waits:?}");
        assert!(waits[39] >= MAX_DELAY.mul_f64(0.75), "{waits:?}");
        backoff.succeeded();
        assert_eq!(backoff.failed(), MIN_DELAY);
    }
}
