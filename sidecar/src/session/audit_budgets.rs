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
    SharedSocket { uid: Option<u32> },
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
        budgets.entry(owner).or_insert_with(|| Budget::new(limits)).clone()
    }
}
