//! HTTP servers: the host puts credentials into headers, and redacts them in responses.

use std::process::Stdio;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::{refusal_of, text_of};
use cofferdam_tests::http::{Reply, listen};
use cofferdam_tests::http_fixture::{Behaviour, HttpFixture};
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{Running, command};
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

const SECRET: &str = "http-secret-8Rt4/Qs+77";
/// The timeout for waits: longer means that something hangs.
const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn server_everything_works_over_http() {
    let Some((_server, url)) = everything() else { return };
    let world = World::new().server("everything", local(&url)).start();
    let mut shim = world.connected("everything");
    assert_eq!(shim.call_text("echo", json!({"message": "over HTTP"})), "Echo: over HTTP");
    let call = json!({"name": "trigger-long-running-operation", "arguments": {"duration": 1, "steps": 2}, "_meta": {"progressToken": "p"}});
    let id = shim.send_request("tools/call", call);
    assert_eq!(shim.message_with_method("notifications/progress")["params"]["progressToken"], "p");
    assert!(shim.answer_to(&id).get("result").is_some());
}

/// The server refuses requests without an MCP session, so the new sidecar must make the handshake first.
#[test]
fn a_restarted_sidecar_opens_the_session_again() {
    let Some((_server, url)) = everything() else { return };
    let mut world = World::new().server("everything", local(&url)).start();
    let mut shim = world.connected("everything");
    assert_eq!(shim.call_text("echo", json!({"message": "before"})), "Echo: before");
    world.kill9_sidecar();
    let waiting = shim.send_call("echo", json!({"message": "meanwhile"}));
    world.start_sidecar();
    assert_eq!(text_of(&shim.answer_to(&waiting)), "Echo: meanwhile");
    assert_eq!(shim.call_text("echo", json!({"message": "after"})), "Echo: after");
}

#[test]
fn a_credential_is_sent_in_a_header_and_scrubbed_from_responses() {
    for behaviour in [Behaviour::Json, Behaviour::Events] {
        let server = HttpFixture::start(behaviour.clone());
        let world = World::new()
            .secret_file("local", SECRET)
            .server("remote", local(&server.url()).header("Authorization", "Bearer {local.value}"))
            .capturing()
            .start();
        let mut shim = world.connected("remote");
        let text = shim.call_text("headers", json!({}));
        assert!(text.contains("authorization: Bearer [redacted:local.value]"), "{behaviour:?}: {text}");
        let sent = server.requests();
        assert!(
            sent.iter()
                .filter(|request| request.method == "POST")
                .all(|request| request.headers["authorization"] == format!("Bearer {SECRET}"))
        );
        world.assert_secret_not_leaked(SECRET);
    }
}

#[test]
fn rules_hold_for_http_servers_too() {
    let server = HttpFixture::start(Behaviour::Json);
    let world = World::new().server("remote", local(&server.url()).allow(&["headers"])).start();
    let mut shim = world.connected("remote");
    let tools = shim.request("tools/list", json!({}));
    assert_eq!(tools["result"]["tools"].as_array().map(Vec::len), Some(1), "{tools}");
    assert_eq!(
        shim.call("delete_everything", json!({}))["error"]["message"],
        "Unknown tool: delete_everything"
    );
    assert!(!server.requests().iter().any(|request| request.body["params"]["name"] == "delete_everything"));
}

#[test]
fn a_credential_does_not_follow_a_redirect() {
    let elsewhere = HttpFixture::start(Behaviour::Json);
    let server = HttpFixture::start(Behaviour::RedirectsTo(elsewhere.url()));
    let world = World::new()
        .secret_file("local", SECRET)
        .server("remote", local(&server.url()).header("Authorization", "Bearer {local.value}"))
        .start();
    let response = world.shim("remote").initialize();
    assert!(response.get("error").is_some(), "{response}");
    assert!(elsewhere.requests().is_empty(), "{:?}", elsewhere.requests());
}

#[test]
fn private_addresses_are_refused_unless_the_configuration_says_otherwise() {
    let server = HttpFixture::start(Behaviour::Json);
    // The resolver reads `127.1` as 127.0.0.1; only the host names that are written as loopback need no `private`.
    let url = server.url().replace("127.0.0.1", "127.1");
    let world = World::new().server("default", Server::http(&url)).server("private", local(&url)).start();
    let response = world.shim("default").initialize();
    assert_eq!(refusal_of(&response), "server_unavailable");
    assert!(server.requests().is_empty(), "{:?}", server.requests());
    assert!(world.shim("private").initialize().get("result").is_some());
    assert!(!server.requests().is_empty(), "the handshake did not reach the server");
}

#[test]
fn the_unspecified_address_is_refused_whatever_the_configuration_says() {
    let server = HttpFixture::start(Behaviour::Json);
    let url = server.url().replace("127.0.0.1", "0.0.0.0");
    let world = World::new().server("default", Server::http(&url)).server("private", local(&url)).start();
    for name in ["default", "private"] {
        assert_eq!(refusal_of(&world.shim(name).initialize()), "server_unavailable", "{name}");
    }
    assert!(server.requests().is_empty(), "{:?}", server.requests());
}

#[test]
fn a_failing_server_is_reported_as_an_error() {
    for status in [401, 500] {
        let server = HttpFixture::start(Behaviour::Fails(status));
        let world = World::new().server("remote", local(&server.url())).start();
        let mut shim = world.shim("remote");
        let response = shim.initialize();
        assert!(response.get("error").is_some(), "{status}: {response}");
        assert!(shim.is_running());
    }
    let unused = format!("http://{}/mcp", free_address());
    let world = World::new().server("remote", local(&unused)).start();
    let response = world.shim("remote").initialize();
    assert_eq!(refusal_of(&response), "server_unavailable");
}

#[test]
fn the_stateless_era_sends_its_headers() {
    let server = HttpFixture::start(Behaviour::Json);
    let world = World::new().server("remote", local(&server.url())).start();
    let mut shim = world.shim("remote");
    shim.discover();
    let text = text_of(&shim.call("headers", json!({})));
    for header in ["mcp-protocol-version: 2026-07-28", "mcp-method: tools/call", "mcp-name: headers"] {
        assert!(text.contains(header), "{header} in {text}");
    }
}

#[test]
fn a_request_whose_header_cannot_be_filled_is_not_sent() {
    let server = HttpFixture::start(Behaviour::Json);
    let world = World::new()
        .secret_file("local", &json!({"token": SECRET}).to_string())
        .server("remote", local(&server.url()).header("Authorization", "Bearer {local.value}"))
        .start();
    let response = world.shim("remote").initialize();
    assert_eq!(refusal_of(&response), "credential_unavailable", "{response}");
    assert!(server.requests().is_empty());
}

#[test]
fn calls_in_an_expired_session_run_once_in_a_new_one() {
    let server = ExpiringSessions::start();
    let world = World::new().server("remote", local(&server.url())).start();
    let mut shim = world.connected("remote");
    assert_eq!(shim.call_text("where", json!({})), "session-1");
    server.expire_sessions();
    let calls: Vec<_> = (0..3).map(|_| shim.send_call("where", json!({}))).collect();
    for call in &calls {
        assert_eq!(text_of(&shim.answer_to(call)), "session-2");
    }
    assert_eq!(world.outcomes().len(), 4);
    // A server that expires every session is not retried for ever, and the call is reported as not run.
    server.expire_every_session();
    assert_eq!(refusal_of(&shim.call("where", json!({}))), "server_unavailable");
}

/// A server's open request ends with its MCP session.
#[test]
fn open_requests_of_an_expired_session_are_cancelled() {
    let server = ExpiringSessions::start();
    let world = World::new().server("remote", local(&server.url())).start();
    let mut shim = world.connected("remote");
    assert_eq!(shim.call_text("ask", json!({})), "session-1");
    let asked = shim.message_with_method("sampling/createMessage");
    server.expire_sessions();
    assert_eq!(shim.call_text("where", json!({})), "session-2");
    let cancelled = shim.message_with_method("notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], asked["id"], "{cancelled}");
    // A late response is dropped.
    shim.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"late": true}}));
    assert_eq!(shim.call_text("where", json!({})), "session-2");
    assert!(server.received().iter().all(|body| body.get("result").is_none()), "{:?}", server.received());
}

/// A server of the stateless era detects the cancellation by the closed stream: it gets no notification.
#[test]
fn a_cancelled_call_ends_its_exchange_with_the_server() {
    let (disconnected, is_disconnected) = mpsc::channel();
    let (called, was_called) = mpsc::channel();
    let address = listen(move |request| match request.body["method"].as_str() {
        _ if request.method != "POST" => Reply::Status(405),
        Some("initialize") => {
            let version = &request.body["params"]["protocolVersion"];
            let info = json!({"name": "patient", "version": "1"});
            let result = json!({"protocolVersion": version, "capabilities": {}, "serverInfo": info});
            Reply::Json(json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result}))
        }
        Some("tools/call") => {
            called.send(()).expect("the test waits for it");
            Reply::Held(disconnected.clone())
        }
        _ => Reply::Status(202),
    });
    let world = World::new().server("remote", local(&format!("http://{address}/mcp"))).start();
    let mut shim = world.connected("remote");
    let call = shim.send_call("wait", json!({}));
    was_called.recv_timeout(TIMEOUT).expect("the server is called");
    shim.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}));
    is_disconnected.recv_timeout(TIMEOUT).expect("the exchange has ended");
}

/// The connection is cut when the call has arrived: it may have run.
#[test]
fn a_call_without_http_response_runs_once_more_if_the_tool_allows_it() {
    for (tool, retry, cuts, expected) in [
        ("reading", "true", 1, Ok(2)),
        ("reading", "true", 9, Err(2)),
        ("sending", "true", 1, Err(1)),
        ("reading", "false", 1, Err(1)),
    ] {
        let runs = Arc::new(Mutex::new(0));
        let shared = Arc::clone(&runs);
        let address = listen(move |request| {
            let response =
                |result| Reply::Json(json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result}));
            let tool = |name: &str, safe: bool| json!({"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": safe}});
            match request.body["method"].as_str() {
                _ if request.method != "POST" => Reply::Status(405),
                Some("initialize") => {
                    let version = &request.body["params"]["protocolVersion"];
                    let info = json!({"name": "cut", "version": "1"});
                    response(
                        json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}),
                    )
                }
                Some("tools/list") => {
                    response(json!({"tools": [tool("reading", true), tool("sending", false)]}))
                }
                Some("tools/call") => {
                    let mut runs = shared.lock().expect("no holder of the lock panics");
                    *runs += 1;
                    match *runs <= cuts {
                        true => Reply::Cut,
                        false => {
                            response(json!({"content": [{"type": "text", "text": format!("run {runs}")}]}))
                        }
                    }
                }
                _ => Reply::Status(202),
            }
        });
        let server = local(&format!("http://{address}/mcp")).line(&format!("retry = {retry}"));
        let world = World::new().server("remote", server).start();
        let mut shim = world.connected("remote");
        let response = shim.call(tool, json!({}));
        match expected {
            Ok(times) => assert_eq!(text_of(&response), format!("run {times}"), "{tool}, retry = {retry}"),
            Err(_) => assert_eq!(refusal_of(&response), "outcome_unknown", "{tool}, retry = {retry}"),
        }
        let (Ok(times) | Err(times)) = expected;
        assert_eq!(*runs.lock().unwrap(), times, "{tool}, retry = {retry}, {cuts} cuts");
    }
}

/// A server whose MCP sessions the test can expire; the response to a call names its session.
struct ExpiringSessions {
    address: std::net::SocketAddr,
    state: Arc<Mutex<SessionState>>,
}

#[derive(Default)]
struct SessionState {
    received: Vec<Value>,
    opened: u32,
    expired: u32,
}

impl ExpiringSessions {
    fn start() -> Self {
        let state = Arc::new(Mutex::new(SessionState::default()));
        let shared = Arc::clone(&state);
        let address = listen(move |request| {
            let mut state = shared.lock().expect("no holder of the lock panics");
            state.received.push(request.body.clone());
            let session = request.headers.get("mcp-session-id");
            let number = session
                .and_then(|session| session.strip_prefix("session-")?.parse::<u32>().ok())
                .unwrap_or(0);
            let response = |result| json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result});
            match request.body["method"].as_str() {
                _ if request.method != "POST" => Reply::Status(405),
                Some("initialize") => {
                    state.opened += 1;
                    let version = &request.body["params"]["protocolVersion"];
                    let info = json!({"name": "expiring", "version": "1"});
                    Reply::Opens(
                        format!("session-{}", state.opened),
                        response(json!({"protocolVersion": version, "capabilities": {}, "serverInfo": info})),
                    )
                }
                _ if number <= state.expired => Reply::Status(404),
                Some("tools/call") => {
                    let text = format!("session-{number}");
                    let response = response(json!({"content": [{"type": "text", "text": text}]}));
                    match request.body["params"]["name"].as_str() {
                        Some("ask") => {
                            let request =
                                json!({"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage"});
                            Reply::Events(vec![("message".into(), request), ("message".into(), response)])
                        }
                        _ => Reply::Json(response),
                    }
                }
                _ => Reply::Status(202),
            }
        });
        Self { address, state }
    }

    fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// The bodies of all requests.
    fn received(&self) -> Vec<Value> {
        self.state.lock().expect("no holder of the lock panics").received.clone()
    }

    fn expire_sessions(&self) {
        let mut state = self.state.lock().expect("no holder of the lock panics");
        state.expired = state.opened;
    }

    fn expire_every_session(&self) {
        self.state.lock().expect("no holder of the lock panics").expired = u32::MAX;
    }
}

fn local(url: &str) -> Server {
    Server::http(url).line("private = true")
}

/// Starts `server-everything` on a free port; `None` where it is not installed.
fn everything() -> Option<(Running, String)> {
    let (node, everything) = (Tool::Node.path()?, Tool::EverythingServer.path()?);
    let port = free_address().port();
    let mut server = command(node);
    server.arg(everything).arg("streamableHttp").env("PORT", port.to_string());
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Running::spawn(server, "server-everything streamableHttp");
    wait_until("server-everything listens", || {
        assert!(server.is_running(), "server-everything has exited");
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    Some((server, format!("http://127.0.0.1:{port}/mcp")))
}
