//! How busy the disk of the audit is: whether a caller may write by itself.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Decides whether a caller writes by itself or queues its batch for the thread `audit-write`.
#[derive(Default)]
pub(super) struct Load {
    /// Batches that the thread has not written yet.
    queued: AtomicUsize,
    is_slow: AtomicBool,
}

/// A write into the page cache takes microseconds; one that takes this long waits for the disk.
const SLOW_WRITE: Duration = Duration::from_millis(20);

impl Load {
    /// Whether a caller may write by itself.
    pub(super) fn allows_direct_write(&self) -> bool {
        self.queued.load(Ordering::Acquire) == 0 && !self.is_slow.load(Ordering::Acquire)
    }

    pub(super) fn count_queued(&self) {
        self.queued.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn count_written(&self) {
        self.queued.fetch_sub(1, Ordering::AcqRel);
    }

    /// Remembers whether the last write, which began at `began`, was slow.
    pub(super) fn record_write_time(&self, began: Instant) {
        self.is_slow.store(began.elapsed() >= SLOW_WRITE, Ordering::Release);
    }
}
