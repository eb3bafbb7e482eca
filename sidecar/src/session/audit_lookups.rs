//! Permits to search the audit, for requests that may have run: a search may read a gigabyte.
//!
//! What must stay true: a bounded number of searches run at once in the whole sidecar, however many links ask. Each
//! sandbox has at most one search that runs or waits for a global permit, so it delays other sandboxes by at most one
//! search.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits for all searches.
pub(crate) struct LookupPermits {
    global: Arc<Semaphore>,
    /// The permit of the shared socket: its sandboxes cannot be told apart, so they share one.
    shared: Arc<SandboxPermit>,
}

/// One sandbox's permit.
pub(crate) struct SandboxPermit(Arc<Semaphore>);

/// A permit for one search, released when it is dropped.
pub(crate) struct LookupPermit {
    _of_sandbox: OwnedSemaphorePermit,
    _global: OwnedSemaphorePermit,
}

/// The number of searches at once. They read files that are probably cached in memory: more would not be faster.
const MAX_SEARCHES: usize = 4;

impl LookupPermits {
    pub(crate) fn new() -> Self {
        Self { global: Arc::new(Semaphore::new(MAX_SEARCHES)), shared: Arc::new(SandboxPermit::new()) }
    }

    pub(crate) fn shared(&self) -> Arc<SandboxPermit> {
        Arc::clone(&self.shared)
    }

    /// Waits for the sandbox's own permit, and then for a global one. Cancel-safe.
    pub(crate) async fn acquire(&self, sandbox: &SandboxPermit) -> Option<LookupPermit> {
        let of_sandbox = Arc::clone(&sandbox.0).acquire_owned().await.ok()?;
        let global = Arc::clone(&self.global).acquire_owned().await.ok()?;
        Some(LookupPermit { _of_sandbox: of_sandbox, _global: global })
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
    fn a_sandbox_that_searches_all_the_time_delays_only_itself() {
        let permits = LookupPermits::new();
        let (busy, other) = (SandboxPermit::new(), SandboxPermit::new());
        let first = permits.acquire(&busy).now_or_never().flatten().expect("there is room");
        let waiting: Vec<_> = (0..100).map(|_| Box::pin(permits.acquire(&busy))).collect();
        for mut search in waiting {
            assert!((&mut search).now_or_never().is_none(), "a sandbox searches once at a time");
            assert!(permits.acquire(&other).now_or_never().flatten().is_some());
        }
        drop(first);
        assert!(permits.acquire(&busy).now_or_never().flatten().is_some());
    }

    #[test]
    fn the_number_of_searches_at_once_is_bounded() {
        let permits = LookupPermits::new();
        let sandboxes: Vec<SandboxPermit> = (0..20).map(|_| SandboxPermit::new()).collect();
        let running: Vec<LookupPermit> = sandboxes
            .iter()
            .filter_map(|sandbox| permits.acquire(sandbox).now_or_never().flatten())
            .collect();
        assert_eq!(running.len(), MAX_SEARCHES);
        assert!(Arc::ptr_eq(&permits.shared(), &permits.shared()), "the shared socket has one permit");
    }
}
