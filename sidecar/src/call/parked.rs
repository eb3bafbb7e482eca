//! Admitted messages that cannot be decided or sent yet.
//!
//! | reason | what waits | cap | at the deadline |
//! |---|---|--:|---|
//! | [`AuditLookup`](ParkReason::AuditLookup) | undecided | 2 s | decided as a request that may have run |
//! | [`ToolsUnknown`](ParkReason::ToolsUnknown) | undecided | 30 s | decided without the list of tools |
//! | [`ServerStarting`](ParkReason::ServerStarting) | recorded | the start has its own timeout | `server_unavailable`: it did not run |
//!
//! What must stay true: a parked request occupies its id, can be cancelled, and waits no longer than its call's
//! deadline and its reason's cap; messages for one slot are sent in the order in which they came; what is parked is
//! bounded in number (requests with those in flight, messages for a slot by [`MAX_PARKED_MESSAGES`]) and in bytes.

use std::time::Duration;

use cofferdam_servers::{Outbound, QUEUE_BYTES, REFUSED_BYTES, SlotKey};
use relay_proto::envelope::IdValue;
use relay_proto::frame::Origin;
use tokio::time::Instant;

use super::admit::{Incoming, Prior, PriorAttempts, ToolListWait};
use super::in_flight::Call;

#[derive(Debug, Default)]
pub(crate) struct Parked {
    /// In the order in which they were parked.
    entries: Vec<ParkedEntry>,
    bytes: usize,
}

#[derive(Debug)]
struct ParkedEntry {
    /// None for notifications, and for requests of the sidecar itself.
    id: Option<IdValue>,
    reason: ParkReason,
    deadline: Option<Instant>,
    work: Work,
}

/// A parked message, by its next step.
#[derive(Debug)]
pub(crate) enum Work {
    /// To be admitted and decided again.
    Undecided(Incoming),
    /// To be sent.
    Recorded(Box<Unsent>),
}

/// A message whose decision is recorded, and which has not been sent.
#[derive(Debug)]
pub(crate) struct Unsent {
    /// The call and its id, where the message is a request of the harness.
    pub(super) call: Option<(IdValue, Call)>,
    pub(super) message: Outbound,
}

/// What a parked message waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ParkReason {
    /// A search of the audit for whether the request ran on an earlier link; none where it is yet to be started.
    AuditLookup(Option<SearchNumber>),
    /// The server's list of tools: it says which tools exist, and which may be repeated.
    ToolsUnknown,
    /// The process of this slot, which is starting or reopening its session.
    ServerStarting(SlotKey),
}

/// Identifies one search of the audit within a link.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct SearchNumber(pub(super) u64);

/// How long a request may wait for a search of the audit.
pub(super) const LOOKUP_TIME: Duration = Duration::from_secs(2);
/// How long the server may take to list its tools, start and all pages included.
const LIST_TIME: Duration = Duration::from_secs(30);
/// Messages that may wait for server starts: a harness sends at most a handshake and a few lists by then.
const MAX_PARKED_MESSAGES: usize = 256;

impl ParkReason {
    fn cap(self) -> Option<Duration> {
        match self {
            Self::AuditLookup(_) => Some(LOOKUP_TIME),
            Self::ToolsUnknown => Some(LIST_TIME),
            Self::ServerStarting(_) => None,
        }
    }
}

impl Parked {
    /// The number of parked requests of the harness.
    pub(super) fn requests(&self) -> usize {
        self.entries.iter().filter(|entry| entry.id.is_some()).count()
    }

    /// Whether one more undecided message of this size may be parked.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.bytes + bytes <= QUEUE_BYTES
    }

    /// Whether the link should stop reading.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes > QUEUE_BYTES
    }

    pub(super) fn holds(&self, id: &IdValue) -> bool {
        self.entries.iter().any(|entry| entry.id.as_ref() == Some(id))
    }

    pub(super) fn awaits_tools(&self) -> bool {
        self.first_awaiting_tools().is_some()
    }

    /// The oldest request that waits for the server's list of tools.
    pub(super) fn first_awaiting_tools(&self) -> Option<&[u8]> {
        self.entries.iter().find_map(|entry| match (&entry.work, entry.reason) {
            (Work::Undecided(message), ParkReason::ToolsUnknown) => Some(&message.received.bytes[..]),
            _ => None,
        })
    }

    /// The method of the first request that waits for a slot.
    pub(super) fn first_method(&self, slot: SlotKey) -> Option<&str> {
        self.entries.iter().find_map(|entry| match &entry.work {
            Work::Recorded(unsent) if entry.reason == ParkReason::ServerStarting(slot) => {
                unsent.message.request_method()
            }
            _ => None,
        })
    }

    /// Parks a request that cannot be decided yet.
    pub(super) fn hold(
        &mut self,
        id: IdValue,
        reason: ParkReason,
        call_deadline: Option<Instant>,
        message: Incoming,
        now: Instant,
    ) {
        self.push(Some(id), reason, call_deadline, Work::Undecided(message), now);
    }

    /// Parks a message for a slot that is not ready; returns it where too much is parked already.
    pub(super) fn hold_unsent(
        &mut self,
        slot: SlotKey,
        unsent: Unsent,
        now: Instant,
    ) -> Result<(), Box<Unsent>> {
        let unsent_count =
            self.entries.iter().filter(|entry| matches!(entry.work, Work::Recorded(_))).count();
        if unsent_count >= MAX_PARKED_MESSAGES || self.bytes > REFUSED_BYTES {
            return Err(Box::new(unsent));
        }
        let (id, deadline) = match &unsent.call {
            Some((id, call)) => (Some(id.clone()), call.deadline),
            None => (None, None),
        };
        self.push(id, ParkReason::ServerStarting(slot), deadline, Work::Recorded(Box::new(unsent)), now);
        Ok(())
    }

    /// Takes out a request that the harness cancelled.
    pub(super) fn cancel(&mut self, id: &IdValue) -> Option<Work> {
        self.take(|entry| entry.id.as_ref() == Some(id)).pop().map(|entry| entry.work)
    }

    /// Takes out a request of the sidecar itself, if it is still parked.
    pub(super) fn cancel_own(&mut self, id: &IdValue) {
        self.take(|entry| match &entry.work {
            Work::Recorded(unsent) => entry.id.is_none() && unsent.message.request_id() == Some(id),
            Work::Undecided(_) => false,
        });
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.entries.iter().filter_map(|entry| entry.deadline).min()
    }

    /// Takes out messages whose deadline has passed; undecided ones are then decided with the facts known so far.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Work> {
        let expired = self.take(|entry| entry.deadline.is_some_and(|deadline| deadline <= now));
        expired.into_iter().map(ParkedEntry::into_expired).collect()
    }

    /// Takes out all messages for a slot, in order.
    pub(super) fn take_for(&mut self, slot: SlotKey) -> Vec<Unsent> {
        let taken = self.take(|entry| entry.reason == ParkReason::ServerStarting(slot));
        taken.into_iter().filter_map(ParkedEntry::unsent).collect()
    }

    /// Takes out all requests of the harness that were recorded and not sent, because the link has ended.
    pub(super) fn take_all_unsent(&mut self) -> Vec<Call> {
        let taken = self.take(|entry| matches!(entry.work, Work::Recorded(_)));
        taken.into_iter().filter_map(|entry| Some(entry.unsent()?.call?.1)).collect()
    }

    /// Takes out the requests that waited for the list of tools, which is complete or failed.
    pub(super) fn take_awaiting_tools(&mut self) -> Vec<Incoming> {
        let taken = self.take(|entry| entry.reason == ParkReason::ToolsUnknown);
        taken.into_iter().filter_map(|entry| entry.into_expired().undecided()).collect()
    }

    /// The earlier messages for which a search is yet to be started.
    pub(super) fn origins_to_look_up(&self) -> Vec<Origin> {
        let entries = self.entries.iter().filter(|entry| entry.reason == ParkReason::AuditLookup(None));
        let origins = entries.filter_map(|entry| match &entry.work {
            Work::Undecided(message) => message.origin().cloned(),
            Work::Recorded(_) => None,
        });
        origins.collect()
    }

    /// Assigns this search to all requests that wait for one to be started.
    pub(super) fn assign_search(&mut self, search: SearchNumber) {
        for entry in &mut self.entries {
            if entry.reason == ParkReason::AuditLookup(None) {
                entry.reason = ParkReason::AuditLookup(Some(search));
            }
        }
    }

    /// Takes out the requests that waited for this search, with its results. A request without a result is not retried.
    pub(super) fn take_looked_up(
        &mut self,
        search: Option<SearchNumber>,
        known: &[(Origin, PriorAttempts)],
    ) -> Vec<Incoming> {
        let attempts = |origin: &Origin| known.iter().find(|(other, _)| other == origin);
        let found = self.take(|entry| entry.reason == ParkReason::AuditLookup(search));
        found
            .into_iter()
            .filter_map(|entry| entry.work.undecided())
            .map(|message| {
                let known = message.origin().and_then(attempts);
                let prior = known.map_or(PriorAttempts::Repeated, |(_, prior)| *prior);
                Incoming { prior: Prior::Known(prior), ..message }
            })
            .collect()
    }

    #[cfg(test)]
    pub(super) fn ids(&self) -> impl Iterator<Item = &IdValue> {
        self.entries.iter().filter_map(|entry| entry.id.as_ref())
    }

    fn push(
        &mut self,
        id: Option<IdValue>,
        reason: ParkReason,
        call_deadline: Option<Instant>,
        work: Work,
        now: Instant,
    ) {
        let cap = reason.cap().map(|cap| now + cap);
        let deadline = [call_deadline, cap].into_iter().flatten().min();
        self.bytes += work.bytes();
        self.entries.push(ParkedEntry { id, reason, deadline, work });
    }

    fn take(&mut self, matches: impl Fn(&ParkedEntry) -> bool) -> Vec<ParkedEntry> {
        let taken: Vec<ParkedEntry> = self.entries.extract_if(.., |entry| matches(entry)).collect();
        self.bytes -= taken.iter().map(|entry| entry.work.bytes()).sum::<usize>();
        taken
    }
}

impl ParkedEntry {
    /// The message after its deadline: what it waited for did not arrive in time.
    fn into_expired(self) -> Work {
        match (self.work, self.reason) {
            (Work::Undecided(message), ParkReason::AuditLookup(_)) => {
                Work::Undecided(Incoming { prior: Prior::Known(PriorAttempts::Repeated), ..message })
            }
            (Work::Undecided(message), _) => {
                Work::Undecided(Incoming { tool_list_wait: ToolListWait::Ended, ..message })
            }
            (recorded @ Work::Recorded(_), _) => recorded,
        }
    }

    fn unsent(self) -> Option<Unsent> {
        match self.work {
            Work::Recorded(unsent) => Some(*unsent),
            Work::Undecided(_) => None,
        }
    }
}

impl Work {
    fn bytes(&self) -> usize {
        match self {
            Self::Undecided(message) => message.received.bytes.len(),
            Self::Recorded(unsent) => unsent.message.bytes.len(),
        }
    }

    fn undecided(self) -> Option<Incoming> {
        match self {
            Self::Undecided(message) => Some(message),
            Self::Recorded(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use relay_proto::delivery::Received;
    use relay_proto::frame::MaybeRan;

    use super::*;
    use crate::call::in_flight::tests::call;

    const SLOT: SlotKey = SlotKey::BASE;
    const OTHER: SlotKey = SlotKey::scope(1);

    fn id(number: usize) -> IdValue {
        IdValue::Integer(number.to_string().into())
    }

    fn request(number: usize, bytes: usize, deadline: Option<Instant>) -> Unsent {
        let message = Outbound::request(vec![b'x'; bytes], id(number), "tools/call", None);
        Unsent { call: Some((id(number), call(deadline))), message }
    }

    fn hold(parked: &mut Parked, slot: SlotKey, unsent: Unsent) -> bool {
        parked.hold_unsent(slot, unsent, Instant::now()).is_ok()
    }

    #[test]
    fn bytes_parked_for_a_start_pause_the_link_and_are_bounded() {
        let mut parked = Parked::default();
        let mut parked_bytes = 0;
        for number in 0..100 {
            assert_eq!(parked.is_full(), parked_bytes > QUEUE_BYTES, "after {parked_bytes} bytes");
            if !hold(&mut parked, SLOT, request(number, 1024 * 1024, None)) {
                break;
            }
            parked_bytes += 1024 * 1024;
        }
        assert!((REFUSED_BYTES..REFUSED_BYTES + 2 * 1024 * 1024).contains(&parked_bytes), "{parked_bytes}");
        assert_eq!(parked.take_for(SLOT).len() * 1024 * 1024, parked_bytes);
        assert_eq!((parked.bytes, parked.is_full()), (0, false));
    }

    #[test]
    fn the_number_of_messages_parked_for_a_start_is_bounded() {
        let mut parked = Parked::default();
        for number in 0..MAX_PARKED_MESSAGES {
            assert!(hold(&mut parked, SLOT, request(number, 1, None)));
        }
        assert!(!hold(&mut parked, SLOT, request(MAX_PARKED_MESSAGES, 1, None)));
        assert_eq!(parked.requests(), MAX_PARKED_MESSAGES);
    }

    #[test]
    fn each_slot_gets_its_parked_messages_in_order() {
        let mut parked = Parked::default();
        for (number, slot) in [(1, SLOT), (2, OTHER), (3, SLOT)] {
            assert!(hold(&mut parked, slot, request(number, 1, None)));
        }
        let notification = Outbound::notification(vec![b'n'], "notifications/initialized");
        assert!(hold(&mut parked, SLOT, Unsent { call: None, message: notification }));
        assert_eq!(parked.requests(), 3, "a notification has no response to wait for");
        assert_eq!(parked.first_method(SLOT), Some("tools/call"));
        let ids = |unsent: Vec<Unsent>| -> Vec<Option<IdValue>> {
            unsent.iter().map(|unsent| unsent.message.request_id().cloned()).collect()
        };
        assert_eq!(ids(parked.take_for(SLOT)), [Some(id(1)), Some(id(3)), None]);
        assert_eq!(ids(parked.take_for(OTHER)), [Some(id(2))]);
    }

    #[test]
    fn a_parked_request_is_cancelled_once_and_expires_with_its_call() {
        let mut parked = Parked::default();
        let now = Instant::now();
        let soon = now + Duration::from_secs(5);
        assert!(hold(&mut parked, SLOT, request(1, 1, Some(soon))));
        assert!(hold(&mut parked, SLOT, request(2, 1, None)));
        assert!(parked.holds(&id(1)) && parked.next_deadline() == Some(soon));
        assert!(parked.take_expired(now).is_empty());
        let expired = parked.take_expired(soon);
        let [Work::Recorded(unsent)] = &expired[..] else { panic!("{expired:?}") };
        assert_eq!(unsent.message.request_id(), Some(&id(1)));
        assert!(matches!(parked.cancel(&id(2)), Some(Work::Recorded(_))));
        assert!(parked.cancel(&id(2)).is_none() && parked.bytes == 0);
    }

    #[test]
    fn an_undecided_request_waits_no_longer_than_its_reason_allows() {
        let now = Instant::now();
        let reasons = [(ParkReason::AuditLookup(None), LOOKUP_TIME), (ParkReason::ToolsUnknown, LIST_TIME)];
        for (reason, cap) in reasons {
            let received = Received { seq: 1, maybe_ran: MaybeRan::No, bytes: b"{}".to_vec() };
            let mut parked = Parked::default();
            parked.hold(id(1), reason, Some(now + 2 * LIST_TIME), Incoming::new(received), now);
            assert_eq!(parked.next_deadline(), Some(now + cap), "{reason:?}");
            let expired = parked.take_expired(now + cap);
            let [Work::Undecided(message)] = &expired[..] else { panic!("{expired:?}") };
            let decided_by = (message.prior, message.tool_list_wait);
            assert_ne!(decided_by, (Prior::Known(PriorAttempts::None), ToolListWait::Allowed), "{reason:?}");
        }
    }

    #[test]
    fn a_request_without_a_search_result_is_not_retried() {
        let origin = |seq| Origin { link: "l-0".into(), seq };
        let search = SearchNumber(1);
        let mut parked = Parked::default();
        for seq in [1, 2] {
            let received = Received { seq, maybe_ran: MaybeRan::Yes(origin(seq)), bytes: b"{}".to_vec() };
            let reason = ParkReason::AuditLookup(None);
            parked.hold(id(seq as usize), reason, None, Incoming::new(received), Instant::now());
        }
        assert_eq!(parked.origins_to_look_up(), [origin(1), origin(2)]);
        parked.assign_search(search);
        assert!(parked.take_looked_up(None, &[]).is_empty(), "they wait for their own search");
        let found = parked.take_looked_up(Some(search), &[(origin(2), PriorAttempts::None)]);
        let prior: Vec<Prior> = found.into_iter().map(|message| message.prior).collect();
        assert_eq!(prior, [Prior::Known(PriorAttempts::Repeated), Prior::Known(PriorAttempts::None)]);
    }
}
