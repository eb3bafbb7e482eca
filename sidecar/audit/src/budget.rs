//! How much one sandbox may write to the audit, so that no sandbox fills the disk for the others.
//!
//! A decision is also charged for its outcome, so the outcome of an allowed call can always be recorded. A link reserves
//! the space of the events of its start and its end before it is opened (see [`crate::reservation`]).
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
            reserved_bytes: 0,
            reported: [None; 3],
            alerts: ALERTS_PER_MINUTE,
            left_out: 0,
            left_out_reported: None,
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
        state.check_bytes(charge.bytes, room, now)?;
        state.used_bytes += charge.bytes as f64;
        state.tokens -= records;
        Ok(())
    }

    /// Charges an alert, which is written even if the budget is used up, unless there were [`ALERTS_PER_MINUTE`]: a stolen key
    /// must not go unnoticed because its holder has used up the budget first.
    pub(super) fn charge_alert(&self, bytes: u64, now: Instant) -> Result<(), Exhausted> {
        let mut state = self.lock();
        state.refill(now);
        if state.alerts < 1.0 {
            return Err(Exhausted { limit: BudgetLimit::Rate, report: Report::Done });
        }
        state.alerts -= 1.0;
        state.used_bytes += bytes as f64;
        Ok(())
    }

    /// Reserves bytes for records that will be written in any case, everything or nothing. They count as used, and do not
    /// refill, until they are [written](Self::charge_reserved) or [released](Self::release).
    pub(super) fn reserve(&self, bytes: u64, room: u64, now: Instant) -> Result<(), Exhausted> {
        let mut state = self.lock();
        state.refill(now);
        state.check_bytes(bytes, room, now)?;
        state.reserved_bytes += bytes;
        Ok(())
    }

    /// Charges a record for which `reserved` bytes were reserved.
    pub(super) fn charge_reserved(&self, reserved: u64, bytes: u64, now: Instant) {
        let mut state = self.lock();
        state.refill(now);
        state.reserved_bytes = state.reserved_bytes.saturating_sub(reserved);
        state.used_bytes += bytes as f64;
    }

    /// Returns reserved bytes for which no record will be written.
    pub(super) fn release(&self, bytes: u64) {
        let mut state = self.lock();
        state.reserved_bytes = state.reserved_bytes.saturating_sub(bytes);
    }

    /// How long it takes until so many bytes have refilled, if nothing is written meanwhile.
    pub(super) fn time_to_refill(&self, bytes: u64, now: Instant) -> Duration {
        let mut state = self.lock();
        state.refill(now);
        let missing = state.taken() + bytes as f64 - state.limits.bytes as f64;
        Duration::try_from_secs_f64(missing.max(0.0) / state.bytes_per_second()).unwrap_or(Duration::MAX)
    }

    /// Counts events that are not written. Returns how many there were since their number was last recorded, if it may be
    /// recorded now.
    pub(super) fn leave_out(&self, events: u64, now: Instant) -> Option<u64> {
        let mut state = self.lock();
        state.left_out += events;
        let is_due =
            state.left_out_reported.is_none_or(|last| now.saturating_duration_since(last) >= REPORT_INTERVAL);
        if state.left_out == 0 || !is_due {
            return None;
        }
        state.left_out_reported = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }

    /// Counts events again whose number could not be recorded.
    pub(super) fn restore_left_out(&self, events: u64) {
        self.lock().left_out += events;
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
        let is_full =
            state.taken() <= 0.0 && state.tokens >= state.burst && state.alerts >= ALERTS_PER_MINUTE;
        is_full && state.left_out == 0
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
    /// For records that will be written in any case.
    reserved_bytes: u64,
    /// How many alerts may be recorded now.
    alerts: f64,
    /// Events that were not written since their number was last recorded, and when that was.
    left_out: u64,
    left_out_reported: Option<Instant>,
    /// When the exhaustion of each limit was recorded last.
    reported: [Option<Instant>; 3],
}

impl BudgetState {
    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.refilled).as_secs_f64();
        self.tokens = self.burst.min(self.tokens + elapsed * f64::from(self.limits.records_per_second));
        self.alerts = ALERTS_PER_MINUTE.min(self.alerts + elapsed * ALERTS_PER_MINUTE / 60.0);
        self.used_bytes = (self.used_bytes - elapsed * self.bytes_per_second()).max(0.0);
        self.refilled = self.refilled.max(now);
    }

    fn bytes_per_second(&self) -> f64 {
        self.limits.bytes as f64 / self.limits.refill_time.as_secs_f64().max(1.0)
    }

    fn taken(&self) -> f64 {
        self.used_bytes + self.reserved_bytes as f64
    }

    /// Whether so many more bytes are within the limit, and within the room that the directory and its disk have left.
    fn check_bytes(&mut self, bytes: u64, room: u64, now: Instant) -> Result<(), Exhausted> {
        let taken = self.taken() + bytes as f64;
        if taken > self.limits.bytes as f64 {
            return Err(self.exhausted(BudgetLimit::Bytes, now));
        }
        if taken > room as f64 {
            return Err(self.exhausted(BudgetLimit::Total, now));
        }
        Ok(())
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

/// Alerts of one sandbox that are recorded within a minute, in all its links. An attack is seen by the first of them.
const ALERTS_PER_MINUTE: f64 = 6.0;

/// Often enough to see in the audit how long a sandbox stays refused: 1,440 records a day.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
