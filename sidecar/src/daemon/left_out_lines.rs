//! Logs how many lines were left out of floods, also after a flood that has stopped: see [`cofferdam_base::paced_lines`].

use std::time::Duration;

use cofferdam_base::paced_lines::{take_left_out, wait_for_left_out};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// How long lines are counted before their number is logged, so that a flood causes one such line a second of each kind.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// Logs the counts until the sidecar stops.
pub(super) async fn log_counts(stop: CancellationToken) {
    while stop.run_until_cancelled(wait_for_left_out()).await.is_some() {
        let _ = stop.run_until_cancelled(sleep(REPORT_AFTER)).await;
        log_left_out();
    }
}

/// Logs the counts that no line has told yet.
pub(super) fn log_left_out() {
    for (lines, left_out) in take_left_out() {
        tracing::warn!(left_out, "more lines like this were left out: {lines}");
    }
}
