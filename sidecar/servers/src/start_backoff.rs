//! When a server that failed may be started again: at once the first time, then with growing delays.

use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct StartBackoff {
    delays: cofferdam_base::Backoff,
    /// Whether it has failed since it last ran stably. The restart after the first failure is immediate.
    has_failed: bool,
    /// No start before this.
    not_before: Option<Instant>,
}

/// A process that served longer than this is not in a crash loop.
const STABLE_RUN: Duration = Duration::from_secs(10);
/// The wait after the second failure.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest wait between two starts of a server that keeps failing.
const MAX_DELAY: Duration = Duration::from_secs(30);

impl StartBackoff {
    /// The process did not start (`served_for` is zero), or ended after it had served for this time.
    pub(crate) fn record_end(&mut self, served_for: Duration) {
        if served_for > STABLE_RUN {
            *self = Self::default();
            return;
        }
        self.not_before = self.has_failed.then(|| Instant::now() + self.delays.next_delay());
        self.has_failed = true;
    }

    /// How long a start has to wait; none if it may happen now.
    pub(crate) fn wait(&self) -> Option<Duration> {
        let wait = self.not_before?.saturating_duration_since(Instant::now());
        (!wait.is_zero()).then_some(wait)
    }
}

impl Default for StartBackoff {
    fn default() -> Self {
        Self {
            delays: cofferdam_base::Backoff::new(FIRST_DELAY, MAX_DELAY),
            has_failed: false,
            not_before: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_restart_is_immediate_and_a_stable_run_resets_the_delay() {
        let mut backoff = StartBackoff::default();
        backoff.record_end(Duration::ZERO);
        assert_eq!(backoff.wait(), None);
        backoff.record_end(Duration::ZERO);
        assert_eq!(backoff.wait(), Some(Duration::from_secs(1)));
        for _ in 0..20 {
            backoff.record_end(Duration::ZERO);
        }
        assert_eq!(backoff.wait(), Some(MAX_DELAY));
        tokio::time::advance(MAX_DELAY).await;
        assert_eq!(backoff.wait(), None);
        backoff.record_end(STABLE_RUN * 2);
        assert_eq!(backoff.wait(), None);
    }
}
