//! For tests of fairness: another task on the same thread that counts its turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinSet;

/// They go when this is dropped.
pub(crate) struct TurnCounter {
    turns: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl TurnCounter {
    pub(crate) fn new() -> Self {
        let turns = Arc::new(AtomicUsize::new(0));
        let mine = Arc::clone(&turns);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                mine.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        Self { turns, _task: task }
    }

    pub(crate) fn turns(&self) -> usize {
        self.turns.load(Ordering::Relaxed)
    }
}
