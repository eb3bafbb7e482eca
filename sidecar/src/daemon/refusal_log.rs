//! Logs refused connections: at most ten a second with their reasons; the others are only counted.
//!
//! Nothing else limits how often a client that reaches a listener is refused, and the client chooses part of the text.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_base::RateLimiter;
use relay_proto::control::Refusal;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(super) struct RefusalLog(Mutex<RefusalCounts>);

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
    /// Logs one refusal, or counts it.
    pub(super) fn log(self: &Arc<Self>, refusal: &Refusal, tasks: &TaskTracker, stop: &CancellationToken) {
        match self.count() {
            Logged::WithReason => {
                tracing::warn!(code = refusal.code, why = truncate(&refusal.message), "connection refused");
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

    fn lock(&self) -> MutexGuard<'_, RefusalCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for RefusalLog {
    fn default() -> Self {
        Self(Mutex::new(RefusalCounts { limit: RateLimiter::per_second(LINES_PER_SECOND), unlogged: 0 }))
    }
}

fn truncate(text: &str) -> &str {
    text.char_indices().nth(MAX_REASON_CHARS).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_gives_ten_lines_a_second_and_a_count() {
        let refusals = RefusalLog::default();
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
    fn a_long_reason_is_truncated_at_a_character_boundary() {
        assert_eq!(truncate("short"), "short");
        assert_eq!(truncate(&"é".repeat(201)), "é".repeat(200));
    }
}
