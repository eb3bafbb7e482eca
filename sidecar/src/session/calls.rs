//! The requests of one link that wait for an answer, and the requests of its server that wait for one.
//!
//! Every request that was let through is in here until it is answered exactly once: by the server, or by us. An id
//! that we gave up on stays known, so that its late answer is dropped and cannot be taken for another's.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};

use bytes::Bytes;
use relay_proto::envelope::{IdValue, ShortText};
use relay_proto::memory::Memory;
use tokio::time::Instant;

/// One request on its way through the server.
#[derive(Debug)]
pub(crate) struct Call {
    /// The id as the harness spelled it.
    pub(crate) id: ShortText,
    pub(crate) seq: u64,
    pub(crate) purpose: Purpose,
    pub(crate) method: Cow<'static, str>,
    pub(crate) tool: Option<ShortText>,
    pub(crate) began: Instant,
    /// None for requests that are meant to stay open.
    pub(crate) deadline: Option<Instant>,
    pub(crate) attempt: Attempt,
    /// The message, where it may be sent once more should its server go away.
    pub(crate) kept: Option<Bytes>,
}

/// What its answer is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Purpose {
    ListTools,
    /// Open until somebody ends it. It only listens, so a new process is simply asked again.
    Listen,
    Other,
    /// If it succeeds, a new process is told the same: see [`relay_proto::memory`].
    Setting,
}

/// Whether the request may have run before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Attempt {
    First,
    /// There is no third, but for listeners.
    Second,
}

#[derive(Debug, Default)]
pub(crate) struct Calls {
    waiting: HashMap<IdValue, Call>,
    /// In the order they were made; entries of answered calls are skipped.
    deadlines: VecDeque<(Instant, IdValue)>,
    abandoned: Abandoned,
    /// Bytes of messages that are kept to be sent once more.
    kept: usize,
}

/// Ids that were answered by us or cancelled by the harness while the server still had them.
#[derive(Debug, Default)]
struct Abandoned {
    ids: HashSet<IdValue>,
    order: VecDeque<IdValue>,
}

/// How many abandoned ids are remembered: more late answers than this no honest server owes.
const MAX_ABANDONED: usize = 1024;
/// Bytes of messages that one link keeps to send them once more: what does not fit is not repeated.
const MAX_KEPT: usize = 4 * 1024 * 1024;

impl Calls {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether this id may not be used now: in flight, or given up while the server still has it.
    pub(crate) fn is_taken(&self, id: &IdValue) -> bool {
        self.waiting.contains_key(id) || self.abandoned.ids.contains(id)
    }

    pub(crate) fn insert(&mut self, id: IdValue, mut call: Call) {
        call.kept.take_if(|kept| self.kept + kept.len() > MAX_KEPT);
        self.kept += call.kept_bytes();
        if let Some(deadline) = call.deadline {
            self.deadlines.push_back((deadline, id.clone()));
        }
        self.waiting.insert(id, call);
        // One call that stays open must not keep the ids of all that were answered since.
        if self.deadlines.len() > 2 * self.waiting.len() + 64 {
            let waiting = &self.waiting;
            self.deadlines.retain(|(deadline, id)| is_due(waiting, id, *deadline));
        }
    }

    /// The call that this answer belongs to; none for late or unasked answers.
    pub(crate) fn answered(&mut self, id: &IdValue) -> Option<Call> {
        let call = self.take(id);
        if call.is_none() {
            self.abandoned.forget(id);
        }
        call
    }

    /// Gives up on a call whose answer may still come.
    pub(crate) fn abandon(&mut self, id: &IdValue) -> Option<Call> {
        let call = self.take(id)?;
        self.abandoned.remember(id.clone());
        Some(call)
    }

    /// All calls in the order they came, because their server is gone: no late answer can come from it.
    pub(crate) fn drain(&mut self) -> Vec<Call> {
        self.deadlines.clear();
        self.abandoned = Abandoned::default();
        self.kept = 0;
        let mut calls: Vec<Call> = self.waiting.drain().map(|(_, call)| call).collect();
        calls.sort_by_key(|call| call.seq);
        calls
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

    fn take(&mut self, id: &IdValue) -> Option<Call> {
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

impl Purpose {
    pub(crate) fn of(method: &str) -> Self {
        match method {
            "subscriptions/listen" => Self::Listen,
            "tools/list" => Self::ListTools,
            method if Memory::concerns(method) => Self::Setting,
            _ => Self::Other,
        }
    }
}

/// Whether this is the deadline of a call that still waits.
fn is_due(waiting: &HashMap<IdValue, Call>, id: &IdValue, deadline: Instant) -> bool {
    waiting.get(id).is_some_and(|call| call.deadline == Some(deadline))
}

impl Abandoned {
    fn remember(&mut self, id: IdValue) {
        if self.order.len() == MAX_ABANDONED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        self.order.push_back(id.clone());
        self.ids.insert(id);
    }

    fn forget(&mut self, id: &IdValue) {
        if self.ids.remove(id) {
            self.order.retain(|other| other != id);
        }
    }
}

/// The server's own requests to the harness. Their ids are rewritten per process, so that an answer meant for a dead
/// process can never reach its successor.
#[derive(Debug, Default)]
pub(crate) struct ServerRequests {
    waiting: HashMap<IdValue, (u64, Box<[u8]>)>,
    last: u64,
}

/// How many requests of a server may wait for the harness.
const MAX_SERVER_REQUESTS: usize = 256;

impl ServerRequests {
    /// The id to show to the harness instead; none when too many wait already.
    pub(crate) fn rewrite(&mut self, link: &str, id: &[u8]) -> Option<Vec<u8>> {
        if self.waiting.len() >= MAX_SERVER_REQUESTS {
            return None;
        }
        self.last += 1;
        let shown = format!("cofferdam-{link}-{}", self.last);
        let spelled = format!("\"{shown}\"").into_bytes();
        self.waiting.insert(IdValue::Text(shown.into()), (self.last, id.into()));
        Some(spelled)
    }

    /// The server's own spelling of the id that the harness answers.
    pub(crate) fn answered(&mut self, id: &IdValue) -> Option<Box<[u8]>> {
        self.waiting.remove(id).map(|(_, original)| original)
    }

    /// The shown id for a request of the server's, because the server takes it back.
    pub(crate) fn withdraw(&mut self, original: &[u8]) -> Option<Vec<u8>> {
        let shown =
            self.waiting.iter().find(|(_, (_, id))| **id == *original).map(|(shown, _)| shown.clone())?;
        self.waiting.remove(&shown);
        Some(spelled(&shown))
    }

    /// The shown ids of all requests, because their server is gone.
    pub(crate) fn drain(&mut self) -> Vec<Vec<u8>> {
        let mut all: Vec<_> = self.waiting.drain().collect();
        all.sort_by_key(|(_, (number, _))| *number);
        all.into_iter().map(|(shown, _)| spelled(&shown)).collect()
    }
}

fn spelled(shown: &IdValue) -> Vec<u8> {
    match shown {
        IdValue::Integer(digits) => digits.as_bytes().to_vec(),
        IdValue::Text(text) => format!("\"{text}\"").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id(number: u32) -> IdValue {
        IdValue::Integer(number.to_string().into())
    }

    fn call(deadline: Option<Instant>) -> Call {
        Call {
            id: "1".into(),
            seq: 1,
            purpose: Purpose::Other,
            method: "tools/call".into(),
            tool: None,
            began: Instant::now(),
            deadline,
            attempt: Attempt::First,
            kept: None,
        }
    }

    #[test]
    fn what_is_kept_to_be_repeated_is_bounded_and_given_back() {
        let mut calls = Calls::default();
        let large = |calls: &mut Calls, number| {
            let kept = Some(Bytes::from(vec![0; MAX_KEPT / 2]));
            calls.insert(id(number), Call { kept, ..call(None) });
        };
        for number in 0..3 {
            large(&mut calls, number);
        }
        assert!(calls.answered(&id(2)).is_some_and(|call| call.kept.is_none()), "it did not fit");
        assert!(calls.answered(&id(1)).is_some_and(|call| call.kept.is_some()));
        large(&mut calls, 4);
        assert!(calls.abandon(&id(4)).is_some_and(|call| call.kept.is_some()), "there was room again");
        calls.drain();
        assert_eq!(calls.kept, 0);
    }

    #[test]
    fn a_late_answer_belongs_to_nobody_and_its_id_stays_taken_until_it_came() {
        let mut calls = Calls::default();
        calls.insert(id(1), call(None));
        assert!(calls.abandon(&id(1)).is_some());
        assert!(calls.is_taken(&id(1)));
        assert!(calls.answered(&id(1)).is_none());
        assert!(!calls.is_taken(&id(1)));
    }

    #[test]
    fn an_id_used_again_does_not_inherit_the_old_deadline() {
        let mut calls = Calls::default();
        let now = Instant::now();
        calls.insert(id(1), call(Some(now)));
        calls.answered(&id(1));
        calls.insert(id(1), call(Some(now + Duration::from_secs(9))));
        assert!(calls.take_expired(now + Duration::from_secs(1)).is_none());
        assert!(calls.take_expired(now + Duration::from_secs(10)).is_some());
    }

    #[test]
    fn an_open_call_does_not_keep_the_ids_of_answered_ones() {
        let mut calls = Calls::default();
        let now = Instant::now();
        calls.insert(id(0), call(Some(now)));
        for number in 1..10_000 {
            calls.insert(id(number), call(Some(now + Duration::from_secs(9))));
            calls.answered(&id(number));
            assert!(calls.deadlines.len() <= 2 * calls.len() + 64 + 2, "{}", calls.deadlines.len());
        }
        assert_eq!(calls.next_deadline(), Some(now));
        assert!(calls.take_expired(now).is_some());
        assert_eq!(calls.next_deadline(), None);
    }

    #[test]
    fn an_answer_for_a_dead_process_reaches_nobody() {
        let mut requests = ServerRequests::default();
        let first = requests.rewrite("link", b"7").expect("room");
        assert_eq!(requests.drain(), vec![first]);
        let second = requests.rewrite("link", b"7").expect("room");
        assert_eq!(second, b"\"cofferdam-link-2\"");
        assert!(requests.answered(&IdValue::Text("cofferdam-link-1".into())).is_none());
        assert_eq!(
            requests.answered(&IdValue::Text("cofferdam-link-2".into())).as_deref(),
            Some(b"7".as_slice())
        );
    }
}
