//! The thread that writes batches while the disk is slow, so that no other thread waits for it.
//!
//! Usually a batch is written by its caller: one `write(2)` into the page cache, which is quicker than waking a thread.
//! A batch goes to this thread while another caller holds the log, while batches are queued here, and for as long as
//! writes take longer than [`SLOW`]. So a disk that hangs holds at most one caller's thread.
//!
//! What must stay true: batches of one caller are written in the order in which they were submitted.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::batch::Batch;
use super::budget::Budget;
use super::open_log::{OpenLog, Written};

/// Owns the thread: dropping it has all queued batches written and joins the thread.
pub(super) struct Writer {
    jobs: Option<mpsc::SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Whether writes go to the thread, shared with the callers.
#[derive(Default)]
pub(super) struct Load {
    /// Batches that the thread has not written yet.
    queued: AtomicUsize,
    is_slow: AtomicBool,
}

struct Job {
    batch: Batch,
    budget: Option<Budget>,
    /// Dropped where the caller does not wait for the result.
    written: oneshot::Sender<Written>,
}

/// A write into the page cache takes microseconds; one that takes this long waits for the disk.
const SLOW: Duration = Duration::from_millis(20);
/// Batches that may be queued: some for each link that a sidecar may have.
const MAX_QUEUED: usize = 16 * 1024;

impl Load {
    /// Whether a caller may write by itself.
    pub(super) fn is_light(&self) -> bool {
        self.queued.load(Ordering::Acquire) == 0 && !self.is_slow.load(Ordering::Acquire)
    }

    /// Takes account of a write that began then.
    pub(super) fn wrote(&self, began: Instant) {
        self.is_slow.store(began.elapsed() >= SLOW, Ordering::Release);
    }
}

impl Writer {
    pub(super) fn start(open_log: Arc<OpenLog>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::sync_channel(MAX_QUEUED);
        let thread = std::thread::Builder::new()
            .name("audit-write".to_owned())
            .spawn(move || serve(&open_log, &queue))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues a batch. None where too many are queued: it is not written.
    pub(super) fn submit(
        &self,
        load: &Load,
        batch: Batch,
        budget: Option<Budget>,
    ) -> Option<oneshot::Receiver<Written>> {
        let (written, result) = oneshot::channel();
        load.queued.fetch_add(1, Ordering::AcqRel);
        let sent = self.jobs.as_ref().map(|jobs| jobs.try_send(Job { batch, budget, written }));
        match sent {
            Some(Ok(())) => Some(result),
            Some(Err(_)) | None => {
                load.queued.fetch_sub(1, Ordering::AcqRel);
                None
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, that was printed already.
            let _ = thread.join();
        }
    }
}

fn serve(open_log: &OpenLog, queue: &mpsc::Receiver<Job>) {
    while let Ok(Job { batch, budget, written }) = queue.recv() {
        let mut log = open_log.log();
        let began = Instant::now();
        let result = open_log.write(&mut log, budget.as_ref(), &batch);
        open_log.load.wrote(began);
        drop(log);
        open_log.load.queued.fetch_sub(1, Ordering::AcqRel);
        if let Err(Err(error)) = written.send(result).map_err(|unsent| unsent.map(drop)) {
            tracing::error!(%error, "records were not written, and no caller waits for them");
        }
    }
}
