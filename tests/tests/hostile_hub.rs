//! A hostile hub at the other end of a pipe: it is bounded, its pipe ends, and other links are undisturbed.

use std::time::Duration;

use cofferdam_tests::attach::Attach;
use cofferdam_tests::process::peak_memory_kib;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use relay_carriage::BoxedStream;
use relay_carriage::identity::Identity;
use relay_carriage::inbound::accept_inbound_for;
use relay_carriage::tls::StreamProtocol;
use relay_carriage::trunk::{MAX_SUBSTREAMS, WINDOW};
use relay_proto::key::PublicKey;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// A yamux frame: kinds are data (0), window update (1), ping (2), go away (3); flags are SYN 1, ACK 2, FIN 4, RST 8.
fn frame(kind: u8, flags: u16, stream: u32, length: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, kind];
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn data(flags: u16, stream: u32, body: &[u8]) -> Vec<u8> {
    frame(0, flags, stream, u32::try_from(body.len()).expect("a short body"), body)
}

/// Names and bytes of the attacks; each is sent over a new pipe.
fn attacks() -> Vec<(&'static str, Vec<u8>)> {
    let many = |count: u32, one: &dyn Fn(u32) -> Vec<u8>| (0..count).flat_map(one).collect::<Vec<u8>>();
    let preface = b"cofferdam-relay/1\n";
    vec![
        ("bytes that are not yamux", b"GET / HTTP/1.1\r\n\r\n".repeat(10)),
        ("another version of yamux", [&[9][..], &[0; 11]].concat()),
        ("a body of four gigabytes", frame(0, 1, 1, u32::MAX, &[])),
        ("a body beyond the window", data(1, 1, &vec![7; WINDOW + 1])),
        (
            "more streams than there may be",
            many(MAX_SUBSTREAMS as u32 * 4, &|number| data(1, number * 2 + 1, preface)),
        ),
        ("a stream of the sidecar's own numbers", data(1, 2, preface)),
        ("one stream twice", [data(1, 1, preface), data(1, 1, preface)].concat()),
        (
            "credit without end",
            [data(1, 1, preface), frame(1, 0, 1, u32::MAX, &[]), frame(1, 0, 1, u32::MAX, &[])].concat(),
        ),
        ("a pong without a ping", frame(2, 2, 0, 77, &[])),
        ("pings without end", many(300_000, &|number| frame(2, 1, 0, number, &[]))),
        ("a million bytes, one at a time", {
            let opening = data(1, 1, preface);
            [opening, many(1_000_000, &|_| data(0, 1, b"x"))].concat()
        }),
        (
            "streams that come and go",
            many(50_000, &|number| {
                let stream = number * 2 + 1;
                [data(1, stream, b"c"), data(8, stream, &[])].concat()
            }),
        ),
    ]
}

#[test]
fn a_hostile_hub_is_bounded_and_disturbs_no_other_sandbox() {
    let mut world = World::new().server("tools", Server::fixture()).relay("heartbeat = \"1s\"").start();
    let pin: PublicKey = world.cofferdam_text(&["key"]).trim().parse().expect("a key");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("the loopback has ports");
    let address = listener.local_addr().expect("it is bound").to_string();
    let mut honest = world.connected("tools");
    let before = peak_memory_kib(world.sidecar().id());
    for (what, bytes) in attacks() {
        // A new `attach` each time: the backoff of a single one would grow.
        let _attach = Attach::start(&world, &["dial", &address, "--grant", "dev"]);
        let mut pipe = runtime.block_on(accept_pipe(&listener, &pin));
        runtime.block_on(attack(&mut pipe, &bytes));
        assert_eq!(honest.call_text("echo", json!({"text": what})), what);
    }
    let grown = peak_memory_kib(world.sidecar().id()) - before;
    assert!(grown < 96 * 1024, "the sidecar grew by {grown} KiB");
    // The list also has attached sandboxes without a link.
    let sessions = world.sessions();
    let links = sessions.as_array().into_iter().flatten().filter(|session| session["link"].is_string());
    assert_eq!(links.count(), 1, "another link was accepted: {sessions}");
}

/// Waits until the sidecar has connected and authenticated.
async fn accept_pipe(listener: &TcpListener, pin: &PublicKey) -> BoxedStream {
    let identity = Identity::generate().expect("random numbers");
    let accept = async {
        loop {
            let (stream, _) = listener.accept().await.expect("connections");
            if let Ok(stream) = accept_inbound_for(StreamProtocol::Hub, stream, &identity, pin).await {
                return stream;
            }
        }
    };
    timeout(Duration::from_secs(40), accept).await.expect("the sidecar dials")
}

/// Sends the bytes, and reads until the sidecar closes the pipe or sends nothing for half a second.
async fn attack(pipe: &mut BoxedStream, bytes: &[u8]) {
    let (mut reading, mut writing) = tokio::io::split(pipe);
    let send = async {
        let _ = writing.write_all(bytes).await;
        let _ = writing.flush().await;
    };
    let receive = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(Ok(1..)) = timeout(Duration::from_millis(500), reading.read(&mut buffer)).await {}
    };
    tokio::join!(timeout(Duration::from_secs(40), send), receive)
        .0
        .expect("the sidecar reads the bytes or closes the pipe");
}
