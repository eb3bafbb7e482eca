//! The accounts of the memory that the links of each sandbox use, below the account of the sidecar.
//!
//! What must stay true: all links of an enrolment, or of a user of the shared socket, share one account, in whichever
//! session they are. An account without links has no charge, so it is forgotten without making a difference. Of a sandbox's
//! ceiling, what scrubbing one message takes is never charged to its links: so its messages can be scrubbed, one at a
//! time, however much the links hold.

use std::sync::Arc;

use cofferdam_base::LimitOwner;
use cofferdam_base::memory::{MemoryAccount, MemoryCharge};

use super::per_sandbox::PerSandbox;

use crate::config::MemoryCeilings;

pub(super) struct SandboxMemory {
    sidecar: Arc<MemoryAccount>,
    sandboxes: PerSandbox<MemoryAccount>,
}

impl SandboxMemory {
    pub(super) fn new(ceilings: MemoryCeilings) -> Self {
        Self { sidecar: MemoryAccount::new(ceilings.total), sandboxes: PerSandbox::default() }
    }

    /// For scrubbing a message of any sandbox. Each has only one scrubbed at a time, which its ceiling leaves room for.
    pub(super) fn for_scrubbing(&self) -> MemoryCharge {
        self.sidecar.empty_charge()
    }

    /// Bytes charged to all sandboxes.
    pub(super) fn used(&self) -> usize {
        self.sidecar.used()
    }

    /// The account of a sandbox. A changed ceiling applies when the sandbox has no links.
    pub(super) fn of(&self, owner: LimitOwner, ceilings: MemoryCeilings) -> Arc<MemoryAccount> {
        self.sandboxes.of(owner, || self.sidecar.child(ceilings.sandbox - ceilings.scrubbing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_one_sandbox_share_an_account_that_leaves_room_for_scrubbing() {
        let ceilings = MemoryCeilings { total: 1000, sandbox: 100, scrubbing: 30 };
        let memory = SandboxMemory::new(ceilings);
        let owner = LimitOwner::SharedSocketUser(Some(0));
        let first = memory.of(owner.clone(), ceilings);
        let mut charge = first.empty_charge();
        assert!(charge.try_grow_to(70) && !charge.try_grow_to(71));
        drop(first);
        assert_eq!(memory.of(owner, ceilings).used(), 70, "a charge keeps its account");
        let mut scrubbing = memory.for_scrubbing();
        assert!(scrubbing.try_grow_to(30));
        assert_eq!(memory.used(), 100);
        assert!(!scrubbing.try_grow_to(931), "the ceiling of the sidecar is never exceeded");
    }
}
