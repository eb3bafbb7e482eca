//! Two processes of one server with different credentials: each is replaced when its credential changes, calls in
//! flight end where they began, and all processes end with their session.

use std::collections::BTreeSet;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::{Harness, refusal_of, text_of};
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::process::{is_alive, send};
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::{self, leases, leave, prepared, session_tokens};
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::scene::{Scene, process, process_of_scope, variable, wait_for_more_progress};

#[test]
fn each_process_is_replaced_for_its_own_credential_only() {
    let Some(mut scene) = Scene::with_scope() else { return };
    let mut harness = scene.world.connected("tools");
    let (base, scope) = (process(&mut harness), process_of_scope(&mut harness));
    assert_eq!(process_of_scope(&mut harness), scope);
    let long = [("slow", 1), ("rw_slow", 2)]
        .map(|(tool, number)| harness.send_call(tool, json!({"ms": 6000, "number": number})));
    let value = scene.change_secret_of_scope_and_wait();
    let newer = process_of_scope(&mut harness);
    assert_eq!(variable(newer, "SECRET"), Some(value.clone()));
    assert_eq!(process(&mut harness), base);
    assert!(newer != scope && is_alive(scope), "the old process of the scope was not kept for its call");
    // The same for the base process.
    scene.change_secret_and_wait();
    assert_eq!(process_of_scope(&mut harness), newer);
    let newer_base = process(&mut harness);
    assert!(newer_base != base && is_alive(base));
    assert_eq!(variable(newer_base, "SECRET"), Some(format!("{}-version-2", vault::CANARY)));
    for id in &long {
        assert_eq!(text_of(&harness.answer_to(id)), "late");
    }
    wait_until("the old processes are gone", || scene.alive().len() == 2);
    assert_eq!(scene.processes().len(), 4);
    assert_eq!(
        (scene.replacement_records("replaced").len(), scene.replacement_records("not replaced").len()),
        (2, 0)
    );
    for tool in ["slow", "rw_slow"] {
        assert_eq!(scene.world.times_executed("tools", tool), 1);
    }
    // The audit names the credential of the process that ran each call.
    let requests = |tool: &str| -> Vec<Value> {
        let decisions = scene.world.decisions().into_iter().filter(|one| one["tool"] == tool);
        decisions.map(|one| one["secrets"][0]["vault_request"].clone()).collect()
    };
    let (of_base, of_scope) = (requests("process"), requests("rw_process"));
    assert!(of_base[0] == of_base[1] && of_base[1] != of_base[2], "{of_base:?}");
    assert!(of_scope[1].is_string() && of_scope[1] != of_scope[2], "{of_scope:?}");
    assert_eq!(of_scope[2], of_scope[3]);
}

#[test]
fn calls_of_both_scopes_continue_and_run_once_while_both_processes_are_replaced() {
    let Some(mut scene) = Scene::with_scope() else { return };
    let mut harness = scene.world.connected("tools");
    harness.request("tools/list", json!({}));
    let mut load = Load::default();
    load.until("both processes run", &mut harness, || scene.alive().len() == 2);
    let mut long: Vec<Value> = Vec::new();
    for round in 1..=3 {
        for tool in ["slow", "rw_slow"] {
            long.push(harness.send_call(tool, json!({"ms": 3000, "number": round})));
        }
        // Alternately one after the other, and both at the same time.
        scene.change_secret_of_scope();
        if round == 2 {
            load.until("the process of the scope has taken over", &mut harness, || {
                scene.replacement_records("replaced").len() == 3
            });
        }
        scene.change_secret();
        load.until("both have taken over", &mut harness, || {
            scene.replacement_records("replaced").len() == 2 * round
        });
    }
    load.finish(&mut harness);
    for id in &long {
        assert_eq!(text_of(&harness.answer_to(id)), "late");
    }
    let executions = scene.world.executions("tools");
    let ran = |tool: &str| -> Vec<u64> {
        let those = executions.iter().filter(|one| one.tool == tool);
        those.filter_map(|one| one.arguments["number"].as_u64()).collect()
    };
    let numbers = [ran("tally"), ran("rw_tally")].concat();
    let distinct: BTreeSet<u64> = numbers.iter().copied().collect();
    assert!(load.sent > 300, "{}", load.sent);
    assert_eq!((numbers.len(), distinct.len()), (load.sent, load.sent), "each ran once");
    assert!(
        ran("tally").iter().all(|number| number.is_multiple_of(2)),
        "a call of the scope ran without `rw_`"
    );
    for tool in ["slow", "rw_slow"] {
        assert_eq!(ran(tool), [1, 2, 3]);
    }
    wait_until("the old processes are gone", || scene.alive().len() == 2);
    assert_eq!(scene.processes().len(), 8);
    assert!(
        scene.replacement_records("not replaced").is_empty(),
        "{:?}",
        scene.replacement_records("not replaced")
    );
    // Neither process ever got a call of the other.
    for received in scene.world.received("tools") {
        let tools = received.iter().filter(|one| one["method"] == "tools/call");
        let kinds: BTreeSet<bool> = tools
            .map(|one| one["params"]["name"].as_str().is_some_and(|name| name.starts_with("rw_")))
            .collect();
        assert!(kinds.len() <= 1, "{received:?}");
    }
}

#[test]
fn progress_and_cancellation_of_a_call_in_a_scope_go_to_its_process() {
    let Some(mut scene) = Scene::with_scope() else { return };
    let mut harness = scene.world.connected("tools");
    let (base, first) = (process(&mut harness), process_of_scope(&mut harness));
    let token = json!({"progressToken": "p"});
    let params = json!({"name": "rw_slow", "arguments": {"ms": 60_000, "steps": 120}, "_meta": token});
    let long = harness.send_request("tools/call", params);
    scene.change_secret_of_scope_and_wait();
    let second = process_of_scope(&mut harness);
    assert!(second != first && is_alive(first));
    assert!(
        scene.shown_in_sessions().contains("one old process finishes its calls"),
        "{}",
        scene.shown_in_sessions()
    );
    wait_for_more_progress(&mut harness);
    harness.notify("notifications/roots/list_changed", json!({}));
    harness.notify("notifications/cancelled", json!({"requestId": long}));
    wait_until("it has no more calls and has exited", || !is_alive(first));
    assert!(is_alive(base) && is_alive(second));
    let cancelled: Vec<bool> = (0..3)
        .map(|process| scene.methods_received(process).contains(&"notifications/cancelled".to_owned()))
        .collect();
    assert_eq!(cancelled, [false, true, false]);
    for process in 0..3 {
        let received = scene.methods_received(process);
        assert!(received.contains(&"notifications/roots/list_changed".to_owned()), "{process}: {received:?}");
    }
}

#[test]
fn a_response_reaches_the_process_that_asked_although_all_use_one_id() {
    let Some(mut scene) = Scene::with_scope() else { return };
    let mut harness = scene.world.connected("tools");
    let ask = |harness: &mut Harness, tool: &str| {
        let ask = json!({"method": "elicitation/create", "id": 7, "params": {"message": "who?"}});
        let call = harness.send_call(tool, ask);
        (call, harness.message_with_method("elicitation/create")["id"].clone())
    };
    let mut asked = vec![ask(&mut harness, "ask_client"), ask(&mut harness, "rw_ask_client")];
    scene.change_secret_of_scope_and_wait();
    asked.push(ask(&mut harness, "rw_ask_client"));
    scene.change_secret_and_wait();
    asked.push(ask(&mut harness, "ask_client"));
    assert_eq!(scene.alive().len(), 4, "not all four processes wait for a response");
    for (number, (_, shown)) in asked.iter().enumerate().rev() {
        let content = json!({"action": "accept", "content": {"name": format!("answer {number}")}});
        harness.send(&json!({"jsonrpc": "2.0", "id": shown, "result": content}));
    }
    for (number, (call, _)) in asked.iter().enumerate() {
        let answer = text_of(&harness.answer_to(call));
        assert!(answer.contains(&format!("answer {number}")), "{number}: {answer}");
    }
    wait_until("the old processes are gone", || scene.alive().len() == 2);
}

#[test]
fn a_scopes_process_that_dies_is_replaced_at_once_and_affects_no_other() {
    let Some(mut scene) = Scene::with_scope_and_fixture_that("starts-slowly") else { return };
    let mut harness = scene.world.connected("tools");
    let (base, first) = (process(&mut harness), process_of_scope(&mut harness));
    let long_call = harness.send_call("slow", json!({"ms": 8000}));
    let lost = harness.send_call("rw_slow", json!({"ms": 60_000}));
    wait_until("the call of the scope runs", || scene.world.times_executed("tools", "rw_slow") == 1);
    let value = scene.change_secret_of_scope();
    wait_until("another process is being started", || scene.processes().len() == 3);
    send(first, Signal::SIGKILL);
    assert_eq!(refusal_of(&harness.answer_to(&lost)), "outcome_unknown");
    let next = process_of_scope(&mut harness);
    assert_eq!(next, scene.processes()[2], "the successor did not take over");
    assert_eq!(variable(next, "SECRET"), Some(value));
    // Without a replacement, the next call starts a process.
    send(next, Signal::SIGKILL);
    wait_until("there is another", || harness.call("rw_process", json!({})).get("result").is_some());
    assert_eq!(text_of(&harness.answer_to(&long_call)), "late");
    assert_eq!(process(&mut harness), base);
    assert_eq!(scene.processes().len(), 4);
    assert_eq!(scene.world.times_executed("tools", "rw_slow"), 1);
}

#[test]
fn the_audit_names_the_credential_of_the_current_process_not_of_an_abandoned_one() {
    let Some(mut scene) = Scene::with_scope() else { return };
    let mut harness = scene.world.connected("tools");
    let first = process_of_scope(&mut harness);
    let running = harness.send_call("rw_slow", json!({"ms": 60_000}));
    wait_until("it runs", || scene.world.times_executed("tools", "rw_slow") == 1);
    // A second handshake retires the processes of scopes that got the first one: they finish their calls and get no new ones.
    harness.initialize();
    let second = process_of_scope(&mut harness);
    scene.change_secret_of_scope_and_wait();
    let third = process_of_scope(&mut harness);
    assert!(second != first && third != second && is_alive(first));
    let decisions = scene.world.decisions();
    let requests: Vec<&Value> = decisions.iter().map(|one| &one["secrets"][0]["vault_request"]).collect();
    assert_eq!(requests.len(), 4, "{requests:?}");
    assert!(requests[1].is_string() && requests[1] != requests[3], "{requests:?}");
    harness.notify("notifications/cancelled", json!({"requestId": running}));
    wait_until("it has no more calls and has exited", || !is_alive(first));
}

#[test]
fn a_session_that_ends_leaves_no_process_and_no_credential_of_any_scope() {
    let Some((bao, world)) = with_certificates() else { return };
    let run = |world: &World| {
        let mut harness = world.connected("tools");
        for tool in ["count", "rw_count"] {
            harness.call_text(tool, json!({}));
        }
        let processes: Vec<u32> =
            world.fixture_processes("tools").into_iter().filter(|process| is_alive(*process)).collect();
        assert_eq!(processes.len(), 2);
        wait_until("each process has its own lease", || leases(&bao) == 2);
        (harness, processes)
    };
    let nothing_is_left = |processes: &[u32]| {
        wait_until("no process is left", || !processes.iter().any(|process| is_alive(*process)));
        wait_until("no credential is left", || leases(&bao) == 0 && session_tokens(&bao).is_empty());
    };
    let (harness, processes) = run(&world);
    leave(harness);
    nothing_is_left(&processes);
    let (harness, processes) = run(&world);
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    let printed = world.cofferdam_text(&["kill", &session]);
    assert!(printed.contains("server and all its descendants ended"), "{printed}");
    assert!(
        !processes.iter().any(|process| is_alive(*process)),
        "`kill` reported an exit, but a process is alive"
    );
    assert!(printed.contains("revoked") && !printed.contains("pending"), "{printed}");
    assert_eq!((leases(&bao), session_tokens(&bao).len()), (0, 0), "{printed}");
    drop(harness);
    let (mut harness, processes) = run(&world);
    harness.kill9();
    nothing_is_left(&processes);
}

/// Eight calls in flight at any time, every other one in the scope.
#[derive(Default)]
struct Load {
    in_flight: Vec<Value>,
    sent: usize,
}

impl Load {
    fn until(&mut self, what: &str, harness: &mut Harness, mut condition: impl FnMut() -> bool) {
        wait_until(what, || {
            for _ in 0..40 {
                while self.in_flight.len() < 8 {
                    let tool = if self.sent.is_multiple_of(2) { "tally" } else { "rw_tally" };
                    self.in_flight.push(harness.send_call(tool, json!({"number": self.sent})));
                    self.sent += 1;
                }
                let answer = harness.answer_to(&self.in_flight.remove(0));
                assert!(answer.get("result").is_some(), "{answer}");
            }
            condition()
        });
    }

    fn finish(&mut self, harness: &mut Harness) {
        for id in self.in_flight.drain(..) {
            let answer = harness.answer_to(&id);
            assert!(answer.get("result").is_some(), "{answer}");
        }
    }
}

/// A server with a leased certificate, and with another one in a scope.
fn with_certificates() -> Option<(OpenBao, World)> {
    let bao = prepared(OpenBao::dev())?;
    let certificate =
        |name: &str| format!("vault = \"pki/issue/agent\"\nwrite = {{ common_name = \"{name}.internal\" }}");
    let server = Server::fixture()
        .file("key.pem", "{reader.private_key}")
        .line("[[servers.tools.scopes]]\ntools = ['rw_*']\nfiles = { \"key.pem\" = '{writer.private_key}' }");
    let world = vault::world(&bao)
        .secret("reader", &certificate("reader"))
        .secret("writer", &certificate("writer"))
        .server("tools", server)
        .relay("resume-grace = \"1s\"")
        .start();
    Some((bao, world))
}
