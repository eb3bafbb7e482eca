//! A scripted client in every kind of sandbox: tools are listed and called, and nothing is left afterwards.

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::encodings::assert_absent;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::{built, is_alive, output_of, send};
use cofferdam_tests::run_user::RunUser;
use nix::sys::signal::Signal;
use serde_json::json;

use super::sandbox_kind::SandboxKind;
use super::{CANARY, user};

#[test]
fn bubblewrap() {
    assert_tools_work_in(SandboxKind::bubblewrap());
}

#[test]
fn podman_without_an_image_uses_this_machines_file_system() {
    assert_tools_work_in(SandboxKind::podman());
}

#[test]
fn the_command_line_of_docker() {
    assert_tools_work_in(SandboxKind::docker());
}

#[test]
fn gvisor() {
    assert_tools_work_in(SandboxKind::gvisor());
}

#[test]
fn srt() {
    assert_tools_work_in(SandboxKind::srt());
}

#[track_caller]
fn assert_tools_work_in(kind: Option<SandboxKind>) {
    let Some(kind) = kind else { return };
    let user = user();
    assert_tools_work_and_nothing_is_left(&user, kind.client(&user));
    kind.assert_nothing_left(&user);
}

/// Unix sockets are allowed in this sandbox, so the sidecar's sockets must be in hidden directories.
#[test]
fn srt_hides_the_files_and_sockets_of_the_sidecar() {
    let Some(kind) = SandboxKind::srt() else { return };
    let user = user();
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
    let output = output_of(kind.command(&user, &["--", "sh", "-c", &script]), "cofferdam run");
    let seen = super::text(&output.stdout);
    // The probe prints one line for each of the two sockets: `ok` if it could connect, otherwise the error.
    assert!(seen.lines().count() >= 2 && !seen.contains("ok"), "{seen}\n{}", super::text(&output.stderr));
    assert!(!seen.contains(CANARY) && !seen.contains("audit") && !seen.contains("[servers"), "{seen}");
    user.assert_nothing_left();
}

/// Lists and calls tools, kills the sidecar, calls again, closes stdin as a harness does, and asserts that nothing is left.
#[track_caller]
pub(crate) fn assert_tools_work_and_nothing_is_left(user: &RunUser, mut client: Harness) {
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
