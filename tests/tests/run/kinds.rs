//! A scripted client in every kind of sandbox: tools are listed and called, and nothing is left afterwards.

use std::process::Command;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::encodings::assert_absent;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::local_run::LocalRun;
use cofferdam_tests::process::{built, is_alive, send};
use cofferdam_tests::sandboxes::PodmanEngine;
use cofferdam_tests::tools::Tool;
use nix::sys::signal::Signal;
use serde_json::json;

use super::{CANARY, user};

#[test]
fn bubblewrap() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    assert_tools_work_and_nothing_is_left(&user, user.client(&[], "tools"));
}

#[test]
fn podman_with_the_system_of_this_machine() {
    let Some(podman) = PodmanEngine::open() else { return };
    let user = user();
    let mut command = user.command(&["--sandbox", "podman", "--", "cofferdam-shim", "--server", "tools"]);
    podman.configure(&mut command);
    assert_tools_work_and_nothing_is_left(&user, Harness::start(command, "cofferdam run"));
    assert_eq!(podman.containers(), "");
}

/// Docker's daemon is not available, so podman runs the same command line, without `--init`, which needs another package.
#[test]
fn the_command_line_of_docker() {
    let (Some(podman), Some(program)) = (PodmanEngine::open(), Tool::Podman.path()) else { return };
    let user = user();
    let image = podman.empty_image();
    let without_init = r#"for word; do shift; [ "$word" = --init ] || set -- "$@" "$word"; done"#;
    user.program("docker", &format!("#!/bin/sh\n{without_init}\nexec {program:?} \"$@\"\n"));
    let mut command = client_in_image(&user, &podman, "docker", &image);
    command.env("PATH", user.search_path());
    assert_tools_work_and_nothing_is_left(&user, Harness::start(command, "cofferdam run"));
    assert_eq!(podman.containers(), "");
}

#[test]
fn gvisor() {
    if Tool::Runsc.path().is_none() {
        return;
    }
    let user = user();
    assert_tools_work_and_nothing_is_left(&user, user.client(&["--sandbox", "gvisor"], "tools"));
}

#[test]
fn srt() {
    let (Some(node), Some(runtime)) = (Tool::Node.path(), Tool::SandboxRuntime.path()) else { return };
    let user = user();
    user.program("srt", &format!("#!/bin/sh\nexec {node:?} {runtime:?} \"$@\"\n"));
    let mut command = user.command(&["--sandbox", "srt", "--", "cofferdam-shim", "--server", "tools"]);
    command.env("PATH", user.search_path());
    assert_tools_work_and_nothing_is_left(&user, Harness::start(command, "cofferdam run"));
}

/// Unix sockets are allowed in this sandbox, so the sidecar's sockets must be in hidden directories.
#[test]
fn srt_hides_the_files_and_sockets_of_the_sidecar() {
    let (Some(node), Some(runtime)) = (Tool::Node.path(), Tool::SandboxRuntime.path()) else { return };
    let user = user();
    user.program("srt", &format!("#!/bin/sh\nexec {node:?} {runtime:?} \"$@\"\n"));
    user.write("private", CANARY);
    let probe = built("COFFERDAM_PROBE_BIN", "sandbox-probe");
    let layout = user.world.layout();
    let script = format!(
        "{probe:?} unix {admin:?}; {probe:?} unix {relay:?}; cat {secret:?} {config:?}; ls -A {state:?}; cat {home:?}/private; true",
        admin = layout.admin,
        relay = layout.relay,
        secret = layout.root().join("secrets/local"),
        config = layout.config,
        state = layout.state,
        home = user.home(),
    );
    let mut command = user.command(&["--sandbox", "srt", "--", "sh", "-c", &script]);
    command.env("PATH", user.search_path());
    let output = cofferdam_tests::process::output_of(command, "cofferdam run");
    let seen = super::text(&output.stdout);
    assert!(seen.lines().count() >= 2 && !seen.contains("ok"), "{seen}\n{}", super::text(&output.stderr));
    assert!(!seen.contains(CANARY) && !seen.contains("audit") && !seen.contains("[servers"), "{seen}");
    user.assert_nothing_left();
}

/// The command of a scripted client in a container of this image, with the podman of the test.
pub(crate) fn client_in_image(user: &LocalRun, podman: &PodmanEngine, kind: &str, image: &str) -> Command {
    let shim = ["cofferdam-shim", "--server", "tools"];
    let mut command = user.command(&[&["--sandbox", kind, "--image", image, "--"][..], &shim].concat());
    podman.configure(&mut command);
    command
}

/// Lists and calls tools, kills the sidecar, calls again, closes stdin as a harness does, and asserts that nothing is left.
#[track_caller]
pub(crate) fn assert_tools_work_and_nothing_is_left(user: &LocalRun, mut client: Harness) {
    assert_eq!(client.initialize()["result"]["serverInfo"]["name"], "fixture-server");
    let tools = client.request("tools/list", json!({}));
    assert!(tools["result"]["tools"].as_array().is_some_and(|tools| tools.len() > 10), "{tools}");
    assert_eq!(client.call_text("leak", json!({})), "the secret is <[redacted:local.value]>");
    let sidecar = user.wait_for_sidecar();
    send(sidecar, Signal::SIGKILL);
    wait_until("the sidecar is gone", || !is_alive(sidecar));
    assert_eq!(client.call_text("echo", json!({"text": "back again"})), "back again");
    assert_ne!(user.wait_for_sidecar(), sidecar);
    client.close_stdin();
    assert!(client.wait_for_exit().success(), "{}", client.stderr());
    assert_absent("what the client received", client.received(), CANARY);
    for process in user.world.fixture_processes("tools") {
        assert!(!is_alive(process), "server {process} still runs");
    }
    user.assert_nothing_left();
}
