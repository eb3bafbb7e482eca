//! No message may mean one thing to the sidecar and another to a more lenient parser.
//!
//! The fixture is that lenient parser (`fixtures.rs` shows that each trick works on it), and it counts what ran.

use cofferdam_tests::harness::{Harness, refusal_of, text_of};
use cofferdam_tests::relay::RawRelay;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use relay_proto::frame::MaybeRan;
use serde_json::{Value, json};

const HIDDEN: &str =
    r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"delete_everything","arguments":{}}}"#;
const CALL: &str =
    r#"{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":"count","arguments":{}}}"#;

#[test]
fn malformed_messages_are_refused_and_nothing_hidden_runs() {
    let (world, mut harness) = start_world();
    for (what, line, id) in malformed() {
        harness.send_raw(format!("{line}\n").as_bytes());
        let answer = harness.next_message();
        assert_eq!(refusal_of(&answer), "message_malformed", "{what}: {answer}");
        assert_eq!(answer["error"]["code"], -32600, "{what}: {answer}");
        assert_eq!(answer["id"], id, "{what}: {answer}");
    }
    assert_nothing_hidden_ran(&world, &mut harness);
}

/// A hostile sandbox does not use the shim: the sidecar must refuse these messages too.
#[test]
fn malformed_messages_are_refused_without_a_shim_too() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut sandbox = RawRelay::welcomed(&world.layout().relay, "tools");
    for (what, line, id) in malformed() {
        sandbox.send_message(line.as_bytes(), MaybeRan::No);
        let answer = sandbox.next_message();
        assert_eq!(refusal_of(&answer), "message_malformed", "{what}: {answer}");
        assert_eq!(answer["id"], id, "{what}: {answer}");
    }
    sandbox.send_message(CALL.as_bytes(), MaybeRan::No);
    assert_eq!(text_of(&sandbox.next_message()), "ran count");
    assert_eq!(world.times_executed("tools", "delete_everything"), 0);
}

#[test]
fn an_id_in_flight_cannot_be_used_again_without_a_shim_either() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut sandbox = RawRelay::welcomed(&world.layout().relay, "tools");
    let slow =
        r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"slow","arguments":{"ms":60000}}}"#;
    sandbox.send_message(slow.as_bytes(), MaybeRan::No);
    sandbox.send_message(HIDDEN.as_bytes(), MaybeRan::No);
    let refused = sandbox.next_message();
    assert_eq!((refusal_of(&refused), &refused["id"]), ("message_malformed", &Value::Null));
    sandbox.send_message(CALL.as_bytes(), MaybeRan::No);
    assert_eq!(text_of(&sandbox.next_message()), "ran count");
    assert_eq!(world.times_executed("tools", "delete_everything"), 0);
}

/// The shim drops late responses too; this test has no shim.
#[test]
fn a_late_response_does_not_leave_the_host() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut sandbox = RawRelay::welcomed(&world.layout().relay, "tools");
    let slow = |id: u32, ms: u32| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"slow","arguments":{{"ms":{ms}}}}}}}"#
        )
    };
    sandbox.send_message(slow(1, 300).as_bytes(), MaybeRan::No);
    world.wait_until("the call runs", || world.times_executed("tools", "slow") == 1);
    let cancel = br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    sandbox.send_message(cancel, MaybeRan::No);
    // The second call takes longer than the first: a response to the first would arrive before.
    sandbox.send_message(slow(2, 1500).as_bytes(), MaybeRan::No);
    assert_eq!(sandbox.next_message()["id"], 2);
}

#[test]
fn invalid_utf_8_is_refused() {
    let (world, mut harness) = start_world();
    let mut line = HIDDEN.as_bytes().to_vec();
    let place = line.len() - 6;
    line.splice(place..place, [b'"', 0xff, 0xfe, b'"']);
    line.push(b'\n');
    harness.send_raw(&line);
    assert_eq!(refusal_of(&harness.next_message()), "message_malformed");
    assert_nothing_hidden_ran(&world, &mut harness);
}

/// Valid JSON, yet a runtime that ends lines at a carriage return reads three messages.
#[test]
fn a_message_hidden_between_carriage_returns_does_not_run() {
    for separator in ["\r", "\r \r"] {
        let (world, mut harness) = start_world();
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"ping\",\"params\":{separator}{HIDDEN}{separator}}}\n"
        );
        harness.send_raw(line.as_bytes());
        let answer = harness.next_message();
        // Between values a carriage return is white space: the message is relayed as one line.
        assert!(answer["id"] == 8 && answer.get("result").is_some(), "{answer}");
        assert_nothing_hidden_ran(&world, &mut harness);
    }
}

/// JSON allows these characters inside a string: they reach the server, which returns them unchanged.
#[test]
fn line_separators_inside_strings_do_not_split_a_message() {
    let (world, mut harness) = start_world();
    for separator in ["\u{85}", "\u{2028}", "\u{2029}"] {
        let text = format!("before{separator}after");
        assert_eq!(harness.call_text("echo", json!({ "text": text })), text);
    }
    assert_nothing_hidden_ran(&world, &mut harness);
}

#[test]
fn an_id_in_flight_cannot_be_used_again() {
    let (world, mut harness) = start_world();
    let slow = r#"{"jsonrpc":"2.0","id":"twin","method":"tools/call","params":{"name":"slow","arguments":{"ms":1500}}}"#;
    harness.send_raw(format!("{slow}\n").as_bytes());
    harness.send_raw(format!("{}\n", HIDDEN.replace(r#""id":9"#, r#""id":"\u0074win""#)).as_bytes());
    let refused = harness.next_message();
    assert_eq!((refusal_of(&refused), &refused["id"]), ("message_malformed", &Value::Null));
    let answer = harness.next_message();
    assert_eq!(answer["result"]["content"][0]["text"], "late");
    assert_nothing_hidden_ran(&world, &mut harness);
    // An id that has been answered is free again.
    harness.send_raw(b"{\"jsonrpc\":\"2.0\",\"id\":\"twin\",\"method\":\"ping\"}\n");
    assert!(harness.answer_to(&json!("twin")).get("result").is_some());
}

#[test]
fn a_message_that_is_too_large_is_refused_under_its_id_wherever_the_id_is() {
    let (world, mut harness) = start_world();
    let filler = "x".repeat(11 * 1024 * 1024);
    let lines = [
        format!(
            r#"{{"jsonrpc":"2.0","id":81,"method":"tools/call","params":{{"name":"delete_everything","arguments":{{"x":"{filler}"}}}}}}"#
        ),
        format!(
            r#"{{"jsonrpc":"2.0","method":"tools/call","params":{{"name":"delete_everything","arguments":{{"x":"{filler}"}}}},"id":82}}"#
        ),
    ];
    for (line, id) in lines.iter().zip([81, 82]) {
        harness.send_raw(line.as_bytes());
        harness.send_raw(b"\n");
        let answer = harness.answer_to(&json!(id));
        assert_eq!(refusal_of(&answer), "message_too_large");
        assert_eq!(answer["error"]["code"], -32600);
    }
    assert_nothing_hidden_ran(&world, &mut harness);
}

/// Lines of a server that are not MCP messages are dropped, and the messages after them arrive.
#[test]
fn malformed_output_of_a_server_is_skipped() {
    for mode in ["plain", "starts-with-garbage"] {
        let world = World::new().server("tools", Server::fixture_that(mode)).start();
        let mut harness = world.connected("tools");
        assert_eq!(harness.call_text("garbage", json!({})), "after the garbage");
        let lines = harness.received().split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for line in lines {
            assert!(
                serde_json::from_slice::<Value>(line).is_ok_and(|message| message.is_object()),
                "{mode}: {line:?}"
            );
        }
    }
}

/// What is wrong with a line, the line, and the id of its response: that of the line, or null unless the line has
/// exactly one id that can be read.
fn malformed() -> Vec<(&'static str, String, Value)> {
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":9,"method":"ping","params":{{"x":{}1{}}}}}"#,
        "[".repeat(5000),
        "]".repeat(5000)
    );
    vec![
        ("a batch", format!("[{HIDDEN}]"), Value::Null),
        ("two messages in a line", format!("{HIDDEN} {HIDDEN}"), Value::Null),
        ("half a message", HIDDEN[..40].to_owned(), Value::Null),
        ("a bare value", "42".to_owned(), Value::Null),
        (
            "a carriage return between messages",
            format!("{{\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"ping\"}}\r{HIDDEN}"),
            Value::Null,
        ),
        (
            "U+2028 between messages",
            format!("{{\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"ping\"}}\u{2028}{HIDDEN}"),
            Value::Null,
        ),
        ("an id that is null", HIDDEN.replace(r#""id":9"#, r#""id":null"#), Value::Null),
        ("an id with a fraction", HIDDEN.replace(r#""id":9"#, r#""id":1.5"#), Value::Null),
        ("an id that is an object", HIDDEN.replace(r#""id":9"#, r#""id":{}"#), Value::Null),
        ("an id that is true", HIDDEN.replace(r#""id":9"#, r#""id":true"#), Value::Null),
        ("two ids", HIDDEN.replace(r#""id":9"#, r#""id":8,"id":9"#), Value::Null),
        ("two methods", HIDDEN.replace(r#""method""#, r#""method":"ping","method""#), json!(9)),
        (
            "an escaped second method",
            HIDDEN.replace(r#""method""#, r#""m\u0065thod":"ping","method""#),
            json!(9),
        ),
        ("two names", HIDDEN.replace(r#""name""#, r#""name":"echo","name""#), json!(9)),
        ("Name beside name", HIDDEN.replace(r#""name""#, r#""name":"echo","Name""#), json!(9)),
        ("Method beside method", HIDDEN.replace(r#""method""#, r#""method":"ping","Method""#), json!(9)),
        (
            "paramſ beside params",
            HIDDEN.replace(r#""params""#, r#""params":{"name":"echo"},"paramſ""#),
            json!(9),
        ),
        (
            "a duplicate key deep in the arguments",
            HIDDEN.replace(r#""arguments":{}"#, r#""arguments":{"a":[{"b":1,"b":2}]}"#),
            json!(9),
        ),
        ("a method beside a result", HIDDEN.replace(r#""method""#, r#""result":{},"method""#), json!(9)),
        (
            "a method beside an error",
            HIDDEN.replace(r#""method""#, r#""error":{"code":1,"message":"x"},"method""#),
            json!(9),
        ),
        ("deep nesting", deep, json!(9)),
    ]
}

fn start_world() -> (World, Harness) {
    let world = World::new().server("tools", Server::fixture()).start();
    let harness = world.connected("tools");
    (world, harness)
}

/// Asserts that the link still works and that no hidden call ran.
#[track_caller]
fn assert_nothing_hidden_ran(world: &World, harness: &mut Harness) {
    assert_eq!(harness.call_text("echo", json!({"text": "still here"})), "still here");
    assert_eq!(world.times_executed("tools", "delete_everything"), 0, "{:?}", world.executions("tools"));
}
