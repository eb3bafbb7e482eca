//! For tests of fairness: counts how often another task gets its turn on the thread of the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinSet;

/// Dropping it ends the counting task.
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
