//! Requests of a link's server processes that wait for the harness's response.
//!
//! What must stay true: a response reaches the process that sent the request and no other, whatever ids two processes
//! choose.

use std::collections::HashMap;

use cofferdam_servers::ProcessId;
use relay_proto::envelope::IdValue;

use super::in_flight::Call;
use super::input_requests::AskingMessages;

/// Requests of server processes to the harness. Their ids are rewritten, so that a response for one process can never
/// reach another, such as its replacement or the process of a scope.
#[derive(Default)]
pub(crate) struct ServerRequests {
    pending: HashMap<IdValue, PendingServerRequest>,
    /// Messages with requests inside that are not decided yet.
    pub(super) asking: AskingMessages,
    last: u64,
}

/// One request of a process, without a response so far.
#[derive(Debug)]
struct PendingServerRequest {
    /// Its decision is recorded, and its outcome will be; `seq` is its position among all requests of the link.
    call: Box<Call>,
    /// The id as the server wrote it, in JSON.
    id: Box<[u8]>,
    progress_token: Option<Box<[u8]>>,
}

/// A request that is not pending any more.
#[derive(Debug)]
pub(crate) struct Withdrawn {
    pub(super) call: Call,
    /// The id that the harness was shown, in JSON.
    pub(super) shown: Vec<u8>,
}

/// How many requests of a server may wait for the harness.
const MAX_SERVER_REQUESTS: usize = 256;
/// A longer progress token is not remembered.
const MAX_TOKEN: usize = 256;

impl ServerRequests {
    /// The number of the next request.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Stores a request and returns the id to show to the harness. Returns the call when too many are pending.
    pub(crate) fn register(
        &mut self,
        link: &str,
        call: Box<Call>,
        id: &[u8],
        progress_token: Option<&[u8]>,
    ) -> Result<Vec<u8>, Box<Call>> {
        if self.pending.len() >= MAX_SERVER_REQUESTS {
            return Err(call);
        }
        let shown = format!("cofferdam-{link}-{}", call.seq);
        let json = format!("\"{shown}\"").into_bytes();
        let progress_token = progress_token.filter(|token| token.len() <= MAX_TOKEN).map(Into::into);
        let request = PendingServerRequest { call, id: id.into(), progress_token };
        self.pending.insert(IdValue::Text(shown.into()), request);
        Ok(json)
    }

    /// Takes out the request that the harness answered, and its id as the server wrote it.
    pub(crate) fn take_answered(&mut self, id: &IdValue) -> Option<(Call, Box<[u8]>)> {
        self.pending.remove(id).map(|request| (*request.call, request.id))
    }

    /// Takes out a request that its server cancelled.
    pub(crate) fn withdraw(&mut self, original: &[u8], process: ProcessId) -> Option<Withdrawn> {
        let is_withdrawn =
            |request: &PendingServerRequest| request.call.process == process && *request.id == *original;
        let shown =
            self.pending.iter().find(|(_, request)| is_withdrawn(request)).map(|(shown, _)| shown.clone())?;
        let request = self.pending.remove(&shown)?;
        Some(Withdrawn { call: *request.call, shown: id_json(&shown) })
    }

    /// The process whose request has this progress token.
    pub(crate) fn process_with_progress_token(&self, token: &[u8]) -> Option<ProcessId> {
        let has_token = |request: &&PendingServerRequest| request.progress_token.as_deref() == Some(token);
        self.pending.values().find(has_token).map(|request| request.call.process)
    }

    pub(crate) fn has_requests_of(&self, process: ProcessId) -> bool {
        self.pending.values().any(|request| request.call.process == process)
    }

    /// Takes out all requests of a process that is gone, in order.
    pub(crate) fn withdraw_all(&mut self, process: ProcessId) -> Vec<Withdrawn> {
        let gone = self.pending.extract_if(|_, request| request.call.process == process);
        let mut gone: Vec<_> =
            gone.map(|(shown, request)| Withdrawn { call: *request.call, shown: id_json(&shown) }).collect();
        gone.sort_by_key(|withdrawn| withdrawn.call.seq);
        gone
    }

    /// Takes out all requests: the link has ended.
    pub(crate) fn take_all(&mut self) -> Vec<Call> {
        self.pending.drain().map(|(_, request)| *request.call).collect()
    }
}

fn id_json(shown: &IdValue) -> Vec<u8> {
    match shown {
        IdValue::Integer(digits) => digits.as_bytes().to_vec(),
        IdValue::Text(text) => format!("\"{text}\"").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::in_flight;
    use super::*;

    fn shown(number: u32) -> IdValue {
        IdValue::Text(format!("cofferdam-link-{number}").into())
    }

    fn register(requests: &mut ServerRequests, process: ProcessId, token: Option<&[u8]>) -> Vec<u8> {
        let call = Call { process, seq: requests.next_number(), ..in_flight::tests::call(None) };
        requests.register("link", Box::new(call), b"7", token).expect("room")
    }

    /// The process of a request that was answered, and its id as the server wrote it.
    fn answered(requests: &mut ServerRequests, number: u32) -> Option<(ProcessId, Box<[u8]>)> {
        requests.take_answered(&shown(number)).map(|(call, id)| (call.process, id))
    }

    #[test]
    fn a_response_for_a_dead_process_is_dropped() {
        let mut requests = ServerRequests::default();
        let (old, new) = (ProcessId::unused(0), ProcessId::unused(1));
        let first = register(&mut requests, old, None);
        let withdrawn: Vec<_> = requests.withdraw_all(old).into_iter().map(|request| request.shown).collect();
        assert_eq!(withdrawn, vec![first]);
        assert_eq!(register(&mut requests, new, None), b"\"cofferdam-link-2\"");
        assert!(answered(&mut requests, 1).is_none());
        assert_eq!(answered(&mut requests, 2), Some((new, b"7".as_slice().into())));
    }

    #[test]
    fn two_processes_may_use_the_same_id_and_each_gets_its_own_response() {
        let mut requests = ServerRequests::default();
        let (old, new) = (ProcessId::unused(0), ProcessId::unused(1));
        register(&mut requests, old, Some(b"\"t\""));
        register(&mut requests, new, None);
        assert_eq!(requests.process_with_progress_token(b"\"t\""), Some(old));
        let withdrawn = requests.withdraw(b"7", new).expect("it is pending");
        assert_eq!(withdrawn.shown, b"\"cofferdam-link-2\"");
        assert!(requests.has_requests_of(old) && !requests.has_requests_of(new));
        assert_eq!(answered(&mut requests, 1), Some((old, b"7".as_slice().into())));
        assert!(!requests.has_requests_of(old));
    }
}
