//! Requests of the link's server that the harness has not answered yet: elicitation, sampling, roots.
//!
//! They survive a link that is resumed. When the link is over so is the process that asked: each is taken back at the
//! harness once, and an answer that comes later is for nobody.

use std::collections::VecDeque;

use relay_proto::envelope::{Id, IdValue};

/// The sidecar lets half as many wait. Of more than these the oldest are forgotten, and their answers dropped.
const MAX_WAITING: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct ServerRequests {
    /// By value, and as it was spelled.
    waiting: VecDeque<(IdValue, Box<[u8]>)>,
}

impl ServerRequests {
    pub(crate) fn came(&mut self, id: &Id<'_>) {
        if self.waiting.len() >= MAX_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back((id.value(), id.raw.into()));
    }

    /// The harness answers; says whether somebody waits for it.
    pub(crate) fn answered(&mut self, id: &IdValue) -> bool {
        self.withdrawn(id)
    }

    /// The server takes one back; says whether it was there.
    pub(crate) fn withdrawn(&mut self, id: &IdValue) -> bool {
        let place = self.waiting.iter().position(|(other, _)| other == id);
        place.and_then(|place| self.waiting.remove(place)).is_some()
    }

    /// The server is gone: the ids of all that wait, as they were spelled.
    pub(crate) fn drain(&mut self) -> Vec<Box<[u8]>> {
        self.waiting.drain(..).map(|(_, spelled)| spelled).collect()
    }
}

#[cfg(test)]
mod tests {
    use relay_proto::envelope::id_value;

    use super::*;

    #[test]
    fn the_oldest_are_forgotten_when_there_are_too_many() {
        let mut requests = ServerRequests::default();
        let text = |number: usize| number.to_string();
        for number in 0..MAX_WAITING + 1 {
            let text = text(number);
            requests.came(&Id { raw: text.as_bytes(), span: 0..0 });
        }
        assert!(!requests.answered(&id_value(text(0).as_bytes()).unwrap()));
        assert!(requests.answered(&id_value(text(1).as_bytes()).unwrap()));
        assert!(!requests.answered(&id_value(text(1).as_bytes()).unwrap()), "once");
        assert_eq!(requests.drain().len(), MAX_WAITING - 1);
    }
}
