//! The audit budgets of all sandboxes.
//!
//! What must stay true: a budget outlives the sessions of its sandbox, so that a new session does not get a new budget. It
//! is forgotten only when no session holds it and it is full again, which makes no difference.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cofferdam_audit::{Budget, BudgetLimits};
use tokio::time::Instant;

use super::principal::Principal;

#[derive(Default)]
pub(super) struct AuditBudgets(Mutex<BTreeMap<BudgetOwner, Budget>>);

/// What a budget belongs to.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum BudgetOwner {
    Enrolment(Arc<str>),
    /// The user of a peer on the shared socket: its sandboxes cannot be told apart otherwise.
    SharedSocket {
        uid: Option<u32>,
    },
}

/// With this many budgets, those that make no difference are forgotten.
const SWEEP_AT: usize = 256;

impl AuditBudgets {
    pub(super) fn of(&self, principal: &Principal, limits: BudgetLimits) -> Budget {
        let owner = match principal.enrolment_id() {
            Some(id) => BudgetOwner::Enrolment(Arc::clone(id)),
            None => BudgetOwner::SharedSocket { uid: principal.uid },
        };
        let mut budgets = self.0.lock().expect("no holder of this lock panics");
        if budgets.len() >= SWEEP_AT {
            let now = Instant::now();
            budgets.retain(|_, budget| !budget.is_unshared() || !budget.is_untouched(now));
        }
        let budget = budgets.entry(owner).or_insert_with(|| Budget::new(limits)).clone();
        // A reload may have changed them.
        budget.set_limits(limits);
        budget
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_budget_is_forgotten_only_when_that_makes_no_difference() {
        let budgets = AuditBudgets::default();
        let limits =
            BudgetLimits { bytes: 1000, refill_time: Duration::from_secs(100), records_per_second: 10 };
        let peer = |uid| Principal::anonymous("dev".parse().unwrap(), Some(uid));
        let held = budgets.of(&peer(0), limits);
        for uid in 1..300 {
            budgets.of(&peer(uid), limits);
        }
        let count = budgets.0.lock().unwrap().len();
        assert!(count < SWEEP_AT, "{count} budgets are kept although they are full");
        assert!(!held.is_unshared(), "a budget that a session holds stays");
    }
}
