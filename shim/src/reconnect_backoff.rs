//! When the shim tries to connect again.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use crate::timing::Timing;

/// Whether a request waits for the sidecar.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Waiting {
    No,
    Yes,
}

/// Exponential backoff: up to a short maximum while a request waits, up to a long one with jitter while none does, so
/// that a thousand idle shims do not reconnect at the same time.
#[derive(Debug)]
pub(crate) struct ReconnectBackoff {
    failures: u32,
    failed_at: Instant,
    /// The sidecar asked for no attempt before this.
    not_before: Instant,
    /// Whether the next attempt skips the backoff.
    at_once: bool,
    /// Random bits of the jitter.
    jitter: u64,
}

impl ReconnectBackoff {
    pub(crate) fn new(now: Instant) -> Self {
        Self { failures: 0, failed_at: now, not_before: now, at_once: false, jitter: 0 }
    }

    /// An attempt failed or a connection was lost.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.failed_at = now;
        self.at_once = false;
        self.jitter = RandomState::new().build_hasher().finish();
    }

    /// The sidecar asked for no attempt before `at`.
    pub(crate) fn not_before(&mut self, at: Instant) {
        self.not_before = at;
    }

    /// The harness sent a message: the next attempt skips the backoff, but not the sidecar's `not_before`.
    pub(crate) fn retry_at_once(&mut self) {
        self.at_once = true;
    }

    /// The connection works: the backoff starts over.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// The time of the next attempt.
    pub(crate) fn next_attempt(&self, waiting: Waiting, timing: &Timing) -> Instant {
        if self.failures == 0 || self.at_once {
            return self.not_before;
        }
        let doubled = timing.first_retry.saturating_mul(1 << (self.failures - 1).min(16));
        let pause = match waiting {
            Waiting::Yes => doubled.min(timing.longest_retry_waiting),
            Waiting::No => {
                let longest = doubled.min(timing.longest_retry_idle);
                let half = longest / 2;
                half + Duration::from_nanos(self.jitter % (half.as_nanos() as u64).max(1))
            }
        };
        self.not_before.max(self.failed_at + pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_maximum() {
        let (timing, now) = (Timing::default(), Instant::now());
        let mut backoff = ReconnectBackoff::new(now);
        assert_eq!(backoff.next_attempt(Waiting::No, &timing), now, "the first attempt is at once");
        let mut pauses = Vec::new();
        for _ in 0..12 {
            backoff.failed(now);
            pauses.push((backoff.next_attempt(Waiting::Yes, &timing) - now).as_millis());
            let idle = backoff.next_attempt(Waiting::No, &timing) - now;
            assert!(idle <= timing.longest_retry_idle);
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 2000, 2000, 2000, 2000, 2000, 2000]);
        let idle = backoff.next_attempt(Waiting::No, &timing) - now;
        assert!(idle >= timing.longest_retry_idle / 2, "{idle:?}");

        backoff.retry_at_once();
        assert_eq!(
            backoff.next_attempt(Waiting::Yes, &timing),
            now,
            "after a new message the next attempt is at once"
        );
        backoff.not_before(now + Duration::from_secs(9));
        assert_eq!(backoff.next_attempt(Waiting::Yes, &timing), now + Duration::from_secs(9));
    }
}
