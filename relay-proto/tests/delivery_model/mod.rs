//! An outbox and an inbox with a connection between them that breaks where the operations say so.
//!
//! Shared by the property test and the fuzz target: every sequence of operations is valid, and after the sequence every
//! message must have arrived once, whole and in order.

use relay_proto::decoder::Decoder;
use relay_proto::delivery::{Inbox, Outbox, Received};
use relay_proto::frame::{Ack, Frame, MaybeRan, Origin, PREFACE};

/// Runs operations, given as (operation, size) pairs, then delivers the rest and compares the messages.
pub(crate) fn run(window: u64, operations: &[(u8, u16)]) {
    let mut model = DeliveryModel::new(window);
    for (operation, size) in operations {
        match operation % 6 {
            0 | 1 => model.push(*size as usize * 4),
            2 => model.hand_out(),
            3 => model.deliver(*size as usize),
            4 => model.acknowledge(),
            _ => model.disconnect(*size as usize),
        }
    }
    model.finish();
    assert_eq!(model.arrived, model.pushed, "messages were lost, repeated, changed or reordered");
}

struct DeliveryModel {
    window: u64,
    outbox: Outbox,
    inbox: Inbox,
    decoder: Decoder,
    wire: Vec<u8>,
    /// Acknowledgements on their way back; a disconnect loses them.
    acks: Vec<Ack>,
    pushed: Vec<Received>,
    arrived: Vec<Received>,
}

impl DeliveryModel {
    fn new(window: u64) -> Self {
        let mut model = Self {
            window,
            outbox: Outbox::new(window),
            inbox: Inbox::new(usize::MAX, window),
            decoder: Decoder::new(),
            wire: Vec::new(),
            acks: Vec::new(),
            pushed: Vec::new(),
            arrived: Vec::new(),
        };
        model.decoder.feed(PREFACE);
        model
    }

    fn push(&mut self, length: usize) {
        if self.outbox.is_full() {
            return;
        }
        let count = self.pushed.len();
        let bytes: Vec<u8> = (0..length).map(|at| (at * 31 + count) as u8).collect();
        let maybe_ran = if count.is_multiple_of(3) {
            MaybeRan::Yes(Origin { link: "earlier".into(), seq: count as u64 })
        } else {
            MaybeRan::No
        };
        let seq = self.outbox.push(&bytes, maybe_ran.clone());
        self.pushed.push(Received { seq, maybe_ran, bytes });
    }

    fn hand_out(&mut self) {
        self.outbox.take_ready(&mut self.wire);
    }

    fn deliver(&mut self, count: usize) {
        let count = count.min(self.wire.len());
        self.decoder.feed(&self.wire[..count]);
        self.wire.drain(..count);
        while let Some(frame) = self.decoder.next().expect("our own frames decode") {
            let Frame::Message(part) = frame else { panic!("only messages were sent") };
            self.arrived.extend(self.inbox.accept(part).expect("the outbox stays within its credit"));
        }
    }

    fn acknowledge(&mut self) {
        self.acks.extend(self.inbox.take_ack());
        if !self.acks.is_empty() {
            let ack = self.acks.remove(0);
            self.outbox.acknowledge(ack).expect("the inbox acknowledges only what was sent");
        }
    }

    /// The connection breaks after `arriving` more bytes, and the link is resumed on a new one.
    fn disconnect(&mut self, arriving: usize) {
        self.deliver(arriving);
        // Acknowledgements may be lost on the way, or not yet written.
        if arriving.is_multiple_of(2) {
            self.acks.extend(self.inbox.take_ack());
        }
        self.acks.clear();
        self.wire.clear();
        self.decoder = Decoder::new();
        self.decoder.feed(PREFACE);
        self.inbox.resume();
        self.outbox
            .resume(self.inbox.received(), self.window)
            .expect("the inbox received only what was sent");
    }

    fn finish(&mut self) {
        let mut rounds_without_progress = 0;
        while !self.outbox.is_empty() {
            let before = (self.outbox.handed_out(), self.inbox.received());
            self.hand_out();
            self.deliver(usize::MAX);
            while self.inbox.has_pending_ack() || !self.acks.is_empty() {
                self.acknowledge();
            }
            // One round may consist of an acknowledgement alone; two such rounds in a row are a deadlock.
            let progressed = before != (self.outbox.handed_out(), self.inbox.received());
            rounds_without_progress = if progressed { 0 } else { rounds_without_progress + 1 };
            assert!(rounds_without_progress < 2, "deadlock: no frame was sent or received in two rounds");
        }
    }
}
