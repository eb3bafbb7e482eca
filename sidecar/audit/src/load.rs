//! How busy the disk of the audit is: whether a caller may write by itself.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Decides whether a caller writes by itself or queues its batch for the thread `audit-write`.
pub(super) struct Load {
    write_by: WriteBy,
    /// Batches that the thread has not written yet.
    queued: AtomicUsize,
    is_slow: AtomicBool,
    /// When the last write returned.
    last_write: Mutex<Option<Instant>>,
}

/// Which thread writes while the disk seems to be in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WriteBy {
    /// The caller's, always: for tests, in which nothing may happen in the background.
    Caller,
    /// The caller's, if another write has just returned; else the audit's own. So a disk that began to hang while
    /// nothing was written blocks the audit's thread and no caller's, and frequent writes need not wake the audit's thread.
    CallerIfRecent,
}

/// A write into the page cache takes microseconds; one that takes this long waits for the disk.
const SLOW_WRITE: Duration = Duration::from_millis(20);
/// For this long after a write has returned, the disk is assumed not to hang.
const RECENT: Duration = Duration::from_millis(5);

impl Load {
    pub(super) fn new(write_by: WriteBy) -> Self {
        Self {
            write_by,
            queued: AtomicUsize::new(0),
            is_slow: AtomicBool::new(false),
            last_write: Mutex::new(None),
        }
    }

    /// Whether a caller may write by itself.
    pub(super) fn allows_direct_write(&self) -> bool {
        self.queued.load(Ordering::Acquire) == 0
            && !self.is_slow.load(Ordering::Acquire)
            && (self.write_by == WriteBy::Caller || self.wrote_recently())
    }

    fn wrote_recently(&self) -> bool {
        let last = *self.last_write.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < RECENT)
    }

    pub(super) fn count_queued(&self) {
        self.queued.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn count_written(&self) {
        self.queued.fetch_sub(1, Ordering::AcqRel);
    }

    /// Remembers whether the last write, which began at `began`, was slow.
    pub(super) fn record_write_time(&self, began: Instant) {
        let now = Instant::now();
        *self.last_write.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        self.is_slow.store(now.saturating_duration_since(began) >= SLOW_WRITE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_caller_writes_by_itself_only_shortly_after_another_write() {
        let load = Load::new(WriteBy::CallerIfRecent);
        assert!(!load.allows_direct_write(), "nothing was written yet");
        load.record_write_time(Instant::now());
        assert!(load.allows_direct_write());
        tokio::time::advance(RECENT - MILLISECOND).await;
        assert!(load.allows_direct_write());
        tokio::time::advance(MILLISECOND).await;
        assert!(!load.allows_direct_write());
    }

    #[tokio::test(start_paused = true)]
    async fn no_caller_writes_by_itself_after_a_slow_write_or_while_a_batch_is_queued() {
        let load = Load::new(WriteBy::Caller);
        assert!(load.allows_direct_write());
        let began = Instant::now();
        tokio::time::advance(SLOW_WRITE - MILLISECOND).await;
        load.record_write_time(began);
        assert!(load.allows_direct_write());
        tokio::time::advance(MILLISECOND).await;
        load.record_write_time(began);
        assert!(!load.allows_direct_write());
        load.record_write_time(Instant::now());
        load.count_queued();
        assert!(!load.allows_direct_write());
        load.count_written();
        assert!(load.allows_direct_write());
    }
}
