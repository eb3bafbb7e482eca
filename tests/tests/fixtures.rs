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
fn the_fixture_supports_initialize_and_discover() {
    let mut legacy = BareFixture::start(&[]);
    assert_eq!(legacy.harness.initialize()["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(legacy.harness.call_text("add", json!({"a": 2, "b": 3})), "5");
    let mut stateless = BareFixture::start(&[]);
    assert_eq!(stateless.harness.discover()["result"]["supportedVersions"][0], "2026-07-28");
    assert_eq!(stateless.harness.call("echo", json!({"text": "x"}))["result"]["resultType"], "complete");
}

#[test]
fn every_execution_is_counted() {
    let mut fixture = BareFixture::start(&[]);
    fixture.harness.call("count", json!({"n": 1}));
    fixture.harness.call("echo", json!({"text": "x"}));
    assert_eq!(fixture.executed(), ["count", "echo"]);
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
        let mut fixture = BareFixture::start(&[]);
        fixture.harness.send_raw(trick.as_bytes());
        wait_until(&format!("the hidden call of {trick:?} ran"), || {
            fixture.executed() == ["delete_everything"]
        });
    }
}

#[test]
fn every_encoding_of_the_leak_tool_reveals_the_secret() {
    let mut fixture = BareFixture::start(&[]);
    for encoding in LEAKED_AS {
        let answer = fixture.harness.call("leak", json!({"as": encoding}));
        assert!(!found(text_of(&answer).as_bytes(), SECRET).is_empty(), "{encoding}: {answer}");
    }
    for place in ["error", "error-data", "escapes", "key", "log", "progress"] {
        let before = fixture.harness.received().len();
        fixture.harness.call("leak", json!({"in": place}));
        assert!(!found(&fixture.harness.received()[before..], SECRET).is_empty(), "{place}");
    }
    fixture.harness.call("leak", json!({"in": "stderr"}));
    wait_until("the secret is on stderr", || fixture.harness.stderr().contains(SECRET));
    assert!(fixture.harness.call_text("env", json!({})).contains(SECRET));
    let list = BareFixture::start(&["leaks-in-list"]).harness.request("tools/list", json!({})).to_string();
    assert!(list.contains(&format!("tool_{SECRET}")) && list.contains(&format!("uses {SECRET}")));
}

#[test]
fn a_server_can_use_the_id_of_the_call_for_its_own_request() {
    let mut fixture = BareFixture::start(&[]);
    let id = fixture.harness.send_call("ask_client", json!({"id": "same"}));
    let question = fixture.harness.message_with_method("roots/list");
    assert_eq!(question["id"], id);
    fixture.harness.send(&json!({"jsonrpc": "2.0", "id": id, "result": {"roots": ["here"]}}));
    assert!(text_of(&fixture.harness.answer_to(&id)).contains("here"));
}

#[test]
fn a_strict_server_requires_the_handshake_first() {
    let mut fixture = BareFixture::start(&["demands-handshake"]);
    let code = |answer: Value| answer["error"]["code"].clone();
    assert_eq!(code(fixture.harness.request("tools/list", json!({}))), -32002);
    let id = fixture.harness.send_initialize();
    fixture.harness.answer_to(&id);
    assert_eq!(
        code(fixture.harness.request("tools/list", json!({}))),
        -32002,
        "an incomplete handshake was enough"
    );
    fixture.harness.initialize();
    assert!(fixture.harness.request("tools/list", json!({})).get("result").is_some());
}

#[test]
fn ids_are_written_with_escapes() {
    let mut fixture = BareFixture::start(&["escapes-ids"]);
    fixture.harness.send_raw(b"{\"jsonrpc\":\"2.0\",\"id\":\"ab\",\"method\":\"ping\"}\n");
    assert!(contains(&fixture.harness.next_line(), br#""id":"\u0061\u0062""#));
}

#[test]
fn modes_and_tools_misbehave_as_documented() {
    let mut fixture = BareFixture::start(&["starts-with-garbage"]);
    for _ in 0..7 {
        fixture.harness.next_line();
    }
    fixture.harness.send_raw(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n");
    assert_eq!(fixture.harness.next_message()["id"], 1);

    let mut silent = BareFixture::start(&["never-answers"]);
    silent.harness.send_raw(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n");
    assert_eq!(silent.harness.line_within(Duration::from_millis(300)), None);

    assert_eq!(BareFixture::start(&["exits-at-once"]).harness.wait_for_exit().code(), Some(3));

    let mut crashing = BareFixture::start(&[]);
    crashing.harness.send_call("crash", json!({}));
    assert_eq!(crashing.harness.wait_for_exit().code(), Some(9));

    let mut big = BareFixture::start(&[]);
    assert_eq!(big.harness.call_text("big", json!({"bytes": 3_000_000})).len(), 3_000_000);
    big.harness.send_call("no_newline", json!({"bytes": 1_000_000}));
    assert!(big.harness.next_line().len() > 1_000_000);
}

#[test]
fn a_daemon_survives_its_server_and_sigterm() {
    let mut fixture = BareFixture::start(&["double-fork"]);
    fixture.harness.initialize();
    wait_until("three processes have recorded their ids", || fixture.processes().len() == 3);
    let orphan = fixture.processes()[2];
    fixture.harness.kill9();
    send(orphan, Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_alive(orphan), "SIGTERM ended the daemon");
    send(orphan, Signal::SIGKILL);
    wait_until("SIGKILL ends the daemon", || !is_alive(orphan));
}

#[test]
fn a_stubborn_server_outlives_eof_and_sigterm() {
    let mut fixture = BareFixture::start(&["ignores-term"]);
    fixture.harness.initialize();
    fixture.harness.close_stdin();
    fixture.harness.signal(Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(200));
    assert!(fixture.harness.is_running());
}

/// A harness directly on the fixture, without shim and sidecar.
struct BareFixture {
    harness: Harness,
    records: tempfile::TempDir,
}

impl BareFixture {
    fn start(arguments: &[&str]) -> Self {
        let records = tempfile::tempdir().expect("a temporary directory can be made");
        let mut program = command(built("COFFERDAM_FIXTURE_BIN", "fixture-server"));
        program.args(arguments).env("SECRET", SECRET);
        program.env("COUNT_FILE", records.path().join("count")).env("PID_FILE", records.path().join("pids"));
        Self { harness: Harness::start(program, "fixture-server"), records }
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
