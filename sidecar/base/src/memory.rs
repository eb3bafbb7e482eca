//! Memory that sandboxes make the sidecar use, counted against ceilings.
//!
//! Accounts form a tree: the sidecar, its sandboxes, their links. A charge counts in its account and in all accounts above
//! that one. An account may grow only while it leaves its parent at least as much as it then uses: so one sandbox leaves
//! half of the sidecar's memory to the others, and one link half of its sandbox's.
//!
//! What must stay true: a charge is released when it is dropped; a refused charge changes nothing; charging and releasing
//! cost one atomic addition for each level and never wait for a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug)]
pub struct MemoryAccount {
    limit: usize,
    used: AtomicUsize,
    parent: Option<Arc<Self>>,
}

/// Bytes that are charged to an account.
#[derive(Debug)]
pub struct MemoryCharge {
    account: Arc<MemoryAccount>,
    bytes: usize,
}

/// The ceiling allows no more, and did not for as long as the caller waited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemoryExhausted;

/// How often a waiting charge is tried again.
pub const MEMORY_RETRY_DELAY: Duration = Duration::from_millis(50);

impl MemoryAccount {
    /// An account of its own: the sidecar's.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), parent: None })
    }

    /// An account whose charges count in this one too.
    pub fn child(self: &Arc<Self>, limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), parent: Some(Arc::clone(self)) })
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// A charge of zero bytes, to be grown.
    pub fn empty_charge(self: &Arc<Self>) -> MemoryCharge {
        MemoryCharge { account: Arc::clone(self), bytes: 0 }
    }

    /// Whether with `more` bytes this account and all above would still use at most one part in `parts` of their limits.
    pub fn would_use_at_most(&self, more: usize, parts: usize) -> bool {
        let is_within = |account: &Self| account.used() + more <= account.limit / parts;
        is_within(self) && self.parent.as_ref().is_none_or(|parent| parent.would_use_at_most(more, parts))
    }

    fn try_add(&self, bytes: usize) -> bool {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let fits = used <= self.limit
            && self.parent.as_ref().is_none_or(|parent| {
                let left_free = parent.limit.saturating_sub(parent.used() + bytes);
                used <= left_free && parent.try_add(bytes)
            });
        if !fits {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    fn add(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.add(bytes);
        }
    }

    fn subtract(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.subtract(bytes);
        }
    }
}

impl MemoryCharge {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes the charge at least this large, if the ceilings allow it.
    pub fn try_grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 {
            if !self.account.try_add(more) {
                return false;
            }
            self.bytes = bytes;
        }
        true
    }

    /// Like [`Self::try_grow_to`], but waits up to `patience` for other charges to be released. Cancel-safe.
    pub async fn grow_to_within(&mut self, bytes: usize, patience: Duration) -> Result<(), MemoryExhausted> {
        let deadline = Instant::now() + patience;
        while !self.try_grow_to(bytes) {
            if Instant::now() >= deadline {
                return Err(MemoryExhausted);
            }
            tokio::time::sleep(MEMORY_RETRY_DELAY).await;
        }
        Ok(())
    }

    /// Makes the charge this large, whatever the ceilings say: for memory that is in use already, or was released.
    pub fn set(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => self.account.add(more),
            None => self.account.subtract(self.bytes - bytes),
        }
        self.bytes = bytes;
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_counts_at_every_level_until_it_is_dropped() {
        let sidecar = MemoryAccount::new(1000);
        let sandbox = sidecar.child(100);
        let link = sandbox.child(100);
        let mut charge = link.empty_charge();
        assert!(charge.try_grow_to(30) && charge.try_grow_to(20));
        assert_eq!((charge.bytes(), link.used(), sandbox.used(), sidecar.used()), (30, 30, 30, 30));
        charge.set(10);
        assert_eq!((link.used(), sandbox.used(), sidecar.used()), (10, 10, 10));
        charge.set(2000);
        assert_eq!(sidecar.used(), 2000, "memory that is in use counts, whatever the ceilings say");
        drop(charge);
        assert_eq!((link.used(), sandbox.used(), sidecar.used()), (0, 0, 0));
    }

    #[test]
    fn a_refused_charge_changes_nothing_and_a_greedy_account_leaves_as_much_as_it_uses() {
        let sidecar = MemoryAccount::new(100);
        let (greedy, other) = (sidecar.child(1000), sidecar.child(20));
        let mut taken = greedy.empty_charge();
        while taken.try_grow_to(taken.bytes() + 1) {}
        assert_eq!((taken.bytes(), sidecar.used(), greedy.used()), (50, 50, 50));
        assert!(
            !sidecar.child(1000).empty_charge().try_grow_to(26),
            "one step may not take more than it leaves"
        );
        let mut charge = other.empty_charge();
        assert!(charge.try_grow_to(20), "another sandbox has its own ceiling");
        assert!(!charge.try_grow_to(21));
        assert_eq!((charge.bytes(), other.used(), sidecar.used()), (20, 20, 70));
    }

    #[tokio::test(start_paused = true)]
    async fn a_charge_waits_for_memory_and_then_is_refused() {
        let account = MemoryAccount::new(100);
        let (mut first, mut second) = (account.empty_charge(), account.empty_charge());
        assert!(first.try_grow_to(100));
        let patience = Duration::from_secs(1);
        assert_eq!(second.grow_to_within(1, patience).await, Err(MemoryExhausted));
        let release = async {
            tokio::time::sleep(patience / 2).await;
            first.set(40);
        };
        let (grown, ()) = tokio::join!(second.grow_to_within(60, patience), release);
        assert_eq!((grown, account.used()), (Ok(()), 100));
        drop((first, second));
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn plenty_is_judged_at_every_level() {
        let sidecar = MemoryAccount::new(800);
        let sandbox = sidecar.child(400);
        assert!(sandbox.would_use_at_most(50, 8) && !sandbox.would_use_at_most(51, 8));
        let mut other = sidecar.child(800).empty_charge();
        assert!(other.try_grow_to(60));
        assert!(sandbox.would_use_at_most(40, 8) && !sandbox.would_use_at_most(41, 8));
    }
}
