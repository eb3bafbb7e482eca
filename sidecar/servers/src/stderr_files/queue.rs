//! Lines on their way to the thread that writes.
//!
//! What must stay true: [`Queue::push`] never waits for the disk, and what waits here is bounded in bytes; what does not fit is
//! counted for its server.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use relay_proto::name::Name;

use super::record::StderrRecord;

/// What may wait: some thousand lines, so that a disk that hangs for a moment loses none.
pub(super) const MAX_WAITING_BYTES: usize = 1024 * 1024;

pub(super) struct QueuedLine {
    pub(super) server: Name,
    pub(super) record: StderrRecord,
}

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    /// Woken when there is work, or none any more.
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    lines: VecDeque<QueuedLine>,
    /// Of `lines`.
    bytes: usize,
    /// Lines of each server that were dropped since the file last said so.
    dropped: BTreeMap<Name, u64>,
    stage: Stage,
}

#[derive(Clone, Copy, Default, Eq, PartialEq)]
enum Stage {
    #[default]
    Idle,
    /// A batch was taken and is being written.
    Writing,
    Closed,
}

impl Queue {
    pub(super) fn push(&self, server: &Name, record: StderrRecord) {
        let mut state = self.lock();
        let size = record.size();
        if state.stage == Stage::Closed || state.bytes + size > MAX_WAITING_BYTES {
            *state.dropped.entry(server.clone()).or_default() += 1;
            return;
        }
        state.bytes += size;
        state.lines.push_back(QueuedLine { server: server.clone(), record });
        self.changed.notify_all();
    }

    /// Waits for lines. `None` once the queue is closed and empty.
    pub(super) fn wait(&self) -> Option<VecDeque<QueuedLine>> {
        let idle = |state: &mut QueueState| state.lines.is_empty() && state.stage != Stage::Closed;
        let waited = self.changed.wait_while(self.lock(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.lines.is_empty() {
            return None;
        }
        state.bytes = 0;
        if state.stage == Stage::Idle {
            state.stage = Stage::Writing;
        }
        Some(std::mem::take(&mut state.lines))
    }

    /// The batch that [`Self::wait`] returned is written or dropped.
    pub(super) fn batch_written(&self) {
        let mut state = self.lock();
        if state.stage == Stage::Writing {
            state.stage = Stage::Idle;
        }
        self.changed.notify_all();
    }

    /// A line could not be written.
    pub(super) fn count_dropped(&self, server: &Name, lines: u64) {
        *self.lock().dropped.entry(server.clone()).or_default() += lines;
    }

    /// How many lines of a server are missing in its file. The caller writes that number there.
    pub(super) fn take_dropped(&self, server: &Name) -> u64 {
        self.lock().dropped.remove(server).unwrap_or_default()
    }

    pub(super) fn close(&self) {
        self.lock().stage = Stage::Closed;
        self.changed.notify_all();
    }

    pub(super) fn wait_until_empty(&self, limit: Duration) {
        let busy = |state: &mut QueueState| !state.lines.is_empty() || state.stage == Stage::Writing;
        // What is not written in time is lost: the caller is stopping.
        let _ = self.changed.wait_timeout_while(self.lock(), limit, busy);
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
