//! A hostile sandbox that opens, holds and breaks links: each is refused or bounded, memory stays flat, and other
//! sandboxes get responses meanwhile.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::memory_kib;
use cofferdam_tests::relay::{Next, RawRelay, hello};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use relay_proto::control::{Hello, Resume, Resumed, Welcome};
use relay_proto::delivery::Outbox;
use relay_proto::frame::{Ack, Frame, MaybeRan, PREFACE};
use serde_json::json;

/// Memory counts as flat if it grows by no more than this after the first round.
const FLAT_KIB: u64 = 16 * 1024;

/// Another sandbox's link, which must get responses whatever happens.
struct Bystander(Harness);

impl Bystander {
    #[track_caller]
    fn assert_answered(&mut self) {
        assert_eq!(self.0.call_text("echo", json!({"text": "undisturbed"})), "undisturbed");
    }
}

#[test]
fn ten_thousand_half_open_connections_keep_no_client_out() {
    const BATCH: usize = 1000;
    let mut world = World::new().server("tools", Server::fixture()).limit("links-per-minute = 10000").start();
    let mut bystander = Bystander(world.connected("tools"));
    let mut opening = PREFACE.to_vec();
    Frame::Hello(hello("tools", &[1])).encode(&mut opening);
    let mut first_round = None;
    for round in 0..10_000 / BATCH {
        let mut held = Vec::new();
        for number in 0..BATCH {
            let mut stream =
                UnixStream::connect(&world.layout().relay).expect("the socket accepts connections");
            // Sends nothing, or a part of the preface or of the Hello. The sidecar may have closed the stream already.
            let _ = stream.write_all(&opening[..(number * 7) % opening.len()]);
            held.push(stream);
        }
        bystander.assert_answered();
        assert_eq!(world.connected("tools").call_text("echo", json!({"text": "a newcomer"})), "a newcomer");
        let memory = memory_kib(world.sidecar().id());
        let before = *first_round.get_or_insert(memory);
        assert!(memory < before + FLAT_KIB, "round {round}: {memory} KiB, {before} after the first");
    }
}

#[test]
fn a_hello_sent_byte_by_byte_times_out() {
    let world = World::new().server("tools", Server::fixture()).limit("greeting-timeout = \"2s\"").start();
    let mut bystander = Bystander(world.connected("tools"));
    let mut opening = PREFACE.to_vec();
    Frame::Hello(hello("tools", &[1])).encode(&mut opening);
    let mut slow: Vec<UnixStream> =
        (0..40).map(|_| UnixStream::connect(&world.layout().relay).unwrap()).collect();
    // All but the last byte of a Hello: the connection is never idle, and its Hello never complete.
    let pace = Duration::from_secs(6) / opening.len() as u32;
    for byte in &opening[..opening.len() - 1] {
        slow.retain_mut(|stream| stream.write_all(&[*byte]).is_ok());
        std::thread::sleep(pace);
    }
    bystander.assert_answered();
    assert!(slow.is_empty(), "{} connections outlived the Hello timeout", slow.len());
    world.wait_until("the reason is logged", || world.log().contains("no Hello arrived in time"));
    assert_eq!(world.connected("tools").call_text("echo", json!({"text": "a newcomer"})), "a newcomer");
}

#[test]
fn frames_that_no_shim_sends_end_their_link_and_no_other() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    let mut bystander = Bystander(world.connected("tools"));
    let before = memory_kib(world.sidecar().id());
    let mut control = Vec::new();
    Frame::Hello(hello("tools", &[1])).encode(&mut control);
    let ack = |seq: u64, window: u64| {
        let mut bytes = Vec::new();
        Frame::Ack(Ack { seq, window }).encode(&mut bytes);
        bytes
    };
    let message = |seq: u64, flags: u8, bytes: &[u8]| {
        let mut frame = (1 + 9 + bytes.len() as u32).to_be_bytes().to_vec();
        frame.push(0x10);
        frame.extend_from_slice(&seq.to_be_bytes());
        frame.push(flags);
        frame.extend_from_slice(bytes);
        frame
    };
    let endless: Vec<u8> = (1..200).flat_map(|seq| message(seq, 1, &[b'x'; 65_536])).collect();
    let hostile: [(&str, Vec<u8>); 12] = [
        ("four gigabytes", vec![0xff, 0xff, 0xff, 0xff, 0x10]),
        ("an oversize control body", vec![0, 1, 0, 0, 0x11]),
        ("nothing at all", vec![0, 0, 0, 0, 0]),
        ("an unknown kind", vec![0, 0, 0, 1, 0x77]),
        ("a body that is no JSON", b"\0\0\0\x05\x11nope".to_vec()),
        ("noise", (0..5000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()),
        ("a second Hello", control),
        ("an acknowledgement from the future", ack(1, 1 << 20)),
        ("an acknowledgement from the far future", ack(u64::MAX, u64::MAX)),
        ("a gap", message(7, 0, b"{}")),
        ("unknown flags", message(1, 0x80, b"{}")),
        ("a message without end", endless),
    ];
    for (what, bytes) in hostile {
        let mut relay = RawRelay::connect(&world.layout().relay);
        relay.await_welcome("tools");
        relay.send(&bytes);
        let closed =
            std::iter::repeat_with(|| relay.next_frame()).find(|next| !matches!(next, Next::Frame(_)));
        assert!(matches!(closed, Some(Next::Closed)), "{what}: {closed:?}");
        bystander.assert_answered();
    }
    let memory = memory_kib(world.sidecar().id());
    assert!(memory < before + 2 * FLAT_KIB, "{memory} KiB, {before} before");
}

#[test]
fn a_resume_that_acknowledges_unsent_frames_is_refused_without_harm_to_the_owner() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut owner = RawRelay::connect(&world.layout().relay);
    let welcome = owner.await_welcome("tools");
    owner.send_frame(&Frame::Ping);
    assert!(matches!(owner.next_frame(), Next::Frame(frame) if *frame == Frame::Pong));
    drop(owner);
    let resume = |welcome: &Welcome, received| {
        let mut relay = RawRelay::connect(&world.layout().relay);
        let resume = Resume { link: welcome.link.clone(), token: welcome.token.clone(), received };
        relay.send(PREFACE);
        relay.send_frame(&Frame::Hello(Hello { resume: Some(resume), ..hello("tools", &[1]) }));
        let Next::Frame(response) = relay.next_frame() else { panic!("expected a response") };
        (relay, *response)
    };
    for received in [1, u64::MAX] {
        let (_, response) = resume(&welcome, received);
        assert!(
            matches!(&response, Frame::Refusal(refusal) if refusal.code == "clone_refused"),
            "{response:?}"
        );
    }
    let link = welcome.link.clone();
    let (_owner, response) = resume(&welcome, 0);
    let Frame::Welcome(again) = response else { panic!("{response:?}") };
    assert_eq!((again.link, again.resumed), (link, Resumed::Resumed));
}

#[test]
fn a_million_tiny_messages_use_no_memory() {
    const COUNT: usize = 1_000_000;
    let mut world = World::new().server("tools", Server::fixture()).start();
    let mut bystander = Bystander(world.connected("tools"));
    let mut relay = RawRelay::connect(&world.layout().relay);
    let welcome = relay.await_welcome("tools");
    let mut outbox = Outbox::new(welcome.window);
    let tiny: [&[u8]; 4] =
        [br#"{"jsonrpc":"2.0","method":"x"}"#, br#"{"jsonrpc":"2.0","id":1,"result":{}}"#, b"{}", b""];
    let mut before = None;
    for number in 0..COUNT {
        outbox.push(tiny[number % tiny.len()], MaybeRan::No);
        if number % 100 == 99 {
            let mut bytes = Vec::new();
            outbox.take_ready(&mut bytes);
            relay.send(&bytes);
            relay.take_acks(&mut outbox);
        }
        if number % 100_000 == 50_000 {
            bystander.assert_answered();
            let memory = memory_kib(world.sidecar().id());
            let first = *before.get_or_insert(memory);
            assert!(memory < first + FLAT_KIB, "{memory} KiB after {number}, {first} before");
        }
    }
    bystander.assert_answered();
    let audit: u64 = world.audit_files().iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    assert!(audit < 300 << 20, "the audit has {audit} bytes");
}
