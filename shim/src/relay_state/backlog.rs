//! Messages of the harness that wait for a link or for credit, in the order in which they came.

use std::collections::VecDeque;

use relay_proto::envelope::IdValue;

#[derive(Debug, Default)]
pub(super) struct Backlog {
    waiting: VecDeque<Queued>,
    bytes: usize,
}

#[derive(Debug)]
pub(super) enum Queued {
    /// A notification, or a response to a request of the server.
    Other(Box<[u8]>),
    /// Its bytes are in `pending`.
    Request { id: IdValue, bytes: usize },
}

impl Backlog {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, message: Queued) {
        self.bytes += message.bytes();
        self.waiting.push_back(message);
    }

    pub(super) fn pop(&mut self) -> Option<Queued> {
        let message = self.waiting.pop_front()?;
        self.bytes -= message.bytes();
        Some(message)
    }

    /// Removes the request with this id, if it waits.
    pub(super) fn remove(&mut self, id: &IdValue) {
        let Self { waiting, bytes } = self;
        waiting.retain(|message| match message {
            Queued::Request { id: other, bytes: length } if other == id => {
                *bytes -= length;
                false
            }
            Queued::Other(_) | Queued::Request { .. } => true,
        });
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Queued {
    fn bytes(&self) -> usize {
        match self {
            Self::Other(line) => line.len(),
            Self::Request { bytes, .. } => *bytes,
        }
    }
}
