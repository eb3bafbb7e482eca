//! A hostile sandbox that opens, holds and breaks links: each is refused or bounded, memory stays flat, and other
//! sandboxes get responses meanwhile.

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_tests::attach::connected;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::paced_lines::lines_and_left_out;
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{memory_kib, open_descriptors};
use cofferdam_tests::relay::{Next, RawRelay, hello};
use cofferdam_tests::sandbox_files::enroll;
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::cannot_run;
use cofferdam_tests::world::World;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use relay_proto::control::{Hello, Resume, Resumed, Welcome};
use relay_proto::delivery::Outbox;
use relay_proto::frame::{Ack, Frame, MaybeRan, PREFACE};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
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

/// Connections that a hostile sandbox holds at once.
const HALF_OPEN: usize = 10_000;
/// Connections between two checks of the sidecar.
const BATCH: usize = 1000;
/// Descriptors of a sidecar with a few links and every slot for handshakes taken.
const MAX_DESCRIPTORS: usize = 256;

#[test]
fn ten_thousand_half_open_connections_keep_no_client_out() {
    if !can_hold_half_open_connections() {
        return;
    }
    let world = World::new().server("tools", Server::fixture()).limit("links-per-minute = 10000").start();
    let bystander = Bystander(world.connected("tools"));
    let mut opening = PREFACE.to_vec();
    Frame::Hello(hello("tools", &[1])).encode(&mut opening);
    // Nothing, or a part of the preface or of the Hello.
    let parts: Vec<&[u8]> = (0..opening.len()).step_by(7).map(|length| &opening[..length]).collect();
    let relay = world.layout().relay.clone();
    let connect = || UnixStream::connect(&relay).expect("the socket accepts connections");
    assert_half_open_connections_disturb_no_link(world, bystander, connect, &parts, |world| {
        world.connected("tools")
    });
}

/// A whole ClientHello makes the sidecar compute a signature before it waits for the rest of the handshake.
#[test]
fn ten_thousand_half_open_connections_to_the_tls_port_keep_no_client_out() {
    if !can_hold_half_open_connections() {
        return;
    }
    let port = free_address();
    let world = World::new()
        .server("tools", Server::fixture())
        .relay(&format!("tls = \"{port}\""))
        .limit("links-per-minute = 10000")
        .start();
    let bystander = Bystander(enrolled_shim(&world));
    let client_hello = client_hello();
    let upgrade = b"GET /relay HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n";
    let parts: [&[u8]; 6] =
        [b"", &client_hello[..1], &client_hello[..client_hello.len() / 2], &client_hello, b"G", upgrade];
    let connect = || TcpStream::connect(port).expect("the port accepts connections");
    assert_half_open_connections_disturb_no_link(world, bystander, connect, &parts, enrolled_shim);
}

/// A client whose connection finds no place waits a second, then two, then four: so the places must suffice for the
/// sandboxes of a large host that reconnect at the same time, even if the sidecar does not accept at once.
#[test]
fn a_thousand_connections_to_the_tls_port_wait_while_the_sidecar_does_not_accept() {
    let port = free_address();
    let mut world =
        World::new().server("tools", Server::fixture()).relay(&format!("tls = \"{port}\"")).start();
    let mut bystander = Bystander(enrolled_shim(&world));
    world.sidecar().signal(Signal::SIGSTOP);
    let waiting: Result<Vec<TcpStream>, _> =
        (0..1000).map(|_| TcpStream::connect_timeout(&port, Duration::from_secs(5))).collect();
    world.sidecar().signal(Signal::SIGCONT);
    waiting.expect("every connection has a place in the queue");
    bystander.assert_answered();
}

/// Opens connections, sends one of `parts` on each and holds all of them, while existing and new links get responses.
fn assert_half_open_connections_disturb_no_link<S: Write>(
    mut world: World,
    mut bystander: Bystander,
    connect: impl Fn() -> S,
    parts: &[&[u8]],
    newcomer: impl Fn(&World) -> Harness,
) {
    let mut held = Vec::new();
    let mut first_round = None;
    while held.len() < HALF_OPEN {
        for number in 0..BATCH {
            let mut stream = connect();
            // The sidecar may have closed the stream already.
            let _ = stream.write_all(parts[number % parts.len()]);
            held.push(stream);
        }
        bystander.assert_answered();
        assert_eq!(newcomer(&world).call_text("echo", json!({"text": "a newcomer"})), "a newcomer");
        let memory = memory_kib(world.sidecar().id());
        let before = *first_round.get_or_insert(memory);
        let count = held.len();
        assert!(memory < before + FLAT_KIB, "{memory} KiB with {count}, {before} after the first round");
        let descriptors = open_descriptors(world.sidecar().id());
        assert!(
            descriptors < MAX_DESCRIPTORS,
            "the sidecar has {descriptors} descriptors with {count} clients"
        );
    }
}

/// Raises this process's limit of descriptors, if the machine allows as many as the test holds.
fn can_hold_half_open_connections() -> bool {
    let needed = HALF_OPEN as u64 + 500;
    let (_, maximum) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit can be read");
    let raised = maximum >= needed && setrlimit(Resource::RLIMIT_NOFILE, maximum, maximum).is_ok();
    if !raised {
        cannot_run(&format!("this machine allows {maximum} descriptors, and the test holds {needed}"));
    }
    raised
}

/// A shim of a sandbox that was just enrolled, after its MCP handshake.
fn enrolled_shim(world: &World) -> Harness {
    let state =
        tempfile::tempdir_in(world.layout().root()).expect("the world's directory is writable").keep();
    let mut command = world.bare_shim_command();
    command.args(["--server", "tools"]).env("COFFERDAM_STATE", state);
    command.env("COFFERDAM_ENROLL", enroll(world, &[]));
    Harness::start(command, "cofferdam-shim").initialized()
}

/// The first message of a TLS client that wants a link.
fn client_hello() -> Vec<u8> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has suites of TLS 1.3")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = vec![relay_carriage::tls::ALPN.to_vec()];
    let name = ServerName::try_from("sidecar.invalid").expect("this is a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("the configuration is valid");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("writing to memory does not fail");
    bytes
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
fn links_that_break_the_protocol_do_not_flood_the_log() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut second_hello = Vec::new();
    Frame::Hello(hello("tools", &[1])).encode(&mut second_hello);
    for mut relay in open_links(&world) {
        relay.send(&second_hello);
    }
    assert_lines_are_left_out_and_counted(&world, "the shim broke the relay protocol");
}

#[test]
fn connections_that_are_lost_do_not_flood_the_log() {
    let world = World::new().server("tools", Server::fixture()).start();
    drop(open_links(&world));
    assert_lines_are_left_out_and_counted(&world, "connection lost");
}

/// More links than the log has lines for at once.
const LOGGED_LINKS: usize = 60;

fn open_links(world: &World) -> Vec<RawRelay> {
    let open = || {
        let mut relay = RawRelay::connect(&world.layout().relay);
        relay.await_welcome("tools");
        relay
    };
    std::iter::repeat_with(open).take(LOGGED_LINKS).collect()
}

/// Of the lines with this text, one for each link, some are in the log and the others are counted there.
#[track_caller]
fn assert_lines_are_left_out_and_counted(world: &World, text: &str) {
    let logged = || lines_and_left_out(&world.log(), text);
    world.wait_until("each line is in the log or counted", || {
        let (lines, left_out) = logged();
        lines + left_out == LOGGED_LINKS
    });
    assert!(logged().0 < LOGGED_LINKS, "no line was left out");
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
    // In a sandbox of its own: the processes of one user share a budget in the audit on the shared socket.
    let directory = world.layout().root().join("bystander");
    let link = enroll(&world, &["--socket", directory.to_str().unwrap()]);
    let mut bystander = Bystander(connected(&link, "tools"));
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
