//! Exponential backoff: the delay before the next attempt doubles with every failure, up to a maximum.
//!
//! What must stay true: there is no clock and no random source in here. The caller measures time, and passes the random
//! number of a jittered delay, so a simulation can replay the same delays.

use std::time::Duration;

/// Delays of `first`, 2 × `first`, 4 × `first`, … and at most `max`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    failures: u32,
}

/// A [`Backoff`] whose delays are spread, so that many clients that failed together do not retry together.
#[derive(Clone, Copy, Debug)]
pub struct JitteredBackoff {
    delays: Backoff,
    jitter: Jitter,
}

/// The maximum random change of a delay, as a fraction of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    Earlier(f64),
    /// The delay may exceed the maximum of the [`Backoff`] by this fraction.
    Later(f64),
}

impl Backoff {
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, failures: 0 }
    }

    pub const fn with_jitter(self, jitter: Jitter) -> JitteredBackoff {
        JitteredBackoff { delays: self, jitter }
    }

    /// Counts a failure and returns the delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        self.first.saturating_mul(factor).min(self.max)
    }

    /// An attempt succeeded: the next delay is `first` again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

impl JitteredBackoff {
    /// Counts a failure and returns the delay before the next attempt. `random` is from 0 to 1, 1 excluded:
    /// [`random::fraction`](crate::random::fraction).
    pub fn next_delay(&mut self, random: f64) -> Duration {
        let factor = match self.jitter {
            Jitter::Earlier(fraction) => 1.0 - fraction * random,
            Jitter::Later(fraction) => 1.0 + fraction * random,
        };
        self.delays.next_delay().mul_f64(factor)
    }

    /// An attempt succeeded: the next delay is `first` again.
    pub fn reset(&mut self) {
        self.delays.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(500);
    const MAX: Duration = Duration::from_secs(3);

    #[test]
    fn delays_double_up_to_the_maximum_and_start_over_after_a_success() {
        let mut backoff = Backoff::new(FIRST, MAX);
        let delays: Vec<u128> = (0..5).map(|_| backoff.next_delay().as_millis()).collect();
        assert_eq!(delays, [500, 1000, 2000, 3000, 3000]);
        backoff.reset();
        assert_eq!(backoff.next_delay(), FIRST);
    }

    #[test]
    fn many_failures_do_not_overflow_the_delay() {
        let mut backoff = Backoff::new(FIRST, Duration::MAX);
        let delays: Vec<Duration> = (0..100).map(|_| backoff.next_delay()).collect();
        assert!(delays.is_sorted(), "{delays:?}");
        assert!((0..100).map(|_| backoff.next_delay()).all(|delay| delay == delays[99]));
    }

    #[test]
    fn jitter_changes_a_delay_by_at_most_its_fraction() {
        let mut earlier = Backoff::new(FIRST, MAX).with_jitter(Jitter::Earlier(0.25));
        assert_eq!(earlier.next_delay(0.0), FIRST);
        assert_eq!(earlier.next_delay(1.0), FIRST * 2 * 3 / 4);
        let mut later = Backoff::new(FIRST, FIRST).with_jitter(Jitter::Later(0.1));
        assert_eq!(later.next_delay(0.5), FIRST.mul_f64(1.05));
        later.reset();
        assert_eq!(later.next_delay(0.0), FIRST);
    }
}
