//! Tests of the fixture and the harness themselves, without a sidecar: other tests rely on both.

use std::time::Duration;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::encodings::{LEAKED_AS, contains, found};
use cofferdam_tests::harness::{Harness, text_of};
use cofferdam_tests::process::{built, command, is_alive, read, send};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const SECRET: &str = "fixture-secret-5Tg8/Lm+02";

#[test]
fn both_eras_are_answered() {
    let mut legacy = Bare::start(&[]);
    assert_eq!(legacy.harness.initialize()["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(legacy.harness.call_text("add", json!({"a": 2, "b": 3})), "5");
    let mut modern = Bare::start(&[]);
    assert_eq!(modern.harness.discover()["result"]["supportedVersions"][0], "2026-07-28");
    assert_eq!(modern.harness.call("echo", json!({"text": "x"}))["result"]["resultType"], "complete");
}

#[test]
fn every_execution_is_counted() {
    let mut bare = Bare::start(&[]);
    bare.harness.call("count", json!({"n": 1}));
    bare.harness.call("echo", json!({"text": "x"}));
    assert_eq!(bare.executed(), ["count", "echo"]);
}

/// The fixture has to run each hidden call: only then does a count of zero prove that the sidecar refused it.
#[test]
fn the_fixture_parses_messages_leniently() {
    let hidden = r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"delete_everything"}}"#;
    let tricks = [
        format!("[{hidden}]\n"),
        format!("{{\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"ping\"}}\r{hidden}\n"),
        format!("{{\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"ping\"}}\u{2028}{hidden}\n"),
        format!("{{\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"ping\"}}\u{85}{hidden}\n"),
        hidden.replace(r#""name""#, r#""name":"echo","name""#) + "\n",
        hidden.replace(r#""name""#, r#""name":"echo","Name""#) + "\n",
        hidden.replace(r#""params""#, r#""params":{"name":"echo"},"paramſ""#) + "\n",
        hidden.replace(r#""id":9"#, r#""id":null"#) + "\n",
    ];
    for trick in tricks {
        let mut bare = Bare::start(&[]);
        bare.harness.send_raw(trick.as_bytes());
        wait_until(&format!("the hidden call of {trick:?} ran"), || bare.executed() == ["delete_everything"]);
    }
}

#[test]
fn every_form_of_the_leak_tool_reveals_the_secret() {
    let mut bare = Bare::start(&[]);
    for encoding in LEAKED_AS {
        let answer = bare.harness.call("leak", json!({"as": encoding}));
        assert!(!found(text_of(&answer).as_bytes(), SECRET).is_empty(), "{encoding}: {answer}");
    }
    for place in ["error", "error-data", "escapes", "key", "log", "progress"] {
        let before = bare.harness.received().len();
        bare.harness.call("leak", json!({"in": place}));
        assert!(!found(&bare.harness.received()[before..], SECRET).is_empty(), "{place}");
    }
    bare.harness.call("leak", json!({"in": "stderr"}));
    wait_until("the secret is on stderr", || bare.harness.stderr().contains(SECRET));
    assert!(bare.harness.call_text("env", json!({})).contains(SECRET));
    let list = Bare::start(&["leaks-in-list"]).harness.request("tools/list", json!({})).to_string();
    assert!(list.contains(&format!("tool_{SECRET}")) && list.contains(&format!("uses {SECRET}")));
}

#[test]
fn a_server_can_use_the_id_of_the_request_it_got() {
    let mut bare = Bare::start(&[]);
    let id = bare.harness.send_call("ask_client", json!({"id": "same"}));
    let question = bare.harness.message_with_method("roots/list");
    assert_eq!(question["id"], id);
    bare.harness.send(&json!({"jsonrpc": "2.0", "id": id, "result": {"roots": ["here"]}}));
    assert!(text_of(&bare.harness.answer_to(&id)).contains("here"));
}

#[test]
fn a_strict_server_requires_the_handshake_first() {
    let mut bare = Bare::start(&["demands-handshake"]);
    let code = |answer: Value| answer["error"]["code"].clone();
    assert_eq!(code(bare.harness.request("tools/list", json!({}))), -32002);
    let id = bare.harness.send_initialize();
    bare.harness.answer_to(&id);
    assert_eq!(
        code(bare.harness.request("tools/list", json!({}))),
        -32002,
        "an incomplete handshake is not enough"
    );
    bare.harness.initialize();
    assert!(bare.harness.request("tools/list", json!({})).get("result").is_some());
}

#[test]
fn ids_are_respelled() {
    let mut bare = Bare::start(&["id-respelled"]);
    bare.harness.send_raw(b"{\"jsonrpc\":\"2.0\",\"id\":\"ab\",\"method\":\"ping\"}\n");
    assert!(contains(&bare.harness.next_line(), br#""id":"\u0061\u0062""#));
}

#[test]
fn modes_and_tools_misbehave_as_documented() {
    let mut bare = Bare::start(&["starts-with-garbage"]);
    for _ in 0..7 {
        bare.harness.next_line();
    }
    bare.harness.send_raw(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n");
    assert_eq!(bare.harness.next_message()["id"], 1);

    let mut silent = Bare::start(&["never-answers"]);
    silent.harness.send_raw(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n");
    assert_eq!(silent.harness.line_within(Duration::from_millis(300)), None);

    assert_eq!(Bare::start(&["exits-at-once"]).harness.wait_for_exit().code(), Some(3));

    let mut crashing = Bare::start(&[]);
    crashing.harness.send_call("crash", json!({}));
    assert_eq!(crashing.harness.wait_for_exit().code(), Some(9));

    let mut big = Bare::start(&[]);
    assert_eq!(big.harness.call_text("big", json!({"bytes": 3_000_000})).len(), 3_000_000);
    big.harness.send_call("no_newline", json!({"bytes": 1_000_000}));
    assert!(big.harness.next_line().len() > 1_000_000);
}

#[test]
fn a_daemon_survives_its_server_and_sigterm() {
    let mut bare = Bare::start(&["double-fork"]);
    bare.harness.initialize();
    wait_until("three processes have recorded their ids", || bare.processes().len() == 3);
    let orphan = bare.processes()[2];
    bare.harness.kill9();
    send(orphan, Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_alive(orphan), "only SIGKILL ends it");
    send(orphan, Signal::SIGKILL);
    wait_until("SIGKILL ends it", || !is_alive(orphan));
}

#[test]
fn a_stubborn_server_outlives_eof_and_sigterm() {
    let mut bare = Bare::start(&["ignores-term"]);
    bare.harness.initialize();
    bare.harness.close_stdin();
    bare.harness.signal(Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(200));
    assert!(bare.harness.is_running());
}

/// A harness directly on the fixture, without shim and sidecar.
struct Bare {
    harness: Harness,
    records: tempfile::TempDir,
}

impl Bare {
    fn start(arguments: &[&str]) -> Self {
        let records = tempfile::tempdir().expect("a temporary directory can be made");
        let mut fixture = command(built("COFFERDAM_FIXTURE_BIN", "fixture-server"));
        fixture.args(arguments).env("SECRET", SECRET);
        fixture.env("COUNT_FILE", records.path().join("count")).env("PID_FILE", records.path().join("pids"));
        Self { harness: Harness::start(fixture, "fixture-server"), records }
    }

    fn executed(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&read(&self.records.path().join("count"))).into_owned();
        let tool = |line: &str| Some(serde_json::from_str::<Value>(line).ok()?["tool"].as_str()?.to_owned());
        text.lines().filter_map(tool).collect()
    }

    fn processes(&self) -> Vec<u32> {
        let text = String::from_utf8_lossy(&read(&self.records.path().join("pids"))).into_owned();
        text.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
    }
}
