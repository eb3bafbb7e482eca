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
fn a_thousand_connections_are_a_few_records_that_count_all_of_them_and_their_bytes() {
    let listed = greeter();
    let closed_port =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen").local_addr().expect("an address").port();
    let world = world(&format!("hosts = [\"localhost:{listed}\", \"localhost:{closed_port}\"]"), SCRIPT);
    let mut shim = world.connected("client");
    let mut connect = |port: u16, count: u64| {
        let with = json!({ "PORT": port.to_string(), "COUNT": count.to_string() });
        shim.call_text("attack", json!({"name": "many_connections", "with": with}))
    };
    assert_eq!(connect(listed, 1000), "REACHED 20000 bytes");
    assert_eq!(connect(closed_port, 300), "REACHED 0 bytes");
    shim.close_stdin();
    let details = |event: &str| -> Vec<String> {
        let records = world.audit().into_iter().filter(|record| record["event"] == event);
        records.map(|record| record["detail"].as_str().expect("it has a detail").to_owned()).collect()
    };
    world.wait_until("the network has ended", || !details("connections_unrecorded").is_empty());
    let (closed, failed, rest) =
        (details("connection_closed"), details("connection_failed"), details("connections_unrecorded"));
    let of_all = [&closed[..], &rest[..]].concat();
    let counted = sum_before(&of_all, "connection") + closed.len() as u64;
    assert_eq!((counted, sum_before(&of_all, "received")), (1000, 20_000), "{of_all:#?}");
    let counted = sum_before(&failed, "more") + sum_before(&rest, "failed") + failed.len() as u64;
    assert_eq!(counted, 300, "{failed:#?} {rest:?}");
    assert!(closed.len() <= 200 && failed.len() <= 200, "{} and {} records", closed.len(), failed.len());
    let log = world.log();
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("a connection of a server failed")).collect();
    assert!((1..=200).contains(&lines.len()) && lines[0].contains("left_out=0"), "{lines:#?}");
}

/// The sum of the numbers that stand before this word.
fn sum_before(texts: &[String], word: &str) -> u64 {
    let sum = |text: &String| -> u64 {
        let words: Vec<&str> = text.split_whitespace().collect();
        let followed = words.windows(2).filter(|pair| pair[1].starts_with(word));
        followed.filter_map(|pair| pair[0].parse::<u64>().ok()).sum()
    };
    texts.iter().map(sum).sum()
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
