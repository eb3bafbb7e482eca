//! What the sessions of one sandbox share, for as long as one of them holds it.
//!
//! What must stay true: all sessions of an enrolment, or of a user of the shared socket, share one value. What no session
//! holds is forgotten.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cofferdam_base::LimitOwner;

/// One `T` for each sandbox.
pub(super) struct PerSandbox<T>(Mutex<BTreeMap<LimitOwner, Weak<T>>>);

/// With this many sandboxes, those that are not in use are forgotten.
const SWEEP_AT: usize = 256;

impl<T> PerSandbox<T> {
    pub(super) fn of(&self, owner: LimitOwner, new: impl FnOnce() -> Arc<T>) -> Arc<T> {
        // Every change is one insertion or removal, so a panic leaves the map consistent.
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = shared.get(&owner).and_then(Weak::upgrade) {
            return held;
        }
        if shared.len() >= SWEEP_AT {
            shared.retain(|_, held| held.strong_count() > 0);
        }
        let held = new();
        shared.insert(owner, Arc::downgrade(&held));
        held
    }
}

impl<T> Default for PerSandbox<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_session_holds_is_shared_and_the_rest_is_forgotten() {
        let shared = PerSandbox::default();
        let owner = |uid| LimitOwner::SharedSocketUser(Some(uid));
        let held = shared.of(owner(0), || Arc::new(0));
        for uid in 1..1000 {
            assert_eq!(*shared.of(owner(uid), || Arc::new(uid)), uid);
        }
        assert!(shared.0.lock().unwrap().len() <= SWEEP_AT);
        assert!(Arc::ptr_eq(&held, &shared.of(owner(0), || Arc::new(1))));
    }
}
