//! The other settings of `replace` and `reload`: when idle, never, and in files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_tests::deadline::{holds_within, wait_until};
use cofferdam_tests::harness::text_of;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::{
    lease_id, leases, prepared, session_tokens, set_certificate_ttl, world_with_tools_server,
};
use serde_json::json;

use crate::scene::{Scene, process, variable};

#[test]
fn an_idle_server_is_replaced_and_a_busy_one_is_not() {
    let Some(mut scene) = Scene::with_server_line("replace = \"idle\"") else { return };
    let mut harness = scene.world.connected("tools");
    let first = process(&mut harness);
    let long = harness.send_call("slow", json!({"ms": 6000}));
    scene.change_secret();
    wait_until("a new process waits", || scene.shown_in_sessions().contains("waits to take over"));
    assert_eq!(process(&mut harness), first, "the call did not go to the old process, which is busy");
    assert!(scene.replacement_records("replaced").is_empty());
    assert_eq!(text_of(&harness.answer_to(&long)), "late");
    wait_until("the new process has taken over", || scene.replacement_records("replaced").len() == 1);
    assert_ne!(process(&mut harness), first);
    wait_until("the old process is gone", || scene.alive().len() == 1);
}

#[test]
fn a_server_that_is_never_replaced_keeps_its_credential() {
    let Some(mut scene) = Scene::with_server_line("replace = \"never\"") else { return };
    let mut harness = scene.world.connected("tools");
    let first = process(&mut harness);
    let value = scene.change_secret();
    wait_until("`sessions` shows the outdated credential", || {
        scene.shown_in_sessions().contains("replace = \"never\"")
    });
    assert!(!holds_within(Duration::from_secs(1), || scene.processes().len() > 1));
    assert_eq!(process(&mut harness), first);
    harness.send_call("crash", json!({}));
    wait_until("the next process runs", || harness.call("process", json!({})).get("result").is_some());
    assert_eq!(variable(process(&mut harness), "SECRET"), Some(value));
}

/// A server that has the secret in a file.
fn with_file(mode: &str, reload: &str) -> Option<Scene> {
    let server = Server::fixture_that(mode)
        .file("token", "{github.token}")
        .env("TOKEN_FILE", "{file:token}")
        .line(&format!("reload = \"{reload}\""));
    Scene::with_server(server.allow(&["*"]))
}

#[test]
fn a_file_is_rewritten_while_its_process_keeps_running() {
    let Some(mut scene) = with_file("plain", "file") else { return };
    let mut harness = scene.world.connected("tools");
    let first = process(&mut harness);
    let path = PathBuf::from(variable(first, "TOKEN_FILE").unwrap());
    let before = fs::read_to_string(&path).unwrap();
    let value = scene.change_secret();
    wait_until("the file has the new value", || fs::read_to_string(&path).unwrap() == value);
    assert_ne!(before, value);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "there is another file");
    assert_eq!(process(&mut harness), first);
    wait_until("the audit records the reload", || scene.replacement_records("reloaded").len() == 1);
    assert_eq!(scene.processes(), [first]);
}

#[test]
fn sighup_is_sent_after_the_file_was_rewritten() {
    let Some(mut scene) = with_file("records-sighup", "sighup") else { return };
    let mut harness = scene.world.connected("tools");
    let first = process(&mut harness);
    let path = PathBuf::from(variable(first, "TOKEN_FILE").unwrap());
    let value = scene.change_secret();
    wait_until("it was sent SIGHUP", || scene.methods_received(0).contains(&"SIGHUP".to_owned()));
    let received = scene.world.received("tools").swap_remove(0);
    let hangup = received.iter().find(|message| message["method"] == "SIGHUP").expect("it was sent SIGHUP");
    assert_eq!(
        hangup["params"]["found"], value,
        "the file did not have the new value when SIGHUP was received"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), value);
    assert_eq!(process(&mut harness), first);
    assert_eq!(scene.processes(), [first]);
}

#[test]
fn a_secret_that_is_also_in_a_variable_replaces_the_process() {
    let server = Server::fixture()
        .file("token", "{github.token}")
        .env("SECRET", "{github.token}")
        .line("reload = \"file\"")
        .allow(&["*"]);
    let Some(mut scene) = Scene::with_server(server) else { return };
    let mut harness = scene.world.connected("tools");
    let first = process(&mut harness);
    scene.change_secret_and_wait();
    assert_ne!(process(&mut harness), first);
}

#[test]
fn a_lease_ends_with_the_process_that_was_replaced() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    set_certificate_ttl(&bao, "30s");
    let world = world_with_tools_server(&bao).start();
    let mut harness = world.connected("tools");
    let first = process(&mut harness);
    let long = harness.send_call("slow", json!({"ms": 32_000}));
    let lease = lease_id(&bao);
    let tokens = session_tokens(&bao);
    assert_eq!(tokens.len(), 1, "not one session token, which the lease belongs to");
    wait_until("another process has taken over", || process(&mut harness) != first);
    assert_eq!(leases(&bao), 2, "the old lease is still in use");
    assert_eq!(text_of(&harness.answer_to(&long)), "late");
    wait_until("the old lease is gone", || leases(&bao) == 1 && lease_id(&bao) != lease);
    // The old lease may have expired by itself, but its token would expire hours later.
    wait_until("it was revoked", || {
        session_tokens(&bao).iter().all(|token| token["accessor"] != tokens[0]["accessor"])
    });
}
