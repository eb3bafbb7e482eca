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
const SLOW: Duration = Duration::from_millis(20);

impl Load {
    /// Whether a caller may write by itself.
    pub(super) fn is_light(&self) -> bool {
        self.queued.load(Ordering::Acquire) == 0 && !self.is_slow.load(Ordering::Acquire)
    }

    pub(super) fn queue_one(&self) {
        self.queued.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn done_one(&self) {
        self.queued.fetch_sub(1, Ordering::AcqRel);
    }

    /// Notes whether a write that began at `began` was slow.
    pub(super) fn wrote(&self, began: Instant) {
        self.is_slow.store(began.elapsed() >= SLOW, Ordering::Release);
    }
}
