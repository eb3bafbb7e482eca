//! An outbox and an inbox with a pipe between them that is cut where the script decides.
//!
//! Shared by the property test and the fuzz target: every script is a valid sequence of operations, and
//! after each one every message must have arrived once, whole and in order.

use relay_proto::decoder::Decoder;
use relay_proto::delivery::{Inbox, Outbox, Received};
use relay_proto::frame::{Ack, Frame, MaybeRan, Origin, PREFACE};

/// Runs a script of (operation, size) pairs, then lets everything arrive and compares.
pub(crate) fn play(window: u64, script: &[(u8, u16)]) {
    let mut world = World::new(window);
    for (what, size) in script {
        match what % 6 {
            0 | 1 => world.push(*size as usize * 4),
            2 => world.hand_out(),
            3 => world.deliver(*size as usize),
            4 => world.acknowledge(),
            _ => world.cut(*size as usize),
        }
    }
    world.finish();
    assert_eq!(world.arrived, world.pushed, "every message once, whole and in order");
}

struct World {
    window: u64,
    outbox: Outbox,
    inbox: Inbox,
    decoder: Decoder,
    wire: Vec<u8>,
    /// Acknowledgements on their way back; a cut loses them.
    acks: Vec<Ack>,
    pushed: Vec<Received>,
    arrived: Vec<Received>,
}

impl World {
    fn new(window: u64) -> Self {
        let mut world = Self {
            window,
            outbox: Outbox::new(window),
            inbox: Inbox::new(usize::MAX, window),
            decoder: Decoder::new(),
            wire: Vec::new(),
            acks: Vec::new(),
            pushed: Vec::new(),
            arrived: Vec::new(),
        };
        world.decoder.feed(PREFACE);
        world
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
            self.arrived.extend(self.inbox.accept(part).expect("an honest sender keeps within its credit"));
        }
    }

    fn acknowledge(&mut self) {
        self.acks.extend(self.inbox.take_ack());
        if !self.acks.is_empty() {
            let ack = self.acks.remove(0);
            self.outbox.acknowledge(ack).expect("an honest receiver acknowledges what came");
        }
    }

    /// The connection breaks after `arriving` more bytes, and the link is resumed on a new one.
    fn cut(&mut self, arriving: usize) {
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
        self.outbox.resume(self.inbox.received(), self.window).expect("an honest receiver counts right");
    }

    fn finish(&mut self) {
        let mut standstill = 0;
        while !self.outbox.is_empty() {
            let before = (self.outbox.handed_out(), self.inbox.received());
            self.hand_out();
            self.deliver(usize::MAX);
            while self.inbox.has_ack() || !self.acks.is_empty() {
                self.acknowledge();
            }
            // A round may bring nothing but an acknowledgement; two such rounds in a row may not.
            let moved = before != (self.outbox.handed_out(), self.inbox.received());
            standstill = if moved { 0 } else { standstill + 1 };
            assert!(standstill < 2, "nothing moves any more: a deadlock");
        }
    }
}
