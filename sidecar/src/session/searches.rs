//! Searches of the audit, for what may have run: a search may read a gigabyte.
//!
//! Must stay true: there are few at once in the whole sidecar, however many links ask; one sandbox has one of them at
//! most, and waits for it in one place of the queue, so that it cannot make others wait for more than that.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All searches.
pub(super) struct Searches {
    places: Arc<Semaphore>,
    /// Of all who come by the shared socket: sandboxes are not told apart there, nor are a sandbox's links.
    shared: Arc<Turn>,
}

/// One sandbox's turn.
pub(super) struct Turn(Arc<Semaphore>);

/// A place for one search; given back when it is dropped.
pub(super) struct Place {
    _turn: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

/// Searches under way. They read files, which are in memory most likely: more would not be faster.
const AT_ONCE: usize = 4;

impl Searches {
    pub(super) fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(AT_ONCE)), shared: Arc::new(Turn::new()) }
    }

    pub(super) fn shared(&self) -> Arc<Turn> {
        Arc::clone(&self.shared)
    }

    /// Waits for the sandbox's own turn, and then for one among the others. Can be dropped at any time.
    pub(super) async fn place(&self, turn: &Turn) -> Option<Place> {
        let turn = Arc::clone(&turn.0).acquire_owned().await.ok()?;
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        Some(Place { _turn: turn, _place: place })
    }
}

impl Turn {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_sandbox_that_searches_without_end_holds_up_itself_alone() {
        let searches = Searches::new();
        let (busy, other) = (Turn::new(), Turn::new());
        let first = searches.place(&busy).now_or_never().flatten().expect("there is room");
        let waiting: Vec<_> = (0..100).map(|_| Box::pin(searches.place(&busy))).collect();
        for mut place in waiting {
            assert!((&mut place).now_or_never().is_none(), "one at a time");
            assert!(searches.place(&other).now_or_never().flatten().is_some());
        }
        drop(first);
        assert!(searches.place(&busy).now_or_never().flatten().is_some());
    }

    #[test]
    fn there_are_few_at_once_however_many_sandboxes_ask() {
        let searches = Searches::new();
        let turns: Vec<Turn> = (0..20).map(|_| Turn::new()).collect();
        let places: Vec<Place> =
            turns.iter().filter_map(|turn| searches.place(turn).now_or_never().flatten()).collect();
        assert_eq!(places.len(), AT_ONCE);
        assert!(Arc::ptr_eq(&searches.shared(), &searches.shared()), "the shared socket has one turn");
    }
}
