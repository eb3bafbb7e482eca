//! From the first attach to the end: pause, restart, detach, reload, end and kill.

use nix::sys::signal::Signal;

use super::*;

#[test]
fn the_shim_is_uploaded_once_and_its_calls_are_answered() {
    let Some(setup) = Anywhere::new() else { return };
    let mut attach = setup.attach(&["--name", "box1"]);
    assert!(attach.printed().contains("uploading the shim ("), "{}", attach.printed());
    assert_eq!(setup.call("add", r#"{"a": 2, "b": 3}"#), "5");
    assert_eq!(setup.call("big", r#"{"bytes": 300000}"#).len(), 300_000);
    attach.signal(Signal::SIGINT);
    assert!(attach.wait().success());
    setup.assert_nothing_left();
    let again = setup.attach(&[]);
    assert!(!again.printed().contains("uploading"), "{}", again.printed());
    setup.assert_echoes("again");
    again.stop();
    setup.assert_nothing_left();
    setup.world.assert_secret_not_leaked(setup.platform.api_key());
}

#[test]
fn a_pause_suspends_the_attachment_and_a_resume_attaches_it_again() {
    let Some(setup) = Anywhere::with_control_api(|builder, _| builder) else { return };
    let attach = setup.attach(&[]);
    setup.assert_echoes("before");
    setup.platform.pause(&setup.sandbox);
    attach.wait_until_output_has("the sandbox is suspended");
    setup.platform.resume(&setup.sandbox);
    attach.wait_until_attached(2);
    setup.assert_echoes("after");
    assert_eq!(setup.world.times_executed("tools", "echo"), 2);
    attach.stop();
    setup.assert_nothing_left();
}

#[test]
fn a_detached_attachment_lasts_through_a_restart_of_the_sidecar_until_it_is_ended() {
    let Some(mut setup) = Anywhere::new() else { return };
    let mut attach = setup.attach(&["--name", "box1", "--detach"]);
    assert!(attach.wait().success());
    setup.assert_echoes("detached");
    setup.world.kill9_sidecar();
    setup.world.start_sidecar();
    wait_until("the sandbox is attached", || {
        setup.world.cofferdam_text(&["attach", "list", "--json"]).contains("\"attached\"")
    });
    setup.assert_echoes("again");
    setup.world.cofferdam_text(&["attach", "end", "box1"]);
    setup.assert_nothing_left();
}

#[test]
fn a_kill_ends_the_hub_the_command_and_the_servers() {
    let Some(setup) = Anywhere::new() else { return };
    let mut attach = setup.attach(&["--name", "box1"]);
    setup.assert_echoes("one");
    let killed = setup.world.cofferdam_text(&["kill", "box1"]);
    assert!(killed.contains("attachment box1: ended\n"), "{killed}");
    assert_eq!(attach.wait().code(), Some(69));
    setup.assert_nothing_left();
}

#[test]
fn the_servers_of_the_grant_are_added_to_the_settings_of_the_harness() {
    let Some(setup) = Anywhere::new() else { return };
    let attach = setup.attach(&["--harness", "claude"]);
    let settings = setup.platform.run(&setup.sandbox, "cat ~/.claude.json").stdout;
    let settings: Value = serde_json::from_str(&settings).expect("the settings are JSON");
    let entry = &settings["mcpServers"]["tools"];
    let program = entry["command"].as_str().expect("the entry has a program");
    let ran = setup.platform.run(&setup.sandbox, &format!("{program} --version"));
    assert!(ran.stdout.starts_with("cofferdam-shim "), "{ran:?}");
    attach.stop();
    setup.assert_nothing_left();
}

#[test]
fn the_deletion_of_an_attached_sandbox_ends_the_command_with_its_reason() {
    let Some(setup) = Anywhere::with_control_api(|builder, _| builder) else { return };
    let mut attach = setup.attach(&["--name", "box1"]);
    setup.assert_echoes("one");
    setup.platform.delete(&setup.sandbox);
    assert_eq!(attach.wait().code(), Some(66), "{}", attach.printed());
    assert!(attach.printed().contains("was deleted"), "{}", attach.printed());
    setup.assert_nothing_left_in_the_sidecar();
}

#[test]
fn a_paused_sandbox_is_woken_only_with_resume() {
    let Some(setup) = Anywhere::with_control_api(|builder, _| builder) else { return };
    setup.platform.pause(&setup.sandbox);
    let waiting = setup.start_attach(&[]);
    waiting.wait_until_output_has("the sandbox is suspended: the platform reports that it is paused");
    assert!(setup.platform.is_paused(&setup.sandbox));
    waiting.stop();
    assert_eq!(setup.list(), Vec::<Value>::new());
    setup.attach(&["--resume"]).stop();
    assert!(!setup.platform.is_paused(&setup.sandbox));
}

#[test]
fn a_command_follows_its_attachment_through_a_restart_of_the_sidecar() {
    let Some(mut setup) = Anywhere::new() else { return };
    let attach = setup.attach(&[]);
    setup.assert_echoes("one");
    setup.world.stop_sidecar();
    setup.world.start_sidecar();
    attach.wait_until_attached(2);
    setup.assert_echoes("two");
    attach.stop();
    setup.assert_nothing_left();
}

#[test]
fn the_configuration_attaches_sandboxes_and_a_reload_adds_and_ends_them() {
    let with_box1 = |builder: Builder, sandbox: &str| builder.line(&attach_line("box1", "e2b", sandbox));
    let Some(mut setup) = Anywhere::with_control_api(with_box1) else { return };
    wait_until("the sandbox is attached", || setup.list()[0]["state"] == "attached");
    assert_eq!(setup.list()[0]["lifetime"], "configured");
    setup.assert_echoes("one");
    let second = setup.platform.create();
    let line = attach_line("box2", "e2b", &second);
    setup.world.rewrite(|builder| builder.line(&line));
    setup.world.cofferdam_text(&["reload"]);
    wait_until("both are attached", || {
        let list = setup.list();
        list.len() == 2 && list.iter().all(|status| status["state"] == "attached")
    });
    // A killed attachment is not started again before the next reload.
    let killed = setup.world.cofferdam_text(&["kill", "box2"]);
    assert!(killed.contains("attachment box2: ended; the configuration attaches it again"), "{killed}");
    wait_until("its hub has ended", || !setup.has_hub_in(&second));
    assert_eq!(setup.list()[1]["state"], "over");
    setup.world.cofferdam_text(&["reload"]);
    wait_until("it is attached again", || setup.list()[1]["state"] == "attached");
    let only_second = builder_on(&setup.platform).line(&line);
    setup.world.rewrite(|_| only_second);
    setup.world.cofferdam_text(&["reload"]);
    wait_until("the first one has ended", || setup.list().len() == 1);
    assert_eq!(setup.list()[0]["name"], "box2");
    wait_until("its hub has ended", || !setup.has_hub());
}
