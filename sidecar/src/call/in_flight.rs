//! The requests of one link that wait for the server's response.
//!
//! Every request that was let through is in here until it is answered exactly once: by the server, or by the sidecar.
//! An abandoned id stays known, so that its late response is dropped and cannot be taken for that of another request.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_secrets::Reads;
use cofferdam_servers::ProcessId;
use relay_proto::envelope::{IdValue, ShortText};
use relay_proto::mcp::{Method, ReplayRole};
use tokio::time::Instant;

/// One request on its way through the server.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The id as the harness spelled it.
    pub(crate) id: ShortText,
    /// The process that was asked; none has this id before it was sent.
    pub(crate) on: ProcessId,
    pub(crate) seq: u64,
    pub(crate) handling: ReplyHandling,
    pub(crate) method: Cow<'static, str>,
    pub(crate) tool: Option<ShortText>,
    /// The task that it asks about.
    pub(crate) task: Option<Box<str>>,
    pub(crate) began: Instant,
    /// None for requests that are meant to stay open.
    pub(crate) deadline: Option<Instant>,
    pub(crate) attempt: Attempt,
    /// The message, where it may be sent once more should its server go away.
    pub(crate) kept: Option<Bytes>,
    /// The reads that it was made with, where they are others than its decision names.
    pub(crate) sent_with: Option<Arc<Reads>>,
}

/// What is done with its response, beside relaying it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReplyHandling {
    ListTools,
    /// Open until it is cancelled. It only listens, so a new process is simply asked again.
    Listen,
    Other,
    /// If it succeeds, it is replayed to every new process: see [`relay_proto::replay`].
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
    waiting: HashMap<IdValue, Call>,
    /// The earliest first; entries of answered calls are skipped.
    deadlines: VecDeque<(Instant, IdValue)>,
    abandoned: Abandoned,
    /// Bytes of messages that are kept to be sent once more.
    kept: usize,
}

/// Ids that were answered by us or cancelled by the harness while the server still had them.
#[derive(Debug, Default)]
struct Abandoned {
    ids: HashMap<IdValue, ProcessId>,
    order: VecDeque<IdValue>,
}

/// How many abandoned ids are remembered: more late answers than this no honest server owes.
const MAX_ABANDONED: usize = 1024;
/// Bytes of messages that one link keeps to send them once more: what does not fit is not repeated.
const MAX_KEPT: usize = 4 * 1024 * 1024;

impl InFlight {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether this id may not be used now: in flight, or given up while the server still has it.
    pub(crate) fn is_taken(&self, id: &IdValue) -> bool {
        self.waiting.contains_key(id) || self.abandoned.ids.contains_key(id)
    }

    /// Registers a call before it is sent; [`Call::on`] is filled in once it is.
    pub(crate) fn insert(&mut self, id: IdValue, mut call: Call) -> &mut Call {
        call.kept.take_if(|kept| self.kept + kept.len() > MAX_KEPT);
        self.kept += call.kept_bytes();
        // One call that stays open must not keep the ids of all that were answered since.
        if self.deadlines.len() > 2 * self.waiting.len() + 64 {
            let waiting = &self.waiting;
            self.deadlines.retain(|(deadline, id)| is_due(waiting, id, *deadline));
        }
        if let Some(deadline) = call.deadline {
            // Almost always the last place: deadlines come in order, unless a call is retried or a timeout was changed.
            let place = self.deadlines.partition_point(|(other, _)| *other <= deadline);
            self.deadlines.insert(place, (deadline, id.clone()));
        }
        self.waiting.entry(id).insert_entry(call).into_mut()
    }

    /// The call that this answer of a process belongs to; none for late or unasked answers.
    pub(crate) fn answered(&mut self, from: ProcessId, id: &IdValue) -> Option<Call> {
        let call = match self.waiting.entry(id.clone()) {
            Entry::Occupied(call) if call.get().on == from => call.remove(),
            Entry::Occupied(_) => return None,
            Entry::Vacant(_) => {
                self.abandoned.forget(from, id);
                return None;
            }
        };
        self.kept -= call.kept_bytes();
        Some(call)
    }

    /// The process that a call which had to wait was sent to.
    pub(crate) fn sent_to(&mut self, id: &IdValue, on: ProcessId) {
        if let Some(call) = self.waiting.get_mut(id) {
            call.on = on;
        }
    }

    /// It was made with secrets from other reads than its decision names.
    pub(crate) fn sent_with(&mut self, on: ProcessId, id: &IdValue, reads: Arc<Reads>) {
        if let Some(call) = self.waiting.get_mut(id).filter(|call| call.on == on) {
            call.sent_with = Some(reads);
        }
    }

    /// Gives up on a call whose answer may still come.
    pub(crate) fn abandon(&mut self, id: &IdValue) -> Option<Call> {
        let call = self.take(id)?;
        self.abandoned.remember(id.clone(), call.on);
        Some(call)
    }

    /// All calls of a process in the order they came, because it is gone: no late answer can come from it.
    pub(crate) fn drain(&mut self, process: ProcessId) -> Vec<Call> {
        self.abandoned.forget_all(|other| other == process);
        self.take_where(|call| call.on == process)
    }

    /// The calls of a process that only listen.
    pub(crate) fn listening_on(&mut self, process: ProcessId) -> Vec<Call> {
        self.take_where(|call| call.on == process && call.handling == ReplyHandling::Listen)
    }

    fn take_where(&mut self, choice: impl Fn(&Call) -> bool) -> Vec<Call> {
        let mut calls: Vec<Call> =
            self.waiting.extract_if(|_, call| choice(call)).map(|(_, call)| call).collect();
        self.kept -= calls.iter().map(Call::kept_bytes).sum::<usize>();
        if self.waiting.is_empty() {
            self.deadlines.clear();
        }
        calls.sort_by_key(|call| call.seq);
        calls
    }

    /// All calls in the order they came, because it is all over.
    pub(crate) fn drain_all(&mut self) -> Vec<Call> {
        let mut calls: Vec<Call> = std::mem::take(self).waiting.into_values().collect();
        calls.sort_by_key(|call| call.seq);
        calls
    }

    /// Whether a process works on something that ends by itself.
    pub(crate) fn occupy(&self, process: ProcessId) -> bool {
        self.waiting.values().any(|call| call.on == process && call.handling != ReplyHandling::Listen)
    }

    /// When the next call runs out of time.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        while let Some((deadline, id)) = self.deadlines.front() {
            match is_due(&self.waiting, id, *deadline) {
                true => return Some(*deadline),
                false => self.deadlines.pop_front(),
            };
        }
        None
    }

    /// A call whose time is over, given up.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<Call> {
        if self.next_deadline()? > now {
            return None;
        }
        let (_, id) = self.deadlines.pop_front()?;
        self.abandon(&id)
    }

    #[cfg(test)]
    pub(crate) fn assert_one_place(&self) {
        for id in self.waiting.keys() {
            assert!(!self.abandoned.ids.contains_key(id), "{id:?} is in flight and abandoned");
        }
    }

    /// Takes a call out that was not sent after all.
    pub(crate) fn take(&mut self, id: &IdValue) -> Option<Call> {
        let call = self.waiting.remove(id)?;
        self.kept -= call.kept_bytes();
        Some(call)
    }
}

impl Call {
    fn kept_bytes(&self) -> usize {
        self.kept.as_ref().map_or(0, Bytes::len)
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

/// Whether this is the deadline of a call that still waits.
fn is_due(waiting: &HashMap<IdValue, Call>, id: &IdValue, deadline: Instant) -> bool {
    waiting.get(id).is_some_and(|call| call.deadline == Some(deadline))
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

    fn forget_all(&mut self, choice: impl Fn(ProcessId) -> bool) {
        self.ids.retain(|_, process| !choice(*process));
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

    /// A call of the harness.
    pub(in crate::call) fn call(deadline: Option<Instant>) -> Call {
        Call {
            id: "1".into(),
            on: BASE,
            seq: 1,
            handling: ReplyHandling::Other,
            method: "tools/call".into(),
            tool: None,
            task: None,
            began: Instant::now(),
            deadline,
            attempt: Attempt::First,
            kept: None,
            sent_with: None,
        }
    }

    #[test]
    fn what_is_kept_to_be_repeated_is_bounded_and_given_back() {
        let mut calls = InFlight::default();
        let large = |calls: &mut InFlight, number| {
            let kept = Some(Bytes::from(vec![0; MAX_KEPT / 2]));
            calls.insert(id(number), Call { kept, ..call(None) });
        };
        for number in 0..3 {
            large(&mut calls, number);
        }
        assert!(calls.answered(BASE, &id(2)).is_some_and(|call| call.kept.is_none()), "it did not fit");
        assert!(calls.answered(BASE, &id(1)).is_some_and(|call| call.kept.is_some()));
        large(&mut calls, 4);
        assert!(calls.abandon(&id(4)).is_some_and(|call| call.kept.is_some()), "there was room again");
        calls.drain(BASE);
        assert_eq!(calls.kept, 0);
    }

    #[test]
    fn a_late_answer_is_dropped_and_its_id_stays_taken_until_it_came() {
        let mut calls = InFlight::default();
        calls.insert(id(1), call(None));
        assert!(calls.abandon(&id(1)).is_some());
        assert!(calls.is_taken(&id(1)));
        assert!(calls.answered(BASE, &id(1)).is_none());
        assert!(!calls.is_taken(&id(1)));
    }

    #[test]
    fn a_call_is_answered_by_who_works_on_it_and_ends_with_it() {
        let mut calls = InFlight::default();
        let run_by = |on| Call { on, kept: Some(Bytes::from_static(b"kept")), ..call(None) };
        calls.insert(id(1), run_by(BASE));
        calls.insert(id(2), run_by(OTHER));
        calls.insert(id(3), run_by(OTHER));
        assert!(calls.answered(OTHER, &id(1)).is_none() && calls.is_taken(&id(1)));
        calls.abandon(&id(3));
        assert!(
            calls.answered(BASE, &id(3)).is_none() && calls.is_taken(&id(3)),
            "its answer may still come"
        );
        assert!(calls.occupy(OTHER));
        assert_eq!(calls.drain(OTHER).len(), 1);
        assert!(!calls.occupy(OTHER) && !calls.is_taken(&id(3)), "no late answer can come");
        assert_eq!((calls.len(), calls.kept), (1, 4));
        assert!(calls.answered(BASE, &id(1)).is_some());
    }

    #[test]
    fn an_id_used_again_does_not_inherit_the_old_deadline() {
        let mut calls = InFlight::default();
        let now = Instant::now();
        calls.insert(id(1), call(Some(now)));
        calls.answered(BASE, &id(1));
        calls.insert(id(1), call(Some(now + Duration::from_secs(9))));
        assert!(calls.take_expired(now + Duration::from_secs(1)).is_none());
        assert!(calls.take_expired(now + Duration::from_secs(10)).is_some());
    }

    /// A call that is retried keeps its first deadline, and `call-timeout` may have been shortened by a reload.
    #[test]
    fn the_earliest_deadline_counts_whichever_call_was_made_first() {
        let mut calls = InFlight::default();
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        for (number, seconds) in [(1, 30), (2, 10), (3, 20)] {
            calls.insert(id(number), call(Some(after(seconds))));
        }
        assert_eq!(calls.next_deadline(), Some(after(10)));
        assert!(calls.take_expired(after(15)).is_some() && calls.take_expired(after(15)).is_none());
        assert!(calls.is_taken(&id(1)) && calls.answered(BASE, &id(1)).is_some(), "only the second was due");
        assert_eq!(calls.next_deadline(), Some(after(20)));
    }

    #[test]
    fn an_open_call_does_not_keep_the_ids_of_answered_ones() {
        let mut calls = InFlight::default();
        let now = Instant::now();
        calls.insert(id(0), call(Some(now)));
        for number in 1..10_000 {
            calls.insert(id(number), call(Some(now + Duration::from_secs(9))));
            calls.answered(BASE, &id(number));
            assert!(calls.deadlines.len() <= 2 * calls.len() + 64 + 2, "{}", calls.deadlines.len());
        }
        assert_eq!(calls.next_deadline(), Some(now));
        assert!(calls.take_expired(now).is_some());
        assert_eq!(calls.next_deadline(), None);
    }

    #[test]
    fn a_successor_has_its_own_calls_and_listeners_move_to_it() {
        let mut calls = InFlight::default();
        let successor = ProcessId::unused(2);
        calls.insert(id(1), call(None));
        calls.insert(id(2), Call { on: successor, ..call(None) });
        calls.insert(id(3), Call { handling: ReplyHandling::Listen, ..call(None) });
        assert!(calls.answered(successor, &id(1)).is_none());
        assert!(calls.is_taken(&id(1)), "it still waits for its own process");
        assert!(calls.answered(BASE, &id(1)).is_some());
        assert!(!calls.occupy(BASE), "a listener can be moved to another process");
        assert!(calls.occupy(successor));
        assert_eq!((calls.listening_on(successor).len(), calls.listening_on(BASE).len()), (0, 1));
        assert_eq!((calls.drain(BASE).len(), calls.drain(successor).len()), (0, 1));
    }
}
