//! Tools that run with other credentials than their server: which credential each process and each request gets, what
//! the audit records, and which calls are refused because their credential cannot be determined.

use std::fs;
use std::time::Duration;

use cofferdam_tests::harness::{Harness, refusal_of, text_of};
use cofferdam_tests::http_fixture::{Behaviour, HttpFixture};
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::server::{Server, environment, secret_of};
use cofferdam_tests::vault::{self, CANARY, prepared};
use cofferdam_tests::world::{Builder, World};
use serde_json::{Value, json};

const READER: &str = "reader-CANARY-of-scopes-1234";
const WRITER: &str = "writer-CANARY-of-scopes-5678";

#[test]
fn a_tool_of_a_scope_runs_with_the_credential_of_its_scope_and_no_other_tool_does() {
    let world = secrets(World::new()).server("tools", scoped(Server::fixture())).capturing().start();
    let mut harness = world.connected("tools");
    assert_eq!(secret_of(&mut harness, "env"), "[redacted:reader.value]");
    assert_eq!(
        world.fixture_processes("tools").len(),
        1,
        "a process was started for a scope that was not called"
    );
    for _ in 0..2 {
        assert_eq!(secret_of(&mut harness, "rw_env"), "[redacted:writer.value]");
        assert_eq!(secret_of(&mut harness, "env"), "[redacted:reader.value]");
    }
    let processes = world.fixture_processes("tools");
    assert_eq!(processes.len(), 2);
    let [base, of_scope] = [environment(processes[0]), environment(processes[1])];
    assert!(base.contains(&format!("SECRET={READER}")) && !base.contains(WRITER), "{base}");
    assert!(of_scope.contains(&format!("SECRET={WRITER}")) && !of_scope.contains(READER), "{of_scope}");
    world.assert_secret_not_leaked(READER);
    world.assert_secret_not_leaked(WRITER);
    let session = &world.sessions()[0];
    assert_eq!(session["pid"], processes[0]);
    assert_eq!(session["scopes"], json!([{"tools": "rw_*, write_*", "pid": processes[1]}]));
    assert_eq!(session["secrets"], json!(["reader", "writer"]));
    assert!(world.cofferdam_text(&["sessions"]).contains("tools rw_*, write_*"));
}

#[test]
fn each_scope_gets_its_files_with_its_credential() {
    let server = Server::fixture()
        .env("KEY", "{file:key}")
        .file("key", "{reader.value}")
        .line("[[servers.tools.scopes]]\ntools = ['rw_*']\nfiles = { key = '{writer.value}' }");
    let world = secrets(World::new()).server("tools", server).start();
    let mut harness = world.connected("tools");
    harness.call_text("count", json!({}));
    harness.call_text("rw_count", json!({}));
    let key = |process: &u32| {
        let environment = environment(*process);
        let path = environment.split('\0').find_map(|entry| entry.strip_prefix("KEY=")).unwrap();
        fs::read_to_string(path).unwrap()
    };
    let keys: Vec<String> = world.fixture_processes("tools").iter().map(key).collect();
    assert_eq!(keys, [READER, WRITER]);
}

#[test]
fn the_audit_names_the_secrets_that_a_call_ran_with() {
    let world = secrets(World::new()).server("tools", scoped(Server::fixture())).start();
    let mut harness = world.connected("tools");
    for tool in ["env", "rw_env", "write_file"] {
        harness.call_text(tool, json!({}));
    }
    let recorded: Vec<(Value, Value)> = world
        .decisions()
        .into_iter()
        .map(|decision| (decision["secrets"].clone(), decision["scope"].clone()))
        .collect();
    assert_eq!(
        recorded,
        [
            (json!([{"name": "reader"}]), Value::Null),
            (json!([{"name": "writer"}]), json!("rw_*")),
            (json!([{"name": "writer"}]), json!("write_*")),
        ]
    );
    world.cofferdam_text(&["audit", "verify"]);
}

#[test]
fn a_call_that_could_run_with_another_credential_than_decided_is_refused() {
    let world = secrets(World::new()).server("tools", scoped(Server::fixture())).start();
    let mut harness = world.connected("tools");
    harness.call_text("rw_count", json!({}));
    let executed = || world.executions("tools").len();
    assert_eq!(executed(), 1);
    for name in ["rw_count ", " count", "count\n", "rw_\u{0}count", ""] {
        assert!(harness.call(name, json!({})).get("error").is_some(), "{name:?}");
    }
    let answer = |harness: &mut Harness, raw: &str| {
        harness.send_raw(format!("{raw}\n").as_bytes());
        harness.next_message()
    };
    for raw in [
        r#"{"jsonrpc":"2.0","id":70,"method":"tools/call","params":{"name":"count","name":"rw_count"}}"#,
        r#"{"jsonrpc":"2.0","id":71,"method":"tools/call","params":{"name":"count","Name":"rw_count"}}"#,
        r#"[{"jsonrpc":"2.0","id":72,"method":"tools/call","params":{"name":"count"}}]"#,
    ] {
        assert_eq!(refusal_of(&answer(&mut harness, raw)), "message_malformed", "{raw}");
    }
    // An unknown method could run anything, with any credential.
    assert_eq!(refusal_of(&harness.request("x/echo", json!({"name": "rw_count"}))), "tool_denied");
    harness.notify("tools/call", json!({"name": "count"}));
    harness.notify("tools/call", json!({"name": "rw_count"}));
    harness.notify("x/call", json!({"name": "rw_count"}));
    for tool in ["env", "rw_env"] {
        harness.call_text(tool, json!({}));
    }
    assert_eq!(executed(), 3, "{:?}", world.executions("tools"));
    let received = world.received("tools").into_iter().flatten();
    assert_eq!(received.filter(|message| message["method"] == "tools/call").count(), 3);
}

#[test]
fn each_http_request_has_the_header_of_its_tool() {
    let server = HttpFixture::start(Behaviour::Events);
    let world = secrets(World::new()).server("remote", scoped_http(&server)).capturing().start();
    let mut harness = world.connected("remote");
    harness.request("tools/list", json!({}));
    // The first call of a scope waits for its secret; other calls do not wait, and responses are not mixed up.
    let sent: Vec<(Value, &str)> = (0..12)
        .map(|number| {
            let (tool, role) = if number % 3 == 0 { ("rw_headers", "writer") } else { ("headers", "reader") };
            (harness.send_call(tool, json!({})), role)
        })
        .collect();
    for (id, role) in sent {
        let text = text_of(&harness.answer_to(&id));
        assert!(text.contains(&format!("authorization: Bearer [redacted:{role}.value]")), "{text}");
        assert!(text.contains("x-kept: kept"), "{text}");
    }
    harness.request("ping", json!({}));
    harness.close_stdin();
    harness.wait_for_exit();
    let requests = server.requests();
    assert!(
        requests.iter().any(|request| request.method == "GET"),
        "there was no GET for the listening stream"
    );
    for request in requests {
        let scoped = request.body["params"]["name"] == "rw_headers";
        let expected = if scoped { WRITER } else { READER };
        assert_eq!(request.headers["authorization"], format!("Bearer {expected}"), "{request:?}");
    }
    world.assert_secret_not_leaked(WRITER);
    let decisions = world.decisions();
    assert_eq!(
        (&decisions[0]["secrets"], &decisions[0]["scope"]),
        (&json!([{"name": "writer"}]), &json!("rw_*"))
    );
    assert_eq!(
        (&decisions[1]["secrets"], &decisions[1]["scope"]),
        (&json!([{"name": "reader"}]), &Value::Null)
    );
}

/// Only the credential that created a task can access it.
#[test]
fn a_request_about_a_task_has_the_header_of_the_tool_that_created_it() {
    let server = HttpFixture::start(Behaviour::Json);
    let world = secrets(World::new()).server("remote", scoped_http(&server)).start();
    let mut harness = world.connected("remote");
    for (tool, credential) in [("rw_headers", WRITER), ("headers", READER)] {
        let made = harness.request("tools/call", json!({"name": tool, "arguments": {}, "task": {}}));
        let task = made["result"]["task"]["taskId"].clone();
        assert!(task.is_string(), "{made}");
        for method in ["tasks/get", "tasks/result"] {
            harness.request(method, json!({"taskId": task}));
            let request = server.requests().into_iter().rfind(|request| request.body["method"] == method);
            assert_eq!(request.unwrap().headers["authorization"], format!("Bearer {credential}"), "{method}");
        }
    }
}

#[test]
fn stateless_requests_have_the_header_of_their_tool() {
    let server = HttpFixture::start(Behaviour::Json);
    let world = secrets(World::new())
        .server("remote", scoped_http(&server))
        .server("tools", scoped(Server::fixture()))
        .start();
    let mut harness = world.shim("remote");
    harness.discover();
    let text = harness.call_text("rw_headers", json!({}));
    assert!(
        text.contains("Bearer [redacted:writer.value]") && text.contains("mcp-name: rw_headers"),
        "{text}"
    );
    assert!(harness.call_text("headers", json!({})).contains("Bearer [redacted:reader.value]"));
    let mut harness = world.shim("tools");
    harness.discover();
    assert_eq!(secret_of(&mut harness, "rw_env"), "[redacted:writer.value]");
    assert_eq!(secret_of(&mut harness, "env"), "[redacted:reader.value]");
    let methods: Vec<Value> =
        world.received("tools")[1].iter().map(|received| received["method"].clone()).collect();
    assert_eq!(methods, ["tools/call"], "messages were replayed to a stateless process");
}

#[test]
fn a_scope_of_an_http_server_can_be_added_by_a_reload_and_be_used_first() {
    let server = HttpFixture::start(Behaviour::Json);
    let plain =
        Server::http(&server.url()).header("Authorization", "Bearer {writer.value}").line("private = true");
    let mut world = World::new().secret_file("writer", WRITER).server("remote", plain).start();
    let mut harness = world.connected("remote");
    assert!(harness.call_text("headers", json!({})).contains("Bearer [redacted:writer.value]"));
    world.rewrite(|builder| secrets(builder).server("remote", scoped_http(&server)));
    world.cofferdam_text(&["reload"]);
    assert!(harness.call_text("rw_headers", json!({})).contains("Bearer [redacted:writer.value]"));
    assert!(harness.call_text("headers", json!({})).contains("Bearer [redacted:reader.value]"));
    // A scope with a secret that was not configured when the connection was made.
    world.rewrite(|builder| {
        let line = "[[servers.remote.scopes]]\ntools = ['x_*']\nheaders = { Authorization = 'Bearer {third.value}' }";
        builder.secret_file("third", "third-CANARY-of-scopes-9012").server("remote", scoped_http(&server).line(line))
    });
    world.cofferdam_text(&["reload"]);
    assert!(harness.call_text("x_headers", json!({})).contains("Bearer [redacted:third.value]"));
    // A link whose server was not started yet.
    let mut harness = world.shim("remote");
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    let call =
        harness.send_request("tools/call", json!({"name": "rw_headers", "arguments": {}, "_meta": meta}));
    assert!(text_of(&harness.answer_to(&call)).contains("Bearer [redacted:writer.value]"));
}

#[test]
fn an_unavailable_credential_refuses_the_tools_of_its_scope_only() {
    let remote = HttpFixture::start(Behaviour::Json);
    let world = World::new()
        .secret_file("reader", READER)
        .secret("writer", "file = \"/nowhere/at/all\"")
        .server("tools", scoped(Server::fixture()))
        .server("remote", scoped_http(&remote))
        .start();
    for (server, tool) in [("tools", "env"), ("remote", "headers")] {
        let mut harness = world.connected(server);
        for _ in 0..2 {
            assert_eq!(refusal_of(&harness.call(&format!("rw_{tool}"), json!({}))), "credential_unavailable");
            assert!(harness.call_text(tool, json!({})).contains("[redacted:reader.value]"), "{server}");
        }
    }
    assert!(remote.requests().iter().all(|request| request.body["params"]["name"] != "rw_headers"));
    assert_eq!(world.fixture_processes("tools").len(), 1);
}

#[test]
fn a_call_that_was_cancelled_while_its_credential_was_read_is_not_made() {
    let remote = HttpFixture::start(Behaviour::Json);
    let world = World::new()
        .secret_file("reader", READER)
        .secret_exec("writer", &["sh", "-c", "sleep 2; echo writer-CANARY-of-scopes-5678"])
        .server("remote", scoped_http(&remote))
        .start();
    let mut harness = world.connected("remote");
    let cancelled = harness.send_call("rw_headers", json!({"which": "cancelled"}));
    harness.notify("notifications/cancelled", json!({"requestId": cancelled}));
    let completed = harness.call_text("rw_headers", json!({"which": "completed"}));
    assert!(completed.contains("[redacted:writer.value]"), "{completed}");
    assert!(harness.answer_within(&cancelled, Duration::ZERO).is_none());
    let calls: Vec<Value> = remote
        .requests()
        .into_iter()
        .filter(|request| request.body["method"] == "tools/call")
        .map(|request| request.body["params"]["arguments"]["which"].clone())
        .collect();
    assert_eq!(calls, ["completed"]);
}

#[test]
fn a_scope_uses_a_vault_secret_and_the_audit_names_it() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let world = vault::world(&bao)
        .secret_file("reader", READER)
        .secret("writer", "kv = \"secret/github\"")
        .server("tools", with_scope(Server::fixture(), "{writer.token}"))
        .capturing()
        .start();
    let mut harness = world.connected("tools");
    assert_eq!(secret_of(&mut harness, "env"), "[redacted:reader.value]");
    assert!(vault::session_tokens(&bao).is_empty(), "a secret was read before its scope was called");
    for _ in 0..2 {
        assert_eq!(secret_of(&mut harness, "rw_env"), "[redacted:writer.token]");
    }
    let processes = world.fixture_processes("tools");
    assert!(!environment(processes[0]).contains(CANARY));
    assert!(environment(processes[1]).contains(&format!("SECRET={CANARY}")));
    world.assert_secret_not_leaked(CANARY);
    let decisions = world.decisions();
    assert_eq!(decisions[0]["secrets"], json!([{"name": "reader"}]));
    let used = &decisions[2]["secrets"];
    assert_eq!((used.as_array().unwrap().len(), &used[0]["name"]), (1, &json!("writer")));
    assert!(used[0]["vault_request"].as_str().is_some_and(|id| id.len() == 36), "{used}");
}

fn secrets(builder: Builder) -> Builder {
    builder.secret_file("reader", READER).secret_file("writer", WRITER)
}

fn scoped(server: Server) -> Server {
    with_scope(server, "{writer.value}")
}

fn with_scope(server: Server, secret: &str) -> Server {
    server.env("SECRET", "{reader.value}").line(&format!(
        "[[servers.tools.scopes]]\ntools = ['rw_*', 'write_*']\nenv = {{ SECRET = '{secret}' }}"
    ))
}

fn scoped_http(server: &HttpFixture) -> Server {
    Server::http(&server.url())
        .header("Authorization", "Bearer {reader.value}")
        .header("X-Kept", "kept")
        .line("private = true")
        .line("[[servers.remote.scopes]]\ntools = ['rw_*']\nheaders = { Authorization = 'Bearer {writer.value}' }")
}
