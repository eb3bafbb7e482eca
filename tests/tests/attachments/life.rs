//! From the first attach to the end: pause, restart, detach, reload, end and kill.

use cofferdam_tests::deadline::{BACK_WITHIN, assert_within};
use cofferdam_tests::e2b_double::{Fault, Side};
use nix::sys::signal::Signal;
use serde_json::json;

use super::*;

#[test]
fn a_sandbox_is_attached_and_calls_tools_until_the_command_is_interrupted() {
    let Some(setup) = E2bSetup::new() else { return };
    let mut attach = setup.attach(&["--name", "box1"]);
    let mut shim = setup.shim();
    assert_eq!(shim.call_text("add", json!({"a": 2, "b": 3})), "5");
    assert_eq!(shim.call_text("big", json!({"bytes": 3_000_000})).len(), 3_000_000);
    let [status] = setup.list().try_into().expect("one attachment");
    assert_eq!((&status["name"], &status["state"]), (&json!("box1"), &json!("attached")));
    assert_eq!((&status["sandbox"], &status["lifetime"]), (&json!(setup.sandbox), &json!("followed")));
    let sessions = setup.world.cofferdam_text(&["sessions"]);
    assert!(sessions.contains("box1") && sessions.contains(" attached "), "{sessions}");
    let sessions = setup.world.sessions_json();
    assert_eq!(sessions["attachments"], json!(setup.list()));
    assert_eq!(sessions["sessions"][0]["name"], "box1");
    let printed = attach.printed();
    assert!(printed.contains("uploading the shim (") && printed.contains("starting the hub"), "{printed}");
    attach.signal(Signal::SIGINT);
    assert!(attach.wait().success());
    assert_eq!(setup.list(), Vec::<Value>::new());
    wait_until("the hub has ended", || setup.platform.processes(&setup.sandbox).is_empty());
    wait_until("no session is left", || setup.world.sessions() == json!([]));
    let servers = setup.world.fixture_processes("tools");
    wait_until("the server has ended", || servers.iter().all(|id| !is_alive(*id)));
    setup.world.assert_secret_not_leaked(API_KEY);
}

#[test]
fn a_sandbox_of_root_is_attached_too() {
    let Some(setup) = E2bSetup::as_root() else { return };
    let attach = setup.attach(&[]);
    assert_eq!(setup.shim().call_text("add", json!({"a": 2, "b": 3})), "5");
    attach.stop();
    wait_until("the hub has ended", || setup.platform.processes(&setup.sandbox).is_empty());
}

#[test]
fn after_a_pause_and_a_resume_the_sandbox_is_attached_again() {
    let Some(setup) = E2bSetup::new() else { return };
    let attach = setup.attach(&["--resume"]);
    let mut shim = setup.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "before"})), "before");
    setup.platform.pause(&setup.sandbox);
    setup.wait_until_state("suspended");
    attach.wait_until_output_has("the sandbox is suspended");
    // The sandbox was attached before, so `--resume` does not undo this pause.
    assert!(setup.platform.is_paused(&setup.sandbox));
    let waiting = shim.send_call("echo", json!({"text": "meanwhile"}));
    setup.platform.resume(&setup.sandbox);
    assert_within(BACK_WITHIN, "attached after a resume", || attach.times_attached() >= 2);
    assert_eq!(cofferdam_tests::harness::text_of(&shim.answer_to(&waiting)), "meanwhile");
    assert_eq!(setup.world.times_executed("tools", "echo"), 2);
    assert_eq!(setup.world.sessions().as_array().unwrap().len(), 1, "a second link was opened");
    attach.stop();
}

#[test]
fn after_a_cut_a_restart_of_envd_and_an_outage_the_sandbox_is_attached_again_in_time() {
    let Some(setup) = E2bSetup::new() else { return };
    let attach = setup.attach(&[]);
    let mut shim = setup.shim();
    setup.platform.cut(&setup.sandbox);
    assert_within(BACK_WITHIN, "attached after a cut", || attach.times_attached() >= 2);
    setup.platform.restart_envd(&setup.sandbox);
    assert_within(BACK_WITHIN, "attached after a restart of `envd`", || attach.times_attached() >= 3);
    let failed = setup.platform.heads().len();
    setup.platform.plan(Side::Control, "/sandboxes", Fault::Status(503), usize::MAX);
    setup.platform.plan(Side::Envd, "/", Fault::Status(502), usize::MAX);
    setup.platform.cut(&setup.sandbox);
    // The outage lasts until the delays between attempts are of seconds.
    wait_until("five attempts have failed", || setup.platform.heads().len() >= failed + 5);
    setup.platform.clear_faults();
    assert_within(BACK_WITHIN, "attached after an outage", || attach.times_attached() >= 4);
    assert_eq!(shim.call_text("echo", json!({"text": "back"})), "back");
    attach.stop();
}

#[test]
fn a_detached_attachment_survives_a_restart_until_it_is_ended() {
    let Some(mut setup) = E2bSetup::new() else { return };
    let mut attach = setup.attach(&["--name", "box 1", "--detach"]);
    assert!(attach.wait().success());
    let mut shim = setup.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    assert_eq!(setup.list()[0]["lifetime"], "detached");
    for restart in 0..2 {
        match restart {
            0 => setup.world.stop_sidecar(),
            _ => setup.world.kill9_sidecar(),
        }
        setup.world.start_sidecar();
        setup.wait_until_state("attached");
        assert_eq!(shim.call_text("echo", json!({"text": "again"})), "again");
    }
    let ended = setup.world.cofferdam_text(&["attach", "end", "box 1"]);
    assert!(ended.contains("attachment box 1: ended\n"), "{ended}");
    assert_eq!(setup.list(), Vec::<Value>::new());
    wait_until("the hub has ended", || setup.platform.processes(&setup.sandbox).is_empty());
    setup.world.stop_sidecar();
    setup.world.start_sidecar();
    assert_eq!(setup.list(), Vec::<Value>::new());
    let kept = std::fs::read_dir(setup.world.layout().state.join("attachments")).unwrap();
    assert_eq!(kept.count(), 0);
}

#[test]
fn a_configured_attachment_survives_a_pause_and_a_restart_and_follows_its_table() {
    let with_box1 = |builder: Builder, sandbox: &str| builder.line(&attach_line("box1", "e2b", sandbox));
    let Some(mut setup) = E2bSetup::with(with_box1) else { return };
    setup.wait_until_state("attached");
    let mut shim = setup.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    setup.platform.pause(&setup.sandbox);
    setup.wait_until_state("suspended");
    assert!(setup.platform.is_paused(&setup.sandbox));
    let waiting = shim.send_call("echo", json!({"text": "two"}));
    setup.platform.resume(&setup.sandbox);
    setup.wait_until_state("attached");
    assert_eq!(cofferdam_tests::harness::text_of(&shim.answer_to(&waiting)), "two");
    setup.world.kill9_sidecar();
    setup.world.start_sidecar();
    setup.wait_until_state("attached");
    assert_eq!(shim.call_text("echo", json!({"text": "three"})), "three");
    assert_eq!(setup.world.times_executed("tools", "echo"), 3);

    // The table names another sandbox now.
    let other = setup.platform.create(SandboxUser::Usual);
    let changed = builder(&setup.platform).line(&attach_line("box1", "e2b", &other));
    setup.world.rewrite(|_| changed);
    setup.world.cofferdam_text(&["reload"]);
    wait_until("the other sandbox is attached", || {
        let list = setup.list();
        list.len() == 1 && list[0]["sandbox"] == json!(other) && list[0]["state"] == "attached"
    });
    wait_until("the first one's hub has ended", || setup.platform.processes(&setup.sandbox).is_empty());
    // Then the table is removed.
    let without = builder(&setup.platform);
    setup.world.rewrite(|_| without);
    setup.world.cofferdam_text(&["reload"]);
    setup.assert_nothing_left();
    wait_until("the other one's hub has ended", || setup.platform.processes(&other).is_empty());
}

#[test]
fn a_kill_by_name_ends_hub_command_and_servers() {
    let Some(setup) = E2bSetup::new() else { return };
    let mut attach = setup.attach(&["--name", "box1"]);
    assert_eq!(setup.shim().call_text("echo", json!({"text": "one"})), "one");
    let deadline = Deadline::after(GONE_WITHIN);
    let killed = setup.world.cofferdam_text(&["kill", "box1"]);
    assert!(killed.contains("enrolment ") && killed.contains("attachment box1: ended\n"), "{killed}");
    setup.assert_nothing_left_by(deadline);
    assert_eq!(attach.wait().code(), Some(69));
}

#[test]
fn a_killed_command_ends_its_attachment_and_the_next_command_resumes_the_links() {
    let Some(setup) = E2bSetup::new() else { return };
    let mut attach = setup.attach(&[]);
    let mut shim = setup.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    attach.kill9();
    let _again = setup.attach(&[]);
    assert_eq!(shim.call_text("echo", json!({"text": "two"})), "two");
    assert_eq!(setup.world.sessions().as_array().unwrap().len(), 1);
}

#[test]
fn an_outage_at_the_start_is_waited_for_and_retry_after_is_honoured() {
    let Some(setup) = E2bSetup::new() else { return };
    setup.platform.plan(Side::Control, "/sandboxes/", Fault::StatusRetryAfter(503, 2), 1);
    // A limit on the rate of requests, unlike a quota.
    setup.platform.plan(Side::Control, "/sandboxes/", Fault::StatusRetryAfter(429, 1), 1);
    setup.platform.plan(Side::Control, "/sandboxes/", Fault::Cut, 1);
    let attach = setup.start_attach(&[]);
    attach.wait_until_output_has("retrying in 2 s");
    attach.wait_until_attached(1);
    attach.stop();
    setup.assert_nothing_left();
}
