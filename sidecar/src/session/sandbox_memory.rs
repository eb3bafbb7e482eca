//! The accounts of the memory that the links of each sandbox use, below the account of the sidecar.
//!
//! What must stay true: all links of an enrolment, or of a user of the shared socket, share one account, in whichever
//! session they are. An account without links has no charge, so it is forgotten without making a difference.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cofferdam_base::LimitOwner;
use cofferdam_base::memory::MemoryAccount;

use crate::config::MemoryCeilings;

pub(super) struct SandboxMemory {
    sidecar: Arc<MemoryAccount>,
    sandboxes: Mutex<BTreeMap<LimitOwner, Weak<MemoryAccount>>>,
}

/// With this many accounts, those that are not in use are forgotten.
const SWEEP_AT: usize = 256;

impl SandboxMemory {
    pub(super) fn new(ceilings: MemoryCeilings) -> Self {
        Self { sidecar: MemoryAccount::new(ceilings.total), sandboxes: Mutex::default() }
    }

    /// Bytes charged to all sandboxes.
    pub(super) fn used(&self) -> usize {
        self.sidecar.used()
    }

    /// The account of a sandbox. A changed ceiling applies when the sandbox has no links.
    pub(super) fn of(&self, owner: LimitOwner, ceilings: MemoryCeilings) -> Arc<MemoryAccount> {
        // Every change is one insertion or removal, so a panic leaves the map consistent.
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = sandboxes.get(&owner).and_then(Weak::upgrade) {
            return account;
        }
        if sandboxes.len() >= SWEEP_AT {
            sandboxes.retain(|_, account| account.strong_count() > 0);
        }
        let account = self.sidecar.child(ceilings.sandbox);
        sandboxes.insert(owner, Arc::downgrade(&account));
        account
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_one_sandbox_share_an_account_and_unused_ones_are_forgotten() {
        let ceilings = MemoryCeilings { total: 1000, sandbox: 100 };
        let memory = SandboxMemory::new(ceilings);
        let owner = |uid| LimitOwner::SharedSocketUser(Some(uid));
        let first = memory.of(owner(0), ceilings);
        let mut charge = first.empty_charge();
        assert!(charge.try_grow_to(60));
        drop(first);
        assert_eq!(memory.of(owner(0), ceilings).used(), 60, "a charge keeps its account");
        assert_eq!(memory.used(), 60);
        for uid in 1..1000 {
            memory.of(owner(uid), ceilings);
        }
        assert!(memory.sandboxes.lock().unwrap().len() <= SWEEP_AT);
        assert_eq!(memory.of(owner(0), ceilings).used(), 60);
    }
}
