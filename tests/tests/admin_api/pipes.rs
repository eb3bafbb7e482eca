//! A pipe that was opened with a token ends with the token, whether a hub or a single shim is at the other end.

use std::io::Read as _;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cofferdam_tests::attach::{shim_at, shim_binary};
use cofferdam_tests::deadline::holds_within;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::{Running, command};

use super::tokens::id_of;
use super::*;

/// Much less than the time after which a hub or the sidecar would notice a silent pipe.
const AT_ONCE: Duration = Duration::from_secs(8);

/// A pipe that a client with a token has opened, into a sandbox that the administrator holds: only the pipe belongs to the
/// token.
struct PipeOfToken {
    world: World,
    token: String,
    holding: Box<dyn Stream>,
    pipe: UnixStream,
}

impl PipeOfToken {
    #[track_caller]
    fn open() -> Self {
        let world = two_grants().start();
        let token = world.cofferdam_text(&["token", "create", "--grant", "dev"]).trim().to_owned();
        let (admin, client) = (AdminClient::socket(&world), AdminClient::socket(&world).with_token(&token));
        let mut holding = admin.open(&hold(&admin, "dev", "box"));
        let answer = read_until(&mut *holding, "\"pin\"");
        let (_, rest) = answer.split_once("\"enrolment\":\"").expect("the enrolment is named");
        let enrolment = rest.split('"').next().expect("a split has a first part");
        let mut pipe = UnixStream::connect(&world.layout().admin).expect("the sidecar accepts connections");
        let upgrade = "connection: upgrade\r\nupgrade: cofferdam-pipe\r\n";
        let request = client.request("POST", &format!("/v1/attach/{enrolment}/pipe"), upgrade, "");
        pipe.write_all(request.as_bytes()).expect("the sidecar reads requests");
        let mut head = Vec::new();
        // Reads byte by byte, because the bytes after the head belong to the hub.
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            pipe.read_exact(&mut byte).expect("the sidecar does not respond");
            head.extend(byte);
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        Self { world, token, holding, pipe }
    }

    /// Calls a tool, revokes the token, and waits until the link of this shim is lost.
    #[track_caller]
    fn assert_revocation_ends_link(&mut self, shim: &mut Harness) {
        assert_eq!(shim.call_text("echo", json!({"text": "by the pipe"})), "by the pipe");
        let admin = AdminClient::socket(&self.world);
        let is_connected = || admin.get("/v1/sessions").ok()["sessions"][0]["connected"] == json!(true);
        assert!(is_connected());
        self.world.cofferdam_text(&["token", "revoke", id_of(&self.token)]);
        assert!(holds_within(AT_ONCE, || !is_connected()), "the link outlives the token");
        read_until(&mut *self.holding, "was revoked or has expired");
    }
}

#[test]
fn a_pipe_ends_with_its_token() {
    let mut open = PipeOfToken::open();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("box/relay.sock");
    let end = || OwnedFd::from(open.pipe.try_clone().expect("a descriptor can be duplicated"));
    let mut hub = command(shim_binary());
    hub.args(["hub", "--pin", open.world.cofferdam_text(&["key"]).trim(), "--socket"]).arg(&socket);
    hub.stdin(end()).stdout(end());
    let mut hub = Running::spawn(hub, "cofferdam-shim hub");
    let mut shim = connected(&format!("unix:{}", socket.display()), "tools");
    open.assert_revocation_ends_link(&mut shim);
    hub.wait(AT_ONCE);
}

#[test]
fn a_pipe_of_a_single_shim_ends_with_its_token() {
    let mut open = PipeOfToken::open();
    let address = free_address();
    let mut listening = shim_at(&format!("listen:{address}"), "tools");
    listening.args(["--pin", open.world.cofferdam_text(&["key"]).trim()]);
    let mut shim = Harness::start(listening, "cofferdam-shim");
    let first = shim.send_initialize();
    let mut dialled = None;
    wait_until("the shim listens", || {
        dialled = TcpStream::connect(address).ok();
        dialled.is_some()
    });
    let mut dialled = dialled.expect("the shim listens");
    dialled.write_all(relay_carriage::inbound::PREAMBLE).unwrap();
    // Copies bytes in both directions, as `attach dial` does; the threads end with the pipe.
    let (mut from_shim, mut to_shim) = (dialled.try_clone().unwrap(), dialled);
    let (mut from_pipe, mut to_pipe) = (open.pipe.try_clone().unwrap(), open.pipe.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut from_shim, &mut to_pipe));
    std::thread::spawn(move || std::io::copy(&mut from_pipe, &mut to_shim));
    assert!(shim.answer_to(&first).get("result").is_some());
    shim.notify("notifications/initialized", json!({}));
    open.assert_revocation_ends_link(&mut shim);
}
