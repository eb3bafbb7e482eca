//! Requests of a link's servers that wait for the harness's response.
//!
//! What must stay true: a response reaches the process that sent the request and no other, whatever ids two processes
//! choose.

use std::collections::HashMap;

use cofferdam_servers::ProcessId;
use relay_proto::envelope::IdValue;

/// The servers' own requests to the harness. Their ids are rewritten, so that a response meant for one process can never
/// reach another: not its replacement, and not that of a scope.
#[derive(Debug, Default)]
pub(crate) struct ServerRequests {
    waiting: HashMap<IdValue, Waiting>,
    last: u64,
}

/// One request of a process.
#[derive(Debug)]
struct Waiting {
    number: u64,
    /// As the server spelled it.
    id: Box<[u8]>,
    process: ProcessId,
    /// Its progress token.
    progress: Option<Box<[u8]>>,
}

/// How many requests of a server may wait for the harness.
const MAX_SERVER_REQUESTS: usize = 256;
/// A longer progress token is not remembered.
const MAX_TOKEN: usize = 256;

impl ServerRequests {
    /// The id to show to the harness instead; none when too many wait already.
    pub(crate) fn rewrite(
        &mut self,
        link: &str,
        id: &[u8],
        process: ProcessId,
        progress: Option<&[u8]>,
    ) -> Option<Vec<u8>> {
        if self.waiting.len() >= MAX_SERVER_REQUESTS {
            return None;
        }
        self.last += 1;
        let shown = format!("cofferdam-{link}-{}", self.last);
        let spelled = format!("\"{shown}\"").into_bytes();
        let progress = progress.filter(|token| token.len() <= MAX_TOKEN).map(Into::into);
        let waiting = Waiting { number: self.last, id: id.into(), process, progress };
        self.waiting.insert(IdValue::Text(shown.into()), waiting);
        Some(spelled)
    }

    /// The process whose request the harness answers, and the server's own spelling of its id.
    pub(crate) fn answered(&mut self, id: &IdValue) -> Option<(ProcessId, Box<[u8]>)> {
        self.waiting.remove(id).map(|waiting| (waiting.process, waiting.id))
    }

    /// The shown id for a request of the server's, because the server takes it back.
    pub(crate) fn withdraw(&mut self, original: &[u8], process: ProcessId) -> Option<Vec<u8>> {
        let asked = |waiting: &Waiting| waiting.process == process && *waiting.id == *original;
        let shown =
            self.waiting.iter().find(|(_, waiting)| asked(waiting)).map(|(shown, _)| shown.clone())?;
        self.waiting.remove(&shown);
        Some(spelled(&shown))
    }

    /// The process whose request has this progress token.
    pub(crate) fn waits_for_progress(&self, token: &[u8]) -> Option<ProcessId> {
        let asked = |waiting: &&Waiting| waiting.progress.as_deref() == Some(token);
        self.waiting.values().find(asked).map(|waiting| waiting.process)
    }

    pub(crate) fn occupy(&self, process: ProcessId) -> bool {
        self.waiting.values().any(|waiting| waiting.process == process)
    }

    /// The shown ids of all requests of a process, because it is gone.
    pub(crate) fn left_by(&mut self, process: ProcessId) -> Vec<Vec<u8>> {
        let gone = self.waiting.extract_if(|_, waiting| waiting.process == process);
        let mut gone: Vec<_> = gone.map(|(shown, waiting)| (waiting.number, spelled(&shown))).collect();
        gone.sort();
        gone.into_iter().map(|(_, shown)| shown).collect()
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
    use super::*;

    fn shown(number: u32) -> IdValue {
        IdValue::Text(format!("cofferdam-link-{number}").into())
    }

    #[test]
    fn a_response_for_a_dead_process_is_dropped() {
        let mut requests = ServerRequests::default();
        let (old, new) = (ProcessId::unused(0), ProcessId::unused(1));
        let first = requests.rewrite("link", b"7", old, None).expect("room");
        assert_eq!(requests.left_by(old), vec![first]);
        let second = requests.rewrite("link", b"7", new, None).expect("room");
        assert_eq!(second, b"\"cofferdam-link-2\"");
        assert!(requests.answered(&shown(1)).is_none());
        assert_eq!(requests.answered(&shown(2)), Some((new, b"7".as_slice().into())));
    }

    #[test]
    fn two_processes_may_use_the_same_id_and_each_gets_its_own_response() {
        let mut requests = ServerRequests::default();
        let (old, new) = (ProcessId::unused(0), ProcessId::unused(1));
        requests.rewrite("link", b"7", old, Some(b"\"t\"")).expect("room");
        requests.rewrite("link", b"7", new, None).expect("room");
        assert_eq!(requests.waits_for_progress(b"\"t\""), Some(old));
        assert_eq!(requests.withdraw(b"7", new).as_deref(), Some(b"\"cofferdam-link-2\"".as_slice()));
        assert!(requests.occupy(old) && !requests.occupy(new));
        assert_eq!(requests.answered(&shown(1)), Some((old, b"7".as_slice().into())));
        assert!(!requests.occupy(old));
    }
}
