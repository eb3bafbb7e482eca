//! Permits to search the audit, for requests that may have run: a search may read a gigabyte.
//!
//! What must stay true: few permits run at once in the whole sidecar, however many links ask; one sandbox has one of
//! them at most, and one place in the queue, so that it cannot make others wait for more than that.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits for all searches.
pub(crate) struct LookupPermits {
    places: Arc<Semaphore>,
    /// Of the shared socket: sandboxes are not told apart there, nor are a sandbox's links.
    shared: Arc<SandboxPermit>,
}

/// One sandbox's permit.
pub(crate) struct SandboxPermit(Arc<Semaphore>);

/// A permit for one search; given back when it is dropped.
pub(crate) struct LookupPermit {
    _turn: OwnedSemaphorePermit,
    _place: OwnedSemaphorePermit,
}

/// LookupPermits under way. They read files, which are in memory most likely: more would not be faster.
const AT_ONCE: usize = 4;

impl LookupPermits {
    pub(crate) fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(AT_ONCE)), shared: Arc::new(SandboxPermit::new()) }
    }

    pub(crate) fn shared(&self) -> Arc<SandboxPermit> {
        Arc::clone(&self.shared)
    }

    /// Waits for the sandbox's own permit, and then for one among all. Can be dropped at any time.
    pub(crate) async fn acquire(&self, sandbox: &SandboxPermit) -> Option<LookupPermit> {
        let turn = Arc::clone(&sandbox.0).acquire_owned().await.ok()?;
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        Some(LookupPermit { _turn: turn, _place: place })
    }
}

impl SandboxPermit {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_sandbox_that_searches_without_end_holds_up_itself_alone() {
        let permits = LookupPermits::new();
        let (busy, other) = (SandboxPermit::new(), SandboxPermit::new());
        let first = permits.acquire(&busy).now_or_never().flatten().expect("there is room");
        let waiting: Vec<_> = (0..100).map(|_| Box::pin(permits.acquire(&busy))).collect();
        for mut place in waiting {
            assert!((&mut place).now_or_never().is_none(), "one at a time");
            assert!(permits.acquire(&other).now_or_never().flatten().is_some());
        }
        drop(first);
        assert!(permits.acquire(&busy).now_or_never().flatten().is_some());
    }

    #[test]
    fn there_are_few_at_once_however_many_sandboxes_ask() {
        let permits = LookupPermits::new();
        let turns: Vec<SandboxPermit> = (0..20).map(|_| SandboxPermit::new()).collect();
        let places: Vec<LookupPermit> =
            turns.iter().filter_map(|turn| permits.acquire(turn).now_or_never().flatten()).collect();
        assert_eq!(places.len(), AT_ONCE);
        assert!(Arc::ptr_eq(&permits.shared(), &permits.shared()), "the shared socket has one turn");
    }
}
