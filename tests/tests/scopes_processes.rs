//! The separate process of a stdio server for the tools of a scope: its handshake and settings, its messages, and its
//! end. A change of the configuration applies to the next call.

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::{refusal_of, text_of};
use cofferdam_tests::process::{is_alive, send};
use cofferdam_tests::server::{Server, environment, secret_of};
use cofferdam_tests::world::{Builder, World};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const READER: &str = "reader-CANARY-of-scopes-1234";
const WRITER: &str = "writer-CANARY-of-scopes-5678";

#[test]
fn a_scopes_process_gets_the_handshake_and_settings_of_the_link() {
    let world = world(Server::fixture_that("demands-handshake")).start();
    let mut harness = world.connected("tools");
    harness.request("logging/setLevel", json!({"level": "debug"}));
    harness.request("resources/subscribe", json!({"uri": "file:///a"}));
    harness.request("tools/list", json!({}));
    assert_eq!(harness.call_text("rw_count", json!({})), "ran rw_count");
    harness.request("logging/setLevel", json!({"level": "error"}));
    harness.request("resources/unsubscribe", json!({"uri": "file:///a"}));
    harness.notify("notifications/roots/list_changed", json!({}));
    harness.call_text("rw_count", json!({}));
    harness.call_text("count", json!({}));
    assert_eq!(
        methods(&world, 1),
        [
            "initialize",
            "notifications/initialized",
            "logging/setLevel",
            "resources/subscribe",
            "tools/call",
            "logging/setLevel",
            "resources/unsubscribe",
            "notifications/roots/list_changed",
            "tools/call",
        ]
    );
    let base = methods(&world, 0);
    assert!(base.contains(&"notifications/roots/list_changed".to_owned()), "{base:?}");
    assert_eq!(base.iter().filter(|method| *method == "tools/call").count(), 1, "{base:?}");
    // The next process of the scope gets the current settings.
    send(world.fixture_processes("tools")[1], Signal::SIGKILL);
    wait_until("there is a successor", || harness.call("rw_count", json!({})).get("result").is_some());
    let successor = &world.received("tools")[2];
    let successor_methods: Vec<&Value> = successor.iter().map(|received| &received["method"]).collect();
    assert_eq!(
        successor_methods[..3],
        ["initialize", "notifications/initialized", "logging/setLevel"],
        "{successor_methods:?}"
    );
    assert_eq!(successor[2]["params"]["level"], "error");
    assert!(!successor_methods.contains(&&json!("resources/subscribe")), "{successor_methods:?}");
}

#[test]
fn a_harness_that_does_not_wait_for_responses_is_served() {
    let world = world(Server::fixture_that("demands-handshake")).start();
    let mut harness = world.shim("tools");
    harness.send_initialize();
    harness.notify("notifications/initialized", json!({}));
    let call = harness.send_call("rw_count", json!({}));
    assert_eq!(text_of(&harness.answer_to(&call)), "ran rw_count");
}

#[test]
fn responses_reach_the_right_one_of_two_processes_that_use_the_same_id() {
    let world = world(Server::fixture()).start();
    let mut harness = world.connected("tools");
    let arguments = json!({"method": "elicitation/create", "id": 7, "params": {"message": "who?"}});
    let calls =
        [harness.send_call("ask_client", arguments.clone()), harness.send_call("rw_ask_client", arguments)];
    let asked: Vec<Value> =
        (0..2).map(|_| harness.message_with_method("elicitation/create")["id"].clone()).collect();
    assert_ne!(asked[0], asked[1]);
    // The requests do not show which process sent them; each response must reach that process.
    for (id, name) in asked.iter().zip(["first", "second"]).rev() {
        harness.send(
            &json!({"jsonrpc": "2.0", "id": id, "result": {"action": "accept", "content": {"name": name}}}),
        );
    }
    let answers: Vec<String> = calls.iter().map(|id| text_of(&harness.answer_to(id))).collect();
    assert!(answers.iter().all(|answer| answer.contains("\"id\":7")), "{answers:?}");
    let of = |name: &str| answers.iter().filter(|answer| answer.contains(name)).count();
    assert_eq!((of("first"), of("second")), (1, 1), "{answers:?}");
}

#[test]
fn open_requests_of_a_dead_process_are_cancelled_and_others_stay() {
    let world = world(Server::fixture()).start();
    let mut harness = world.connected("tools");
    let arguments = json!({"method": "elicitation/create", "id": 7, "params": {}});
    let stays = harness.send_call("ask_client", arguments.clone());
    let request_of_base = harness.message_with_method("elicitation/create")["id"].clone();
    let dies = harness.send_call("rw_ask_client", arguments);
    let request_of_scope = harness.message_with_method("elicitation/create")["id"].clone();
    send(world.fixture_processes("tools")[1], Signal::SIGKILL);
    assert_eq!(refusal_of(&harness.answer_to(&dies)), "outcome_unknown");
    let cancelled = harness.message_with_method("notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], request_of_scope);
    harness.send(&json!({"jsonrpc": "2.0", "id": request_of_scope, "result": {"late": true}}));
    harness.send(&json!({"jsonrpc": "2.0", "id": request_of_base, "result": {"right": true}}));
    let answer = text_of(&harness.answer_to(&stays));
    assert!(answer.contains("right") && !answer.contains("late"), "{answer}");
}

#[test]
fn progress_and_cancellation_work_for_calls_in_a_scope() {
    let world = world(Server::fixture()).start();
    let mut harness = world.connected("tools");
    let slow =
        json!({"name": "rw_slow", "arguments": {"ms": 600, "steps": 3}, "_meta": {"progressToken": "p"}});
    let id = harness.send_request("tools/call", slow);
    for step in 1..=3 {
        assert_eq!(harness.message_with_method("notifications/progress")["params"]["progress"], step);
    }
    assert_eq!(text_of(&harness.answer_to(&id)), "late");
    let cancelled = harness.send_call("rw_slow", json!({"ms": 500}));
    wait_until("the call runs", || world.times_executed("tools", "rw_slow") == 2);
    harness.notify("notifications/cancelled", json!({"requestId": cancelled}));
    assert_eq!(
        harness.call_text("rw_slow", json!({"ms": 1000})),
        "late",
        "the call after the cancelled one failed"
    );
    harness.call_text("count", json!({}));
    let received =
        |process| methods(&world, process).iter().filter(|name| *name == "notifications/cancelled").count();
    assert_eq!((received(0), received(1)), (0, 1));
    assert!(harness.answer_within(&cancelled, std::time::Duration::ZERO).is_none());
    let results: Vec<Value> = world.outcomes().into_iter().map(|outcome| outcome["result"].clone()).collect();
    assert_eq!(results.iter().filter(|result| **result == "cancelled").count(), 1, "{results:?}");
}

#[test]
fn a_crash_of_a_scopes_process_affects_its_own_calls_only() {
    let world = world(Server::fixture()).start();
    let mut harness = world.connected("tools");
    let long_call = harness.send_call("slow", json!({"ms": 1500}));
    let dies = harness.send_call("rw_slow", json!({"ms": 60_000}));
    wait_until("both run", || world.executions("tools").len() == 2);
    let crash = harness.send_call("rw_crash", json!({}));
    for id in [dies, crash] {
        assert_eq!(refusal_of(&harness.answer_to(&id)), "outcome_unknown");
    }
    assert_eq!(text_of(&harness.answer_to(&long_call)), "late");
    wait_until("another process runs", || harness.call("rw_count", json!({})).get("result").is_some());
    let processes = world.fixture_processes("tools");
    assert_eq!((processes.len(), is_alive(processes[0])), (3, true));
    assert_eq!(world.times_executed("tools", "rw_crash"), 1);
    // A crash of the base process does not affect calls in the scope either.
    let long_call = harness.send_call("rw_slow", json!({"ms": 1500}));
    wait_until("it runs", || world.times_executed("tools", "rw_slow") == 2);
    assert_eq!(refusal_of(&harness.call("crash", json!({}))), "outcome_unknown");
    assert_eq!(text_of(&harness.answer_to(&long_call)), "late");
}

#[test]
fn a_retry_runs_in_its_scope() {
    let world = world(Server::fixture().line("retry = true")).start();
    let mut harness = world.connected("tools");
    harness.request("tools/list", json!({}));
    // The call would crash the first two processes: the base process, which does not get it, and the scope's first
    // process.
    let answer = harness.call_text("unreliable_read_only", json!({"processes": 2}));
    assert_eq!(answer, "ran on 3");
    let processes = world.fixture_processes("tools");
    assert!(is_alive(processes[0]) && environment(processes[2]).contains(WRITER));
}

#[test]
fn a_scopes_process_ends_with_its_link() {
    let world = world(Server::fixture_that("ignores-term")).start();
    let mut harness = world.connected("tools");
    harness.call_text("rw_count", json!({}));
    let processes = world.fixture_processes("tools");
    assert!(processes.len() == 2 && processes.iter().all(|id| is_alive(*id)));
    harness.close_stdin();
    harness.wait_for_exit();
    wait_until("both processes have exited", || !processes.iter().any(|id| is_alive(*id)));
    let mut harness = world.connected("tools");
    harness.call_text("rw_count", json!({}));
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    let printed = world.cofferdam_text(&["kill", &session]);
    assert!(printed.contains("server and all its descendants ended"), "{printed}");
    let left: Vec<u32> = world.fixture_processes("tools").into_iter().filter(|id| is_alive(*id)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_scopes_process_counts_towards_the_grants_limit() {
    let world = world(Server::fixture()).limit("processes = 1").start();
    let mut harness = world.connected("tools");
    let answer = harness.call("rw_count", json!({}));
    assert_eq!(refusal_of(&answer), "server_unavailable");
    assert!(answer.to_string().contains("limits.processes"), "{answer}");
    assert_eq!(harness.call_text("count", json!({})), "ran count");
}

#[test]
fn scopes_that_a_reload_adds_apply_to_the_next_call() {
    let unscoped = Server::fixture().env("SECRET", "{writer.value}");
    let mut world = secrets(World::new()).server("tools", unscoped).start();
    let mut harness = world.connected("tools");
    assert_eq!(secret_of(&mut harness, "env"), "[redacted:writer.value]");
    let running = harness.send_call("slow", json!({"ms": 6000}));
    wait_until("it runs", || world.times_executed("tools", "slow") == 1);
    world.rewrite(|builder| builder.server("tools", scoped(Server::fixture())));
    world.cofferdam_text(&["reload"]);
    // The process with the stronger credential finishes its calls and gets no new ones.
    assert_eq!(secret_of(&mut harness, "env"), "[redacted:reader.value]");
    assert_eq!(secret_of(&mut harness, "rw_env"), "[redacted:writer.value]");
    // Its log messages still reach the harness, so it gets the new log level too.
    harness.request("logging/setLevel", json!({"level": "warning"}));
    let levels =
        |process| methods(&world, process).iter().filter(|method| *method == "logging/setLevel").count();
    wait_until("each process has received the log level", || (0..3).all(|process| levels(process) == 1));
    assert_eq!(text_of(&harness.answer_to(&running)), "late");
    let processes = world.fixture_processes("tools");
    assert_eq!(processes.len(), 3);
    wait_until("the old process has exited", || !is_alive(processes[0]));
    assert_eq!(methods(&world, 1)[..2], ["initialize", "notifications/initialized"]);
}

#[test]
fn scopes_that_a_reload_changes_or_removes_apply_to_the_next_call() {
    let mut world = world(Server::fixture()).start();
    let mut harness = world.connected("tools");
    assert_eq!(secret_of(&mut harness, "rw_env"), "[redacted:writer.value]");
    // Other patterns alone leave the process as it is.
    world.rewrite(|builder| builder.server("tools", with_tools(Server::fixture(), "['rw_env', 'rw_slow']")));
    world.cofferdam_text(&["reload"]);
    assert_eq!(secret_of(&mut harness, "rw_env"), "[redacted:writer.value]");
    assert_eq!(harness.call_text("rw_count", json!({})), "ran rw_count");
    assert_eq!(methods(&world, 0).last().unwrap(), "tools/call", "the base process did not get the call");
    assert_eq!(world.fixture_processes("tools").len(), 2);
    world.rewrite(|builder| builder.server("tools", Server::fixture().env("SECRET", "{reader.value}")));
    world.cofferdam_text(&["reload"]);
    assert_eq!(secret_of(&mut harness, "rw_env"), "[redacted:reader.value]");
    let processes = world.fixture_processes("tools");
    assert_eq!(processes.len(), 2, "the base process was replaced");
    wait_until("the process of the scope is ended", || !is_alive(processes[1]));
    assert!(is_alive(processes[0]));
    assert_eq!(world.sessions()[0]["scopes"], json!([]));
}

fn world(server: Server) -> Builder {
    secrets(World::new()).server("tools", scoped(server))
}

fn secrets(builder: Builder) -> Builder {
    builder.secret_file("reader", READER).secret_file("writer", WRITER)
}

fn scoped(server: Server) -> Server {
    with_tools(server, "['rw_*', 'unreliable_*']")
}

fn with_tools(server: Server, tools: &str) -> Server {
    server
        .env("SECRET", "{reader.value}")
        .line(&format!("[[servers.tools.scopes]]\ntools = {tools}\nenv = {{ SECRET = '{{writer.value}}' }}"))
}

/// The methods that the n-th process of the server received.
fn methods(world: &World, process: usize) -> Vec<String> {
    let method = |received: &Value| received["method"].as_str().unwrap_or_default().to_owned();
    world.received("tools")[process].iter().map(method).collect()
}
