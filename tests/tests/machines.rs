//! Virtual machines in software: a real vsock, and a snapshot that is restored twice. Minutes, so only in `just slow`.

use std::time::Duration;

use cofferdam_tests::boxes::{Guest, Machine, Outlet};
use cofferdam_tests::encodings::assert_absent;
use cofferdam_tests::harness::{Harness, refusal_of, text_of};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

const CANARY: &str = "canary-5b0d6a3f9c-must-not-cross";

#[test]
#[ignore = "minutes: just slow"]
fn a_machine_reaches_its_host_by_vsock() {
    let Some(machine) = Machine::open() else { return };
    let server = Server::fixture().env("SECRET", "{local.value}");
    let mut world = World::new().secret_file("local", CANARY).server("tools", server).start();
    let hybrid = world.layout().root().join("machine.vsock");
    // What the guest dials at port 7443 arrives at this name.
    std::os::unix::fs::symlink(&world.layout().relay, hybrid.with_extension("vsock_7443"))
        .expect("a temporary directory is writable");
    let guest = Guest::new(&["--relay", "vsock:2:7443", "--server", "tools"]);
    let Some(mut booted) = machine.boot(&guest, &Outlet::Vsock(hybrid)) else { return };
    assert_eq!(booted.shim.initialize()["result"]["serverInfo"]["name"], "fixture-server");
    assert_eq!(booted.shim.call_text("add", json!({"a": 20, "b": 22})), "42");
    booted.pause();
    let id = booted.shim.send_call("echo", json!({"text": "asked while it stood still"}));
    assert_eq!(booted.shim.answer_within(&id, Duration::from_secs(2)), None);
    booted.go_on();
    assert_eq!(text_of(&booted.shim.answer_to(&id)), "asked while it stood still");
    let shim = &mut booted.shim;
    assert_eq!(shim.call_text("leak", json!({})), "the secret is <[redacted:local.value]>");
    assert_eq!(shim.call_text("big", json!({"bytes": 300_000})).len(), 300_000);
    world.kill9_sidecar();
    world.start_sidecar();
    assert_eq!(shim.call_text("echo", json!({"text": "after the restart"})), "after the restart");
    assert_absent("what the harness received", shim.received(), CANARY);
    world.assert_secret_stayed_here(CANARY);
}

#[test]
#[ignore = "minutes: just slow"]
fn a_snapshot_is_restored_twice() {
    let Some(machine) = Machine::open() else { return };
    let guest = Guest::new(&["--relay", "unix:/nobody/is/here"]);
    let Some(mut original) = machine.boot(&guest, &Outlet::Network) else { return };
    // The shim refuses such a line by itself, without any sidecar: it is alive, and so is the way to it.
    let refuses = |shim: &mut Harness| {
        shim.send_raw(b"this is not json\n");
        assert_eq!(refusal_of(&shim.answer_to(&Value::Null)), "message_malformed");
    };
    refuses(&mut original.shim);
    let snapshot = original.snapshot();
    let (mut one, mut other) = (snapshot.restore("one"), snapshot.restore("other"));
    refuses(&mut one.shim);
    refuses(&mut other.shim);
}
