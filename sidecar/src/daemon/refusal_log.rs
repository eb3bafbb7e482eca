//! Logs refused connections: at most ten a second with their reasons; the others are only counted.
//!
//! Nothing else limits how often a client that reaches a listener is refused, and the client chooses part of the text. So the
//! reason is cut, after it was scrubbed: the rest of a credential that was cut in two would not be recognised.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_base::RateLimiter;
use cofferdam_scrub::Naming;
use cofferdam_scrub::shared::SharedValues;
use relay_proto::control::Refusal;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(super) struct RefusalLog {
    counts: Mutex<RefusalCounts>,
    /// The values that no reason in the log may contain.
    values: Arc<SharedValues>,
}

struct RefusalCounts {
    limit: RateLimiter,
    /// Refusals since the last report that were not logged.
    unlogged: u64,
}

/// How one refusal is logged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Logged {
    WithReason,
    /// Counted as the first since the last report; the count is to be logged at this time.
    FirstCounted(Instant),
    Counted,
}

/// How long after the first refusal that is only counted the count is logged.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// Enough to see which peers are refused and why; few enough not to crowd out other lines.
const LINES_PER_SECOND: u32 = 10;
const MAX_REASON_CHARS: usize = 200;

impl RefusalLog {
    pub(super) fn new(values: Arc<SharedValues>) -> Self {
        let counts = RefusalCounts { limit: RateLimiter::per_second(LINES_PER_SECOND), unlogged: 0 };
        Self { counts: Mutex::new(counts), values }
    }

    /// Logs one refusal, or counts it.
    pub(super) fn log(self: &Arc<Self>, refusal: &Refusal, tasks: &TaskTracker, stop: &CancellationToken) {
        match self.count() {
            Logged::WithReason => {
                tracing::warn!(code = refusal.code, why = self.shown(&refusal.message), "connection refused");
            }
            Logged::FirstCounted(ends) => {
                let (refusals, stop) = (Arc::clone(self), stop.clone());
                tasks.spawn(async move {
                    let _ = stop.run_until_cancelled(sleep_until(ends)).await;
                    tracing::warn!("{} more connections refused", refusals.take_unlogged());
                });
            }
            Logged::Counted => {}
        }
    }

    fn count(&self) -> Logged {
        let mut lines = self.lock();
        let now = Instant::now();
        if lines.limit.allows(now) {
            return Logged::WithReason;
        }
        lines.unlogged += 1;
        match lines.unlogged {
            1 => Logged::FirstCounted(now + REPORT_AFTER),
            _ => Logged::Counted,
        }
    }

    fn take_unlogged(&self) -> u64 {
        std::mem::take(&mut self.lock().unlogged)
    }

    /// The reason as it is logged: scrubbed, and then at most [`MAX_REASON_CHARS`] characters.
    fn shown(&self, reason: &str) -> String {
        let scrubbed = self.values.scrubber(Naming::All).name(reason).into_owned();
        scrubbed.chars().take(MAX_REASON_CHARS).collect()
    }

    fn lock(&self) -> MutexGuard<'_, RefusalCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_scrub::Needle;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_gives_ten_lines_a_second_and_a_count() {
        let refusals = RefusalLog::new(Arc::default());
        let lines: Vec<Logged> = (0..1000).map(|_| refusals.count()).collect();
        assert_eq!(lines.iter().filter(|line| **line == Logged::WithReason).count(), 10);
        let ends = Instant::now() + REPORT_AFTER;
        assert_eq!(lines[10], Logged::FirstCounted(ends), "the count must be logged by one later line");
        assert!(lines[11..].iter().all(|line| *line == Logged::Counted));
        sleep_until(ends).await;
        assert_eq!(refusals.take_unlogged(), 990);
        assert_eq!(refusals.count(), Logged::WithReason, "the limit must apply per second");
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let refusals = RefusalLog::new(Arc::default());
        assert_eq!(refusals.shown("short"), "short");
        assert_eq!(refusals.shown(&"é".repeat(201)), "é".repeat(200));
    }

    #[test]
    fn a_reason_is_scrubbed_before_it_is_cut() {
        let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
        let values = Arc::new(SharedValues::default());
        let value = token.as_bytes().to_vec().into();
        values.learn(&[Needle { label: "github.token".into(), value }]);
        let refusals = RefusalLog::new(values);
        for before in 150..205 {
            let shown = refusals.shown(&format!("{} {token} is unknown", "x".repeat(before)));
            assert!(!shown.contains("ghp_"), "{before}: {shown}");
        }
    }
}
