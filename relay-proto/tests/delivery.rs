//! No message is lost, repeated or reordered across disconnects, and protocol violations are detected.

mod delivery_model;

use std::borrow::Cow;

use proptest::prelude::*;
use relay_proto::decoder::Decoder;
use relay_proto::delivery::{DeliveryError, Inbox, Outbox, Received};
use relay_proto::frame::{Ack, Frame, MaybeRan, More, Origin, PREFACE, Part, PartFlags, PartView};
use relay_proto::limits::{MAX_MESSAGE_PART, MAX_WINDOW};

proptest! {
    #[test]
    fn every_message_arrives_once_and_in_order_across_disconnects(
        window in 1u64..300_000,
        operations in prop::collection::vec((any::<u8>(), prop_oneof![0u16..64, any::<u16>()]), 0..60),
    ) {
        delivery_model::run(window, &operations);
    }
}

fn part(seq: u64, bytes: &[u8]) -> Part {
    Part { seq, flags: PartFlags::default(), bytes: bytes.to_vec() }
}

/// The parts that the outbox hands out now.
fn take(outbox: &mut Outbox) -> Vec<Part> {
    let mut decoder = Decoder::new();
    let mut bytes = PREFACE.to_vec();
    outbox.take_ready(&mut bytes);
    decoder.feed(&bytes);
    let mut parts = Vec::new();
    while let Some(frame) = decoder.next().expect("our own frames decode") {
        let Frame::Message(part) = frame else { panic!("{frame:?}") };
        parts.push(part);
    }
    parts
}

#[test]
fn a_long_message_is_sent_in_parts_and_identified_by_its_first() {
    let mut outbox = Outbox::new(MAX_WINDOW);
    assert_eq!(outbox.push(b"short", MaybeRan::No), 1);
    assert_eq!(outbox.push(&vec![7; MAX_MESSAGE_PART + 1], maybe_ran()), 2);
    assert_eq!(outbox.push(b"", MaybeRan::No), 4);
    let parts = take(&mut outbox);
    let shape: Vec<_> = parts
        .iter()
        .map(|part| (part.seq, part.flags.more, part.flags.maybe_ran.clone(), part.bytes.len()))
        .collect();
    assert_eq!(
        shape,
        [
            (1, More::Last, MaybeRan::No, 5),
            (2, More::Follows, maybe_ran(), MAX_MESSAGE_PART),
            (3, More::Last, MaybeRan::No, 1),
            (4, More::Last, MaybeRan::No, 0),
        ]
    );
    assert!(take(&mut outbox).is_empty(), "frames were handed out twice");
}

#[test]
fn take_ready_up_to_hands_out_a_long_message_frame_by_frame() {
    let message = vec![7; 3 * MAX_MESSAGE_PART];
    let (mut at_once, mut in_pieces) = (Outbox::new(MAX_WINDOW), Outbox::new(MAX_WINDOW));
    let mut whole = Vec::new();
    at_once.push(&message, MaybeRan::No);
    at_once.take_ready(&mut whole);
    in_pieces.push(&message, MaybeRan::No);
    let mut taken = Vec::new();
    for piece in 1..=3 {
        in_pieces.take_ready_up_to(1, &mut taken);
        assert_eq!((in_pieces.handed_out(), taken.len()), (piece, piece as usize * whole.len() / 3));
    }
    in_pieces.take_ready_up_to(1, &mut taken);
    assert_eq!(taken, whole);
}

#[test]
fn frames_beyond_the_credit_wait_for_an_acknowledgement() {
    let mut outbox = Outbox::new(100);
    for _ in 0..3 {
        outbox.push(&[1; 40], MaybeRan::No);
    }
    assert!(outbox.is_full());
    assert_eq!(take(&mut outbox).len(), 1, "the window of 100 bytes has space for one frame of 54");
    assert_eq!(outbox.handed_out(), 1);
    outbox.acknowledge(Ack { seq: 1, window: 108 }).unwrap();
    assert_eq!(take(&mut outbox).len(), 2);
    outbox.acknowledge(Ack { seq: 3, window: 0 }).unwrap();
    outbox.push(b"x", MaybeRan::No);
    assert!(take(&mut outbox).is_empty(), "a frame was sent with a window of 0");
    outbox.acknowledge(Ack { seq: 3, window: 1 }).unwrap();
    assert_eq!(take(&mut outbox).len(), 1, "a frame larger than the window may be sent alone");
}

#[test]
fn an_outbox_is_full_when_its_stored_frames_exceed_the_window() {
    let mut outbox = Outbox::new(108);
    outbox.push(&[1; 40], MaybeRan::No);
    assert!(!outbox.is_full());
    outbox.push(&[1; 40], MaybeRan::No);
    assert!(!outbox.is_full(), "two frames of 54 bytes fill the window exactly");
    outbox.push(&[1; 40], MaybeRan::No);
    assert!(outbox.is_full());
    take(&mut outbox);
    outbox.acknowledge(Ack { seq: 1, window: 108 }).unwrap();
    assert!(!outbox.is_full(), "an acknowledged frame counts as stored");
}

#[test]
fn protocol_violations_are_detected() {
    let mut outbox = Outbox::new(1000);
    outbox.push(b"a", MaybeRan::No);
    outbox.push(b"b", MaybeRan::No);
    let not_sent = Err(DeliveryError::AckFromTheFuture { acked: 1, sent: 0 });
    assert_eq!(outbox.acknowledge(Ack { seq: 1, window: 10 }), not_sent, "pushed, but never handed out");
    assert_eq!(outbox.resume(1, 10), not_sent);
    take(&mut outbox);
    outbox.acknowledge(Ack { seq: 2, window: 1000 }).unwrap();
    let went_back = Err(DeliveryError::AckWentBack { acked: 1, before: 2 });
    assert_eq!(outbox.acknowledge(Ack { seq: 1, window: 10 }), went_back);
    assert_eq!(outbox.resume(1, 10), went_back);

    // Four empty parts of 14 bytes use up the credit exactly.
    let mut inbox = Inbox::new(10, 56);
    assert_eq!(inbox.accept(part(2, b"x")), Err(DeliveryError::Gap { expected: 1, got: 2 }));
    assert_eq!(inbox.accept(part(1, &[0; 11])), Err(DeliveryError::TooLarge { max: 10 }));
    for seq in 1..=4 {
        inbox.accept(part(seq, b"")).unwrap();
    }
    assert_eq!(inbox.accept(part(5, b"")), Err(DeliveryError::OverCredit { window: 56 }));
}

#[test]
fn a_repeated_part_is_dropped() {
    let mut inbox = Inbox::new(10, 1000);
    assert!(inbox.accept(part(1, b"a")).unwrap().is_some());
    assert_eq!(inbox.accept(part(1, b"a")), Ok(None));
    assert_eq!(inbox.accept(part(0, b"a")), Ok(None));
    assert_eq!(inbox.received(), 1);
}

#[test]
fn the_limit_of_a_message_counts_all_its_parts() {
    let mut inbox = Inbox::new(10, 1000);
    let flags = PartFlags { more: More::Follows, maybe_ran: MaybeRan::No };
    inbox.accept(Part { seq: 1, flags, bytes: vec![0; 6] }).unwrap();
    assert!(inbox.has_partial_message());
    assert_eq!(inbox.accept(part(2, &[0; 5])), Err(DeliveryError::TooLarge { max: 10 }));
    let whole = inbox.accept(part(2, &[0; 4])).unwrap().expect("a message of exactly the limit is accepted");
    assert_eq!((whole.bytes.len(), inbox.has_partial_message()), (10, false));
}

#[test]
fn borrowed_parts_give_the_same_messages() {
    let (mut inbox, mut views) = (Inbox::new(10, 1000), Inbox::new(10, 1000));
    let parts: [(u64, More, &[u8]); 7] = [
        (1, More::Last, b"a"),
        (2, More::Follows, b"bc"),
        (2, More::Follows, b"bc"),
        (3, More::Follows, b"de"),
        (4, More::Last, b"f"),
        (6, More::Last, b"g"),
        (5, More::Last, &[0; 11]),
    ];
    for (seq, more, bytes) in parts {
        let flags = PartFlags { more, maybe_ran: maybe_ran() };
        let expected = inbox.accept(Part { seq, flags: flags.clone(), bytes: bytes.to_vec() });
        let owned = |Received { seq, maybe_ran, bytes }: Received<Cow<'_, [u8]>>| Received {
            seq,
            maybe_ran,
            bytes: bytes.into_owned(),
        };
        let view = views.accept_view(PartView { seq, flags, bytes });
        assert_eq!(view.map(|message| message.map(owned)), expected, "part {seq}");
        assert_eq!((views.received(), views.take_ack()), (inbox.received(), inbox.take_ack()));
    }
}

#[test]
fn a_message_in_parts_is_assembled_in_the_lent_buffer() {
    let mut inbox = Inbox::new(100, 1000);
    let buffer = vec![1; 50];
    let address = buffer.as_ptr();
    inbox.lend(buffer);
    let view =
        |seq, more| PartView { seq, flags: PartFlags { more, maybe_ran: MaybeRan::No }, bytes: b"part" };
    let small = inbox.accept_view(view(1, More::Last)).unwrap().unwrap();
    assert!(matches!(small.bytes, Cow::Borrowed(b"part")));
    inbox.accept_view(view(2, More::Follows)).unwrap();
    let message = inbox.accept_view(view(3, More::Last)).unwrap().unwrap();
    assert_eq!((&*message.bytes, message.bytes.as_ptr()), (b"partpart".as_slice(), address));
}

#[test]
fn acknowledgements_are_batched_up_to_a_quarter_of_the_window() {
    let mut inbox = Inbox::new(1000, 400);
    assert_eq!((inbox.has_pending_ack(), inbox.ack_due(), inbox.take_ack()), (false, false, None));
    inbox.accept(part(1, &[0; 50])).unwrap();
    assert_eq!((inbox.has_pending_ack(), inbox.ack_due()), (true, false));
    inbox.accept(part(2, &[0; 50])).unwrap();
    assert!(inbox.ack_due());
    assert_eq!(inbox.take_ack(), Some(Ack { seq: 2, window: 400 }));
    assert_eq!((inbox.has_pending_ack(), inbox.ack_due(), inbox.take_ack()), (false, false, None));
    assert!(!Inbox::new(1000, 3).ack_due(), "nothing was received, however small the window");
}

#[test]
fn a_restart_clears_outbox_and_inbox() {
    let mut outbox = Outbox::new(1000);
    outbox.push(b"a", MaybeRan::No);
    take(&mut outbox);
    outbox.restart(1000);
    assert_eq!((outbox.handed_out(), outbox.last(), outbox.is_empty()), (0, 0, true));
    assert_eq!(outbox.push(b"b", maybe_ran()), 1);

    let mut inbox = Inbox::new(1000, 1000);
    let flags = PartFlags { more: More::Follows, maybe_ran: MaybeRan::No };
    inbox.accept(Part { seq: 1, flags, bytes: b"half".to_vec() }).unwrap();
    inbox.restart();
    assert_eq!(inbox.received(), 0);
    assert_eq!(inbox.accept(part(1, b"whole")).unwrap().unwrap().bytes, b"whole");
}

fn maybe_ran() -> MaybeRan {
    MaybeRan::Yes(Origin { link: "l-0".into(), seq: 9 })
}
