//! When the login is renewed, and how long to wait after a failure.
//!
//! What must stay true: no delay is shorter than [`MIN_DELAY`], whatever durations Vault states, so there is no busy
//! loop; delays have jitter, so that sidecars that started together do not stay in step.

use std::time::Duration;

use cofferdam_base::random::fraction;
use cofferdam_base::{Backoff, Jitter, JitteredBackoff};
use tokio::time::Instant;

/// The least time between two requests.
pub(super) const MIN_DELAY: Duration = Duration::from_millis(500);
/// The longest delay while a caller waits for a token.
pub(super) const MAX_DELAY_WITH_WAITERS: Duration = Duration::from_secs(5);
/// The longest delay while no caller waits.
const MAX_DELAY_WITHOUT_WAITERS: Duration = Duration::from_secs(60);
/// A longer `Retry-After` is cut to this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The delays between failed attempts.
#[derive(Debug)]
pub(super) struct LoginBackoff(JitteredBackoff);

impl LoginBackoff {
    pub(super) fn reset(&mut self) {
        self.0.reset();
    }

    /// The delay after another failure: half a second, doubled each time up to a minute, minus up to a quarter of
    /// jitter, but at least [`MIN_DELAY`].
    pub(super) fn next_delay(&mut self) -> Duration {
        self.0.next_delay(fraction()).max(MIN_DELAY)
    }
}

impl Default for LoginBackoff {
    fn default() -> Self {
        Self(Backoff::new(MIN_DELAY, MAX_DELAY_WITHOUT_WAITERS).with_jitter(Jitter::Earlier(0.25)))
    }
}

/// When to renew a token that was issued at `start` for `lifetime`: at two thirds, or up to a tenth of that earlier.
pub(super) fn renew_at(start: Instant, lifetime: Duration) -> Instant {
    start + lifetime.mul_f64((2.0 / 3.0) * (1.0 - fraction() / 10.0)).max(MIN_DELAY)
}

/// A delay that leaves time for several attempts before the current token expires.
pub(super) fn shortened_before_expiry(delay: Duration, left: Duration) -> Duration {
    delay.min(left / 4).max(MIN_DELAY)
}

/// The pause that Vault requested, up to a limit.
pub(super) fn retry_pause(retry_after: Option<Duration>) -> Duration {
    retry_after.unwrap_or_default().min(MAX_RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn renewal_is_at_two_thirds_or_earlier() {
        let start = Instant::now();
        let lifetime = Duration::from_secs(3600);
        let times: Vec<Duration> = (0..200).map(|_| renew_at(start, lifetime) - start).collect();
        assert!(times.iter().all(|time| (2160..=2400).contains(&time.as_secs())), "{times:?}");
        assert!(times.iter().max() > times.iter().min());
        assert_eq!(renew_at(start, Duration::from_millis(1)) - start, MIN_DELAY);
    }

    #[test]
    fn delays_grow_to_a_minute_and_start_again_after_a_success() {
        let mut backoff = LoginBackoff::default();
        let delays: Vec<Duration> = (0..40).map(|_| backoff.next_delay()).collect();
        assert!(
            delays.iter().all(|delay| (MIN_DELAY..=MAX_DELAY_WITHOUT_WAITERS).contains(delay)),
            "{delays:?}"
        );
        assert!(delays[39] >= MAX_DELAY_WITHOUT_WAITERS.mul_f64(0.75), "{delays:?}");
        backoff.reset();
        assert_eq!(backoff.next_delay(), MIN_DELAY);
    }
}
