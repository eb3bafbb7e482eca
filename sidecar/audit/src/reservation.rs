//! The space that a link reserves in the audit before it is opened, for the events of its start and its end.
//!
//! What must stay true: reserving does not wait for the disk; an event for which space was reserved is written, whatever
//! the budget has left by then; what is reserved and not used is returned when the reservation is dropped.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Audit;
use super::batch::EventSpace;
use super::budget::{Budget, Exhausted, Report};
use super::error::{AuditError, BudgetLimit};
use super::record::{Event, EventRecord};

/// Space for some events of one sandbox.
#[derive(Debug)]
pub struct EventReservation {
    budget: Budget,
    bytes_of_each: u64,
    events: u32,
}

/// Why no space was reserved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoSpace {
    pub limit: BudgetLimit,
    /// When the budget has refilled enough, if the sandbox writes nothing until then.
    pub refilled_in: Duration,
}

impl EventReservation {
    /// Takes the space of so many events out of this reservation, or of those that are left.
    pub fn split(&mut self, events: u32) -> Self {
        let events = events.min(self.events);
        self.events -= events;
        Self { budget: self.budget.clone(), bytes_of_each: self.bytes_of_each, events }
    }
}

impl Drop for EventReservation {
    fn drop(&mut self) {
        self.budget.release(self.bytes_of_each * u64::from(self.events));
    }
}

impl Audit {
    /// Reserves space for so many events of a link of this sandbox, all or nothing.
    pub fn reserve_events(
        &self,
        budget: &Budget,
        sandbox: &str,
        events: u32,
    ) -> Result<EventReservation, NoSpace> {
        let bytes_of_each = EventRecord::reserved_length(self.open_log.max_field_bytes);
        let bytes = bytes_of_each * u64::from(events);
        let (room, now) = (self.open_log.known_room.load(Ordering::Relaxed), Instant::now());
        match budget.reserve(bytes, room, now) {
            Ok(()) => Ok(EventReservation { budget: budget.clone(), bytes_of_each, events }),
            Err(exhausted) => {
                self.report_no_space(sandbox, exhausted);
                Err(NoSpace { limit: exhausted.limit, refilled_in: budget.time_to_refill(bytes, now) })
            }
        }
    }

    /// Writes an event for which space was reserved; while the disk is slow, later.
    pub fn reserved_event(
        &self,
        reservation: &mut EventReservation,
        event: &EventRecord<'_>,
    ) -> Result<(), AuditError> {
        debug_assert!(reservation.events > 0, "each event of a link has its space");
        // In a release it is written nevertheless, and charged.
        reservation.events = reservation.events.saturating_sub(1);
        let mut batch = self.batch();
        batch.event(event, EventSpace::Reserved);
        let written = self.write_unsynced(Some(&reservation.budget), &mut batch);
        if let Err(AuditError::Overloaded) = written {
            reservation.budget.release(reservation.bytes_of_each);
        }
        written
    }

    /// Records, at most once a minute, that the budget is used up. The write also measures what is left, so that links are
    /// opened again after records were removed although nothing else is written.
    fn report_no_space(&self, sandbox: &str, Exhausted { limit, report }: Exhausted) {
        let mut batch = self.batch();
        if report == Report::Due {
            let detail = format!("{limit}; no link was opened for {sandbox}");
            let event = EventRecord { detail: Some(&detail), ..EventRecord::new(Event::BudgetExhausted) };
            batch.event(&event, EventSpace::IfLeft);
        }
        let is_measuring = self.open_log.is_measuring.swap(true, Ordering::Relaxed);
        if report == Report::Done && is_measuring {
            return;
        }
        if let Err(error) = self.write_unsynced(None, &mut batch) {
            self.open_log.is_measuring.store(false, Ordering::Relaxed);
            tracing::debug!(%error, "a used-up audit budget was not recorded");
        }
    }
}
