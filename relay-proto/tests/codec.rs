//! Every frame is decoded as it was encoded, however the bytes are split, and protocol violations give a specific error.

use proptest::prelude::*;
use relay_proto::control::*;
use relay_proto::decoder::Decoder;
use relay_proto::frame::*;
use relay_proto::limits::{MAX_CONTROL_BODY, MAX_LINK_ID, MAX_MESSAGE_PART, MAX_SENTENCE};
use relay_proto::name::Name;

fn name() -> impl Strategy<Value = Name> {
    "[a-z0-9][a-z0-9_-]{0,63}".prop_map(|text| text.parse().expect("the pattern gives names"))
}

fn token() -> impl Strategy<Value = ResumeToken> {
    "[0-9a-f]{64}".prop_map(ResumeToken)
}

fn retry() -> impl Strategy<Value = Retry> {
    prop_oneof![any::<u64>().prop_map(Retry::AfterMs), Just(Retry::Never)]
}

fn proof() -> impl Strategy<Value = Proof> {
    prop_oneof![
        Just(Proof::Socket),
        prop::option::of("[0-9a-f]{64}".prop_map(Epoch)).prop_map(|epoch| Proof::Key { epoch }),
        any::<String>().prop_map(|ticket| Proof::Ticket { ticket: Ticket(ticket) }),
    ]
}

fn hello() -> impl Strategy<Value = Hello> {
    let resume = (any::<String>(), token(), any::<u64>()).prop_map(|(link, token, received)| Resume {
        link,
        token,
        received,
    });
    let capabilities = prop::collection::vec(any::<String>(), 0..4);
    let versions = prop::collection::vec(any::<u16>(), 0..4);
    let purpose = prop_oneof![Just(Purpose::Link), Just(Purpose::Status)];
    let texts = (capabilities, any::<String>());
    (versions, proof(), purpose, prop::option::of(name()), prop::option::of(resume), texts).prop_map(
        |(versions, proof, purpose, server, resume, (capabilities, software))| Hello {
            versions,
            proof,
            purpose,
            server,
            resume,
            capabilities,
            software,
        },
    )
}

fn welcome() -> impl Strategy<Value = Welcome> {
    let resumed = prop_oneof![Just(Resumed::Fresh), Just(Resumed::Resumed)];
    let texts = (any::<String>(), any::<String>());
    let epoch = prop::option::of("[0-9a-f]{64}".prop_map(Epoch));
    (any::<u16>(), texts, name(), resumed, (token(), epoch), any::<[u64; 4]>()).prop_map(
        |(
            version,
            (session, link),
            server,
            resumed,
            (token, epoch),
            [received, window, max_message, heartbeat_ms],
        )| Welcome {
            version,
            session,
            link,
            server,
            resumed,
            token,
            epoch,
            received,
            window,
            max_message,
            heartbeat_ms,
        },
    )
}

fn part() -> impl Strategy<Value = Part> {
    let more = prop_oneof![Just(More::Last), Just(More::Follows)];
    let maybe_ran = prop_oneof![
        Just(MaybeRan::No),
        ("[a-z0-9]{1,64}", any::<u64>())
            .prop_map(|(link, seq)| MaybeRan::Yes(Origin { link: link.into(), seq })),
    ];
    (any::<u64>(), more, maybe_ran, prop::collection::vec(any::<u8>(), 0..300))
        .prop_map(|(seq, more, maybe_ran, bytes)| Part { seq, flags: PartFlags { more, maybe_ran }, bytes })
}

fn frame() -> impl Strategy<Value = Frame> {
    let refusal = (any::<String>(), any::<String>(), retry())
        .prop_map(|(code, message, retry)| Frame::Refusal(Refusal { code, message, retry }));
    let goodbye = (any::<String>(), any::<String>(), retry())
        .prop_map(|(code, message, retry)| Frame::Goodbye(Goodbye { code, message, retry }));
    prop_oneof![
        any::<[u64; 2]>().prop_map(|[seq, window]| Frame::Ack(Ack { seq, window })),
        goodbye,
        hello().prop_map(Frame::Hello),
        part().prop_map(Frame::Message),
        Just(Frame::Ping),
        Just(Frame::Pong),
        refusal,
        welcome().prop_map(Frame::Welcome),
    ]
}

fn stream(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = PREFACE.to_vec();
    frames.iter().for_each(|frame| frame.encode(&mut bytes));
    bytes
}

fn drain(decoder: &mut Decoder, frames: &mut Vec<Frame>) -> Result<(), DecodeError> {
    while let Some(frame) = decoder.next()? {
        frames.push(frame);
    }
    Ok(())
}

/// The frames, and the error if any, when the bytes come in pieces of the given sizes; the last size repeats.
fn decode(bytes: &[u8], pieces: &[usize]) -> (Vec<Frame>, Option<DecodeError>) {
    let (mut decoder, mut frames, mut rest) = (Decoder::new(), Vec::new(), bytes);
    let mut sizes = pieces.iter().chain(pieces.last().into_iter().cycle());
    while !rest.is_empty() {
        let size = (*sizes.next().expect("the last repeats")).clamp(1, rest.len());
        // `feed` and `spare` must give the same frames, so both are used.
        if size.is_multiple_of(2) {
            decoder.feed(&rest[..size]);
        } else {
            let spare = decoder.spare();
            assert!(spare.len() >= 16 * 1024);
            spare[..size].copy_from_slice(&rest[..size]);
            decoder.filled(size);
        }
        rest = &rest[size..];
        if let Err(error) = drain(&mut decoder, &mut frames) {
            assert_eq!(decoder.next(), Err(error.clone()), "a decoder must return the same error again");
            return (frames, Some(error));
        }
    }
    assert!(!decoder.has_partial_frame() || bytes != stream(&frames));
    (frames, None)
}

proptest! {
    #[test]
    fn every_frame_is_decoded_as_it_was_encoded_in_any_split(
        frames in prop::collection::vec(frame(), 0..8),
        pieces in prop::collection::vec(1usize..200, 1..20),
    ) {
        prop_assert_eq!(decode(&stream(&frames), &pieces), (frames, None));
    }

    #[test]
    fn damaged_bytes_are_decoded_alike_in_any_split(
        frames in prop::collection::vec(frame(), 0..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        pieces in prop::collection::vec(1usize..50, 1..20),
    ) {
        let mut bytes = stream(&frames);
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let (whole, split) = (decode(&bytes, &[bytes.len()]), decode(&bytes, &pieces));
        prop_assert_eq!(whole.0, split.0);
        prop_assert_eq!(whole.1.map(|e| std::mem::discriminant(&e)), split.1.map(|e| std::mem::discriminant(&e)));
    }
}

fn error(bytes: &[u8]) -> DecodeError {
    decode(bytes, &[bytes.len()]).1.expect("these bytes must be refused")
}

fn raw(length: u32, rest: &[u8]) -> Vec<u8> {
    [PREFACE, &length.to_be_bytes(), rest].concat()
}

#[test]
fn another_version_and_another_protocol_give_different_errors() {
    assert_eq!(error(b"cofferdam-relay/2\n"), DecodeError::OtherVersion { ours: 1, theirs: 2 });
    assert!(error(b"cofferdam-relay/2\n").to_string().ends_with("upgrade this side"));
    assert!(error(b"cofferdam-relay/0\n").to_string().ends_with("upgrade the other side"));
    for opening in [
        "GET / HTTP/1.1\r\n",
        "{\"jsonrpc\"",
        "cofferdam-relay/\n",
        "cofferdam-relay/1\r\n",
        "cofferdam-relay/01\n",
        "cofferdam-relay/123456",
        "cofferdam-relay/70000\n",
        "x",
    ] {
        assert!(matches!(error(opening.as_bytes()), DecodeError::NotARelay { .. }), "{opening:?}");
    }
    assert_eq!(decode(b"cofferdam-rel", &[1]), (vec![], None), "the beginning of a preface is no error");
}

#[test]
fn unknown_kinds_and_flags_are_refused_with_their_number() {
    assert_eq!(error(&raw(1, &[0x7f])), DecodeError::UnknownKind(0x7f));
    assert_eq!(error(&raw(10, &[0x10, 0, 0, 0, 0, 0, 0, 0, 1, 4])), DecodeError::UnknownFlags(4));
    assert_eq!(error(&raw(9, &[0x10, 0, 0, 0, 0, 0, 0, 0, 1])), DecodeError::ShortMessage(8));
    assert_eq!(error(&raw(0, &[])), DecodeError::Empty);
    assert!(matches!(error(&raw(3, b"\x12[]")), DecodeError::Body { kind: "Ping", .. }));
    assert!(matches!(error(&raw(3, b"\x11{}")), DecodeError::Body { kind: "Ack", .. }));
    assert_eq!(decode(&raw(8, b"\x13{\"a\":1}"), &[3]), (vec![Frame::Pong], None), "new fields are ignored");
}

#[test]
fn a_limit_is_checked_before_the_body_arrives() {
    let max = 1 + 9 + (9 + MAX_LINK_ID) + MAX_MESSAGE_PART;
    let (length, kind) = (max + 1, "Message");
    assert_eq!(error(&raw(length as u32, &[0x10])), DecodeError::TooLarge { kind, length, max });
    let (length, max, kind) = (u32::MAX as usize, 1 + MAX_CONTROL_BODY, "Hello");
    assert_eq!(error(&raw(u32::MAX, &[0x01])), DecodeError::TooLarge { kind, length, max });
}

#[test]
fn the_largest_part_is_accepted() {
    let frame =
        Frame::Message(Part { seq: 1, flags: PartFlags::default(), bytes: vec![9; MAX_MESSAGE_PART] });
    assert_eq!(decode(&stream(std::slice::from_ref(&frame)), &[1000]), (vec![frame], None));
}

#[test]
fn any_sentence_fits_a_control_frame() {
    // The worst cases: a character that JSON escapes with six bytes, and one that would be cut in the middle.
    for text in ["\u{1}".repeat(MAX_CONTROL_BODY), "x".to_owned() + &"é".repeat(MAX_CONTROL_BODY)] {
        let (code, message, retry) = (text.clone(), text.clone(), Retry::Never);
        let goodbye = Frame::Goodbye(Goodbye { code: code.clone(), message: message.clone(), retry });
        let refusal = Frame::Refusal(Refusal { code, message, retry });
        let (frames, error) = decode(&stream(&[goodbye, refusal]), &[1000]);
        assert_eq!(error, None);
        let [Frame::Goodbye(goodbye), Frame::Refusal(refusal)] = frames.as_slice() else {
            panic!("{frames:?}")
        };
        for sentence in [&goodbye.message, &refusal.message] {
            assert!(text.starts_with(sentence) && sentence.len() > MAX_SENTENCE - 4, "{}", sentence.len());
        }
    }
}

#[test]
fn errors_quote_a_bounded_part_of_the_peers_bytes() {
    let body = format!(r#"{{"seq":"{}","window":1}}"#, "é".repeat(5000));
    let frame = [b"\x11", body.as_bytes()].concat();
    let message = error(&raw(frame.len() as u32, &frame)).to_string();
    assert!(
        message.starts_with("cannot read a frame of kind Ack: invalid type: string") && message.len() < 300,
        "{message}"
    );
}

#[test]
fn a_message_in_parts_is_read_in_large_pieces_and_its_memory_is_freed() {
    let part = |seq, more| {
        let flags = PartFlags { more, maybe_ran: MaybeRan::No };
        Frame::Message(Part { seq, flags, bytes: vec![9; MAX_MESSAGE_PART] })
    };
    let mut decoder = Decoder::new();
    decoder.feed(&stream(&[part(1, More::Follows)]));
    assert!(matches!(decoder.next(), Ok(Some(Frame::Message(_)))));
    assert_eq!(decoder.next(), Ok(None));
    assert!(decoder.spare().len() >= 128 * 1024);
    let mut last = Vec::new();
    part(2, More::Last).encode(&mut last);
    decoder.feed(&last);
    let Ok(Some(FrameView::Message(view))) = decoder.next_view() else {
        panic!("the last part was not decoded")
    };
    assert_eq!((view.seq, view.bytes.len()), (2, MAX_MESSAGE_PART));
    assert_eq!(decoder.next(), Ok(None));
    assert!(decoder.spare().len() < 64 * 1024, "the large buffer was not freed");
}

#[test]
fn a_resume_token_is_not_printed() {
    let token = ResumeToken("5ec2e7".into());
    assert!(!format!("{token:?}").contains("5ec2e7"));
}
