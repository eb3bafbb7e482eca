//! How much one sandbox may write to the audit, so that no sandbox fills the disk for the others.
//!
//! A decision is also charged for its outcome, so the outcome of an allowed call can always be recorded.
//!
//! What must stay true: a budget belongs to an enrolment, or to a user of the shared socket, and outlives their sessions,
//! so that a new session does not get a new budget. A sandbox never takes more than what it leaves free: the fuller the
//! directory or its disk, the sooner those are refused that wrote most, while the others go on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::error::BudgetLimit;

/// One sandbox's budget. Clones share it: all sessions of an enrolment, or of a user of the shared socket.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Mutex<BudgetState>>);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BudgetLimits {
    /// `audit-session-bytes`: what may be written at once.
    pub bytes: u64,
    /// `audit-refill-time`: how long it takes until a budget that was used up is full again.
    pub refill_time: Duration,
    /// `audit-session-records-per-second`: the sustained rate; bursts of ten seconds' worth are allowed.
    pub records_per_second: u32,
}

impl Budget {
    pub fn new(limits: BudgetLimits) -> Self {
        let burst = f64::from(limits.records_per_second) * BURST_SECONDS;
        Self(Arc::new(Mutex::new(BudgetState {
            limits,
            burst,
            tokens: burst,
            refilled: Instant::now(),
            used_bytes: 0.0,
            reported: [None; 3],
        })))
    }

    /// Applies limits of a reloaded configuration; what was used stays used.
    pub fn set_limits(&self, limits: BudgetLimits) {
        let mut state = self.lock();
        state.refill(Instant::now());
        state.limits = limits;
        state.burst = f64::from(limits.records_per_second) * BURST_SECONDS;
        state.tokens = state.tokens.min(state.burst);
    }

    /// Charges everything or nothing. `room` is what the directory and its disk have left.
    pub(super) fn charge(&self, charge: Charge, room: u64, now: Instant) -> Result<(), Exhausted> {
        let mut state = self.lock();
        state.refill(now);
        let records = f64::from(charge.records);
        if state.tokens < records {
            return Err(state.exhausted(BudgetLimit::Rate, now));
        }
        let used = state.used_bytes + charge.bytes as f64;
        if used > state.limits.bytes as f64 {
            return Err(state.exhausted(BudgetLimit::Bytes, now));
        }
        if used > room as f64 {
            return Err(state.exhausted(BudgetLimit::Total, now));
        }
        state.used_bytes = used;
        state.tokens -= records;
        Ok(())
    }

    /// Charges a record that is written in any case.
    pub(super) fn charge_unconditionally(&self, bytes: u64, now: Instant) {
        let mut state = self.lock();
        state.refill(now);
        state.used_bytes += bytes as f64;
    }

    /// Returns bytes that were not written: of a failed decision, or the unused part of an outcome's reservation.
    pub(super) fn refund(&self, bytes: u64) {
        let mut state = self.lock();
        state.used_bytes = (state.used_bytes - bytes as f64).max(0.0);
    }

    /// Whether nothing of the budget is used: forgetting it and creating a new one makes no difference.
    pub fn is_untouched(&self, now: Instant) -> bool {
        let mut state = self.lock();
        state.refill(now);
        state.used_bytes <= 0.0 && state.tokens >= state.burst
    }

    /// Whether this is the only handle.
    pub fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BudgetState> {
        // Every change is one assignment, so a panic leaves the state consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    pub(super) bytes: u64,
    pub(super) records: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Exhausted {
    pub(super) limit: BudgetLimit,
    pub(super) report: Report,
}

/// Whether to record the exhaustion: at most once per limit and [`REPORT_INTERVAL`], or these records would fill the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Report {
    Done,
    Due,
}

#[derive(Debug)]
struct BudgetState {
    limits: BudgetLimits,
    burst: f64,
    tokens: f64,
    refilled: Instant,
    /// Fractional, because it shrinks with time.
    used_bytes: f64,
    /// When the exhaustion of each limit was recorded last.
    reported: [Option<Instant>; 3],
}

impl BudgetState {
    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.refilled).as_secs_f64();
        let bytes_per_second = self.limits.bytes as f64 / self.limits.refill_time.as_secs_f64().max(1.0);
        self.tokens = self.burst.min(self.tokens + elapsed * f64::from(self.limits.records_per_second));
        self.used_bytes = (self.used_bytes - elapsed * bytes_per_second).max(0.0);
        self.refilled = self.refilled.max(now);
    }

    fn exhausted(&mut self, limit: BudgetLimit, now: Instant) -> Exhausted {
        let reported = match limit {
            BudgetLimit::Bytes => &mut self.reported[0],
            BudgetLimit::Rate => &mut self.reported[1],
            BudgetLimit::Total => &mut self.reported[2],
        };
        let report = match *reported {
            Some(last) if now.saturating_duration_since(last) < REPORT_INTERVAL => Report::Done,
            _ => Report::Due,
        };
        if report == Report::Due {
            *reported = Some(now);
        }
        Exhausted { limit, report }
    }
}

/// A harness that lists and reads everything at its start sends a burst.
const BURST_SECONDS: f64 = 10.0;

/// Often enough to see in the audit how long a sandbox stays refused: 1,440 records a day.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn budget(bytes: u64, records_per_second: u32) -> Budget {
        Budget::new(BudgetLimits { bytes, refill_time: DAY, records_per_second })
    }

    #[test]
    fn bytes_are_charged_all_or_nothing_and_can_be_refunded() {
        let budget = budget(100, 1000);
        budget.charge(Charge { bytes: 60, records: 1 }, u64::MAX, Instant::now()).unwrap();
        let refused = budget.charge(Charge { bytes: 41, records: 1 }, u64::MAX, Instant::now()).unwrap_err();
        assert_eq!(refused, Exhausted { limit: BudgetLimit::Bytes, report: Report::Due });
        let again = budget.charge(Charge { bytes: 41, records: 1 }, u64::MAX, Instant::now()).unwrap_err();
        assert_eq!(again.report, Report::Done);
        budget.charge(Charge { bytes: 40, records: 1 }, u64::MAX, Instant::now()).unwrap();
        budget.refund(5);
        budget.charge(Charge { bytes: 5, records: 1 }, u64::MAX, Instant::now()).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_has_a_burst_and_recovers_with_time() {
        let budget = budget(u64::MAX, 2);
        let one = Charge { bytes: 0, records: 1 };
        for _ in 0..20 {
            budget.charge(one, u64::MAX, Instant::now()).unwrap();
        }
        let refused = budget.charge(one, u64::MAX, Instant::now()).unwrap_err();
        assert_eq!(refused, Exhausted { limit: BudgetLimit::Rate, report: Report::Due });
        tokio::time::advance(Duration::from_millis(500)).await;
        budget.charge(one, u64::MAX, Instant::now()).unwrap();
        assert_eq!(budget.charge(one, u64::MAX, Instant::now()).unwrap_err().report, Report::Done);
        tokio::time::advance(Duration::from_secs(3600)).await;
        for _ in 0..20 {
            budget.charge(one, u64::MAX, Instant::now()).unwrap();
        }
        budget.charge(one, u64::MAX, Instant::now()).unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_come_back_with_time_and_a_new_handle_is_no_new_budget() {
        let budget = budget(86_400, 1000);
        let all = Charge { bytes: 86_400, records: 1 };
        budget.charge(all, u64::MAX, Instant::now()).unwrap();
        let other_session = budget.clone();
        let some = Charge { bytes: 100, records: 1 };
        let refused = other_session.charge(some, u64::MAX, Instant::now()).unwrap_err();
        assert_eq!(refused.limit, BudgetLimit::Bytes);
        tokio::time::advance(Duration::from_secs(99)).await;
        let again = other_session.charge(some, u64::MAX, Instant::now()).unwrap_err();
        assert_eq!(
            again,
            Exhausted { limit: BudgetLimit::Bytes, report: Report::Due },
            "reported every minute"
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        other_session.charge(some, u64::MAX, Instant::now()).unwrap();
        assert!(!budget.is_untouched(Instant::now()));
        tokio::time::advance(DAY).await;
        assert!(budget.is_untouched(Instant::now()));
    }

    #[test]
    fn a_sandbox_leaves_as_much_room_as_it_takes() {
        let (greedy, second, modest) = (budget(10_000, 1000), budget(10_000, 1000), budget(10_000, 1000));
        let mut room = 600;
        let mut fill = |budget: &Budget| {
            let mut taken = 0;
            while budget.charge(Charge { bytes: 1, records: 1 }, room, Instant::now()).is_ok() {
                (room, taken) = (room - 1, taken + 1);
            }
            taken
        };
        assert_eq!(fill(&greedy), 300);
        assert_eq!(fill(&second), 150, "half of what the first one left");
        let refused = greedy.charge(Charge { bytes: 1, records: 1 }, room, Instant::now()).unwrap_err();
        assert_eq!(refused.limit, BudgetLimit::Total);
        modest.charge(Charge { bytes: 100, records: 1 }, room, Instant::now()).expect("the others go on");
    }

    #[test]
    fn a_sandbox_may_take_exactly_the_room_that_is_left() {
        let budget = budget(10_000, 1000);
        let refused = budget.charge(Charge { bytes: 101, records: 1 }, 100, Instant::now()).unwrap_err();
        assert_eq!(refused.limit, BudgetLimit::Total);
        budget.charge(Charge { bytes: 100, records: 1 }, 100, Instant::now()).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_come_back_at_the_rate_of_the_configured_size_and_time() {
        let budget = budget(5 * 86_400, 1000);
        budget.charge(Charge { bytes: 5 * 86_400, records: 1 }, u64::MAX, Instant::now()).unwrap();
        tokio::time::advance(Duration::from_secs(10)).await;
        budget.charge(Charge { bytes: 51, records: 1 }, u64::MAX, Instant::now()).unwrap_err();
        budget.charge(Charge { bytes: 50, records: 1 }, u64::MAX, Instant::now()).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_exhausted_limit_is_reported_again_after_exactly_a_minute() {
        let budget = budget(100, 1000);
        let too_much = Charge { bytes: 1000, records: 1 };
        let report = || budget.charge(too_much, u64::MAX, Instant::now()).unwrap_err().report;
        assert_eq!(report(), Report::Due);
        tokio::time::advance(REPORT_INTERVAL - Duration::from_millis(1)).await;
        assert_eq!(report(), Report::Done);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(report(), Report::Due);
    }

    #[tokio::test(start_paused = true)]
    async fn reloaded_limits_apply_at_once_and_what_was_used_stays_used() {
        let budget = budget(1000, 2);
        let one = Charge { bytes: 0, records: 1 };
        budget.charge(Charge { bytes: 600, records: 1 }, u64::MAX, Instant::now()).unwrap();
        budget.set_limits(BudgetLimits { bytes: 700, refill_time: DAY, records_per_second: 1 });
        let refused = budget.charge(Charge { bytes: 101, records: 1 }, u64::MAX, Instant::now()).unwrap_err();
        assert_eq!(refused.limit, BudgetLimit::Bytes);
        budget.charge(Charge { bytes: 100, records: 1 }, u64::MAX, Instant::now()).unwrap();
        for _ in 0..9 {
            budget.charge(one, u64::MAX, Instant::now()).expect("the smaller burst has ten records");
        }
        budget.charge(one, u64::MAX, Instant::now()).unwrap_err();

        // Records of a larger burst come back with time, up to the new burst.
        budget.set_limits(BudgetLimits { bytes: 700, refill_time: DAY, records_per_second: 3 });
        budget.charge(one, u64::MAX, Instant::now()).unwrap_err();
        tokio::time::advance(Duration::from_secs(60)).await;
        for _ in 0..30 {
            budget.charge(one, u64::MAX, Instant::now()).unwrap();
        }
        budget.charge(one, u64::MAX, Instant::now()).unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_budget_is_untouched_only_if_neither_bytes_nor_records_are_used() {
        let used_bytes = budget(1000, 1000);
        used_bytes.charge_unconditionally(100, Instant::now());
        assert!(!used_bytes.is_untouched(Instant::now()), "bytes are used");
        let used_records = budget(1000, 1000);
        used_records.charge(Charge { bytes: 0, records: 1 }, u64::MAX, Instant::now()).unwrap();
        assert!(!used_records.is_untouched(Instant::now()), "a record is used");
    }

    #[test]
    fn a_budget_with_a_second_handle_is_shared() {
        let budget = budget(1000, 1000);
        assert!(budget.is_unshared());
        let session = budget.clone();
        assert!(!budget.is_unshared());
        drop(session);
        assert!(budget.is_unshared());
    }

    #[test]
    fn records_that_are_written_in_any_case_count_too() {
        let budget = budget(100, 1000);
        budget.charge_unconditionally(500, Instant::now());
        budget.charge(Charge { bytes: 1, records: 1 }, u64::MAX, Instant::now()).unwrap_err();
    }
}
