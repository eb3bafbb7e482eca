//! Who writes: a task of the runtime while writes are quick and frequent, otherwise the thread `audit-write`.
//!
//! No caller is ever in `write(2)`: it queues its batch. Waking a thread takes longer than a write into the page cache,
//! so usually the batch is written by the [`WriteTask`], which the runtime polls right after the caller, on the same worker
//! thread. A disk that begins to hang then blocks that worker, and the runtime may have left the polling of sockets and
//! timers to it. So while the task writes, the thread looks after it every [`TICK`]: if a write does not return, the
//! thread wakes another worker, tells all callers not to wait, and writes by itself until the disk is quick again.
//!
//! What must stay true:
//! - batches are written in the order in which they were submitted: what takes them from the queue, task or thread, locks the log
//!   first, or has the turn until the log is unlocked;
//! - the task holds at most one worker thread, and wakes no task before its last write of a turn: a task that is woken
//!   on a worker that then hangs cannot be moved to another.

use std::collections::VecDeque;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use cofferdam_base::PacedLines;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::batch::Batch;
use super::budget::Budget;
use super::open_log::{OpenLog, Written};

/// Who writes while the disk seems to be in order.
#[derive(Clone, Debug)]
pub enum WriteBy {
    /// The caller: for tests, in which nothing may happen in the background.
    Caller,
    /// A task on this runtime, which needs at least two worker threads.
    Task(Handle),
}

/// Owns the thread: dropping it waits until all queued batches are written and joins the thread.
pub(super) struct Writer {
    shared: Arc<SharedWriter>,
    thread: Option<JoinHandle<()>>,
    /// The lock of the directory, released once nothing is written any more.
    _lock: File,
}

struct SharedWriter {
    open_log: Arc<OpenLog>,
    write_by: WriteBy,
    state: Mutex<State>,
    wake_thread: Condvar,
}

#[derive(Default)]
struct State {
    queued: VecDeque<Job>,
    turn: Turn,
    /// The callers of the batches that are being written, while the task has the turn or is late with them.
    in_task: Vec<Caller>,
    /// How often the task has begun to write.
    begun: u64,
    /// Set while the task waits for batches.
    task: Option<Waker>,
    /// Empty batches with their buffers.
    spare: Vec<Batch>,
    stop: StopRequest,
}

/// Who takes batches from the queue.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Turn {
    Task,
    /// The disk is slow, or nothing was written recently.
    #[default]
    Thread,
    /// The thread has taken a batch.
    ThreadWrites,
}

#[derive(Default, Eq, PartialEq)]
enum StopRequest {
    #[default]
    NotYet,
    Requested,
}

struct Job {
    batch: Batch,
    budget: Option<Budget>,
    caller: Caller,
}

/// Who waits for the result of a batch.
enum Caller {
    NotWaiting,
    /// The batch is written by the task.
    Prompt(oneshot::Sender<Prompt>),
    /// The batch is written by the thread.
    Late(oneshot::Sender<Written>),
}

/// The result of a batch, or, if the disk proves to be slow, where it arrives later.
type Prompt = Result<Written, oneshot::Receiver<Written>>;

/// Whether a caller needs the result of its batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WaitForResult {
    No,
    Yes,
}

/// A submitted batch.
pub(super) enum Submission {
    Written(Written),
    /// The result follows after microseconds, or within two ticks the information that it takes longer.
    Prompt(oneshot::Receiver<Prompt>),
    Late(oneshot::Receiver<Written>),
    /// The caller does not wait for the result.
    Queued,
    /// The queue is full: the batch is not written.
    Refused,
}

/// The maximum number of queued batches: several for each link that a sidecar may have.
const MAX_QUEUED: usize = 16 * 1024;
/// The task writes at most this many batches before others get their turn on its worker thread.
const MAX_TOGETHER: usize = 16;
/// How many empty batches keep their buffers.
const MAX_SPARE: usize = 32;
/// Larger buffers are freed.
const MAX_SPARE_BYTES: usize = 64 * 1024;
/// How often the thread looks after the task. A write into the page cache takes microseconds; one that takes this long
/// waits for the disk. If nothing is written for this long, the turn goes back to the thread: so a disk that began to
/// hang meanwhile blocks no worker thread.
const TICK: Duration = Duration::from_millis(20);

/// With a full disk every record causes such a line.
static LOST_LINES: PacedLines = PacedLines::new("records were not written, and no caller waits for them");

impl Writer {
    pub(super) fn start(open_log: Arc<OpenLog>, write_by: WriteBy, lock: File) -> io::Result<Self> {
        let shared = Arc::new(SharedWriter {
            open_log,
            write_by,
            state: Mutex::default(),
            wake_thread: Condvar::new(),
        });
        let thread = std::thread::Builder::new().name("audit-write".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || Thread::start(shared).run()
        })?;
        Ok(Self { shared, thread: Some(thread), _lock: lock })
    }

    /// Submits a batch and leaves an empty one.
    pub(super) fn submit(
        &self,
        batch: &mut Batch,
        budget: Option<&Budget>,
        wait: WaitForResult,
    ) -> Submission {
        let shared = &*self.shared;
        let mut state = shared.lock();
        if matches!(shared.write_by, WriteBy::Caller)
            && state.turn == Turn::Thread
            && state.queued.is_empty()
            && let Some(mut log) = shared.open_log.try_log()
        {
            let written = shared.open_log.write(&mut log, budget, batch);
            batch.clear();
            return Submission::Written(written);
        }
        if state.queued.len() >= MAX_QUEUED {
            batch.clear();
            return Submission::Refused;
        }
        let empty = state.spare.pop().unwrap_or_else(|| Batch::new(shared.open_log.max_field_bytes));
        let batch = std::mem::replace(batch, empty);
        let (caller, submission) = match (wait, state.turn) {
            (WaitForResult::No, _) => (Caller::NotWaiting, Submission::Queued),
            (WaitForResult::Yes, Turn::Task) => {
                let (caller, result) = oneshot::channel();
                (Caller::Prompt(caller), Submission::Prompt(result))
            }
            (WaitForResult::Yes, Turn::Thread | Turn::ThreadWrites) => {
                let (caller, result) = oneshot::channel();
                (Caller::Late(caller), Submission::Late(result))
            }
        };
        state.queued.push_back(Job { batch, budget: budget.cloned(), caller });
        match state.turn {
            Turn::Task => {
                let task = state.task.take();
                drop(state);
                if let Some(task) = task {
                    task.wake();
                }
            }
            Turn::Thread => shared.wake_thread.notify_one(),
            // It looks at the queue again.
            Turn::ThreadWrites => {}
        }
        submission
    }

    /// Whether the next batch is written by the task.
    #[cfg(test)]
    pub(super) fn is_task_next(&self) -> bool {
        self.shared.lock().turn == Turn::Task
    }

    /// How often the task has begun to write.
    #[cfg(test)]
    pub(super) fn begun_by_task(&self) -> u64 {
        self.shared.lock().begun
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().stop = StopRequest::Requested;
        self.shared.wake_thread.notify_one();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, that was printed already.
            let _ = thread.join();
        }
    }
}

impl SharedWriter {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep_spare(&mut self, mut batch: Batch) {
        batch.clear();
        if self.spare.len() < MAX_SPARE && batch.capacity() <= MAX_SPARE_BYTES {
            self.spare.push(batch);
        }
    }

    /// Whether batches wait for the task, or are being written by it.
    fn is_task_busy(&self) -> bool {
        !self.in_task.is_empty() || !self.queued.is_empty()
    }

    /// The turn goes from the task to the thread. Callers that wait for a prompt result get a late one.
    fn give_turn_to_thread(&mut self) {
        self.turn = Turn::Thread;
        let queued = self.queued.iter_mut().map(|job| &mut job.caller);
        self.in_task.iter_mut().chain(queued).for_each(Caller::make_late);
    }
}

impl Caller {
    fn make_late(&mut self) {
        if let Self::Prompt(_) = self {
            let (late, result) = oneshot::channel();
            if let Self::Prompt(prompt) = std::mem::replace(self, Self::Late(late)) {
                // A caller that was cancelled does not wait any more.
                let _ = prompt.send(Err(result));
            }
        }
    }

    fn report(self, written: Written) {
        let unreported = match self {
            Self::NotWaiting => Some(written),
            Self::Prompt(caller) => caller.send(Ok(written)).err().and_then(Result::ok),
            Self::Late(caller) => caller.send(written).err(),
        };
        if let Some(Err(error)) = unreported
            && let Some(left_out) = LOST_LINES.admit()
        {
            tracing::error!(%error, left_out, "records were not written, and no caller waits for them");
        }
    }
}

/// The thread `audit-write`.
struct Thread {
    shared: Arc<SharedWriter>,
    /// The write task, and tasks that do nothing but wake a worker.
    tasks: JoinSet<()>,
}

impl Thread {
    fn start(shared: Arc<SharedWriter>) -> Self {
        let mut tasks = JoinSet::new();
        if let WriteBy::Task(runtime) = &shared.write_by {
            let mut task = WriteTask::new(&shared);
            tasks.spawn_on(poll_fn(move |context| task.poll(context)), runtime);
        }
        Self { shared, tasks }
    }

    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if state.turn == Turn::Task {
                state = self.look_after_task(state);
                continue;
            }
            let is_idle = |state: &mut State| state.queued.is_empty() && state.stop == StopRequest::NotYet;
            state = shared.wake_thread.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner);
            let Some(Job { batch, budget, caller }) = state.queued.pop_front() else { break };
            state.turn = Turn::ThreadWrites;
            drop(state);

            // If the task hangs, it has locked the log.
            let mut log = shared.open_log.log();
            let began = Instant::now();
            let written = shared.open_log.write(&mut log, budget.as_ref(), &batch);
            let is_quick = began.elapsed() < TICK;
            drop(log);
            state = shared.lock();
            state.keep_spare(batch);
            state.turn = match &shared.write_by {
                WriteBy::Task(_) if is_quick && state.queued.is_empty() => Turn::Task,
                WriteBy::Task(_) | WriteBy::Caller => Turn::Thread,
            };
            drop(state);
            // Not before: its next batch may be written by the task.
            caller.report(written);
            state = shared.lock();
        }
        drop(state);
        // Waits for a write of the task.
        drop(shared.open_log.log());
    }

    /// Sleeps for a tick, then takes the turn if the task had nothing to do or did not get on.
    fn look_after_task<'a>(&mut self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (begun, was_busy) = (state.begun, state.is_task_busy());
        let goes_on = |state: &mut State| state.stop == StopRequest::NotYet;
        let waited = self.shared.wake_thread.wait_timeout_while(state, TICK, goes_on);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let (has_begun, is_busy) = (state.begun != begun, state.is_task_busy());
        if state.stop == StopRequest::Requested || (!has_begun && !was_busy && !is_busy) {
            state.give_turn_to_thread();
        } else if !has_begun && was_busy && is_busy {
            state.give_turn_to_thread();
            self.wake_a_worker();
        }
        state
    }

    /// Other workers may sleep and leave sockets and timers to the one that hangs: a new task wakes one of them.
    fn wake_a_worker(&mut self) {
        if let WriteBy::Task(runtime) = &self.shared.write_by {
            self.tasks.spawn_on(async {}, runtime);
            // Earlier ones of these have ended.
            while self.tasks.try_join_next().is_some() {}
        }
    }
}

/// Writes batches on a worker thread of the runtime. Its buffers are kept from turn to turn.
struct WriteTask {
    /// Weak, so that the task does not keep the audit open.
    shared: Weak<SharedWriter>,
    taken: Vec<(Batch, Option<Budget>)>,
    results: Vec<Written>,
    callers: Vec<Caller>,
}

impl WriteTask {
    fn new(shared: &Arc<SharedWriter>) -> Self {
        Self { shared: Arc::downgrade(shared), taken: Vec::new(), results: Vec::new(), callers: Vec::new() }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(shared) = self.shared.upgrade() else { return Poll::Ready(()) };
        let mut state = shared.lock();
        if state.turn != Turn::Task || state.queued.is_empty() {
            state.task = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = state.queued.len().min(MAX_TOGETHER);
        let State { queued, in_task, begun, .. } = &mut *state;
        for Job { batch, budget, caller } in queued.drain(..count) {
            in_task.push(caller);
            self.taken.push((batch, budget));
        }
        *begun += 1;
        // Before the state is unlocked, so that the thread cannot write later batches first.
        let mut log = shared.open_log.log();
        drop(state);
        for (batch, budget) in &self.taken {
            self.results.push(shared.open_log.write(&mut log, budget.as_ref(), batch));
        }
        drop(log);

        let mut state = shared.lock();
        std::mem::swap(&mut state.in_task, &mut self.callers);
        self.taken.drain(..).for_each(|(batch, _)| state.keep_spare(batch));
        let has_more = state.turn == Turn::Task && !state.queued.is_empty();
        if !has_more {
            state.task = Some(context.waker().clone());
        }
        drop(state);
        for (caller, written) in self.callers.drain(..).zip(self.results.drain(..)) {
            caller.report(written);
        }
        if has_more {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::EventSpace;
    use crate::record::{Event, EventRecord};

    fn batch_of(bytes: usize) -> Batch {
        let mut batch = Batch::new(usize::MAX);
        let event = EventRecord::new(Event::Alert);
        batch.event(&EventRecord { detail: Some(&"x".repeat(bytes)), ..event }, EventSpace::IfLeft);
        batch
    }

    #[test]
    fn empty_batches_keep_their_buffers_unless_these_are_large_or_many() {
        let mut state = State::default();
        state.keep_spare(batch_of(MAX_SPARE_BYTES));
        assert!(state.spare.is_empty(), "a large buffer is kept");
        for _ in 0..MAX_SPARE + 2 {
            state.keep_spare(batch_of(2000));
        }
        assert_eq!(state.spare.len(), MAX_SPARE);
        assert!(state.spare.iter().all(|batch| batch.records().next().is_none() && batch.capacity() >= 2000));
    }
}
