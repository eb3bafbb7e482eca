//! Sandboxes that the host connects to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use cofferdam_tests::attach::{Attach, shim_at};
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use relay_carriage::identity::Identity;
use serde_json::json;

use crate::support::{Peers, Way};

fn listening_shim(address: SocketAddr, sidecar: &Identity) -> Harness {
    let mut command = command(built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
    command.env_clear().args(["--server", "tools", "--relay", &format!("listen:{address}")]);
    command.args(["--pin", &sidecar.public().to_string()]);
    Harness::start(command, "cofferdam-shim")
}

#[test]
fn the_sidecar_connects_by_tcp_or_web_socket() {
    let peers = Peers::new();
    let world = World::new().server("tools", Server::fixture()).start();
    for way in [Way::Tcp, Way::WebSocket] {
        let (address, sidecar) = (free_address(), Identity::generate().unwrap());
        let mut shim = listening_shim(address, &sidecar);
        let id = shim.send_initialize();
        let dialled = peers.dial(address, way, &sidecar, &world.layout().relay);
        assert!(dialled.is_connected(), "{way:?}: {}", shim.stderr());
        assert!(shim.answer_to(&id).get("result").is_some());
        shim.notify("notifications/initialized", json!({}));
        let long = "long ".repeat(60_000);
        assert_eq!(shim.call_text("echo", json!({"text": long})), long);
    }
}

/// Platforms publish a sandbox's port under a name of theirs, terminate TLS there and forward the WebSocket.
#[test]
fn attach_dials_a_web_socket_behind_a_proxy_that_terminates_its_tls() {
    let peers = Peers::new();
    let world = World::new().server("tools", Server::fixture()).start();
    let address = free_address();
    let mut listening_shim = shim_at(&format!("listen:{address}"), "tools");
    listening_shim.args(["--pin", world.cofferdam_text(&["key"]).trim()]);
    let mut shim = Harness::start(listening_shim, "cofferdam-shim");
    let id = shim.send_initialize();
    let front = format!("wss://{}/some/path", peers.balancer(address));
    let attach = Attach::start(&world, &["dial", &front, "--grant", "dev"]);
    attach.wait_until_attached(1);
    assert!(shim.answer_to(&id).get("result").is_some());
    shim.notify("notifications/initialized", json!({}));
    let long = "long ".repeat(60_000);
    assert_eq!(shim.call_text("echo", json!({"text": long})), long);
    attach.stop();

    // The port itself has no TLS around its WebSocket.
    let attach = Attach::start(&world, &["dial", &format!("wss://{address}/"), "--grant", "dev"]);
    attach.wait_until_output_has(&format!("use {address} without wss://"));
}

/// A reconnect with the key resumes the link.
#[test]
fn the_newest_connection_with_the_key_wins() {
    let peers = Peers::new();
    let world = World::new().server("tools", Server::fixture()).start();
    let (address, sidecar) = (free_address(), Identity::generate().unwrap());
    let relay = &world.layout().relay;
    let mut shim = listening_shim(address, &sidecar);
    let first = peers.dial(address, Way::Tcp, &sidecar, relay);
    shim.initialize();
    let second = peers.dial(address, Way::WebSocket, &sidecar, relay);
    assert!(second.is_connected());
    wait_until("the first connection is closed", || first.is_over());
    assert_eq!(shim.call_text("add", json!({"a": 1, "b": 2})), "3");
    assert!(!second.is_over());
    second.disconnect();
    let third = peers.dial(address, Way::Tcp, &sidecar, relay);
    assert_eq!(shim.call_text("add", json!({"a": 3, "b": 4})), "7");
    assert_eq!(world.sessions().as_array().map(Vec::len), Some(1), "not one link");
    third.disconnect();
}

#[test]
fn peers_without_the_key_get_nothing_and_disturb_nothing() {
    let peers = Peers::new();
    let world = World::new().server("tools", Server::fixture()).start();
    let (address, sidecar) = (free_address(), Identity::generate().unwrap());
    let relay = &world.layout().relay;
    let mut shim = listening_shim(address, &sidecar);
    let id = shim.send_initialize();
    let other = Identity::generate().unwrap();
    assert!(!peers.dial(address, Way::Tcp, &other, relay).is_connected());
    wait_until("stderr reports the peer", || shim.stderr().contains("did not prove the sidecar's key"));
    let dialled = peers.dial(address, Way::Tcp, &sidecar, relay);
    assert!(shim.answer_to(&id).get("result").is_some());
    shim.notify("notifications/initialized", json!({}));

    // Other peers while the sidecar is connected; more of them stall than there are slots.
    assert!(!peers.dial(address, Way::WebSocket, &other, relay).is_connected());
    let stalled: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    for printed in [&b"cofferdam-relay/1\n"[..], b"SSH-2.0-x\r\n", b"cofferdam-dial/9\n"] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(printed).unwrap();
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        assert_eq!(received, b"", "{}", String::from_utf8_lossy(printed));
    }
    assert_eq!(shim.call_text("add", json!({"a": 1, "b": 2})), "3");
    assert!(!dialled.is_over());
    // A sidecar that reconnects still gets a slot.
    let again = peers.dial(address, Way::Tcp, &sidecar, relay);
    assert!(again.is_connected());
    assert_eq!(shim.call_text("add", json!({"a": 3, "b": 4})), "7");
    drop(stalled);
}

#[test]
fn a_public_port_needs_the_expose_flag() {
    let printed = |arguments: &[&str]| {
        let mut command = command(built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
        command.env_clear().args(arguments);
        let output = output_of(command, "cofferdam-shim");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let pin = Identity::generate().unwrap().public().to_string();
    let (code, text) = printed(&["--relay", "listen:0.0.0.0:7443", "--pin", &pin]);
    assert!(code == Some(64) && text.contains("add --expose"), "{text}");
    let (code, text) = printed(&["--relay", "listen:127.0.0.1:7443"]);
    assert!(code == Some(64) && text.contains("--pin KEY"), "{text}");
}
