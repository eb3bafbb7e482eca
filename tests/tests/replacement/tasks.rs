//! Tasks: a request about a task reaches the process that has the task, with the credential that created it.

use std::time::Duration;

use cofferdam_tests::deadline::{holds_within, wait_until};
use cofferdam_tests::harness::{Harness, text_of};
use cofferdam_tests::process::is_alive;
use serde_json::{Value, json};

use crate::scene::{Scene, process, process_of_scope};

#[test]
fn requests_about_a_task_go_to_its_process_which_is_kept() {
    let Some(mut scene) = Scene::plain() else { return };
    let mut harness = scene.world.connected("tools");
    let first = process(&mut harness);
    let task = create_task(&mut harness, "echo");
    scene.change_secret_and_wait();
    let newer = create_task(&mut harness, "echo");
    assert_ne!(process(&mut harness), first);
    // The old process keeps running for the task although no call runs there.
    assert!(!holds_within(Duration::from_secs(1), || !is_alive(first)));
    let got = harness.request("tasks/get", json!({"taskId": task}));
    assert_eq!(got["result"]["status"], "completed", "{got}");
    let result = harness.request("tasks/result", json!({"taskId": task}));
    assert_eq!(text_of(&result), format!("done by {first}"));
    wait_until("the old process has exited", || !is_alive(first));
    assert!(harness.request("tasks/result", json!({"taskId": newer})).get("result").is_some());
}

#[test]
fn requests_about_a_task_of_a_scope_go_to_the_process_of_that_scope() {
    let Some(mut scene) = Scene::with_scope() else { return };
    let mut harness = scene.world.connected("tools");
    let (base, scope) = (process(&mut harness), process_of_scope(&mut harness));
    for (tool, made_by) in [("echo", base), ("rw_echo", scope)] {
        let tasks = [create_task(&mut harness, tool), create_task(&mut harness, tool)];
        assert_answered_by(&mut harness, &tasks, made_by);
    }
    // The audit names the credential that the request used.
    let asked = scene.world.audit().into_iter().filter(|record| record["method"] == "tasks/get");
    let with: Vec<Value> = asked
        .filter(|one| one.get("verdict").is_some())
        .map(|one| one["secrets"][0]["name"].clone())
        .collect();
    assert_eq!(with, ["github", "writer"]);
    // Across a replacement of both processes: the old ones are kept for their tasks.
    let old = [("echo", base), ("rw_echo", scope)]
        .map(|(tool, made_by)| ([create_task(&mut harness, tool), create_task(&mut harness, tool)], made_by));
    scene.change_secret_of_scope_and_wait();
    scene.change_secret_and_wait();
    let (newer_base, newer_scope) = (process(&mut harness), process_of_scope(&mut harness));
    let new = [("echo", newer_base), ("rw_echo", newer_scope)]
        .map(|(tool, made_by)| ([create_task(&mut harness, tool), create_task(&mut harness, tool)], made_by));
    assert!(!holds_within(Duration::from_secs(1), || !is_alive(base) || !is_alive(scope)));
    for (tasks, made_by) in new.iter().chain(&old) {
        assert_answered_by(&mut harness, tasks, *made_by);
    }
    wait_until("the old processes have exited", || scene.alive().len() == 2);
}

#[test]
fn requests_about_a_task_go_to_its_draining_process() {
    let Some(scene) = Scene::with_scope() else { return };
    let mut harness = scene.world.connected("tools");
    let first = process_of_scope(&mut harness);
    let tasks = [create_task(&mut harness, "rw_echo"), create_task(&mut harness, "rw_echo")];
    // After a second handshake, processes of scopes that got the first handshake only finish their tasks.
    harness.initialize();
    assert_ne!(process_of_scope(&mut harness), first);
    assert!(!holds_within(Duration::from_secs(1), || !is_alive(first)));
    assert_answered_by(&mut harness, &tasks, first);
    wait_until("the old process has exited", || !is_alive(first));
}

/// Creates a task and returns its id.
#[track_caller]
fn create_task(harness: &mut Harness, tool: &str) -> Value {
    let make = json!({"name": tool, "arguments": {"text": "x"}, "task": {"ttl": 60_000}});
    let made = harness.request("tools/call", make);
    let task = made["result"]["task"]["taskId"].clone();
    assert!(task.is_string(), "{made}");
    task
}

/// Asserts that this process answers for both tasks: one is fetched, the other cancelled.
#[track_caller]
fn assert_answered_by(harness: &mut Harness, [fetched, cancelled]: &[Value; 2], process: u32) {
    let got = harness.request("tasks/get", json!({"taskId": fetched}));
    assert_eq!(got["result"]["status"], "completed", "{got}");
    let result = harness.request("tasks/result", json!({"taskId": fetched}));
    assert_eq!(text_of(&result), format!("done by {process}"));
    let answer = harness.request("tasks/cancel", json!({"taskId": cancelled}));
    assert_eq!(answer["result"]["status"], "cancelled", "{answer}");
}
