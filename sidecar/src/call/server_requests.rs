//! Requests of a link's server processes that wait for the harness's response.
//!
//! What must stay true: a response reaches the process that sent the request and no other, whatever ids two processes
//! choose.

use std::collections::HashMap;

use cofferdam_servers::ProcessId;
use relay_proto::envelope::IdValue;

/// Requests of server processes to the harness. Their ids are rewritten, so that a response for one process can never
/// reach another, such as its replacement or the process of a scope.
#[derive(Debug, Default)]
pub(crate) struct ServerRequests {
    pending: HashMap<IdValue, PendingServerRequest>,
    last: u64,
}

/// One request of a process, without a response so far.
#[derive(Debug)]
struct PendingServerRequest {
    /// Its position among all requests of the link.
    number: u64,
    /// The id as the server wrote it, in JSON.
    id: Box<[u8]>,
    process: ProcessId,
    progress_token: Option<Box<[u8]>>,
}

/// How many requests of a server may wait for the harness.
const MAX_SERVER_REQUESTS: usize = 256;
/// A longer progress token is not remembered.
const MAX_TOKEN: usize = 256;

impl ServerRequests {
    /// Stores a request and returns the id to show to the harness; none when too many are pending.
    pub(crate) fn register(
        &mut self,
        link: &str,
        id: &[u8],
        process: ProcessId,
        progress_token: Option<&[u8]>,
    ) -> Option<Vec<u8>> {
        if self.pending.len() >= MAX_SERVER_REQUESTS {
            return None;
        }
        self.last += 1;
        let shown = format!("cofferdam-{link}-{}", self.last);
        let json = format!("\"{shown}\"").into_bytes();
        let progress_token = progress_token.filter(|token| token.len() <= MAX_TOKEN).map(Into::into);
        let request = PendingServerRequest { number: self.last, id: id.into(), process, progress_token };
        self.pending.insert(IdValue::Text(shown.into()), request);
        Some(json)
    }

    /// Takes out the request that the harness answered: its process, and its id as the server wrote it.
    pub(crate) fn take_answered(&mut self, id: &IdValue) -> Option<(ProcessId, Box<[u8]>)> {
        self.pending.remove(id).map(|request| (request.process, request.id))
    }

    /// Takes out a request that its server cancelled, and returns the id that the harness was shown.
    pub(crate) fn withdraw(&mut self, original: &[u8], process: ProcessId) -> Option<Vec<u8>> {
        let is_withdrawn =
            |request: &PendingServerRequest| request.process == process && *request.id == *original;
        let shown =
            self.pending.iter().find(|(_, request)| is_withdrawn(request)).map(|(shown, _)| shown.clone())?;
        self.pending.remove(&shown);
        Some(id_json(&shown))
    }

    /// The process whose request has this progress token.
    pub(crate) fn process_with_progress_token(&self, token: &[u8]) -> Option<ProcessId> {
        let has_token = |request: &&PendingServerRequest| request.progress_token.as_deref() == Some(token);
        self.pending.values().find(has_token).map(|request| request.process)
    }

    pub(crate) fn has_requests_of(&self, process: ProcessId) -> bool {
        self.pending.values().any(|request| request.process == process)
    }

    /// Takes out all requests of a process that is gone, and returns the ids that the harness was shown.
    pub(crate) fn withdraw_all(&mut self, process: ProcessId) -> Vec<Vec<u8>> {
        let gone = self.pending.extract_if(|_, request| request.process == process);
        let mut gone: Vec<_> = gone.map(|(shown, request)| (request.number, id_json(&shown))).collect();
        gone.sort();
        gone.into_iter().map(|(_, shown)| shown).collect()
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
    use super::*;

    fn shown(number: u32) -> IdValue {
        IdValue::Text(format!("cofferdam-link-{number}").into())
    }

    #[test]
    fn a_response_for_a_dead_process_is_dropped() {
        let mut requests = ServerRequests::default();
        let (old, new) = (ProcessId::unused(0), ProcessId::unused(1));
        let first = requests.register("link", b"7", old, None).expect("room");
        assert_eq!(requests.withdraw_all(old), vec![first]);
        let second = requests.register("link", b"7", new, None).expect("room");
        assert_eq!(second, b"\"cofferdam-link-2\"");
        assert!(requests.take_answered(&shown(1)).is_none());
        assert_eq!(requests.take_answered(&shown(2)), Some((new, b"7".as_slice().into())));
    }

    #[test]
    fn two_processes_may_use_the_same_id_and_each_gets_its_own_response() {
        let mut requests = ServerRequests::default();
        let (old, new) = (ProcessId::unused(0), ProcessId::unused(1));
        requests.register("link", b"7", old, Some(b"\"t\"")).expect("room");
        requests.register("link", b"7", new, None).expect("room");
        assert_eq!(requests.process_with_progress_token(b"\"t\""), Some(old));
        assert_eq!(requests.withdraw(b"7", new).as_deref(), Some(b"\"cofferdam-link-2\"".as_slice()));
        assert!(requests.has_requests_of(old) && !requests.has_requests_of(new));
        assert_eq!(requests.take_answered(&shown(1)), Some((old, b"7".as_slice().into())));
        assert!(!requests.has_requests_of(old));
    }
}
