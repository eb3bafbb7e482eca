//! Deny by default: a session reaches only what its grant names, and every request is decided.

use cofferdam_tests::harness::{Harness, refusal_of, text_of};
use cofferdam_tests::http_fixture::{Behaviour, HttpFixture};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use serde_json::{Map, Value, json};

#[test]
fn a_denied_tool_looks_unknown() {
    let world = World::new().server("tools", Server::fixture().allow(&["read_*", "echo"])).start();
    let mut shim = world.connected("tools");
    let hidden = shim.call("delete_everything", json!({}));
    assert_eq!(hidden["error"]["code"], -32602);
    assert_eq!(hidden["error"]["message"], "Unknown tool: delete_everything");
    let unknown = shim.call("no_such_tool", json!({}));
    assert_eq!(unknown["error"]["code"], -32602, "hidden and unknown tools get the same error: {unknown}");
    assert_eq!(unknown["error"]["message"], "Unknown tool: no_such_tool");
    assert_eq!(world.executions("tools"), [], "a denied call reached the server");
    let verdicts: Vec<Value> = world.decisions().iter().map(|decision| decision["verdict"].clone()).collect();
    assert_eq!(verdicts, ["deny", "deny"]);
}

#[test]
fn denied_tools_are_not_listed() {
    let server = Server::fixture().allow(&["*_file", "echo", "add"]).deny(&["write_*"]).ask(&["add"]);
    let world = World::new().server("tools", server).start();
    let mut shim = world.connected("tools");
    let answer = shim.request("tools/list", json!({}));
    let mut names: Vec<&str> = answer["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["add", "echo", "read_file"]);
}

#[test]
fn deny_goes_before_ask_and_ask_before_allow() {
    let server = Server::fixture().allow(&["*"]).ask(&["write_*", "delete_*"]).deny(&["delete_*"]);
    let world = World::new().server("tools", server).start();
    let mut shim = world.connected("tools");
    assert_eq!(
        shim.call("delete_everything", json!({}))["error"]["message"],
        "Unknown tool: delete_everything"
    );
    assert_eq!(refusal_of(&shim.call("write_file", json!({}))), "approval_required");
    assert_eq!(shim.call_text("read_file", json!({})), "ran read_file");
    let tools: Vec<String> = world.executions("tools").into_iter().map(|execution| execution.tool).collect();
    assert_eq!(tools, ["read_file"]);
}

#[test]
fn a_server_without_rules_offers_everything() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    assert_eq!(shim.call_text("delete_everything", json!({})), "ran delete_everything");
    assert!(shim.request("x/echo", json!({"a": 1})).get("result").is_some());
}

#[test]
fn an_unknown_method_passes_only_by_name_where_there_are_rules() {
    let ruled = Server::fixture().allow(&["echo"]);
    let world = World::new()
        .server("ruled", ruled.clone())
        .server("named", ruled.line("methods = [\"x/echo\"]"))
        .start();
    let refused = world.connected("ruled").request("x/echo", json!({"a": 1}));
    assert!(refused.get("error").is_some(), "{refused}");
    assert!(world.connected("named").request("x/echo", json!({"a": 1})).get("result").is_some());
}

#[test]
fn servers_that_are_not_granted_and_that_do_not_exist_are_refused_alike() {
    let world = World::new()
        .server("mine", Server::fixture())
        .server("theirs", Server::fixture())
        .granting(&["mine"])
        .start();
    for server in ["theirs", "no-such-server"] {
        let mut shim = world.shim(server);
        let answer = shim.initialize();
        assert_eq!(refusal_of(&answer), "server_not_granted", "{server}");
        assert!(shim.is_running(), "the shim exited although its stdin is open");
    }
    assert!(world.fixture_processes("theirs").is_empty(), "a server that is not granted was started");
}

#[test]
fn every_request_is_decided_not_only_calls() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    shim.request("ping", json!({}));
    shim.request("tools/list", json!({}));
    shim.request("x/echo", json!({}));
    let decided: Vec<String> = world
        .audit()
        .iter()
        .filter(|record| record.get("verdict").is_some())
        .filter_map(|record| record["method"].as_str().map(str::to_owned))
        .collect();
    for method in ["initialize", "ping", "tools/list", "x/echo"] {
        assert!(decided.iter().any(|decided| decided == method), "{method} in {decided:?}");
    }
}

#[test]
fn a_narrowed_rule_applies_to_the_next_call() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    shim.request("tools/list", json!({}));
    assert_eq!(shim.call_text("write_file", json!({})), "ran write_file");
    world.rewrite(|builder| builder.server("tools", Server::fixture().deny(&["write_*"])));
    world.cofferdam_text(&["reload"]);
    // The tool was listed before the rule changed, so the refusal gives the reason.
    assert_eq!(refusal_of(&shim.call("write_file", json!({}))), "tool_denied");
    assert_eq!(shim.call_text("read_file", json!({})), "ran read_file");
    assert_eq!(world.times_executed("tools", "write_file"), 1);
}

#[test]
fn a_reload_of_an_invalid_configuration_changes_nothing() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    world.rewrite(|builder| {
        builder.line("no-such-key = true").server("tools", Server::fixture().deny(&["*"]))
    });
    let refused = world.cofferdam(&["reload"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no-such-key"));
    assert_eq!(shim.call_text("echo", json!({"text": "as before"})), "as before");
}

#[test]
fn sighup_reloads_the_configuration() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    world.rewrite(|builder| builder.server("tools", Server::fixture().deny(&["write_*"])));
    let valid = std::fs::read_to_string(&world.layout().config).unwrap();
    std::fs::write(&world.layout().config, format!("no-such-key = true\n{valid}")).unwrap();
    world.sidecar().signal(Signal::SIGHUP);
    world.wait_until("the log has the problem", || world.log().contains("no-such-key"));
    assert_eq!(shim.call_text("write_file", json!({})), "ran write_file", "the old link continues");
    std::fs::write(&world.layout().config, valid).unwrap();
    world.sidecar().signal(Signal::SIGHUP);
    world.wait_until("the new rule applies", || shim.call("write_file", json!({})).get("error").is_some());
}

#[test]
fn a_reload_names_keys_that_need_a_restart() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    assert!(
        !world.cofferdam_text(&["reload"]).contains("restart"),
        "a restart is required although nothing has changed"
    );
    let id = nix::unistd::geteuid();
    world.rewrite(|builder| {
        builder
            .line("audit-sync = \"call\"")
            .relay(&format!("unix-uids = [{id}]"))
            .limit("links = 32")
            .limit("processes = 8")
            .limit("greeting-connections = 8")
    });
    let expected = "takes effect at restart: audit-sync, relay.unix-uids, limits.processes, limits.greeting-connections\n";
    for _ in 0..2 {
        let printed = world.cofferdam_text(&["reload"]);
        assert!(printed.ends_with(expected), "the keys are not reported again before the restart: {printed}");
    }
    assert!(world.log().contains("limits.greeting-connections"), "{}", world.log());
    world.stop_sidecar();
    world.start_sidecar();
    assert!(!world.cofferdam_text(&["reload"]).contains("restart"));
}

#[test]
fn a_withdrawn_grant_applies_to_the_next_call() {
    let mut world =
        World::new().server("tools", Server::fixture()).server("other", Server::fixture()).start();
    let mut shim = world.connected("tools");
    shim.call_text("echo", json!({"text": "granted"}));
    world.rewrite(|builder| builder.granting(&["other"]));
    world.cofferdam_text(&["reload"]);
    let answer = shim.call("echo", json!({"text": "no more"}));
    assert!(
        answer["error"]["data"]["code"] == "server_not_granted"
            || answer["error"]["data"]["code"] == "session_ended",
        "{answer}"
    );
    assert_eq!(world.times_executed("tools", "echo"), 1);
}

/// The answer to a call of a tool, without its id, and with the tool's name replaced.
fn answer_without_name(shim: &mut cofferdam_tests::harness::Harness, tool: &str) -> String {
    let mut answer = shim.call(tool, json!({}));
    answer["id"] = json!(null);
    answer.to_string().replace(tool, "TOOL")
}

#[test]
fn a_hidden_and_an_unknown_tool_are_answered_alike_with_deny_alone() {
    let denies = Server::fixture().deny(&["delete_*"]);
    // The fixture runs tools with the prefix `rw_` although it does not list them.
    let world = World::new()
        .server("deny", denies.clone())
        .server("deny-and-allow", denies.allow(&["*"]))
        .server("pages", Server::fixture_that("lists-in-pages").deny(&["delete_*"]))
        .start();
    for server in ["deny", "deny-and-allow", "pages"] {
        let mut shim = world.connected(server);
        let hidden = answer_without_name(&mut shim, "delete_everything");
        assert!(hidden.contains("-32602"), "{hidden}");
        for unknown in ["no_such_tool", "rw_echo"] {
            assert_eq!(answer_without_name(&mut shim, unknown), hidden, "{server}: {unknown}");
        }
        assert_eq!(shim.call_text("read_file", json!({})), "ran read_file", "{server}");
        assert_eq!(world.executions(server).len(), 1, "only the tool that exists was called");
    }
    let not_listed = world.decisions().into_iter().filter(|decision| decision["tool"] == "no_such_tool");
    assert!(not_listed.count() == 3, "{:?}", world.decisions());
}

#[test]
fn a_real_server_gives_no_hint_of_its_hidden_tools() {
    let Some(everything) = Server::everything() else { return };
    let world = World::new().server("everything", everything.deny(&["echo"])).start();
    let mut shim = world.connected("everything");
    let hidden = answer_without_name(&mut shim, "echo");
    assert_eq!(answer_without_name(&mut shim, "no_such_tool"), hidden);
}

#[test]
fn a_server_that_cannot_list_its_tools_answers_calls_of_any_tool() {
    let script = r#"while read -r line; do
        id=$(printf '%s' "$line" | sed -n 's/.*"id":\("[^"]*"\|[0-9]*\).*/\1/p')
        case "$line" in
            *tools/list*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"none"}}\n' "$id";;
            *notifications/*) ;;
            *) printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"called"}]}}\n' "$id";;
        esac
    done"#;
    let world =
        World::new().server("tools", Server::command(["sh", "-c", script]).deny(&["delete_*"])).start();
    let mut shim = world.shim("tools");
    shim.initialize();
    assert_eq!(shim.call_text("anything", json!({})), "called");
}

#[test]
fn other_spellings_of_a_denied_tool_are_denied() {
    let world = World::new().server("tools", Server::fixture().deny(&["Delete_*"]).ask(&["WRITE_*"])).start();
    let mut shim = world.connected("tools");
    for tool in ["delete_everything", "DELETE_everything", "ｄelete_everything", "delete\u{200b}_everything"]
    {
        let answer = shim.call(tool, json!({}));
        assert_eq!(answer["error"]["message"], format!("Unknown tool: {tool}"));
    }
    assert_eq!(refusal_of(&shim.call("write_file", json!({}))), "approval_required");
    assert_eq!(world.executions("tools"), []);
}

#[test]
fn a_pattern_that_could_match_nothing_is_refused() {
    let world = World::new().server("tools", Server::fixture().deny(&["delete_[b]"])).prepare();
    let output = world.cofferdam(&["check"]);
    assert!(!output.status.success());
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("`servers.tools.tools.deny`: `[` has no meaning in a pattern"), "{printed}");
}

/// Records of the harness's own requests need less than the budget, so that the server's requests used up the rest.
#[test]
fn requests_of_servers_to_the_harness_use_up_the_budget_of_their_sandbox() {
    const BUDGET: usize = 64 * 1024;
    let server = Server::fixture().line("methods-to-harness = { deny = [\"sampling/*\"] }");
    let world = World::new()
        .server("tools", server)
        .limit("audit-session-bytes = \"64KiB\"\naudit-field-bytes = \"2KiB\"")
        .start();
    let mut shim = world.connected("tools");
    let method = format!("sampling/{}", "x".repeat(1500));
    let refused = (0..BUDGET).find_map(|_| {
        let answer = shim.call("ask_client", json!({"method": method}));
        answer.get("error").is_some().then_some(answer)
    });
    let refused = refused.expect("the harness's next call is refused");
    assert!(refused.to_string().contains("`audit-session-bytes`"), "{refused}");
    let bytes_of = |is_own: bool| -> usize {
        let records = world.audit().into_iter().filter(|record| record["to_harness"].is_null() == is_own);
        records.map(|record| record.to_string().len()).sum()
    };
    let (of_harness, of_server) = (bytes_of(true), bytes_of(false));
    assert!(of_harness < BUDGET * 3 / 4, "{of_harness} bytes of the harness, {of_server} of its server");
    assert!(of_server > BUDGET / 4, "{of_harness} bytes of the harness, {of_server} of its server");
}

/// What a harness declared is between it and the server; the sidecar decides by its rules alone.
#[test]
fn a_request_that_the_harness_did_not_declare_reaches_it_and_is_recorded() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.shim("tools");
    let initialize = shim.request(
        "initialize",
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bare", "version": "1"}}),
    );
    assert!(initialize.get("result").is_some(), "{initialize}");
    shim.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let call = shim.send_call("ask_client", json!({"method": "roots/list"}));
    let request = shim.message_with_method("roots/list");
    let refusal = json!({"code": -32601, "message": "Method not found"});
    shim.send(&json!({"jsonrpc": "2.0", "id": request["id"], "error": refusal}));
    assert!(
        shim.answer_to(&call).to_string().contains("Method not found"),
        "the server gets the harness's answer"
    );
    let results = || -> Vec<Value> {
        let records = world.audit().into_iter().filter(|record| record["to_harness"].is_u64());
        records
            .filter(|record| record["method"] == "roots/list")
            .map(|record| record["result"].clone())
            .collect()
    };
    world.wait_until("the outcome is recorded", || results() == [Value::Null, json!("error")]);
}

#[test]
fn requests_of_servers_to_the_harness_are_decided_and_recorded() {
    let server = Server::fixture().line("methods-to-harness = { deny = [\"sampling/*\"] }");
    let world = World::new().server("tools", server).start();
    let mut shim = world.connected("tools");
    let denied = shim.call_text("ask_client", json!({"method": "sampling/createMessage"}));
    assert!(denied.contains("tool_denied") && denied.contains("sampling/createMessage"), "{denied}");
    let call = shim.send_call("ask_client", json!({"method": "roots/list"}));
    let request = shim.message_with_method("roots/list");
    shim.send(&json!({"jsonrpc": "2.0", "id": request["id"], "result": {"roots": []}}));
    assert!(shim.answer_to(&call).to_string().contains("roots"));
    let received = String::from_utf8_lossy(shim.received()).into_owned();
    assert!(!received.contains("\"method\":\"sampling"), "{received}");

    let records_of = |method: &str| -> Vec<serde_json::Value> {
        let is_of = |record: &serde_json::Value| record["method"] == method && record["to_harness"].is_u64();
        world.audit().into_iter().filter(is_of).collect()
    };
    let sampling = records_of("sampling/createMessage");
    assert_eq!(sampling.len(), 1, "{sampling:?}");
    assert_eq!(sampling[0]["verdict"], "deny");
    assert_eq!(sampling[0]["rule"], "methods-to-harness.deny sampling/*");
    world.wait_until("the outcome is recorded", || records_of("roots/list").len() == 2);
    let roots = records_of("roots/list");
    assert_eq!((&roots[0]["verdict"], &roots[1]["result"]), (&json!("allow"), &json!("result")), "{roots:?}");
    assert!(roots.iter().all(|record| record.get("seq").is_none()), "{roots:?}");
    let shown = world.cofferdam_text(&["audit", "tail"]);
    assert!(shown.contains("sampling/createMessage  to the harness"), "{shown}");
}

/// In the stateless era a server asks for sampling, elicitation and roots inside its results.
#[test]
fn input_requests_in_results_are_decided_and_recorded() {
    let servers = [Behaviour::Json, Behaviour::Events].map(HttpFixture::start);
    let of_http = servers.iter().map(|server| Server::http(&server.url()).line("private = true"));
    for server in std::iter::once(Server::fixture()).chain(of_http) {
        let server = server.line("methods-to-harness = { deny = [\"sampling/*\"] }");
        let world = World::new().server("tools", server).start();
        let mut shim = world.shim("tools");
        shim.discover();
        let roots = json!({"method": "roots/list", "params": {}});
        let sampling = json!({"method": "sampling/createMessage", "params": {"messages": ["the prompt"]}});
        let asked = shim.call("ask_for_input", json!({"requests": {"a": roots}}));
        assert_eq!(asked["result"]["inputRequests"], json!({"a": roots}), "{asked}");
        let responses = json!({"a": {"roots": []}});
        let retry = json!({"name": "ask_for_input", "arguments": {}, "inputResponses": responses});
        assert_eq!(text_of(&shim.request("tools/call", retry)), responses.to_string());
        for requests in [json!({"a": sampling}), json!({"a": roots, "b": sampling, "c": roots})] {
            let denied = shim.call("ask_for_input", json!({"requests": requests}));
            assert_eq!(refusal_of(&denied), "tool_denied", "{denied}");
            assert!(denied.to_string().contains("`sampling/createMessage`"), "{denied}");
        }
        let received = String::from_utf8_lossy(shim.received()).into_owned();
        assert!(!received.contains("the prompt"), "{received}");

        let decisions: Vec<(Value, Value)> = requests_to_harness(&world)
            .into_iter()
            .map(|record| (record["method"].clone(), record["verdict"].clone()))
            .collect();
        let (roots, sampling) =
            ((json!("roots/list"), json!("allow")), (json!("sampling/createMessage"), json!("deny")));
        assert_eq!(decisions, [&roots, &sampling, &roots, &sampling, &roots].map(Clone::clone));
        let outcomes: Vec<(Value, Value)> = world
            .outcomes()
            .into_iter()
            .map(|outcome| (outcome["result"].clone(), outcome["code"].clone()))
            .collect();
        let (relayed, refused) = ((json!("result"), Value::Null), (json!("refused"), json!("tool_denied")));
        assert_eq!(outcomes, [&relayed, &relayed, &refused, &refused].map(Clone::clone));
    }
}

/// The decisions about requests of servers, in order.
fn requests_to_harness(world: &World) -> Vec<Value> {
    let of_server = |record: &Value| record["to_harness"].is_u64() && record.get("verdict").is_some();
    world.audit().into_iter().filter(of_server).collect()
}

/// What some client could read as a denied request is not relayed; what none reads so is.
#[test]
fn input_requests_in_any_spelling_are_decided() {
    let server = Server::fixture().line("methods-to-harness = { deny = [\"sampling/*\"] }");
    let world = World::new().server("tools", server).start();
    let mut shim = world.shim("tools");
    shim.discover();
    let answer = |result: &str, shim: &mut Harness| {
        shim.call("raw", json!({"lines": [format!(r#"{{"jsonrpc":"2.0","id":$id,"result":{result}}}"#)]}))
    };
    let sampling = r#"{"a":{"method":"sampling/createMessage","params":"the prompt"}}"#;
    let roots = r#"{"a":{"method":"roots/list","params":"the prompt"}}"#;
    let large = "x".repeat(300_000);
    for result in [
        format!(r#"{{"inputRequests":{sampling}}}"#),
        format!(r#"{{"resultType":"complete","inputRequests":{sampling}}}"#),
        format!(r#"{{"resultType":"input_required","resultType":"complete","inputRequests":{sampling}}}"#),
        format!(r#"{{"input\u0052equests":{sampling}}}"#),
        format!(r#"{{"inputRequests":{sampling},"text":"{large}"}}"#),
        r#"{"inputRequests":{"a":{"params":"the prompt","\u006dethod":"sampling\/createMessage"}}}"#
            .to_owned(),
    ] {
        assert_eq!(refusal_of(&answer(&result, &mut shim)), "tool_denied", "{result:.100}");
    }
    for result in [
        format!(r#"{{"inputRequests":{roots},"inputRequests":{sampling}}}"#),
        format!(r#"{{"inputRequests":{roots},"INPUTREQUESTS":{sampling}}}"#),
        format!(r#"{{"input_requests":{sampling}}}"#),
        format!(r#"{{"inputReque\u017fts":{sampling}}}"#),
        format!(r#"{{"inputRequests":[{sampling}]}}"#),
        r#"{"inputRequests":{"a":{"method":"roots/list","Method":"sampling/createMessage","params":"the prompt"}}}"#.to_owned(),
        r#"{"inputRequests":{"a":{"method":"roots/list","method":"sampling/createMessage","params":"the prompt"}}}"#.to_owned(),
    ] {
        assert_eq!(refusal_of(&answer(&result, &mut shim)), "message_malformed", "{result}");
    }
    let notification = |requests: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/tasks","params":{{"taskId":"t","inputRequests":{requests}}}}}"#
        )
    };
    let done = r#"{"jsonrpc":"2.0","id":$id,"result":{"structuredContent":{"inputRequests":"the text"}}}"#;
    let done = shim.call("raw", json!({"lines": [notification(sampling), notification("[1]"), done]}));
    assert_eq!(done["result"]["structuredContent"]["inputRequests"], "the text");
    let received = String::from_utf8_lossy(shim.received()).into_owned();
    assert!(!received.contains("the prompt"), "{received:.2000}");

    let allowed = answer(&format!(r#"{{"inputRequests":{roots},"text":"{large}"}}"#), &mut shim);
    assert_eq!(allowed["result"]["text"].as_str().map(str::len), Some(large.len()), "{allowed:.1000}");
    shim.send_call("raw", json!({"lines": [notification(roots)]}));
    assert_eq!(shim.message_with_method("notifications/tasks")["params"]["taskId"], "t");
    let denied = requests_to_harness(&world).iter().filter(|record| record["verdict"] == "deny").count();
    assert_eq!(denied, 7, "six results and a notification had one denied request each");
}

#[test]
fn input_requests_in_results_use_up_the_budget_of_their_sandbox() {
    const BUDGET: usize = 80 * 1024;
    let world = World::new()
        .server("tools", Server::fixture())
        .limit("audit-session-bytes = \"80KiB\"\naudit-field-bytes = \"2KiB\"")
        .start();
    let mut shim = world.shim("tools");
    shim.discover();
    let requests: Map<String, Value> =
        (0..32).map(|number| (number.to_string(), json!({"method": "x".repeat(256)}))).collect();
    let answers = std::iter::repeat_with(|| shim.call("ask_for_input", json!({"requests": requests})));
    let refused = answers.take(BUDGET / 256).find(|answer| answer.get("error").is_some());
    let refused = refused.expect("a call is refused");
    assert_eq!(refusal_of(&refused), "outcome_unknown", "{refused}");
    assert!(refused.to_string().contains("`audit-session-bytes`"), "{refused}");
    assert!(requests_to_harness(&world).len() > 64, "the requests did not use up the budget");
}
