//! From the first attach to the end: pause, restart, detach, reload, end and kill.

use cofferdam_tests::process::is_alive;
use nix::sys::signal::Signal;
use serde_json::json;

use super::*;

#[test]
fn a_sandbox_is_attached_and_calls_tools_until_the_command_is_interrupted() {
    let Some(scene) = Scene::new() else { return };
    let mut attach = scene.attach(&["--name", "box1"]);
    let mut shim = scene.shim();
    assert_eq!(shim.call_text("add", json!({"a": 2, "b": 3})), "5");
    assert_eq!(shim.call_text("big", json!({"bytes": 3_000_000})).len(), 3_000_000);
    let [status] = scene.list().try_into().expect("one attachment");
    assert_eq!((&status["name"], &status["state"]), (&json!("box1"), &json!("attached")));
    assert_eq!((&status["sandbox"], &status["lifetime"]), (&json!(scene.sandbox), &json!("followed")));
    let sessions = scene.world.cofferdam_text(&["sessions"]);
    assert!(sessions.contains("box1") && sessions.contains(" attached "), "{sessions}");
    let sessions = scene.world.sessions_json();
    assert_eq!(sessions["attachments"], json!(scene.list()));
    assert_eq!(sessions["sessions"][0]["name"], "box1");
    let printed = attach.printed();
    assert!(printed.contains("uploading the shim (") && printed.contains("starting the hub"), "{printed}");
    attach.signal(Signal::SIGINT);
    assert!(attach.wait().success());
    assert_eq!(scene.list(), Vec::<Value>::new());
    wait_until("the hub has ended", || scene.platform.processes(&scene.sandbox).is_empty());
    wait_until("no session is left", || scene.world.sessions() == json!([]));
    let servers = scene.world.fixture_processes("tools");
    wait_until("the server has ended", || servers.iter().all(|id| !is_alive(*id)));
    scene.world.assert_secret_not_leaked(API_KEY);
}

#[test]
fn a_sandbox_of_root_is_attached_too() {
    let Some(scene) = Scene::as_root() else { return };
    let attach = scene.attach(&[]);
    assert_eq!(scene.shim().call_text("add", json!({"a": 2, "b": 3})), "5");
    attach.stop();
    wait_until("the hub has ended", || scene.platform.processes(&scene.sandbox).is_empty());
}

#[test]
fn a_pause_interrupts_and_a_resume_brings_the_sandbox_back_unasked() {
    let Some(scene) = Scene::new() else { return };
    let attach = scene.attach(&["--resume"]);
    let mut shim = scene.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "before"})), "before");
    scene.platform.pause(&scene.sandbox);
    scene.wait_until_state("suspended");
    attach.wait_until_output_has("the sandbox is suspended");
    // It was attached once: `--resume` does not undo a pause.
    assert!(scene.platform.is_paused(&scene.sandbox));
    let waiting = shim.send_call("echo", json!({"text": "meanwhile"}));
    scene.platform.resume(&scene.sandbox);
    attach.wait_until_attached(2);
    assert_eq!(cofferdam_tests::harness::text_of(&shim.answer_to(&waiting)), "meanwhile");
    assert_eq!(scene.world.times_executed("tools", "echo"), 2);
    assert_eq!(scene.world.sessions().as_array().unwrap().len(), 1, "the link is the same one");
    attach.stop();
}

#[test]
fn a_paused_sandbox_is_woken_only_with_resume() {
    let Some(scene) = Scene::new() else { return };
    scene.platform.pause(&scene.sandbox);
    let waiting = scene.start_attach(&[]);
    waiting.wait_until_output_has("the sandbox is suspended");
    assert!(scene.platform.is_paused(&scene.sandbox));
    waiting.stop();
    assert_eq!(scene.list(), Vec::<Value>::new());
    scene.attach(&["--resume"]).stop();
    assert!(!scene.platform.is_paused(&scene.sandbox));
}

#[test]
fn a_detached_attachment_survives_a_restart_until_it_is_ended() {
    let Some(mut scene) = Scene::new() else { return };
    let mut attach = scene.attach(&["--name", "box 1", "--detach"]);
    assert!(attach.wait().success());
    let mut shim = scene.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    assert_eq!(scene.list()[0]["lifetime"], "detached");
    for restart in 0..2 {
        match restart {
            0 => scene.world.stop_sidecar(),
            _ => scene.world.kill9_sidecar(),
        }
        scene.world.start_sidecar();
        scene.wait_until_state("attached");
        assert_eq!(shim.call_text("echo", json!({"text": "again"})), "again");
    }
    let ended = scene.world.cofferdam_text(&["attach", "end", "box 1"]);
    assert!(ended.contains("attachment box 1: ended\n"), "{ended}");
    assert_eq!(scene.list(), Vec::<Value>::new());
    wait_until("the hub has ended", || scene.platform.processes(&scene.sandbox).is_empty());
    scene.world.stop_sidecar();
    scene.world.start_sidecar();
    assert_eq!(scene.list(), Vec::<Value>::new());
    let kept = std::fs::read_dir(scene.world.layout().state.join("attachments")).unwrap();
    assert_eq!(kept.count(), 0);
}

#[test]
fn a_command_follows_its_attachment_through_a_restart_of_the_sidecar() {
    let Some(mut scene) = Scene::new() else { return };
    let attach = scene.attach(&[]);
    let mut shim = scene.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    scene.world.stop_sidecar();
    scene.world.start_sidecar();
    attach.wait_until_attached(2);
    assert_eq!(shim.call_text("echo", json!({"text": "two"})), "two");
    attach.stop();
}

#[test]
fn the_configuration_attaches_sandboxes_and_a_reload_adds_and_ends_them() {
    let with_box1 = |builder: Builder, sandbox: &str| builder.line(&attach_line("box1", "e2b", sandbox));
    let Some(mut scene) = Scene::with(with_box1) else { return };
    scene.wait_until_state("attached");
    assert_eq!(scene.list()[0]["lifetime"], "configured");
    assert_eq!(scene.shim().call_text("echo", json!({"text": "one"})), "one");
    let second = scene.platform.create(SandboxUser::Usual);
    let line = attach_line("box2", "e2b", &second);
    scene.world.rewrite(|builder| builder.line(&line));
    scene.world.cofferdam_text(&["reload"]);
    wait_until("both are attached", || {
        let list = scene.list();
        list.len() == 2 && list.iter().all(|status| status["state"] == "attached")
    });
    // A killed one stays away until the next reload.
    let killed = scene.world.cofferdam_text(&["kill", "box2"]);
    assert!(killed.contains("attachment box2: ended; the configuration attaches it again"), "{killed}");
    wait_until("its hub has ended", || scene.platform.processes(&second).is_empty());
    assert_eq!(scene.list()[1]["state"], "over");
    scene.world.cofferdam_text(&["reload"]);
    wait_until("it is attached again", || scene.list()[1]["state"] == "attached");
    let only_second = builder(&scene.platform).line(&line);
    scene.world.rewrite(|_| only_second);
    scene.world.cofferdam_text(&["reload"]);
    wait_until("the first one has ended", || scene.list().len() == 1);
    assert_eq!(scene.list()[0]["name"], "box2");
    wait_until("its hub has ended", || scene.platform.processes(&scene.sandbox).is_empty());
}

#[test]
fn a_configured_attachment_survives_a_pause_and_a_restart_and_follows_its_table() {
    let with_box1 = |builder: Builder, sandbox: &str| builder.line(&attach_line("box1", "e2b", sandbox));
    let Some(mut scene) = Scene::with(with_box1) else { return };
    scene.wait_until_state("attached");
    let mut shim = scene.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    scene.platform.pause(&scene.sandbox);
    scene.wait_until_state("suspended");
    assert!(scene.platform.is_paused(&scene.sandbox));
    let waiting = shim.send_call("echo", json!({"text": "two"}));
    scene.platform.resume(&scene.sandbox);
    scene.wait_until_state("attached");
    assert_eq!(cofferdam_tests::harness::text_of(&shim.answer_to(&waiting)), "two");
    scene.world.kill9_sidecar();
    scene.world.start_sidecar();
    scene.wait_until_state("attached");
    assert_eq!(shim.call_text("echo", json!({"text": "three"})), "three");
    assert_eq!(scene.world.times_executed("tools", "echo"), 3);

    // The table names another sandbox now.
    let other = scene.platform.create(SandboxUser::Usual);
    let changed = builder(&scene.platform).line(&attach_line("box1", "e2b", &other));
    scene.world.rewrite(|_| changed);
    scene.world.cofferdam_text(&["reload"]);
    wait_until("the other sandbox is attached", || {
        let list = scene.list();
        list.len() == 1 && list[0]["sandbox"] == json!(other) && list[0]["state"] == "attached"
    });
    wait_until("the first one's hub has ended", || scene.platform.processes(&scene.sandbox).is_empty());
    // And then it is gone.
    let without = builder(&scene.platform);
    scene.world.rewrite(|_| without);
    scene.world.cofferdam_text(&["reload"]);
    scene.assert_nothing_left();
    wait_until("the other one's hub has ended", || scene.platform.processes(&other).is_empty());
}

#[test]
fn a_kill_by_name_ends_hub_command_and_servers() {
    let Some(scene) = Scene::new() else { return };
    let mut attach = scene.attach(&["--name", "box1"]);
    assert_eq!(scene.shim().call_text("echo", json!({"text": "one"})), "one");
    let killed = scene.world.cofferdam_text(&["kill", "box1"]);
    assert!(killed.contains("enrolment ") && killed.contains("attachment box1: ended\n"), "{killed}");
    assert_eq!(attach.wait().code(), Some(69));
    wait_until("the hub has ended", || scene.platform.processes(&scene.sandbox).is_empty());
    assert!(scene.world.fixture_processes("tools").iter().all(|id| !is_alive(*id)));
    assert_eq!(scene.list(), Vec::<Value>::new());
}

#[test]
fn a_killed_command_takes_its_attachment_along_and_the_next_one_resumes_the_links() {
    let Some(scene) = Scene::new() else { return };
    let mut attach = scene.attach(&[]);
    let mut shim = scene.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    attach.kill9();
    let _again = scene.attach(&[]);
    assert_eq!(shim.call_text("echo", json!({"text": "two"})), "two");
    assert_eq!(scene.world.sessions().as_array().unwrap().len(), 1);
}
