//! The thread that writes batches while the disk is slow, so that no other thread waits for it.
//!
//! Usually a batch is written by its caller: one `write(2)` into the page cache, which is quicker than waking a thread.
//! A batch goes to this thread while another caller holds the log, while batches are queued here, and for as long as
//! writes are slow (see [`Load`]). So a disk that hangs holds at most one caller's thread.
//!
//! What must stay true: batches of one caller are written in the order in which they were submitted.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use cofferdam_base::PacedLines;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::batch::Batch;
use super::budget::Budget;
use super::load::Load;
use super::open_log::{OpenLog, Written};

/// Owns the thread: dropping it waits until all queued batches are written and joins the thread.
pub(super) struct Writer {
    jobs: Option<mpsc::SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    batch: Batch,
    budget: Option<Budget>,
    /// Its receiver is dropped if the caller does not wait.
    result: oneshot::Sender<Written>,
}

/// The maximum number of queued batches: several for each link that a sidecar may have.
const MAX_QUEUED: usize = 16 * 1024;

impl Writer {
    pub(super) fn start(open_log: Arc<OpenLog>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::sync_channel(MAX_QUEUED);
        let thread = std::thread::Builder::new()
            .name("audit-write".to_owned())
            .spawn(move || write_queued(&open_log, &queue))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues a batch. `None` if the queue is full: the batch is not written.
    pub(super) fn submit(
        &self,
        load: &Load,
        batch: Batch,
        budget: Option<Budget>,
    ) -> Option<oneshot::Receiver<Written>> {
        let (result, receiver) = oneshot::channel();
        load.count_queued();
        let sent = self.jobs.as_ref().map(|jobs| jobs.try_send(Job { batch, budget, result }));
        match sent {
            Some(Ok(())) => Some(receiver),
            Some(Err(_)) | None => {
                load.count_written();
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

/// With a full disk every record causes such a line.
static LOST_LINES: PacedLines = PacedLines::new();

fn write_queued(open_log: &OpenLog, queue: &mpsc::Receiver<Job>) {
    while let Ok(Job { batch, budget, result }) = queue.recv() {
        let mut log = open_log.log();
        let began = Instant::now();
        let written = open_log.write(&mut log, budget.as_ref(), &batch);
        open_log.load.record_write_time(began);
        drop(log);
        open_log.load.count_written();
        if let Err(Err(error)) = result.send(written).map_err(|unsent| unsent.map(drop))
            && let Some(left_out) = LOST_LINES.admit()
        {
            tracing::error!(%error, left_out, "records were not written, and no caller waits for them");
        }
    }
}
