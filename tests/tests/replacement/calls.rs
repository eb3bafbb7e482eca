//! Calls in flight while a process is replaced: each runs once, and ends in the process where it began.

use std::collections::BTreeSet;
use std::time::Duration;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::text_of;
use cofferdam_tests::process::is_alive;
use serde_json::{Value, json};

use crate::scene::{Scene, process, variable, wait_for_more_progress};

#[test]
fn calls_continue_and_each_runs_once_while_processes_are_replaced() {
    let Some(mut scene) = Scene::plain() else { return };
    let mut harness = scene.world.connected("tools");
    harness.request("tools/list", json!({}));
    let mut long = vec![harness.send_call("slow", json!({"ms": 6000}))];
    let (mut number, mut value) = (0_u64, String::new());
    for round in 1..=3 {
        value = scene.change_secret();
        // Eight calls in flight at any time, until the new process has taken over and a while longer.
        let mut in_flight: Vec<Value> = Vec::new();
        wait_until("another process has taken over", || {
            for _ in 0..40 {
                while in_flight.len() < 8 {
                    in_flight.push(harness.send_call("tally", json!({"number": number})));
                    number += 1;
                }
                let answer = harness.answer_to(&in_flight.remove(0));
                assert!(answer.get("result").is_some(), "{answer}");
            }
            scene.replacement_records("replaced").len() == round
        });
        for id in in_flight {
            let answer = harness.answer_to(&id);
            assert!(answer.get("result").is_some(), "{answer}");
        }
        long.push(harness.send_call("slow", json!({"ms": 3000, "number": round})));
    }
    for id in &long {
        assert_eq!(text_of(&harness.answer_to(id)), "late");
    }
    let executions = scene.world.executions("tools");
    let tallied = executions.iter().filter(|one| one.tool == "tally");
    let numbers: Vec<u64> = tallied.filter_map(|one| one.arguments["number"].as_u64()).collect();
    let distinct: BTreeSet<u64> = numbers.iter().copied().collect();
    assert_eq!((numbers.len(), distinct.len()), (number as usize, number as usize), "each ran once");
    assert_eq!(executions.iter().filter(|one| one.tool == "slow").count(), long.len());
    // The last process has the newest value, and the earlier ones have exited.
    wait_until("the old processes are gone", || scene.alive().len() == 1);
    let last = process(&mut harness);
    assert_eq!(scene.processes().last(), Some(&last));
    assert_eq!(variable(last, "SECRET"), Some(value));
    assert!(
        scene.replacement_records("not replaced").is_empty(),
        "{:?}",
        scene.replacement_records("not replaced")
    );
    assert_eq!(scene.shown_in_sessions(), "");
}

#[test]
fn a_replaced_process_finishes_and_gets_its_own_messages() {
    let Some(mut scene) = Scene::with_server_line("methods = [\"notifications/tally\"]") else { return };
    let mut harness = scene.world.connected("tools");
    let first = process(&mut harness);
    let token = json!({"progressToken": "p"});
    let params = json!({"name": "slow", "arguments": {"ms": 60_000, "steps": 120}, "_meta": token});
    let long = harness.send_request("tools/call", params);
    scene.change_secret_and_wait();
    assert_ne!(process(&mut harness), first);
    assert!(is_alive(first));
    wait_for_more_progress(&mut harness);
    assert!(
        scene.shown_in_sessions().contains("one old process finishes its calls"),
        "{}",
        scene.shown_in_sessions()
    );
    harness.notify("notifications/roots/list_changed", json!({}));
    harness.notify("notifications/tally", json!({"number": 1}));
    harness.notify("notifications/cancelled", json!({"requestId": long}));
    wait_until("it has no more calls and has exited", || !is_alive(first));
    let (old, new) = (scene.methods_received(0), scene.methods_received(1));
    assert!(old.contains(&"notifications/cancelled".to_owned()), "{old:?}");
    assert!(!new.contains(&"notifications/cancelled".to_owned()), "{new:?}");
    for received in [&old, &new] {
        assert!(received.contains(&"notifications/roots/list_changed".to_owned()), "{received:?}");
    }
    assert_eq!(
        scene.world.times_executed("tools", "notifications/tally"),
        1,
        "an unknown notification goes to one process"
    );
}

#[test]
fn a_response_reaches_the_process_that_asked_although_both_use_one_id() {
    let Some(mut scene) = Scene::plain() else { return };
    let mut harness = scene.world.connected("tools");
    let ask = json!({"method": "elicitation/create", "id": 7, "params": {"message": "who?"}});
    let old = harness.send_call("ask_client", ask.clone());
    let asked_by_old = harness.message_with_method("elicitation/create");
    scene.change_secret_and_wait();
    let new = harness.send_call("ask_client", ask);
    let asked_by_new = harness.message_with_method("elicitation/create");
    for (asked, name) in [(&asked_by_new, "new"), (&asked_by_old, "old")] {
        let content = json!({"action": "accept", "content": {"name": name}});
        harness.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": content}));
    }
    assert!(text_of(&harness.answer_to(&old)).contains(r#""name":"old""#));
    assert!(text_of(&harness.answer_to(&new)).contains(r#""name":"new""#));
    wait_until("the old process is gone", || scene.alive().len() == 1);
}

#[test]
fn settings_of_the_old_process_are_replayed_to_the_new_one() {
    let Some(mut scene) = Scene::with_fixture_that("demands-handshake") else { return };
    let mut harness = scene.world.connected("tools");
    harness.request("tools/list", json!({}));
    harness.request("logging/setLevel", json!({"level": "debug"}));
    harness.request("resources/subscribe", json!({"uri": "file:///a"}));
    scene.change_secret_and_wait();
    assert_eq!(process(&mut harness), *scene.processes().last().unwrap());
    let received = scene.methods_received(1);
    let expected = [
        "initialize",
        "notifications/initialized",
        "tools/list",
        "logging/setLevel",
        "resources/subscribe",
        "tools/call",
    ];
    assert_eq!(received, expected);
    assert!(scene.replacement_records("not replaced").is_empty());
}

#[test]
fn a_listener_gets_notifications_of_the_new_process() {
    let Some(mut scene) = Scene::plain() else { return };
    let mut harness = scene.world.shim("tools");
    harness.discover();
    harness.request("tools/list", json!({}));
    let listen =
        harness.send_request("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    harness.message_with_method("notifications/subscriptions/acknowledged");
    scene.change_secret_and_wait();
    harness.message_with_method("notifications/subscriptions/acknowledged");
    assert_eq!(text_of(&harness.call("change_tools", json!({}))), "changed");
    let changed = harness.message_with_method("notifications/tools/list_changed");
    assert_eq!(changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], listen);
    wait_until("the old process is gone", || scene.alive().len() == 1);
    assert!(harness.answer_within(&listen, Duration::from_millis(300)).is_none(), "the listener was ended");
}

#[test]
fn a_call_that_takes_longer_than_the_limit_is_unknown_and_not_repeated() {
    let Some(mut scene) = Scene::with_limit("replace-drain = \"1s\"") else { return };
    let mut harness = scene.world.connected("tools");
    let long = harness.send_call("slow", json!({"ms": 60_000}));
    scene.change_secret_and_wait();
    let answer = harness.answer_to(&long).to_string();
    for word in ["outcome_unknown", "replaced", "limits.replace-drain"] {
        assert!(answer.contains(word), "{word}: {answer}");
    }
    assert_eq!(scene.world.times_executed("tools", "slow"), 1);
    wait_until("the old process is gone", || scene.alive().len() == 1);
    assert_eq!(process(&mut harness), scene.alive()[0]);
}

/// The list of tasks comes from one process, because pages of two processes cannot be combined.
#[test]
fn the_current_process_lists_its_tasks_and_older_tasks_are_found_by_id() {
    let Some(mut scene) = Scene::plain() else { return };
    let mut harness = scene.world.connected("tools");
    let first = process(&mut harness);
    let make = json!({"name": "echo", "arguments": {"text": "x"}, "task": {"ttl": 60_000}});
    let old = harness.request("tools/call", make.clone())["result"]["task"]["taskId"].clone();
    scene.change_secret_and_wait();
    let new = harness.request("tools/call", make)["result"]["task"]["taskId"].clone();
    let listed = harness.request("tasks/list", json!({}));
    let ids: Vec<&Value> =
        listed["result"]["tasks"].as_array().expect("a list").iter().map(|task| &task["taskId"]).collect();
    assert_eq!(ids, [&new]);
    let result = harness.request("tasks/result", json!({"taskId": old}));
    assert_eq!(text_of(&result), format!("done by {first}"));
}

#[test]
fn a_later_log_level_also_reaches_a_draining_process() {
    let Some(mut scene) = Scene::plain() else { return };
    let mut harness = scene.world.connected("tools");
    let long = harness.send_call("slow", json!({"ms": 60_000}));
    scene.change_secret_and_wait();
    let set = harness.request("logging/setLevel", json!({"level": "warning"}));
    assert!(set.get("result").is_some(), "{set}");
    let watched = harness.request("resources/subscribe", json!({"uri": "file:///a"}));
    assert!(watched.get("result").is_some(), "{watched}");
    let received = |number: usize, method: &str| -> Vec<Value> {
        let received = scene.world.received("tools").into_iter().nth(number).unwrap_or_default();
        received.into_iter().filter(|message| message["method"] == method).collect()
    };
    wait_until("the old process has received it", || !received(0, "logging/setLevel").is_empty());
    for number in 0..2 {
        let levels = received(number, "logging/setLevel");
        assert_eq!(levels.len(), 1, "{levels:?}");
        assert_eq!(levels[0]["params"]["level"], "warning");
        assert_eq!(
            levels[0]["id"] == set["id"],
            number == 1,
            "not only the current process got the harness's request"
        );
    }
    harness.notify("notifications/cancelled", json!({"requestId": long}));
    wait_until("the old process is gone", || scene.alive().len() == 1);
    assert!(received(0, "resources/subscribe").is_empty(), "the draining process got the subscription too");
    assert_eq!(received(1, "resources/subscribe").len(), 1);
}
