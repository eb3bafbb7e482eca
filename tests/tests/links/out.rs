//! Sandboxes that dial out: TLS, WebSocket, through proxies and load balancers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::{built, command};
use cofferdam_tests::proxy::{Proxy, ProxyBehaviour};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::json;

use crate::support::{Peers, Sandbox, assert_link_works, with_a_port};

#[test]
fn a_call_over_tls() {
    let (world, _) = with_a_port(|builder, _| builder);
    assert_link_works(&world, Sandbox::enrolled(&world, "a").shim(&[]));
}

#[test]
fn a_call_over_a_web_socket_on_the_same_port() {
    let (world, _) =
        with_a_port(|builder, place| builder.relay(&format!("advertise = \"wss://{place}/relay\"")));
    let sandbox = Sandbox::enrolled(&world, "a");
    assert!(sandbox.enrolment.contains(":wss://"), "{}", sandbox.enrolment);
    assert_link_works(&world, sandbox.shim(&[]));
}

#[test]
fn a_call_behind_a_load_balancer_that_terminates_tls() {
    let peers = Peers::new();
    let (world, place) = with_a_port(|builder, _| builder);
    let front = peers.balancer(place);
    let sandbox = Sandbox::enrolled(&world, "a");
    assert_link_works(&world, sandbox.shim(&["--relay", &format!("wss://{front}/relay")]));
}

/// The `Proxy-Authorization` for the user `alice` with the password `wonder land`.
const ALICE: &str = "Basic YWxpY2U6d29uZGVyIGxhbmQ=";

#[test]
fn a_call_through_a_proxy_with_a_password() {
    for link in ["tls://relay.invalid:7443", "wss://relay.invalid/relay"] {
        let (world, place) = with_a_port(|builder, _| builder);
        let proxy = Proxy::start(ProxyBehaviour::Connects { to: place, authorization: ALICE });
        let sandbox = Sandbox::enrolled(&world, "a");
        let mut command = sandbox.command();
        // This name does not resolve: only the proxy can connect to it.
        command.args(["--relay", link, "--server", "tools"]);
        command.env("HTTPS_PROXY", format!("http://alice:wonder%20land@{}", proxy.address));
        assert_link_works(&world, Harness::start(command, "cofferdam-shim"));
        let port = if link.starts_with("tls") { 7443 } else { 443 };
        assert_eq!(proxy.request_lines(), [format!("CONNECT relay.invalid:{port} HTTP/1.1")]);
    }
}

#[test]
fn a_proxy_on_the_command_line_overrides_no_proxy() {
    let (world, place) = with_a_port(|builder, _| builder);
    let proxy = Proxy::start(ProxyBehaviour::Connects { to: place, authorization: ALICE });
    let url = format!("http://alice:wonder%20land@{}", proxy.address);
    let shim_with_no_proxy = |arguments: &[&str], name: &str| {
        let mut command = Sandbox::enrolled(&world, name).command();
        command.args(arguments).env("HTTPS_PROXY", &url).env("NO_PROXY", "localhost,127.0.0.0/8");
        Harness::start(command, "cofferdam-shim")
    };
    let mut direct = shim_with_no_proxy(&["--server", "tools"], "direct");
    direct.initialize();
    assert_eq!(proxy.request_lines(), [""; 0], "the proxy was used although NO_PROXY names the sidecar");
    let mut through = shim_with_no_proxy(&["--server", "tools", "--proxy", &url], "through");
    through.initialize();
    assert_eq!(proxy.request_lines(), [format!("CONNECT {place} HTTP/1.1")]);
}

/// After a restart the sidecar has the same key and enrolments but no links: the shim opens a new link by itself.
#[test]
fn shims_reconnect_to_a_restarted_sidecar() {
    let (mut world, _) = with_a_port(|builder, _| builder);
    let mut shim = Sandbox::enrolled(&world, "a").shim(&[]);
    shim.initialize();
    assert_eq!(shim.call_text("add", json!({"a": 1, "b": 2})), "3");
    world.stop_sidecar();
    world.start_sidecar();
    assert_eq!(shim.call_text("add", json!({"a": 3, "b": 4})), "7");
}

/// A microVM's monitor connects its guest's port 7443 to `DIR/vsock_7443`; here the test is the monitor.
#[test]
fn a_machine_has_a_socket_for_its_port() {
    let machines = tempfile::tempdir().unwrap();
    let directory = |name: &str| machines.path().join(name).display().to_string();
    let world = World::new()
        .server("tools", Server::fixture())
        .relay(&format!("vsock-dir = {:?}", machines.path()))
        .start();
    let enroll = |place: &str| world.cofferdam(&["enroll", "--grant", "dev", "--socket", place]);
    let enrolled = enroll(&directory("vm1"));
    assert_eq!(String::from_utf8_lossy(&enrolled.stdout), "vsock:2:7443\n");
    let mut command = command(built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
    command.env_clear().args(["--relay", &format!("unix:{}/vsock_7443", directory("vm1"))]);
    assert_link_works(&world, Harness::start(command, "cofferdam-shim"));
    let for_all_machines = enroll(&machines.path().display().to_string());
    assert!(!for_all_machines.status.success(), "the directory of all machines was accepted");
}

#[test]
fn other_protocols_at_the_port_disturb_no_link() {
    let (mut world, place) = with_a_port(|builder, _| builder);
    let garbage: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        &[0x16, 3, 1, 0xff, 0xff, 1, 0, 0, 0],
        b"cofferdam-relay/1\n",
        &[0; 4096],
    ];
    for bytes in garbage {
        let mut stream = TcpStream::connect(place).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut printed = Vec::new();
        // The sidecar may reset the connection.
        let _ = stream.read_to_end(&mut printed);
        let printed = String::from_utf8_lossy(&printed);
        assert!(
            printed.is_empty() || printed.starts_with("HTTP/1.1 426 ") || printed.starts_with('\u{15}'),
            "{printed}"
        );
    }
    // More silent or incomplete connections than slots.
    let _silent: Vec<TcpStream> = (0..200)
        .map(|number| {
            let mut stream = TcpStream::connect(place).unwrap();
            let half: [&[u8]; 4] = [b"", b"G", &[0x16], b"GET / HTTP/1.1\r\nHost:"];
            stream.write_all(half[number % 4]).unwrap();
            stream
        })
        .collect();
    let mut shim = Sandbox::enrolled(&world, "a").shim(&[]);
    shim.initialize();
    assert_eq!(shim.call_text("add", json!({"a": 1, "b": 2})), "3");
    assert!(world.sidecar().is_running());
    let log = world.log();
    assert!(log.contains("on the relay's port: the peer speaks neither TLS nor HTTP"), "{log}");
}
