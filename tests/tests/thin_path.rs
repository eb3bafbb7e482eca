//! A harness's line becomes a tool call on the host, and its result comes back complete, once, and with its id
//! unchanged.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cofferdam_tests::encodings::contains;
use cofferdam_tests::harness::{Harness, refusal_of, text_of};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

#[test]
fn a_call_goes_out_and_its_result_comes_back() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.shim("tools");
    assert_eq!(shim.initialize()["result"]["serverInfo"]["name"], "fixture-server");
    assert_eq!(shim.call_text("add", json!({"a": 20, "b": 22})), "42");
    assert_eq!(world.times_executed("tools", "add"), 1);
}

#[test]
fn a_stateless_call_goes_out_and_its_result_comes_back() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.shim("tools");
    assert_eq!(shim.discover()["result"]["supportedVersions"][0], "2026-07-28");
    let answer = shim.call("echo", json!({"text": "stateless"}));
    assert_eq!(answer["result"]["resultType"], "complete");
    assert_eq!(text_of(&answer), "stateless");
}

#[test]
fn a_refused_discover_is_followed_by_initialize_on_the_same_process() {
    let world = World::new().server("tools", Server::fixture_that("legacy")).start();
    let mut shim = world.shim("tools");
    shim.send_raw(b"{\"jsonrpc\":\"2.0\",\"id\":\"probe\",\"method\":\"server/discover\",\"params\":{}}\n");
    assert_eq!(shim.answer_to(&json!("probe"))["error"]["code"], -32601);
    shim.initialize();
    assert_eq!(shim.call_text("echo", json!({"text": "fallen back"})), "fallen back");
    let received = world.received("tools");
    assert_eq!(received.len(), 1, "the server was started more than once: {received:?}");
    let methods: Vec<&str> = received[0].iter().filter_map(|message| message["method"].as_str()).collect();
    assert_eq!(methods, ["server/discover", "initialize", "notifications/initialized", "tools/call"]);
}

#[test]
fn unknown_fields_pass_unchanged() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    assert!(contains(shim.received(), br#""x-unknown-field":{"kept":[1,1.0,100.0]}"#));
    let params = json!({"futureParam": {"deep": [1, 1.0, null]}, "name": "x"});
    let answer = shim.request("x/echo", params.clone());
    assert_eq!(answer["result"]["params"], params);
}

#[test]
fn ids_come_back_byte_for_byte() {
    let world = World::new()
        .server("tools", Server::fixture())
        .server("respells", Server::fixture_that("escapes-ids"))
        .start();
    for server in ["tools", "respells"] {
        let mut shim = world.connected(server);
        for id in
            [r#""plain""#, r#""\u0061bc""#, r#""with \"quotes\" and \\""#, "-7", "9007199254740993", r#""""#]
        {
            shim.send_raw(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"ping\"}}\n").as_bytes());
            let line = shim.next_line();
            assert!(
                contains(&line, format!("\"id\":{id}").as_bytes()),
                "{server} {id}: {}",
                String::from_utf8_lossy(&line)
            );
        }
    }
}

#[test]
fn carriage_returns_empty_lines_and_garbage_do_no_harm() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    shim.send_raw(b"\r\n\n\n{\"jsonrpc\":\"2.0\",\"id\":70,\"method\":\"ping\"}\r\n");
    assert!(shim.answer_to(&json!(70)).get("result").is_some());
    shim.send_raw(b"this is not json\n");
    assert_eq!(refusal_of(&shim.answer_to(&Value::Null)), "message_malformed");
    assert_eq!(shim.call_text("echo", json!({"text": "still here"})), "still here");
}

#[test]
fn large_messages_pass_both_ways() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    let text = "ü".repeat(4 * 1024 * 1024);
    assert!(shim.call_text("echo", json!({ "text": text })) == text, "8 MiB came back changed");
}

#[test]
fn a_response_that_is_too_large_is_refused_under_its_id() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    let answer = shim.call("big", json!({"bytes": 11 * 1024 * 1024}));
    assert_eq!(refusal_of(&answer), "message_too_large");
    assert_eq!(shim.call_text("echo", json!({"text": "still here"})), "still here");
}

#[test]
fn a_quick_call_overtakes_a_slow_one() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    let slow = shim.send_call("slow", json!({"ms": 1500}));
    let quick = shim.send_call("echo", json!({"text": "quick"}));
    assert_eq!(shim.next_message()["id"], quick);
    assert_eq!(text_of(&shim.answer_to(&slow)), "late");
}

#[test]
fn a_cancelled_call_is_not_answered() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    let slow = shim.send_call("slow", json!({"ms": 700}));
    shim.notify("notifications/cancelled", json!({"requestId": slow, "reason": "enough"}));
    // The second call takes longer than the first: a response to the first would arrive before.
    shim.call("slow", json!({"ms": 1500}));
    assert_eq!(shim.answer_within(&slow, Duration::from_millis(100)), None);
    world.wait_until("the audit records the cancellation", || {
        world.outcomes().iter().any(|outcome| outcome["result"] == "cancelled")
    });
}

#[test]
fn a_server_sends_a_request_to_the_harness_and_gets_the_response() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    for id in [json!(null), json!("same"), json!(1), json!("text")] {
        let call = shim.send_call("ask_client", json!({"id": id}));
        let request = shim.message_with_method("roots/list");
        shim.send(
            &json!({"jsonrpc": "2.0", "id": request["id"], "result": {"roots": [{"uri": "file:///here"}]}}),
        );
        let received = text_of(&shim.answer_to(&call));
        assert!(received.contains("file:///here"), "asked as {id}: {received}");
    }
}

/// A new process uses the same ids as the old process; a response for the old process must not reach it.
#[test]
fn a_servers_ids_are_rewritten_for_each_process() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    let call = shim.send_call("ask_client", json!({"id": 7}));
    let stale = shim.message_with_method("roots/list")["id"].clone();
    assert!(stale != json!(7) && stale != call, "{stale}");
    shim.call("crash", json!({}));
    assert_eq!(refusal_of(&shim.answer_to(&call)), "outcome_unknown");
    let cancelled = shim.message_with_method("notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], stale, "another request was cancelled");
    let call = shim.send_call("ask_client", json!({"id": 7}));
    let fresh = shim.message_with_method("roots/list")["id"].clone();
    assert_ne!(fresh, stale);
    shim.send(&json!({"jsonrpc": "2.0", "id": stale, "result": {"roots": [{"uri": "file:///stale"}]}}));
    shim.send(&json!({"jsonrpc": "2.0", "id": fresh, "result": {"roots": [{"uri": "file:///fresh"}]}}));
    let received = text_of(&shim.answer_to(&call));
    assert!(received.contains("file:///fresh"), "{received}");
}

#[test]
fn too_many_requests_at_once_are_refused_and_do_not_run() {
    let world = World::new().server("tools", Server::fixture()).limit("requests-in-flight = 2").start();
    let mut shim = world.connected("tools");
    let first = shim.send_call("slow", json!({"ms": 60_000}));
    shim.send_call("slow", json!({"ms": 60_000}));
    let refused = shim.call("count", json!({}));
    assert_eq!(refusal_of(&refused), "server_unavailable");
    assert_eq!(world.times_executed("tools", "count"), 0);
    shim.notify("notifications/cancelled", json!({"requestId": first}));
    assert_eq!(
        shim.call_text("count", json!({})),
        "ran count",
        "the cancelled request still counts towards the limit"
    );
}

#[test]
fn a_shim_that_starts_before_its_sidecar_waits() {
    let mut world = World::new().server("tools", Server::fixture()).prepare();
    let mut shim = world.shim("tools");
    let id = shim.send_initialize();
    assert_eq!(shim.answer_within(&id, Duration::from_millis(500)), None);
    world.start_sidecar();
    assert!(shim.answer_to(&id).get("result").is_some());
}

#[test]
fn the_end_of_input_ends_a_shim_and_its_server() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    let processes = world.fixture_processes("tools");
    assert_eq!(processes.len(), 1);
    shim.close_stdin();
    assert!(shim.wait_for_exit().success());
    world.wait_until("the server is gone", || !cofferdam_tests::process::is_alive(processes[0]));
}

#[test]
fn signals_end_a_shim() {
    let world = World::new().server("tools", Server::fixture()).start();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut shim = world.connected("tools");
        shim.signal(signal);
        shim.wait_for_exit();
    }
}

#[test]
fn neither_the_shims_nor_the_sidecars_environment_reaches_a_server() {
    let server = Server::fixture().env("GIVEN", "given-by-the-configuration");
    let world = World::new()
        .server("tools", server)
        .secret_env("local", "SIDECAR_ONLY", "sidecar-only-value")
        .start();
    let mut command = world.shim_command();
    command.args(["--server", "tools"]).env("ANTHROPIC_API_KEY", "shim-only-value");
    let mut shim = Harness::start(command, "cofferdam-shim");
    shim.initialize();
    let environment = shim.call_text("env", json!({}));
    assert!(environment.contains("GIVEN=given-by-the-configuration"), "{environment}");
    assert!(
        !environment.contains("shim-only-value") && !environment.contains("SIDECAR_ONLY"),
        "{environment}"
    );
}

#[test]
fn a_socket_can_be_inherited() {
    let world = World::new().server("tools", Server::fixture()).start();
    let socket = UnixStream::connect(&world.layout().relay).expect("the relay accepts connections");
    nix::fcntl::fcntl(&socket, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))
        .expect("a flag can be cleared");
    let shim = cofferdam_tests::process::built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    let mut command = cofferdam_tests::process::command(shim);
    command.env_clear().args(["--relay", &format!("fd:{}", socket.as_raw_fd()), "--server", "tools"]);
    let mut shim = Harness::start(command, "cofferdam-shim");
    drop(socket);
    shim.initialize();
    assert_eq!(shim.call_text("echo", json!({"text": "by descriptor"})), "by descriptor");
}

#[test]
fn the_link_comes_from_the_environment_and_the_only_server_is_the_default() {
    let world = World::new().server("tools", Server::fixture()).start();
    let shim = cofferdam_tests::process::built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    let mut command = cofferdam_tests::process::command(shim);
    command.env_clear().env("COFFERDAM_RELAY", world.link());
    let mut shim = Harness::start(command, "cofferdam-shim");
    shim.initialize();
    assert_eq!(shim.call_text("echo", json!({"text": "by default"})), "by default");
}

/// The MCP client of rmcp, which parses strictly.
#[tokio::test(flavor = "current_thread")]
async fn the_official_client_works() {
    use rmcp::ServiceExt;
    let world = World::new().server("tools", Server::fixture()).start();
    let mut command = world.shim_command();
    command.args(["--server", "tools"]);
    let transport = rmcp::transport::TokioChildProcess::new(tokio::process::Command::from(command))
        .expect("the shim starts");
    let conversation = async {
        let client = ().serve(transport).await.expect("the handshake succeeds");
        let tools = client.list_all_tools().await.expect("tools are listed");
        assert!(tools.iter().any(|tool| tool.name == "echo"));
        let arguments = json!({"text": "typed"}).as_object().cloned().unwrap_or_default();
        let call = rmcp::model::CallToolRequestParams::new("echo").with_arguments(arguments);
        let result = client.call_tool(call).await.expect("the call succeeds");
        assert!(serde_json::to_string(&result).unwrap().contains("typed"));
        client.cancel().await.expect("the client ends");
    };
    tokio::time::timeout(cofferdam_tests::deadline::PATIENCE, conversation).await.expect("in time");
}
