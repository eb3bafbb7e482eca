//! Emulated virtual machines: a real vsock, and a snapshot that is restored twice. These tests take minutes, so they
//! run only in `just slow`.

use std::time::Duration;

use cofferdam_tests::attach::Attach;
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::encodings::assert_absent;
use cofferdam_tests::harness::{refusal_of, text_of};
use cofferdam_tests::port::free_address;
use cofferdam_tests::sandbox_files::enroll;
use cofferdam_tests::sandboxes::{Booted, Guest, Machine, Outlet};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

const CANARY: &str = "canary-5b0d6a3f9c-must-not-cross";

#[test]
#[ignore = "minutes: just slow"]
fn a_machine_reaches_its_host_by_vsock() {
    let Some(machine) = Machine::open() else { return };
    let server = Server::fixture().env("SECRET", "{local.value}");
    let machines = tempfile::tempdir().expect("a temporary directory can be made");
    let mut world = World::new()
        .secret_file("local", CANARY)
        .server("tools", server)
        .relay(&format!("vsock-dir = {:?}", machines.path()))
        .start();
    // Connections of the guest arrive at sockets in this directory.
    let machine_directory = machines.path().join("one");
    let link = enroll(&world, &["--socket", &machine_directory.display().to_string()]);
    assert_eq!(link, "vsock:2:7443");
    let guest = Guest::new(&["--relay", &link, "--server", "tools"]);
    let Some(mut booted) = machine.boot(&guest, &Outlet::Vsock(machine_directory.join("vsock"))) else {
        return;
    };
    assert_eq!(booted.shim.initialize()["result"]["serverInfo"]["name"], "fixture-server");
    assert_eq!(booted.shim.call_text("add", json!({"a": 20, "b": 22})), "42");
    assert_answers_after_a_pause(&mut booted);
    let shim = &mut booted.shim;
    assert_eq!(shim.call_text("leak", json!({})), "the secret is <[redacted:local.value]>");
    assert_eq!(shim.call_text("big", json!({"bytes": 300_000})).len(), 300_000);
    world.kill9_sidecar();
    world.start_sidecar();
    assert_eq!(shim.call_text("echo", json!({"text": "after the restart"})), "after the restart");
    assert_absent("what the harness received", shim.received(), CANARY);
    world.assert_secret_not_leaked(CANARY);
}

/// The other way round: the machine listens, with a shim or with a hub, and its host dials.
#[test]
#[ignore = "minutes: just slow"]
fn a_machine_that_listens_is_dialled_by_vsock() {
    let Some(machine) = Machine::open() else { return };
    let server = Server::fixture().env("SECRET", "{local.value}");
    let monitors = tempfile::tempdir().expect("a temporary directory can be made");
    let mut world = World::new().secret_file("local", CANARY).server("tools", server).start();
    let other = World::new().server("tools", Server::fixture()).start();
    let pin = world.cofferdam_text(&["key"]).trim().to_owned();
    let shim = ["--relay", "listen:vsock:7443", "--server", "tools", "--pin", &pin];
    let hub = ["hub", "--listen", "vsock:7443", "--pin", &pin];
    for (name, guest) in
        [("shim", Guest::new(&shim)), ("hub", Guest::new(&["--server", "tools"]).beside(&hub))]
    {
        let vsock = monitors.path().join(name);
        let Some(mut booted) = machine.boot(&guest, &Outlet::Vsock(vsock.clone())) else { return };
        let address = format!("vsock:{}:7443", vsock.display());
        let dial = |world: &World| Attach::start(world, &["dial", &address, "--grant", "dev"]);
        let impostor = dial(&other);
        wait_until("another sidecar gets nothing there", || {
            booted.shim.stderr().contains("did not prove the sidecar's key")
        });
        assert_eq!(impostor.times_attached(), 0);
        impostor.stop();

        let attach = dial(&world);
        assert_eq!(booted.shim.initialize()["result"]["serverInfo"]["name"], "fixture-server", "{name}");
        assert_eq!(booted.shim.call_text("add", json!({"a": 20, "b": 22})), "42");
        let link = only_link(&world);
        // The pause is shorter than a heartbeat: the emulated device fails on bytes from the host while the machine
        // is paused.
        assert_answers_after_a_pause(&mut booted);
        let shim = &mut booted.shim;
        let id = shim.send_call("slow", json!({"ms": 500}));
        attach.stop();
        let attach = dial(&world);
        assert_eq!(text_of(&shim.answer_to(&id)), "late");
        assert_eq!(only_link(&world), link, "the link was not resumed");
        assert_eq!(shim.call_text("leak", json!({})), "the secret is <[redacted:local.value]>");
        assert_eq!(shim.call_text("big", json!({"bytes": 300_000})).len(), 300_000);
        world.kill9_sidecar();
        world.start_sidecar();
        assert_eq!(shim.call_text("echo", json!({"text": "after the restart"})), "after the restart");
        assert_absent("what the harness received", shim.received(), CANARY);
        let session = world.sessions()[0]["session"].as_str().expect("a name").to_owned();
        attach.stop();
        world.cofferdam_text(&["kill", &session]);
    }
    assert_eq!(other.executions("tools").len(), 0);
    world.assert_secret_not_leaked(CANARY);
}

/// Both copies have all of the sandbox: memory, key, epoch, and the token of a link with a call in flight.
#[test]
#[ignore = "minutes: just slow"]
fn of_a_snapshot_that_is_restored_twice_one_continues() {
    let Some(machine) = Machine::open() else { return };
    let port = free_address().port();
    let world = World::new()
        .server("tools", Server::fixture())
        .relay(&format!("tls = \"127.0.0.1:{port}\"\nadvertise = \"10.0.2.2:{port}\"\nheartbeat = \"2s\""))
        .start();
    let guest =
        Guest::new(&["--server", "tools", "--state", "/state"]).env("COFFERDAM_ENROLL", &enroll(&world, &[]));
    let Some(mut original) = machine.boot(&guest, &Outlet::Network) else { return };
    assert_eq!(original.shim.initialize()["result"]["serverInfo"]["name"], "fixture-server");
    let link = only_link(&world);
    let in_flight = original.shim.send_call("slow", json!({"ms": 1000}));
    wait_until("it runs", || world.times_executed("tools", "slow") == 1);
    let snapshot = original.snapshot();

    let (mut one, mut other) = (snapshot.restore("one"), snapshot.restore("other"));
    let answers = [&mut one, &mut other].map(|clone| clone.shim.answer_to(&in_flight));
    let clones = [one, other];
    let (mut survivor, mut refused, answer) = match (&answers, clones) {
        ([first, second], [one, other]) if first.get("result").is_some() => {
            assert!(second.get("result").is_none(), "both clones got the result: {answers:?}");
            (one, other, second.clone())
        }
        ([first, second], [one, other]) => {
            assert!(second.get("result").is_some(), "no clone got the result: {answers:?}");
            (other, one, first.clone())
        }
    };
    assert_eq!(refusal_of(&answer), "outcome_unknown", "the call may have run, so its outcome is unknown");
    let answer = refused.shim.call("echo", json!({"text": "from the copy"}));
    assert_eq!(refusal_of(&answer), "clone_refused");
    for word in ["`cofferdam enroll`", "/run/cofferdam/enroll"] {
        assert!(answer["error"]["message"].as_str().unwrap_or_default().contains(word), "{word}: {answer}");
    }
    assert!(refused.shim.is_running());
    assert_eq!(survivor.shim.call_text("echo", json!({"text": "on"})), "on");
    assert_eq!(only_link(&world), link, "the survivor has the link of the original");
    assert_eq!(world.times_executed("tools", "slow"), 1);
    assert_eq!(world.times_executed("tools", "echo"), 1, "a call of the copy ran");
    let alerts: Vec<Value> = world.audit().into_iter().filter(|record| record["event"] == "alert").collect();
    let [alert] = &alerts[..] else { panic!("not one alert: {alerts:?}") };
    assert_eq!(alert["link"], link);
    let reasons = ["copy of its state", "in use on another connection"];
    let detail = alert["detail"].as_str().unwrap_or_default();
    assert!(reasons.iter().any(|reason| detail.contains(reason)), "{alert}");
}

/// A request that is sent while the machine is paused gets its response when the machine continues.
#[track_caller]
fn assert_answers_after_a_pause(booted: &mut Booted) {
    booted.pause();
    let id = booted.shim.send_call("echo", json!({"text": "sent while paused"}));
    assert_eq!(booted.shim.answer_within(&id, Duration::from_secs(2)), None);
    booted.resume();
    assert_eq!(text_of(&booted.shim.answer_to(&id)), "sent while paused");
}

#[track_caller]
fn only_link(world: &World) -> String {
    let sessions = world.sessions();
    let [link] = &sessions.as_array().expect("a list")[..] else { panic!("not one link: {sessions}") };
    link["link"].as_str().expect("a link has a name").to_owned()
}
