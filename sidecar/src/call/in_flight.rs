//! The requests of one link that wait for the server's response.
//!
//! Every allowed request is stored here until it is answered exactly once: by the server, or by the sidecar. An
//! abandoned id is remembered, so that its late response is dropped and cannot be taken for that of another request.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_audit::SentBy;
use cofferdam_secrets::SecretReads;
use cofferdam_servers::ProcessId;
use relay_proto::envelope::{IdValue, ShortText};
use relay_proto::mcp::{Method, ReplayRole};
use tokio::time::Instant;

/// One allowed request, of the harness or of a server, until it is answered.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The id as the harness wrote it or was shown it, in JSON.
    pub(crate) id: ShortText,
    /// The process that the request was sent to, [`ProcessId::NONE`] until it is sent; or that sent it.
    pub(crate) process: ProcessId,
    pub(crate) sent_by: SentBy,
    pub(crate) seq: u64,
    pub(crate) handling: ReplyHandling,
    pub(crate) method: Cow<'static, str>,
    pub(crate) tool: Option<ShortText>,
    /// The task that the request is about.
    pub(crate) task: Option<Box<str>>,
    pub(crate) began: Instant,
    /// None for open-ended requests.
    pub(crate) deadline: Option<Instant>,
    pub(crate) attempt: Attempt,
    /// A copy of the message, where it may be sent once more if its server exits.
    pub(crate) retry_copy: Option<Bytes>,
    /// The reads of secrets that the call was sent with, where they differ from those in its decision record.
    pub(crate) sent_with: Option<Arc<SecretReads>>,
}

/// What is done with the response to a request besides relaying it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReplyHandling {
    ListTools,
    /// Open until it is cancelled. It only listens, so it can always be sent again to a new process.
    Listen,
    Other,
    /// If the request succeeds, it is replayed to every new process: see [`relay_proto::replay`].
    Setting,
}

/// Whether the request may have run before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Attempt {
    First,
    /// At most two attempts; open-ended listeners are always restarted.
    Second,
}

#[derive(Debug, Default)]
pub(crate) struct InFlight {
    calls: HashMap<IdValue, Call>,
    /// The earliest first; entries of answered calls are skipped.
    deadlines: VecDeque<(Instant, IdValue)>,
    abandoned: Abandoned,
    /// Total bytes of all [`Call::retry_copy`].
    retry_bytes: usize,
}

/// Ids that the sidecar answered or the harness cancelled before the server responded.
#[derive(Debug, Default)]
struct Abandoned {
    ids: HashMap<IdValue, ProcessId>,
    order: VecDeque<IdValue>,
}

/// How many abandoned ids are remembered: an honest server has fewer late responses outstanding.
const MAX_ABANDONED: usize = 1024;
/// Bytes of messages that one link keeps for a retry: a message that does not fit is not retried.
const MAX_RETRY_BYTES: usize = 4 * 1024 * 1024;

impl InFlight {
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether this id cannot be used now: its request is in flight, or was abandoned without a response so far.
    pub(crate) fn is_in_use(&self, id: &IdValue) -> bool {
        self.calls.contains_key(id) || self.abandoned.ids.contains_key(id)
    }

    /// Registers a call before it is sent; [`Call::process`] is filled in once it is.
    pub(crate) fn insert(&mut self, id: IdValue, mut call: Call) -> &mut Call {
        call.retry_copy.take_if(|copy| self.retry_bytes + copy.len() > MAX_RETRY_BYTES);
        self.retry_bytes += call.retry_copy_bytes();
        // Entries of answered calls must not pile up behind one long-running call.
        if self.deadlines.len() > 2 * self.calls.len() + 64 {
            let calls = &self.calls;
            self.deadlines.retain(|(deadline, id)| is_current_deadline(calls, id, *deadline));
        }
        if let Some(deadline) = call.deadline {
            // Almost always the end: deadlines come in order, unless a call is retried or a timeout was changed.
            let index = self.deadlines.partition_point(|(other, _)| *other <= deadline);
            self.deadlines.insert(index, (deadline, id.clone()));
        }
        self.calls.entry(id).insert_entry(call).into_mut()
    }

    /// Takes out the call that this response of a process belongs to; none for late or unsolicited responses.
    pub(crate) fn take_answered(&mut self, from: ProcessId, id: &IdValue) -> Option<Call> {
        let call = match self.calls.entry(id.clone()) {
            Entry::Occupied(call) if call.get().process == from => call.remove(),
            Entry::Occupied(_) => return None,
            Entry::Vacant(_) => {
                self.abandoned.forget(from, id);
                return None;
            }
        };
        self.retry_bytes -= call.retry_copy_bytes();
        Some(call)
    }

    /// Sets the process that a formerly parked call was sent to.
    pub(crate) fn set_sent(
        &mut self,
        id: &IdValue,
        process: ProcessId,
        reads_after_decision: Option<Arc<SecretReads>>,
    ) {
        if let Some(call) = self.calls.get_mut(id) {
            (call.process, call.sent_with) = (process, reads_after_decision);
        }
    }

    /// Records that the call was sent with other reads of secrets than its decision record names.
    pub(crate) fn set_sent_with(&mut self, process: ProcessId, id: &IdValue, reads: Arc<SecretReads>) {
        if let Some(call) = self.calls.get_mut(id).filter(|call| call.process == process) {
            call.sent_with = Some(reads);
        }
    }

    /// Takes out a call whose response may still arrive.
    pub(crate) fn abandon(&mut self, id: &IdValue) -> Option<Call> {
        let call = self.take(id)?;
        self.abandoned.remember(id.clone(), call.process);
        Some(call)
    }

    /// Takes out all calls of a process that is gone, in the order they came: no late response can arrive from it.
    pub(crate) fn drain(&mut self, process: ProcessId) -> Vec<Call> {
        self.abandoned.forget_all(|other| other == process);
        self.take_where(|call| call.process == process)
    }

    /// Takes out the open-ended listeners of a process.
    pub(crate) fn take_listeners(&mut self, process: ProcessId) -> Vec<Call> {
        self.take_where(|call| call.process == process && call.handling == ReplyHandling::Listen)
    }

    fn take_where(&mut self, matches: impl Fn(&Call) -> bool) -> Vec<Call> {
        let mut calls: Vec<Call> =
            self.calls.extract_if(|_, call| matches(call)).map(|(_, call)| call).collect();
        self.retry_bytes -= calls.iter().map(Call::retry_copy_bytes).sum::<usize>();
        if self.calls.is_empty() {
            self.deadlines.clear();
        }
        calls.sort_by_key(|call| call.seq);
        calls
    }

    /// Takes out all calls in the order they came, because the link has ended.
    pub(crate) fn drain_all(&mut self) -> Vec<Call> {
        let mut calls: Vec<Call> = std::mem::take(self).calls.into_values().collect();
        calls.sort_by_key(|call| call.seq);
        calls
    }

    /// Whether a process works on a call that ends by itself; listeners do not.
    pub(crate) fn has_calls_on(&self, process: ProcessId) -> bool {
        self.calls.values().any(|call| call.process == process && call.handling != ReplyHandling::Listen)
    }

    /// When the next call times out.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        while let Some((deadline, id)) = self.deadlines.front() {
            match is_current_deadline(&self.calls, id, *deadline) {
                true => return Some(*deadline),
                false => self.deadlines.pop_front(),
            };
        }
        None
    }

    /// Abandons a call that has timed out, and returns it.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<Call> {
        if self.next_deadline()? > now {
            return None;
        }
        let (_, id) = self.deadlines.pop_front()?;
        self.abandon(&id)
    }

    #[cfg(test)]
    pub(crate) fn assert_one_status(&self) {
        for id in self.calls.keys() {
            assert!(!self.abandoned.ids.contains_key(id), "{id:?} is in flight and abandoned");
        }
    }

    /// Takes out a call, which frees its id unless the caller remembers the id as abandoned.
    pub(crate) fn take(&mut self, id: &IdValue) -> Option<Call> {
        let call = self.calls.remove(id)?;
        self.retry_bytes -= call.retry_copy_bytes();
        Some(call)
    }
}

impl Call {
    fn retry_copy_bytes(&self) -> usize {
        self.retry_copy.as_ref().map_or(0, Bytes::len)
    }
}

impl ReplyHandling {
    pub(crate) fn of(method: Option<&Method>) -> Self {
        match method.map(|method| method.replay) {
            Some(ReplayRole::Listen) => Self::Listen,
            Some(ReplayRole::ToolList) => Self::ListTools,
            Some(ReplayRole::Handshake | ReplayRole::Setting(_)) => Self::Setting,
            Some(ReplayRole::Initialized | ReplayRole::None) | None => Self::Other,
        }
    }
}

/// Whether this is still the deadline of a call in flight.
fn is_current_deadline(calls: &HashMap<IdValue, Call>, id: &IdValue, deadline: Instant) -> bool {
    calls.get(id).is_some_and(|call| call.deadline == Some(deadline))
}

impl Abandoned {
    fn remember(&mut self, id: IdValue, process: ProcessId) {
        if self.order.len() == MAX_ABANDONED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.ids.insert(id, process);
    }

    fn forget(&mut self, process: ProcessId, id: &IdValue) {
        if self.ids.get(id) == Some(&process) {
            self.ids.remove(id);
            self.order.retain(|other| other != id);
        }
    }

    fn forget_all(&mut self, matches: impl Fn(ProcessId) -> bool) {
        self.ids.retain(|_, process| !matches(*process));
        self.order.retain(|id| self.ids.contains_key(id));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    const BASE: ProcessId = ProcessId::unused(0);
    const OTHER: ProcessId = ProcessId::unused(1);

    fn id(number: u32) -> IdValue {
        IdValue::Integer(number.to_string().into())
    }

    /// A first attempt on process `BASE`, without a copy for a retry.
    pub(in crate::call) fn call(deadline: Option<Instant>) -> Call {
        Call {
            id: "1".into(),
            process: BASE,
            sent_by: SentBy::Harness,
            seq: 1,
            handling: ReplyHandling::Other,
            method: "tools/call".into(),
            tool: None,
            task: None,
            began: Instant::now(),
            deadline,
            attempt: Attempt::First,
            retry_copy: None,
            sent_with: None,
        }
    }

    #[test]
    fn the_bytes_of_retry_copies_are_bounded_and_freed() {
        let mut calls = InFlight::default();
        let large = |calls: &mut InFlight, number| {
            let retry_copy = Some(Bytes::from(vec![0; MAX_RETRY_BYTES / 2]));
            calls.insert(id(number), Call { retry_copy, ..call(None) });
        };
        for number in 0..3 {
            large(&mut calls, number);
        }
        assert!(
            calls.take_answered(BASE, &id(2)).is_some_and(|call| call.retry_copy.is_none()),
            "it did not fit"
        );
        assert!(calls.take_answered(BASE, &id(1)).is_some_and(|call| call.retry_copy.is_some()));
        large(&mut calls, 4);
        assert!(calls.abandon(&id(4)).is_some_and(|call| call.retry_copy.is_some()), "there was room again");
        calls.drain(BASE);
        assert_eq!(calls.retry_bytes, 0);
    }

    #[test]
    fn a_late_response_is_dropped_and_its_id_stays_in_use_until_then() {
        let mut calls = InFlight::default();
        calls.insert(id(1), call(None));
        assert!(calls.abandon(&id(1)).is_some());
        assert!(calls.is_in_use(&id(1)));
        assert!(calls.take_answered(BASE, &id(1)).is_none());
        assert!(!calls.is_in_use(&id(1)));
    }

    #[test]
    fn only_the_process_of_a_call_answers_it_and_its_exit_ends_the_call() {
        let mut calls = InFlight::default();
        let sent_to = |process| Call { process, retry_copy: Some(Bytes::from_static(b"copy")), ..call(None) };
        calls.insert(id(1), sent_to(BASE));
        calls.insert(id(2), sent_to(OTHER));
        calls.insert(id(3), sent_to(OTHER));
        assert!(calls.take_answered(OTHER, &id(1)).is_none() && calls.is_in_use(&id(1)));
        calls.abandon(&id(3));
        assert!(
            calls.take_answered(BASE, &id(3)).is_none() && calls.is_in_use(&id(3)),
            "its response may still arrive"
        );
        assert!(calls.has_calls_on(OTHER));
        assert_eq!(calls.drain(OTHER).len(), 1);
        assert!(!calls.has_calls_on(OTHER) && !calls.is_in_use(&id(3)), "no late response can arrive");
        assert_eq!((calls.len(), calls.retry_bytes), (1, 4));
        assert!(calls.take_answered(BASE, &id(1)).is_some());
    }

    #[test]
    fn an_id_used_again_does_not_inherit_the_old_deadline() {
        let mut calls = InFlight::default();
        let now = Instant::now();
        calls.insert(id(1), call(Some(now)));
        calls.take_answered(BASE, &id(1));
        calls.insert(id(1), call(Some(now + Duration::from_secs(9))));
        assert!(calls.take_expired(now + Duration::from_secs(1)).is_none());
        assert!(calls.take_expired(now + Duration::from_secs(10)).is_some());
    }

    /// A call that is retried keeps its first deadline, and `call-timeout` may have been shortened by a reload.
    #[test]
    fn calls_expire_by_deadline_and_not_by_age() {
        let mut calls = InFlight::default();
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        for (number, seconds) in [(1, 30), (2, 10), (3, 20)] {
            calls.insert(id(number), call(Some(after(seconds))));
        }
        assert_eq!(calls.next_deadline(), Some(after(10)));
        assert!(calls.take_expired(after(15)).is_some() && calls.take_expired(after(15)).is_none());
        assert!(
            calls.is_in_use(&id(1)) && calls.take_answered(BASE, &id(1)).is_some(),
            "only the second was due"
        );
        assert_eq!(calls.next_deadline(), Some(after(20)));
    }

    #[test]
    fn a_long_running_call_does_not_keep_entries_of_answered_calls() {
        let mut calls = InFlight::default();
        let now = Instant::now();
        calls.insert(id(0), call(Some(now)));
        for number in 1..10_000 {
            calls.insert(id(number), call(Some(now + Duration::from_secs(9))));
            calls.take_answered(BASE, &id(number));
            assert!(calls.deadlines.len() <= 2 * calls.len() + 64 + 2, "{}", calls.deadlines.len());
        }
        assert_eq!(calls.next_deadline(), Some(now));
        assert!(calls.take_expired(now).is_some());
        assert_eq!(calls.next_deadline(), None);
    }

    #[test]
    fn a_replacement_process_has_its_own_calls_and_takes_over_listeners() {
        let mut calls = InFlight::default();
        let successor = ProcessId::unused(2);
        calls.insert(id(1), call(None));
        calls.insert(id(2), Call { process: successor, ..call(None) });
        calls.insert(id(3), Call { handling: ReplyHandling::Listen, ..call(None) });
        assert!(calls.take_answered(successor, &id(1)).is_none());
        assert!(calls.is_in_use(&id(1)), "it still waits for its own process");
        assert!(calls.take_answered(BASE, &id(1)).is_some());
        assert!(!calls.has_calls_on(BASE), "a listener can be moved to another process");
        assert!(calls.has_calls_on(successor));
        assert_eq!((calls.take_listeners(successor).len(), calls.take_listeners(BASE).len()), (0, 1));
        assert_eq!((calls.drain(BASE).len(), calls.drain(successor).len()), (0, 1));
    }
}
