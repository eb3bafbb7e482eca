//! `retry = true`: a call that may have run is run once more if its tool's annotations allow it; otherwise its outcome
//! is unknown.

use cofferdam_tests::deadline::{PATIENCE, holds_within, wait_until};
use cofferdam_tests::harness::{refusal_of, text_of};
use cofferdam_tests::process::send;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const SAFE: [(&str, &str); 2] = [
    ("unreliable_read_only", "retry: annotations.readOnlyHint"),
    ("unreliable_idempotent", "retry: annotations.idempotentHint"),
];

#[test]
fn a_call_whose_server_died_runs_once_more_if_the_tool_allows_it() {
    for (tool, rule) in SAFE {
        let world = World::new().server("tools", retrying("demands-handshake")).start();
        let mut shim = world.connected("tools");
        shim.request("tools/list", json!({}));
        assert_eq!(shim.call_text(tool, json!({})), "ran on 2");
        assert_eq!(world.times_executed("tools", tool), 2);
        assert_eq!(rules(&world), ["tools: no rules", rule], "the second run has no separate decision");
        let results: Vec<Value> = world.outcomes().iter().map(|outcome| outcome["result"].clone()).collect();
        assert_eq!(results, ["outcome_unknown", "result"]);
    }
}

#[test]
fn a_call_of_a_tool_that_does_not_allow_it_does_not_run_again() {
    for (server, tool) in [
        (retrying("plain"), "unreliable_unannotated"),
        (Server::fixture(), "unreliable_read_only"),
        (Server::fixture().line("retry = false"), "unreliable_read_only"),
    ] {
        let world = World::new().server("tools", server).start();
        let mut shim = world.connected("tools");
        shim.request("tools/list", json!({}));
        assert_eq!(refusal_of(&shim.call(tool, json!({}))), "outcome_unknown");
        assert_eq!(shim.call_text("echo", json!({"text": "back"})), "back");
        assert_eq!(world.times_executed("tools", tool), 1);
    }
}

#[test]
fn nothing_runs_a_third_time() {
    let world = World::new().server("tools", retrying("plain")).start();
    let mut shim = world.connected("tools");
    shim.request("tools/list", json!({}));
    let answer = shim.call("unreliable_read_only", json!({"processes": 9}));
    assert_eq!(refusal_of(&answer), "outcome_unknown");
    assert!(!answer.to_string().contains("keeps failing"), "a third process was started: {answer}");
    assert_eq!(world.times_executed("tools", "unreliable_read_only"), 2);
}

/// The harness never listed the tools, so the sidecar must send `tools/list` itself, in either era.
#[test]
fn a_server_is_asked_whether_its_tools_may_be_repeated() {
    for (mode, tool, outcome) in [
        ("demands-handshake", "unreliable_idempotent", Ok("ran on 2")),
        ("lists-in-pages", "unreliable_idempotent", Ok("ran on 2")),
        ("lists-in-pages", "unreliable_unannotated", Err("outcome_unknown")),
    ] {
        let world = World::new().server("tools", retrying(mode)).start();
        let mut shim = world.connected("tools");
        let answer = shim.call(tool, json!({}));
        match outcome {
            Ok(text) => assert_eq!(text_of(&answer), text, "{mode} {tool}"),
            Err(code) => assert_eq!(refusal_of(&answer), code, "{mode} {tool}"),
        }
    }
    let world = World::new().server("tools", retrying("plain")).start();
    let mut shim = world.shim("tools");
    shim.discover();
    assert_eq!(shim.call_text("unreliable_read_only", json!({})), "ran on 2");
    let received = world.received("tools");
    let asked = received[1]
        .iter()
        .find(|message| message["method"] == "tools/list")
        .expect("no `tools/list` was sent");
    let meta = &asked["params"]["_meta"];
    assert_eq!(
        meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28",
        "in the harness's era: {asked}"
    );
}

#[test]
fn a_call_that_an_old_sidecar_sent_runs_once_more_on_a_new_one() {
    let mut world = World::new().server("tools", retrying("demands-handshake")).start();
    let mut shim = world.connected("tools");
    let hang = json!({"how": "hang"});
    let calls = ["unreliable_read_only", "unreliable_idempotent", "unreliable_unannotated"].map(|tool| {
        let id = shim.send_call(tool, hang.clone());
        wait_until("it runs", || world.times_executed("tools", tool) == 1);
        (tool, id)
    });
    let list = shim.send_request("tools/list", json!({}));
    shim.answer_to(&list);
    world.kill9_sidecar();
    world.start_sidecar();
    for (tool, id) in calls {
        let answer = shim.answer_to(&id);
        match tool {
            "unreliable_unannotated" => assert_eq!(refusal_of(&answer), "outcome_unknown"),
            _ => assert_eq!(text_of(&answer), "ran on 2", "{tool}"),
        }
    }
    for (tool, times) in
        [("unreliable_read_only", 2), ("unreliable_idempotent", 2), ("unreliable_unannotated", 1)]
    {
        assert_eq!(world.times_executed("tools", tool), times, "{tool}");
    }
}

/// The call was repeated after a crash, and then the sidecar was killed: the audit shows that it has run twice.
#[test]
fn a_new_sidecar_does_not_run_a_third_time_what_the_old_one_repeated() {
    let mut world = World::new().server("tools", retrying("plain")).start();
    let mut shim = world.connected("tools");
    shim.request("tools/list", json!({}));
    let id = shim.send_call("unreliable_read_only", json!({"processes": 9, "how": "hang"}));
    wait_until("it runs", || world.times_executed("tools", "unreliable_read_only") == 1);
    send(world.fixture_processes("tools")[0], Signal::SIGKILL);
    wait_until("it runs again", || world.times_executed("tools", "unreliable_read_only") == 2);
    world.kill9_sidecar();
    world.start_sidecar();
    assert_eq!(refusal_of(&shim.answer_to(&id)), "outcome_unknown");
    assert_eq!(shim.call_text("echo", json!({"text": "new"})), "new");
    assert_eq!(world.times_executed("tools", "unreliable_read_only"), 2);
}

#[test]
fn a_call_that_the_rules_deny_meanwhile_is_not_repeated() {
    let mut world = World::new().server("tools", retrying("plain")).start();
    let mut shim = world.connected("tools");
    shim.request("tools/list", json!({}));
    let id = shim.send_call("unreliable_read_only", json!({"how": "hang"}));
    wait_until("it runs", || world.times_executed("tools", "unreliable_read_only") == 1);
    world.rewrite(|builder| builder.server("tools", retrying("plain").deny(&["unreliable_*"])));
    world.cofferdam_text(&["reload"]);
    send(world.fixture_processes("tools")[0], Signal::SIGKILL);
    assert_eq!(refusal_of(&shim.answer_to(&id)), "tool_denied");
    assert_eq!(shim.call_text("echo", json!({"text": "back"})), "back");
    assert_eq!(world.times_executed("tools", "unreliable_read_only"), 1);
}

#[test]
fn a_request_that_waits_to_be_repeated_can_be_cancelled() {
    let world = World::new().server("tools", retrying("hides-its-tools")).start();
    let mut shim = world.connected("tools");
    let id = shim.send_call("unreliable_read_only", json!({}));
    wait_until("a second process is asked for its tools", || asked_for_tools(&world, 1));
    let in_flight = || world.sessions()[0]["in-flight"].clone();
    assert_eq!(in_flight(), 1, "the request does not wait");
    shim.notify("notifications/cancelled", json!({"requestId": id}));
    // Long before the timeout of the server's `tools/list`.
    assert!(holds_within(PATIENCE / 4, || in_flight() == 0), "the cancelled request still waits");
    assert_eq!(shim.call_text("echo", json!({"text": "on"})), "on");
    assert!(
        shim.answer_within(&id, std::time::Duration::ZERO).is_none(),
        "a cancelled request got a response"
    );
    assert_eq!(world.times_executed("tools", "unreliable_read_only"), 1);
}

#[test]
fn no_request_waits_forever_for_a_server_that_does_not_list_its_tools() {
    let server = retrying("hides-its-tools").line("call-timeout = \"1s\"");
    let world = World::new().server("tools", server).start();
    let mut shim = world.connected("tools");
    assert_eq!(refusal_of(&shim.call("unreliable_read_only", json!({}))), "outcome_unknown");
    assert!(asked_for_tools(&world, 1), "no `tools/list` was sent");
    assert_eq!(world.times_executed("tools", "unreliable_read_only"), 1);
}

/// Otherwise a sandbox could receive the response to a request of the sidecar, with tools that it may not see.
#[test]
fn a_harness_may_not_use_ids_of_the_sidecar() {
    let world = World::new().server("tools", retrying("plain").allow(&["unreliable_*"])).start();
    let mut shim = world.connected("tools");
    shim.send(&json!({"jsonrpc": "2.0", "id": "cofferdam-replay-1", "method": "ping"}));
    assert_eq!(refusal_of(&shim.answer_to(&Value::Null)), "message_malformed");
}

fn asked_for_tools(world: &World, process: usize) -> bool {
    let received = world.received("tools");
    received
        .get(process)
        .is_some_and(|received| received.iter().any(|message| message["method"] == "tools/list"))
}

fn retrying(mode: &str) -> Server {
    Server::fixture_that(mode).line("retry = true")
}

/// The rules that decided the tool calls.
fn rules(world: &World) -> Vec<String> {
    let rule = |decision: Value| decision["rule"].as_str().unwrap_or_default().to_owned();
    world.decisions().into_iter().map(rule).collect()
}
