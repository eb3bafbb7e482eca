//! The bytes of version 1, which must never change.
//!
//! Files are added, never edited. `COFFERDAM_WRITE_GOLDEN=1 cargo test -p relay-proto --test golden` writes the files
//! that are missing; it overwrites nothing.

use std::path::PathBuf;

use relay_proto::control::*;
use relay_proto::decoder::Decoder;
use relay_proto::frame::*;

#[test]
fn valid_golden_bytes_are_written_and_read_unchanged() {
    for (name, frames) in valid_frames() {
        let mut bytes = PREFACE.to_vec();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        let golden = read_golden(&format!("good-{name}"), &bytes);
        assert_eq!(golden, bytes, "{name}: this version no longer writes what it wrote");
        assert_eq!(decode(&golden), (frames, None), "{name}: this version no longer reads what it wrote");
    }
}

#[test]
fn unknown_keys_of_a_later_version_are_ignored() {
    let bytes = [PREFACE, &[0, 0, 0, 45, 0x11], br#"{"seq":7,"window":9,"later":{"nested":[1]}} "#].concat();
    let golden = read_golden("good-ack-with-a-later-field", &bytes);
    assert_eq!(decode(&golden), (vec![Frame::Ack(Ack { seq: 7, window: 9 })], None));
}

#[test]
fn invalid_golden_bytes_are_refused_with_the_same_error() {
    for (name, bytes, error) in invalid_bytes() {
        let golden = read_golden(&format!("bad-{name}"), &bytes);
        assert_eq!(decode(&golden), (vec![], Some(error)), "{name}");
    }
}

#[test]
fn every_golden_file_is_checked() {
    let later = ["good-ack-with-a-later-field".to_owned()];
    let mut expected: Vec<_> = valid_frames()
        .into_iter()
        .map(|(name, _)| format!("good-{name}"))
        .chain(invalid_bytes().into_iter().map(|(name, ..)| format!("bad-{name}")))
        .chain(later)
        .map(|name| format!("{name}.bin"))
        .collect();
    let mut found: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}

fn valid_frames() -> Vec<(&'static str, Vec<Frame>)> {
    let token = || ResumeToken("00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff".into());
    let hello = |proof, server: Option<&str>, resume| {
        Frame::Hello(Hello {
            versions: vec![1],
            proof,
            purpose: Purpose::Link,
            server: server.map(|name| name.parse().expect("a name")),
            resume,
            capabilities: vec![],
            software: "cofferdam-shim 0.1.0".into(),
        })
    };
    let welcome = |resumed, received| {
        Frame::Welcome(Welcome {
            version: 1,
            session: "s-1".into(),
            link: "l-1".into(),
            server: "github".parse().expect("a name"),
            resumed,
            token: token(),
            epoch: None,
            received,
            window: 2097152,
            max_message: 10484736,
            heartbeat_ms: 20000,
        })
    };
    let message = |seq, more, maybe_ran, text: &str| {
        Frame::Message(Part { seq, flags: PartFlags { more, maybe_ran }, bytes: text.into() })
    };
    let resume = Resume { link: "l-1".into(), token: token(), received: 41 };
    let Frame::Hello(plain) = hello(Proof::Socket, None, None) else { unreachable!("it is a Hello") };
    let status_request = Frame::Hello(Hello { purpose: Purpose::Status, ..plain });
    let Frame::Welcome(plain) = welcome(Resumed::Fresh, 0) else { unreachable!("it is a Welcome") };
    let welcome_with_epoch = Frame::Welcome(Welcome { epoch: Some(Epoch("ff00".repeat(16))), ..plain });
    let status = Frame::Status(Status {
        name: Some("build-7".into()),
        grant: "dev".parse().expect("a name"),
        servers: vec!["github".parse().expect("a name")],
        session: Some("s-1".into()),
        links: 2,
        expires_in_seconds: Some(3600),
        software: "cofferdam 0.1.0".into(),
        unix_time: None,
    });
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    vec![
        ("ack", vec![Frame::Ack(Ack { seq: 3, window: 2097152 })]),
        (
            "goodbye",
            vec![
                Frame::Goodbye(Goodbye { code: "done".into(), message: String::new(), retry: Retry::Never }),
                Frame::Goodbye(Goodbye {
                    code: "session_ended".into(),
                    message: "the session was ended by an operator".into(),
                    retry: Retry::AfterMs(500),
                }),
            ],
        ),
        ("hello", vec![hello(Proof::Socket, None, None)]),
        ("hello-resume", vec![hello(Proof::Socket, Some("github"), Some(resume))]),
        (
            "hello-proofs",
            vec![
                hello(Proof::Key { epoch: None }, None, None),
                hello(Proof::Ticket { ticket: Ticket("t".into()) }, None, None),
            ],
        ),
        ("hello-epoch", vec![hello(Proof::Key { epoch: Some(Epoch("00ff".repeat(16))) }, None, None)]),
        ("hello-status", vec![status_request]),
        ("status", vec![status]),
        ("welcome-epoch", vec![welcome_with_epoch]),
        ("message", vec![message(1, More::Last, MaybeRan::No, ping)]),
        (
            "message-in-parts",
            vec![
                message(2, More::Follows, MaybeRan::Yes(Origin { link: "l-0".into(), seq: 7 }), &ping[..20]),
                message(3, More::Last, MaybeRan::No, &ping[20..]),
            ],
        ),
        ("nothing", vec![]),
        ("ping-pong", vec![Frame::Ping, Frame::Pong]),
        (
            "refusal",
            vec![
                Frame::Refusal(Refusal {
                    code: "server_not_granted".into(),
                    message: "`prod` is not in this grant".into(),
                    retry: Retry::Never,
                }),
                Frame::Refusal(Refusal {
                    code: "relay_unavailable".into(),
                    message: "too many links".into(),
                    retry: Retry::AfterMs(2000),
                }),
            ],
        ),
        ("welcome", vec![welcome(Resumed::Fresh, 0)]),
        ("welcome-resumed", vec![welcome(Resumed::Resumed, 17)]),
    ]
}

fn invalid_bytes() -> Vec<(&'static str, Vec<u8>, DecodeError)> {
    let after_preface = |bytes: &[u8]| [PREFACE, bytes].concat();
    vec![
        ("empty-frame", after_preface(&[0, 0, 0, 0]), DecodeError::Empty),
        (
            "not-a-relay",
            b"GET /mcp HTTP/1.1\r\n".to_vec(),
            DecodeError::NotARelay { opening: b"GET /mcp HTTP/1.1\r\n".to_vec() },
        ),
        ("other-version", b"cofferdam-relay/2\n".to_vec(), DecodeError::OtherVersion { ours: 1, theirs: 2 }),
        ("short-message", after_preface(&[0, 0, 0, 2, 0x10, 0]), DecodeError::ShortMessage(1)),
        (
            "too-large-control",
            after_preface(&[0, 0, 0x40, 0x02, 0x01]),
            DecodeError::TooLarge { kind: "Hello", length: 16386, max: 16385 },
        ),
        (
            "too-large-message",
            after_preface(&[0, 1, 0, 0x54, 0x10]),
            DecodeError::TooLarge { kind: "Message", length: 65620, max: 65619 },
        ),
        (
            "unknown-flags",
            after_preface(&[0, 0, 0, 10, 0x10, 0, 0, 0, 0, 0, 0, 0, 1, 0x80]),
            DecodeError::UnknownFlags(0x80),
        ),
        ("unknown-kind", after_preface(&[0, 0, 0, 3, 0x20, b'{', b'}']), DecodeError::UnknownKind(0x20)),
    ]
}

fn decode(bytes: &[u8]) -> (Vec<Frame>, Option<DecodeError>) {
    let mut decoder = Decoder::new();
    decoder.feed(bytes);
    let mut frames = Vec::new();
    loop {
        match decoder.next() {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error)),
        }
    }
}

fn read_golden(name: &str, current: &[u8]) -> Vec<u8> {
    let path = folder().join(format!("{name}.bin"));
    if !path.exists() && std::env::var_os("COFFERDAM_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, current).expect("the golden folder is writable");
    }
    std::fs::read(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/v1")
}
