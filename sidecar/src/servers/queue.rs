//! Messages that wait for a server to be ready for them, bounded by their number and their bytes.

use std::collections::VecDeque;

use relay_proto::envelope::IdValue;

use crate::upstream::outbound::{Outbound, QUEUE_BYTES, REFUSED_BYTES};

#[derive(Debug, Default)]
pub(crate) struct Queue {
    messages: VecDeque<Outbound>,
    bytes: usize,
}

/// Messages that may wait: the harness has at most a handshake and a few lists under way while a server starts.
const MAX_MESSAGES: usize = 256;

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether the link should stop reading.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes > QUEUE_BYTES
    }

    /// Whether no message is taken any more.
    pub(crate) fn is_crowded(&self) -> bool {
        self.messages.len() >= MAX_MESSAGES || self.bytes > REFUSED_BYTES
    }

    pub(crate) fn push(&mut self, message: Outbound) {
        self.bytes += message.bytes.len();
        self.messages.push_back(message);
    }

    pub(crate) fn pop(&mut self) -> Option<Outbound> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.bytes.len();
        Some(message)
    }

    pub(crate) fn pop_if(&mut self, ready: impl FnOnce(&Outbound) -> bool) -> Option<Outbound> {
        match self.messages.front().is_some_and(ready) {
            true => self.pop(),
            false => None,
        }
    }

    /// Takes one request out; says whether it was here.
    pub(crate) fn withdraw(&mut self, id: &IdValue) -> bool {
        let Some(place) = self.messages.iter().position(|message| message.request_id() == Some(id)) else {
            return false;
        };
        if let Some(message) = self.messages.remove(place) {
            self.bytes -= message.bytes.len();
        }
        true
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The method of the request that the server will hear first.
    pub(crate) fn first_method(&self) -> Option<&str> {
        self.messages.iter().find_map(Outbound::request_method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u32, bytes: usize) -> Outbound {
        Outbound::request(vec![b'x'; bytes], IdValue::Integer(id.to_string().into()), "tools/call", None)
    }

    #[test]
    fn bytes_fill_it_long_before_the_number_of_messages_does() {
        let mut queue = Queue::default();
        queue.push(request(0, QUEUE_BYTES));
        assert!(!queue.is_full());
        queue.push(request(1, 1));
        assert!(queue.is_full() && !queue.is_crowded());
        queue.push(request(2, REFUSED_BYTES));
        assert!(queue.is_crowded());
        assert!(queue.withdraw(&IdValue::Integer("2".into())));
        assert!(!queue.withdraw(&IdValue::Integer("2".into())));
        queue.pop();
        assert!(!queue.is_full());
    }

    #[test]
    fn small_messages_are_counted() {
        let mut queue = Queue::default();
        for id in 0..256 {
            assert!(!queue.is_crowded());
            queue.push(request(id, 1));
        }
        assert!(queue.is_crowded());
    }
}
