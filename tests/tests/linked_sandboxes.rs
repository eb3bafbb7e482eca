//! The same static shim in real sandboxes that share no socket with their host: over TLS and WebSocket on a network
//! that is cut, through a sandbox's own proxy, and through the pipe of an `exec`.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use cofferdam_tests::attach::Attach;
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::encodings::assert_absent;
use cofferdam_tests::harness::{Harness, text_of};
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{command_line, is_alive, output_of, send};
use cofferdam_tests::sandbox_files::enroll;
use cofferdam_tests::sandboxes::{
    Access, Cable, Guest, Inside, PROXY_OF_SRT, Podman, SHIM_INSIDE, Sandbox, Srt, Ssh, Veth,
};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const CANARY: &str = "canary-5b0d6a3f9c-must-not-cross";

#[test]
fn a_cut_cable_loses_nothing_and_repeats_nothing() {
    let Some(sandbox) = Veth::open() else { return };
    let address = SocketAddr::from((sandbox.host(), 7443));
    let world = world(&[&format!("tls = \"{address}\""), "heartbeat = \"1s\""]);
    let state = tempfile::tempdir().expect("a temporary directory can be made");
    let start = |name: &str, arguments: &[&str]| {
        let state = state.path().join(name);
        let guest = enrolled(&world, &state, arguments);
        connected(&sandbox, &guest)
    };
    let mut shims = [start("tls", &[]), start("web-socket", &["--relay", &format!("wss://{address}/relay")])];
    for shim in &shims {
        let inside = Inside::shim_below(shim.id());
        assert_eq!(inside.interfaces(), BTreeSet::from(["guest".to_owned(), "lo".to_owned()]));
    }
    let before = links(&world);
    assert_eq!(before.len(), 2);

    // An interruption so short that TCP retransmits what was lost.
    let calls = shims.each_mut().map(|shim| send_calls(shim, "a blip"));
    sandbox.set(Cable::Cut);
    sandbox.set(Cable::Whole);
    expect_responses(&mut shims, calls);
    // An interruption so long that both ends close the connection, with calls that wait, that run, and that were not
    // sent.
    let sent = shims.each_mut().map(|shim| send_calls(shim, "before"));
    wait_until("the calls run", || world.times_executed("tools", "slow") > 2);
    let lost = || world.log().matches("connection lost").count();
    let earlier = lost();
    sandbox.set(Cable::Cut);
    let meanwhile = shims.each_mut().map(|shim| send_calls(shim, "meanwhile"));
    wait_until("the sidecar has closed both connections", || lost() == earlier + 2);
    for (shim, calls) in shims.iter_mut().zip(&meanwhile) {
        assert_eq!(
            shim.answer_within(&calls[0].0, Duration::from_millis(100)),
            None,
            "a response arrived over the cut cable"
        );
    }
    sandbox.set(Cable::Whole);
    expect_responses(&mut shims, sent);
    expect_responses(&mut shims, meanwhile);

    assert_eq!(links(&world), before, "the links were not resumed");
    let executions = world.executions("tools");
    assert_eq!(executions.len(), shims.len() * 3 * CALLS, "{executions:?}");
    for (index, execution) in executions.iter().enumerate() {
        assert!(!executions[..index].contains(execution), "{execution:?} ran twice");
    }
    for shim in &mut shims {
        assert_secret_scrubbed(shim);
        Inside::shim_below(shim.id()).assert_without(CANARY);
    }
    world.assert_secret_not_leaked(CANARY);
}

#[test]
fn a_shim_in_srt_connects_through_its_proxy() {
    // `NO_PROXY` inside excludes this address, so the proxy is used only with `--proxy`.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_address().port()));
    let world = world(&[&format!("tls = \"{address}\"")]);
    let Some(sandbox) = Srt::open(&[&address.to_string()], &[world.layout().root()]) else { return };
    let web_socket = format!("wss://{address}/relay");
    let links: [(&str, &[&str]); 2] = [("tls", &[]), ("web-socket", &["--relay", &web_socket])];
    for (name, arguments) in links {
        let arguments = [arguments, &["--proxy", PROXY_OF_SRT]].concat();
        let guest = enrolled(&world, &sandbox.writable().join(name), &arguments);
        let mut shim = connected(&sandbox, &guest);
        assert_eq!(shim.call_text("add", json!({"a": 20, "b": 22})), "42");
        assert_eq!(shim.call_text("big", json!({"bytes": 300_000})).len(), 300_000);
        assert_secret_scrubbed(&mut shim);
        Inside::shim_below(shim.id()).assert_without(CANARY);
    }
    assert_eq!(world.executions("tools").len(), 6);
    world.assert_secret_not_leaked(CANARY);
}

/// A missing permission cannot be fixed from inside: the message must say which address to allow.
#[test]
fn srt_keeps_a_shim_from_an_address_that_is_not_allowed() {
    let address = free_address();
    let world = world(&[&format!("tls = \"{address}\"")]);
    let Some(sandbox) = Srt::open(&["other.example:443"], &[world.layout().root()]) else { return };
    for link in [format!("tls://{address}"), format!("wss://{address}/relay")] {
        let arguments = ["status", "--json", "--relay", &link, "--proxy", PROXY_OF_SRT];
        let guest = enrolled(&world, &sandbox.writable(), &arguments);
        let output = output_of(sandbox.command(&guest), "cofferdam-shim status");
        let status: Value = serde_json::from_slice(&output.stdout).expect("status --json is JSON");
        assert_eq!(status["trouble"]["code"], "relay_unavailable", "{status}");
        let message = status["trouble"]["message"].as_str().unwrap_or_default();
        for word in [&format!("connections to {address}"), "allow them there", "`--proxy`"] {
            assert!(message.contains(word), "{word}: {message}");
        }
    }
    assert_eq!(world.sessions(), json!([]), "there is a link");
}

#[test]
fn a_container_without_a_network_is_reached_by_exec() {
    let Some(podman) = Podman::open() else { return };
    let world = world(&["heartbeat = \"1s\""]);
    let shared = tempfile::tempdir().expect("a temporary directory can be made");
    let container =
        podman.container(&Guest::new(&[]).mount(shared.path(), "/run/cofferdam/relay", Access::ReadWrite));
    let mut arguments = ["exec", "--grant", "dev", "--name", "box", "--"].map(Into::into).to_vec();
    arguments.extend(container.exec_line(&[SHIM_INSIDE, "hub", "--pin", "{pin}"]));
    let attach = Attach::start(&world, &arguments);
    attach.wait_until_attached(1);
    let mut shims = [(); 2].map(|()| {
        let mut shim = container.exec(&Guest::new(&["--server", "tools"]));
        assert_eq!(shim.initialize()["result"]["serverInfo"]["name"], "fixture-server");
        shim
    });
    let before = links(&world);
    let inside = Inside::of(container.process());
    assert_eq!(inside.interfaces(), BTreeSet::from(["lo".to_owned()]));
    let hubs = || -> Vec<u32> {
        inside.companions().into_iter().filter(|id| command_line(*id).contains(" hub ")).collect()
    };
    for round in 1..=2 {
        let first = hubs();
        assert_eq!(first.len(), 1, "{first:?}");
        let calls = shims.each_mut().map(|shim| send_calls(shim, &format!("round {round}")));
        // Kills the command outside; the process that it started in the container survives that.
        send(attach.command_pid(), Signal::SIGKILL);
        let meanwhile = shims.each_mut().map(|shim| send_calls(shim, &format!("meanwhile {round}")));
        expect_responses(&mut shims, calls);
        expect_responses(&mut shims, meanwhile);
        attach.wait_until_attached(round + 1);
        wait_until("the hub that lost its pipe is gone", || !is_alive(first[0]));
    }
    assert_eq!(links(&world), before, "the links were not resumed");
    assert_eq!(world.executions("tools").len(), shims.len() * 4 * CALLS);
    shims.iter_mut().for_each(assert_secret_scrubbed);
    for process in inside.companions() {
        Inside::of(process).assert_without(CANARY);
    }
    inside.assert_files_without(CANARY);
    world.assert_secret_not_leaked(CANARY);
}

/// Hub and shims are started over a real SSH connection, the only connection to that sandbox.
#[test]
fn a_host_is_reached_by_ssh() {
    let Some(sandbox) = Ssh::open() else { return };
    let mut world = world(&["heartbeat = \"1s\""]);
    let mut arguments = ["exec", "--grant", "dev", "--name", "box", "--"].map(Into::into).to_vec();
    arguments.extend(sandbox.shim_line(&["hub", "--pin", "{pin}"]));
    let attach = Attach::start(&world, &arguments);
    attach.wait_until_attached(1);
    let mut shims = [(); 2].map(|()| connected(&sandbox, &Guest::new(&["--server", "tools"])));
    let before = links(&world);
    let inside = Inside::of(sandbox.process());
    let hubs = || -> Vec<u32> {
        inside.companions().into_iter().filter(|id| command_line(*id).contains("shim hub ")).collect()
    };
    for round in 1..=2 {
        let first = hubs();
        let calls = shims.each_mut().map(|shim| send_calls(shim, &format!("round {round}")));
        send(attach.command_pid(), Signal::SIGKILL);
        let meanwhile = shims.each_mut().map(|shim| send_calls(shim, &format!("meanwhile {round}")));
        expect_responses(&mut shims, calls);
        expect_responses(&mut shims, meanwhile);
        attach.wait_until_attached(round + 1);
        wait_until("the hub that lost its pipe is gone", || first.iter().all(|hub| !is_alive(*hub)));
    }
    assert_eq!(links(&world), before, "the links were not resumed");
    assert_eq!(world.executions("tools").len(), shims.len() * 4 * CALLS);
    world.kill9_sidecar();
    world.start_sidecar();
    shims.iter_mut().for_each(assert_secret_scrubbed);
    for process in inside.companions() {
        Inside::of(process).assert_without(CANARY);
    }
    world.assert_secret_not_leaked(CANARY);
}

/// A sidecar with a secret in use and these lines of `[relay]`.
fn world(lines: &[&str]) -> World {
    let server = Server::fixture().env("SECRET", "{local.value}");
    let world = World::new().secret_file("local", CANARY).server("tools", server);
    lines.iter().fold(world, |world, line| world.relay(line)).start()
}

/// A guest with an enrolment string in its environment and its state in this directory.
#[track_caller]
fn enrolled(world: &World, state: &Path, arguments: &[&str]) -> Guest {
    let state = state.display().to_string();
    let arguments = [arguments, &["--server", "tools", "--state", &state]].concat();
    Guest::new(&arguments).env("COFFERDAM_ENROLL", &enroll(world, &[]))
}

#[track_caller]
fn connected(sandbox: &impl Sandbox, guest: &Guest) -> Harness {
    let mut shim = sandbox.start(guest);
    assert_eq!(shim.initialize()["result"]["serverInfo"]["name"], "fixture-server", "{}", shim.stderr());
    shim
}

const CALLS: usize = 6;

/// Sends slow and quick calls without waiting for them; no two calls of a shim are equal.
fn send_calls(harness: &mut Harness, when: &str) -> Vec<(Value, String)> {
    let shim_id = harness.id();
    (0..CALLS)
        .map(|number| match number % 3 {
            0 => {
                let about = format!("{shim_id} {when} {number}");
                (harness.send_call("slow", json!({"ms": 300, "about": about})), "late".into())
            }
            _ => {
                let text = format!("{shim_id} {when} {number} {}", "x".repeat(number * 3000));
                (harness.send_call("echo", json!({"text": text})), text)
            }
        })
        .collect()
}

#[track_caller]
fn expect_responses<const COUNT: usize>(shims: &mut [Harness; COUNT], calls: [Vec<(Value, String)>; COUNT]) {
    for (shim, calls) in shims.iter_mut().zip(calls) {
        for (id, text) in calls {
            assert_eq!(text_of(&shim.answer_to(&id)), text);
        }
    }
}

/// Asserts that the server's secret is scrubbed when the server sends it.
#[track_caller]
fn assert_secret_scrubbed(harness: &mut Harness) {
    assert_eq!(harness.call_text("leak", json!({})), "the secret is <[redacted:local.value]>");
    assert_absent("what the harness received", harness.received(), CANARY);
}

fn links(world: &World) -> BTreeSet<String> {
    let sessions = world.sessions();
    let all = sessions.as_array().into_iter().flatten();
    all.filter_map(|link| Some(link["link"].as_str()?.to_owned())).collect()
}
