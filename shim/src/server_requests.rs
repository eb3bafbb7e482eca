//! Requests of the link's server that the harness has not answered yet: elicitation, sampling, roots.
//!
//! They survive a link that is resumed. When the link ends, the process that sent them ends too: the harness gets one
//! cancellation for each, and a response that comes later is dropped.

use std::collections::VecDeque;

use relay_proto::envelope::{Id, IdValue};

/// Twice the sidecar's own limit. Above it the oldest requests are forgotten, and the responses to them dropped.
const MAX_WAITING: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct ServerRequests {
    /// Each id by value, and as the server wrote it.
    waiting: VecDeque<(IdValue, Box<[u8]>)>,
}

impl ServerRequests {
    pub(crate) fn insert(&mut self, id: &Id<'_>) {
        if self.waiting.len() >= MAX_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back((id.value(), id.raw.into()));
    }

    /// Removes a request that the harness answered or the server cancelled. Returns whether it was there.
    pub(crate) fn remove(&mut self, id: &IdValue) -> bool {
        let position = self.waiting.iter().position(|(other, _)| other == id);
        position.and_then(|position| self.waiting.remove(position)).is_some()
    }

    /// Removes all requests and returns their ids as the server wrote them.
    pub(crate) fn drain(&mut self) -> Vec<Box<[u8]>> {
        self.waiting.drain(..).map(|(_, raw)| raw).collect()
    }
}

#[cfg(test)]
mod tests {
    use relay_proto::envelope::id_value;

    use super::*;

    #[test]
    fn the_oldest_requests_are_forgotten_when_there_are_too_many() {
        let mut requests = ServerRequests::default();
        let text = |number: usize| number.to_string();
        for number in 0..MAX_WAITING + 1 {
            let text = text(number);
            requests.insert(&Id { raw: text.as_bytes(), span: 0..0 });
        }
        assert!(!requests.remove(&id_value(text(0).as_bytes()).unwrap()));
        assert!(requests.remove(&id_value(text(1).as_bytes()).unwrap()));
        assert!(!requests.remove(&id_value(text(1).as_bytes()).unwrap()), "a request is removed only once");
        assert_eq!(requests.drain().len(), MAX_WAITING - 1);
    }
}
