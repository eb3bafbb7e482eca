//! Requests that were admitted and cannot be decided yet: the one place where anything waits.
//!
//! | reason | cap | at the deadline |
//! |---|--:|---|
//! | [`AuditLookup`](ParkReason::AuditLookup) | 2 s | decided as one that may have run |
//! | [`IdempotencyUnknown`](ParkReason::IdempotencyUnknown) | 30 s | decided without the answer |
//!
//! What must stay true: a parked request has its id taken, can be cancelled, and is decided by the earlier of its call's
//! deadline and its reason's cap; what is parked is bounded in number (with the requests in flight) and in bytes.

use std::time::Duration;

use relay_proto::envelope::IdValue;
use relay_proto::frame::Origin;
use tokio::time::Instant;

use super::admit::{Incoming, Prior, PriorAttempts, Waiting};
use crate::upstream::outbound::QUEUE_BYTES;

#[derive(Debug, Default)]
pub(crate) struct Parked {
    /// In the order in which they were parked.
    entries: Vec<ParkedEntry>,
    bytes: usize,
}

#[derive(Debug)]
struct ParkedEntry {
    id: IdValue,
    reason: ParkReason,
    deadline: Instant,
    message: Incoming,
}

/// What a parked request waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ParkReason {
    /// This search of the audit says whether it ran on an earlier link; none where it is yet to be started.
    AuditLookup(Option<SearchNumber>),
    /// The server is asked for its tools, which say whether they may be repeated.
    IdempotencyUnknown,
}

/// One search of the audit among those of a link.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct SearchNumber(pub(super) u64);

/// What a request may wait for a search of the audit.
pub(super) const LOOKUP_TIME: Duration = Duration::from_secs(2);
/// How long the server may take to list its tools, start and all pages included.
const LIST_TIME: Duration = Duration::from_secs(30);

impl ParkReason {
    fn cap(self) -> Duration {
        match self {
            Self::AuditLookup(_) => LOOKUP_TIME,
            Self::IdempotencyUnknown => LIST_TIME,
        }
    }
}

impl Parked {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.bytes + bytes <= QUEUE_BYTES
    }

    pub(super) fn holds(&self, id: &IdValue) -> bool {
        self.entries.iter().any(|entry| entry.id == *id)
    }

    pub(super) fn waits_for_tools(&self) -> bool {
        self.first_waiting_for_tools().is_some()
    }

    /// The oldest request that waits for the server's list of tools.
    pub(super) fn first_waiting_for_tools(&self) -> Option<&[u8]> {
        let first = self.entries.iter().find(|entry| entry.reason == ParkReason::IdempotencyUnknown)?;
        Some(&first.message.received.bytes)
    }

    pub(super) fn hold(
        &mut self,
        id: IdValue,
        reason: ParkReason,
        call_deadline: Option<Instant>,
        message: Incoming,
        now: Instant,
    ) {
        let cap = now + reason.cap();
        let deadline = call_deadline.map_or(cap, |deadline| deadline.min(cap));
        self.bytes += message.received.bytes.len();
        self.entries.push(ParkedEntry { id, reason, deadline, message });
    }

    /// Takes a request out that the harness cancelled; says whether it was here.
    pub(super) fn cancel(&mut self, id: &IdValue) -> bool {
        !self.take(|entry| entry.id == *id).is_empty()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.entries.iter().map(|entry| entry.deadline).min()
    }

    /// The requests that have waited long enough: each is decided by what is known.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Incoming> {
        let expired = self.take(|entry| entry.deadline <= now);
        expired.into_iter().map(ParkedEntry::without_answer).collect()
    }

    /// The requests that waited for the list of tools, which is complete or will not be.
    pub(super) fn listed(&mut self) -> Vec<Incoming> {
        let waiting = self.take(|entry| entry.reason == ParkReason::IdempotencyUnknown);
        waiting.into_iter().map(ParkedEntry::without_answer).collect()
    }

    /// The messages on earlier links that no search was started for.
    pub(super) fn not_looked_up(&self) -> Vec<Origin> {
        let waiting = self.entries.iter().filter(|entry| entry.reason == ParkReason::AuditLookup(None));
        waiting.filter_map(|entry| entry.message.origin().cloned()).collect()
    }

    /// This search is for all that had none.
    pub(super) fn assign(&mut self, search: SearchNumber) {
        for entry in &mut self.entries {
            if entry.reason == ParkReason::AuditLookup(None) {
                entry.reason = ParkReason::AuditLookup(Some(search));
            }
        }
    }

    /// The requests that waited for this search, with what it found. What it did not find may have run twice.
    pub(super) fn looked_up(
        &mut self,
        search: Option<SearchNumber>,
        known: &[(Origin, PriorAttempts)],
    ) -> Vec<Incoming> {
        let attempts = |origin: &Origin| known.iter().find(|(other, _)| other == origin);
        let found = self.take(|entry| entry.reason == ParkReason::AuditLookup(search));
        found
            .into_iter()
            .map(|ParkedEntry { message, .. }| {
                let known = message.origin().and_then(attempts);
                let prior = known.map_or(PriorAttempts::Repeated, |(_, prior)| *prior);
                Incoming { prior: Prior::Known(prior), ..message }
            })
            .collect()
    }

    #[cfg(test)]
    pub(super) fn ids(&self) -> impl Iterator<Item = &IdValue> {
        self.entries.iter().map(|entry| &entry.id)
    }

    fn take(&mut self, choice: impl Fn(&ParkedEntry) -> bool) -> Vec<ParkedEntry> {
        let taken: Vec<ParkedEntry> = self.entries.extract_if(.., |entry| choice(entry)).collect();
        self.bytes -= taken.iter().map(|entry| entry.message.received.bytes.len()).sum::<usize>();
        taken
    }
}

impl ParkedEntry {
    fn without_answer(self) -> Incoming {
        match self.reason {
            ParkReason::AuditLookup(_) => {
                Incoming { prior: Prior::Known(PriorAttempts::Repeated), ..self.message }
            }
            ParkReason::IdempotencyUnknown => Incoming { waiting: Waiting::Over, ..self.message },
        }
    }
}
