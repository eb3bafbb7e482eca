//! The same static shim in every kind of sandbox: MCP calls work, no credential is inside, and after a restart of the
//! sidecar the shim reconnects through the mounted directory.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Command;

use cofferdam_tests::encodings::assert_absent;
use cofferdam_tests::harness::{Harness, refusal_of};
use cofferdam_tests::process::{built, children_of, is_alive, output_of};
use cofferdam_tests::sandboxes::{
    Bubblewrap, Cable, Guest, Gvisor, HostSockets, Inside, Landlocked, Podman, RELAY_INSIDE, SHIM_INSIDE,
    Sandbox, Srt, Veth,
};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::json;

const CANARY: &str = "canary-5b0d6a3f9c-must-not-cross";

#[test]
fn bubblewrap_with_an_empty_root_and_no_network() {
    let Some(sandbox) = Bubblewrap::open() else { return };
    let mut world = world();
    let mut shim = sandbox.start(&Guest::of(&world, "tools"));
    assert_calls_work(&mut shim);
    let inside = Inside::innermost(shim.id());
    let socket = format!("{RELAY_INSIDE}/relay.sock");
    assert_eq!(inside.files(), BTreeSet::from([SHIM_INSIDE.to_owned(), socket]));
    assert_eq!(inside.interfaces(), BTreeSet::from(["lo".to_owned()]));
    inside.assert_without(CANARY);
    inside.assert_files_without(CANARY);
    assert_shim_reconnects(&mut world, &mut shim);
    world.assert_secret_not_leaked(CANARY);
}

#[test]
fn a_container_from_scratch_without_a_network() {
    let Some(sandbox) = Podman::open() else { return };
    let mut world = world();
    let mut shim = sandbox.start(&Guest::of(&world, "tools"));
    assert_calls_work(&mut shim);
    let inside = Inside::of(sandbox.process());
    assert_eq!(inside.interfaces(), BTreeSet::from(["lo".to_owned()]));
    assert!(inside.files().contains(SHIM_INSIDE), "{:?}", inside.files());
    inside.assert_without(CANARY);
    inside.assert_files_without(CANARY);
    assert_shim_reconnects(&mut world, &mut shim);
    world.assert_secret_not_leaked(CANARY);
}

#[test]
fn a_shim_in_a_running_container_by_exec() {
    let Some(podman) = Podman::open() else { return };
    let mut world = world();
    let container = podman.container(&Guest::of(&world, "tools"));
    let mut shims: Vec<Harness> =
        (0..2).map(|_| container.exec(&Guest::new(&["--server", "tools"]))).collect();
    shims.iter_mut().for_each(assert_calls_work);
    let inside = Inside::of(container.process()).companions();
    assert_eq!(inside.len(), 3, "not three shims, one that keeps the container and two by exec: {inside:?}");
    for process in inside {
        Inside::of(process).assert_without(CANARY);
    }
    assert_shim_reconnects(&mut world, &mut shims[0]);
    // The container outlives its harnesses, and another harness can use it.
    shims.clear();
    assert_calls_work(&mut container.exec(&Guest::new(&["--server", "tools"])));
    assert!(is_alive(container.process()));
}

#[test]
fn gvisor_with_sockets_of_the_host() {
    let Some(sandbox) = Gvisor::open(HostSockets::Open) else { return };
    let mut world = world();
    let mut shim = sandbox.start(&Guest::of(&world, "tools").env("CONTROL", "this-is-in-the-guest"));
    assert_calls_work(&mut shim);
    let kernel = sandbox.process();
    let processes: Vec<Inside> = children_of(kernel).into_iter().chain([kernel]).map(Inside::of).collect();
    assert!(processes.iter().any(|process| process.memory_contains("this-is-in-the-guest")), "{processes:?}");
    processes.iter().for_each(|process| process.assert_without(CANARY));
    assert_shim_reconnects(&mut world, &mut shim);
}

/// A forbidden socket cannot be fixed from inside; the error must say what the user has to change.
#[test]
fn a_forbidden_unix_socket_is_named_in_the_answer() {
    let world = world();
    let guest = Guest::of(&world, "tools");
    let gvisor = Gvisor::open(HostSockets::Forbidden);
    let srt = Srt::open(&[], &[&world.layout().root().join("secrets")]);
    let in_gvisor = gvisor.as_ref().map(|sandbox| sandbox.start(&guest));
    let in_srt = srt.as_ref().map(|sandbox| sandbox.start(&guest));
    let mut waiting: Vec<_> = [in_gvisor, in_srt].into_iter().flatten().collect();
    let ids: Vec<_> = waiting.iter_mut().map(Harness::send_initialize).collect();
    for (shim, id) in waiting.iter_mut().zip(ids) {
        let answer = shim.answer_to(&id);
        assert_eq!(refusal_of(&answer), "relay_unavailable");
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("this sandbox forbids Unix sockets"), "{message}");
        assert!(shim.is_running(), "the shim exited although its stdin is open");
    }
    assert_eq!(world.sessions(), json!([]), "there is a link");
}

#[test]
fn srt_allows_connections_through_its_proxy_only() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback can be bound");
    let allowed = listener.local_addr().expect("it is bound").to_string();
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback can be bound");
    let other = other.local_addr().expect("it is bound").to_string();
    let world = world();
    let Some(sandbox) = Srt::open(&[&allowed], &[world.layout().root()]) else { return };
    let probe = |way, endpoint: &str| probe_result(sandbox.command_for(&probe(), &[way, endpoint]));
    assert!(probe("proxy", &allowed).starts_with("HTTP/1.1 200"), "{}", probe("proxy", &allowed));
    assert!(probe("proxy", &other).starts_with("HTTP/1.1 403"), "{}", probe("proxy", &other));
    assert!(
        probe("tcp", &allowed).starts_with("ConnectionRefused"),
        "the sandbox shares the host's loopback"
    );
    assert!(probe("unix", &world.layout().relay.display().to_string()).starts_with("PermissionDenied"));
    assert_ne!(
        probe("read", &world.layout().config.display().to_string()),
        "ok",
        "a file of the world can be read"
    );
}

#[test]
fn landlock_with_tcp_denied() {
    let Some(sandbox) = Landlocked::open() else { return };
    let mut world = world();
    let mut shim = sandbox.start(&Guest::of(&world, "tools"));
    assert_calls_work(&mut shim);
    Inside::of(shim.id()).assert_without(CANARY);
    assert_shim_reconnects(&mut world, &mut shim);

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback can be bound");
    let address = listener.local_addr().expect("it is bound").to_string();
    let libraries = [probe(), "/lib".into(), "/lib64".into(), "/usr/lib".into(), "/etc/ld.so.cache".into()];
    let readable: Vec<_> = libraries.iter().map(PathBuf::as_path).filter(|path| path.exists()).collect();
    let probe = |way: &str, endpoint: &str| {
        let mut command = sandbox.command_for(&probe(), &readable, &[]);
        command.args([way, endpoint]);
        probe_result(command)
    };
    assert!(probe("tcp", &address).starts_with("PermissionDenied"), "{}", probe("tcp", &address));
    assert_eq!(probe("unix", &world.layout().relay.display().to_string()), "ok");
    assert!(probe("read", &world.layout().config.display().to_string()).starts_with("PermissionDenied"));
}

#[test]
fn a_network_namespace_sees_the_host_at_one_address() {
    let Some(sandbox) = Veth::open() else { return };
    let world = world();
    let mut shim = sandbox.start(&Guest::of(&world, "tools"));
    assert_calls_work(&mut shim);
    let inside = Inside::innermost(shim.id());
    assert_eq!(inside.interfaces(), BTreeSet::from(["guest".to_owned(), "lo".to_owned()]));
    inside.assert_without(CANARY);

    let bound = |address| {
        let listener = TcpListener::bind((address, 0)).expect("the address is this machine's");
        let endpoint = listener.local_addr().expect("it is bound").to_string();
        (listener, endpoint)
    };
    let (_listener, here) = bound(sandbox.host());
    let (_other, elsewhere) = bound(Ipv4Addr::LOCALHOST);
    let probe = |endpoint: &str| {
        let mut command = sandbox.command_for(&probe());
        command.args(["tcp", endpoint]);
        probe_result(command)
    };
    assert_eq!(probe(&here), "ok");
    assert!(probe(&elsewhere).starts_with("ConnectionRefused"), "the sandbox shares the host's loopback");
    sandbox.set(Cable::Cut);
    assert_ne!(probe(&here), "ok");
    sandbox.set(Cable::Whole);
    assert_eq!(probe(&here), "ok");
}

#[test]
fn a_sandbox_leaves_nothing_behind() {
    let world = world();
    let guest = Guest::of(&world, "tools");
    let (mut inside, mut directories) = (Vec::new(), Vec::new());
    if let Some(sandbox) = Podman::open() {
        directories.push(sandbox.directory().to_owned());
        let mut shim = sandbox.start(&guest);
        assert_calls_work(&mut shim);
        inside.push(sandbox.process());
        let container = sandbox.container(&guest);
        inside.push(container.process());
    }
    if let Some(sandbox) = Gvisor::open(HostSockets::Open) {
        let mut shim = sandbox.start(&guest);
        assert_calls_work(&mut shim);
        inside.push(sandbox.process());
    }
    if let Some(sandbox) = Veth::open() {
        let mut shim = sandbox.start(&guest);
        assert_calls_work(&mut shim);
        inside.push(shim.id());
    }
    for process in inside {
        world.wait_until("the process that was inside has exited", || !is_alive(process));
    }
    for directory in directories {
        assert!(!directory.exists(), "{} is still there", directory.display());
    }
}

fn world() -> World {
    let server = Server::fixture().env("SECRET", "{local.value}");
    World::new().secret_file("local", CANARY).server("tools", server).start()
}

/// Asserts that the handshake and calls work, and that the harness receives no credential.
#[track_caller]
fn assert_calls_work(harness: &mut Harness) {
    assert_eq!(harness.initialize()["result"]["serverInfo"]["name"], "fixture-server");
    let tools = harness.request("tools/list", json!({}));
    assert!(tools["result"]["tools"].as_array().is_some_and(|tools| tools.len() > 10), "{tools}");
    assert_eq!(harness.call_text("add", json!({"a": 20, "b": 22})), "42");
    assert_eq!(harness.call_text("leak", json!({})), "the secret is <[redacted:local.value]>");
    assert_eq!(harness.call_text("big", json!({"bytes": 300_000})).len(), 300_000);
    assert_absent("what the harness received", harness.received(), CANARY);
}

/// Restarts the sidecar and asserts that calls of the same harness work, although the mounted directory has another
/// socket now.
#[track_caller]
fn assert_shim_reconnects(world: &mut World, harness: &mut Harness) {
    world.kill9_sidecar();
    world.start_sidecar();
    assert_eq!(harness.call_text("echo", json!({"text": "after the restart"})), "after the restart");
    assert_absent("what the harness received", harness.received(), CANARY);
}

fn probe() -> PathBuf {
    built("COFFERDAM_PROBE_BIN", "sandbox-probe")
}

/// The line that the probe prints.
#[track_caller]
fn probe_result(command: Command) -> String {
    let output = output_of(command, "sandbox-probe");
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success() && !text.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    text
}
