//! How much one session may write to the audit, so that no session fills the disk for the others.
//!
//! A decision is also charged for its outcome, so the outcome of an allowed call can always be recorded.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::error::BudgetLimit;

/// One session's budget. Clones share it, as sessions of one socket or enrolment may do.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Mutex<BudgetState>>);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BudgetLimits {
    /// `audit-session-bytes`
    pub bytes: u64,
    /// `audit-session-records-per-second`: the sustained rate; bursts of ten seconds' worth are allowed.
    pub records_per_second: u32,
}

impl Budget {
    pub fn new(limits: BudgetLimits) -> Self {
        let burst = f64::from(limits.records_per_second) * BURST_SECONDS;
        Self(Arc::new(Mutex::new(BudgetState {
            rate: f64::from(limits.records_per_second),
            burst,
            tokens: burst,
            refilled: Instant::now(),
            bytes_left: limits.bytes,
            reported: [Report::Due; 2],
        })))
    }

    /// Charges everything or nothing.
    pub(super) fn charge(&self, charge: Charge, now: Instant) -> Result<(), Exhausted> {
        let mut state = self.lock();
        let elapsed = now.saturating_duration_since(state.refilled).as_secs_f64();
        state.tokens = state.burst.min(state.tokens + elapsed * state.rate);
        state.refilled = now;

        let records = f64::from(charge.records);
        if state.tokens < records {
            return Err(state.exhausted(BudgetLimit::Rate));
        }
        match state.bytes_left.checked_sub(charge.bytes) {
            Some(left) => state.bytes_left = left,
            None => return Err(state.exhausted(BudgetLimit::Bytes)),
        }
        state.tokens -= records;
        Ok(())
    }

    /// Returns bytes that were not written: of a failed decision, or the unused part of an outcome's reservation.
    pub(super) fn refund(&self, bytes: u64) {
        let mut state = self.lock();
        state.bytes_left = state.bytes_left.saturating_add(bytes);
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

/// Whether to record the exhaustion: once per limit, or these records would fill the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Report {
    Done,
    Due,
}

#[derive(Debug)]
struct BudgetState {
    rate: f64,
    burst: f64,
    tokens: f64,
    refilled: Instant,
    bytes_left: u64,
    /// For `Bytes` and for `Rate`.
    reported: [Report; 2],
}

impl BudgetState {
    fn exhausted(&mut self, limit: BudgetLimit) -> Exhausted {
        let slot = match limit {
            BudgetLimit::Bytes => &mut self.reported[0],
            BudgetLimit::Rate => &mut self.reported[1],
        };
        Exhausted { limit, report: std::mem::replace(slot, Report::Done) }
    }
}

/// A harness that lists and reads everything at its start sends a burst.
const BURST_SECONDS: f64 = 10.0;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn budget(bytes: u64, records_per_second: u32) -> Budget {
        Budget::new(BudgetLimits { bytes, records_per_second })
    }

    #[test]
    fn bytes_are_charged_all_or_nothing_and_can_be_refunded() {
        let budget = budget(100, 1000);
        budget.charge(Charge { bytes: 60, records: 1 }, Instant::now()).unwrap();
        let refused = budget.charge(Charge { bytes: 41, records: 1 }, Instant::now()).unwrap_err();
        assert_eq!(refused, Exhausted { limit: BudgetLimit::Bytes, report: Report::Due });
        let again = budget.charge(Charge { bytes: 41, records: 1 }, Instant::now()).unwrap_err();
        assert_eq!(again.report, Report::Done);
        budget.charge(Charge { bytes: 40, records: 1 }, Instant::now()).unwrap();
        budget.refund(5);
        budget.charge(Charge { bytes: 5, records: 1 }, Instant::now()).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_has_a_burst_and_recovers_with_time() {
        let budget = budget(u64::MAX, 2);
        let one = Charge { bytes: 0, records: 1 };
        for _ in 0..20 {
            budget.charge(one, Instant::now()).unwrap();
        }
        let refused = budget.charge(one, Instant::now()).unwrap_err();
        assert_eq!(refused, Exhausted { limit: BudgetLimit::Rate, report: Report::Due });
        tokio::time::advance(Duration::from_millis(500)).await;
        budget.charge(one, Instant::now()).unwrap();
        assert_eq!(budget.charge(one, Instant::now()).unwrap_err().report, Report::Done);
        tokio::time::advance(Duration::from_secs(3600)).await;
        for _ in 0..20 {
            budget.charge(one, Instant::now()).unwrap();
        }
        budget.charge(one, Instant::now()).unwrap_err();
    }
}
