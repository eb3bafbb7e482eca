//! `attach … --dial-out`: the sandbox connects to the sidecar by itself, with a key that it gets from an enrolment string.

use std::os::unix::fs::PermissionsExt as _;

use cofferdam_tests::daytona_double::{DaytonaDouble, Speed};
use cofferdam_tests::e2b_double::{Fault, Side};
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::command;
use serde_json::json;

use super::*;

/// A platform, and a sidecar that sandboxes can dial with `wss://`.
fn scene() -> Option<Scene> {
    Scene::with(|builder, _| {
        let address = free_address();
        builder.relay(&format!("tls = \"{address}\"\nadvertise = \"wss://{address}/relay\""))
    })
}

impl Scene {
    /// A harness in the sandbox that has no socket: its shim dials out.
    #[track_caller]
    fn dialling_shim(&self) -> Harness {
        let home = self.platform.path(&self.sandbox, "/home/user");
        let link = std::fs::read_link(home.join(".local/bin/cofferdam-shim")).expect("the link is there");
        let mut shim = command(self.platform.path(&self.sandbox, &link.to_string_lossy()));
        shim.args(["--server", "tools"]).env("HOME", home).env_remove("XDG_STATE_HOME");
        Harness::start(shim, "a shim that dials out").initialized()
    }

    fn private_files(&self) -> PathBuf {
        self.platform.path(&self.sandbox, "/home/user/.local/lib/cofferdam/private")
    }
}

#[test]
fn a_sandbox_that_dials_out_has_its_tools_and_ends_with_the_attachment() {
    let Some(scene) = scene() else { return };
    // Twice: the key of an enrolment that has ended does not keep the sandbox from a new one.
    for text in ["one", "two"] {
        let attach = scene.attach(&["--dial-out", "--name", "box1"]);
        wait_until("nothing runs in the sandbox", || scene.platform.processes(&scene.sandbox).is_empty());
        let mut shim = scene.dialling_shim();
        assert_eq!(shim.call_text("echo", json!({"text": text})), text);
        let enrolment = scene.list()[0]["enrolment"].as_str().unwrap().to_owned();
        let sessions = scene.world.cofferdam_text(&["sessions", "--json"]);
        assert!(sessions.contains(&enrolment) && sessions.contains("box1"), "{sessions}");
        attach.stop();
        wait_until("the session has ended", || scene.world.sessions() == json!([]));
        wait_until("the attachment is gone", || scene.list().is_empty());
        let refused = shim.call("echo", json!({"text": "too late"}));
        assert!(refused.to_string().contains("session_ended"), "{refused}");
    }
}

#[test]
fn kill_ends_the_attachment_of_a_sandbox_that_dials_out() {
    let Some(scene) = scene() else { return };
    let mut attach = scene.attach(&["--dial-out", "--name", "box1"]);
    let mut shim = scene.dialling_shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    scene.world.cofferdam_text(&["kill", "box1"]);
    assert_eq!(attach.wait().code(), Some(69), "{}", attach.printed());
    wait_until("the attachment is gone", || scene.list().is_empty());
    let refused = shim.call("echo", json!({"text": "too late"}));
    assert!(refused.to_string().contains("session_ended"), "{refused}");
}

#[test]
fn a_killed_command_ends_the_enrolment_of_its_sandbox() {
    let Some(scene) = scene() else { return };
    let mut attach = scene.attach(&["--dial-out"]);
    let mut shim = scene.dialling_shim();
    attach.kill9();
    wait_until("the attachment is gone", || scene.list().is_empty());
    let refused = shim.call("echo", json!({"text": "too late"}));
    assert!(refused.to_string().contains("session_ended"), "{refused}");
}

#[test]
fn the_ticket_is_in_no_log_of_the_platform_and_in_no_file_of_the_sandbox() {
    let Some(scene) = scene() else { return };
    // The upload is seen by the double while the shim does not run: the file is private before it has its content.
    scene.platform.plan(Side::Envd, "/files?path=/home/user/.local/lib/cofferdam/private", Fault::Cut, 1);
    let attach = scene.start_attach(&["--dial-out"]);
    attach.wait_until_attached(1);
    let directory = scene.private_files();
    assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "the string was removed");
    let log = scene.platform.log().join("\n");
    assert!(log.contains("private/enrolment"), "the path is not secret");
    assert!(!log.contains("wss://") && !log.contains("cofferdam1"), "no enrolment string: {log}");
    for head in scene.platform.heads() {
        assert!(!head.line.contains("wss"), "{}", head.line);
    }
    assert!(!attach.printed().contains("wss://"), "{}", attach.printed());
    assert!(!scene.world.log().contains("wss://"), "{}", scene.world.log());
    attach.stop();
}

#[test]
fn a_sandbox_that_is_detached_keeps_its_key_through_a_restart_of_the_sidecar() {
    let Some(mut scene) = scene() else { return };
    let mut attach = scene.start_attach(&["--dial-out", "--detach", "--name", "box1"]);
    assert_eq!(attach.wait().code(), Some(0), "{}", attach.printed());
    let mut shim = scene.dialling_shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    let enrolment = scene.list()[0]["enrolment"].clone();
    scene.world.stop_sidecar();
    scene.world.start_sidecar();
    scene.wait_until_state("attached");
    assert_eq!(scene.list()[0]["enrolment"], enrolment, "no second enrolment is made");
    assert_eq!(shim.call_text("echo", json!({"text": "two"})), "two");
    scene.world.cofferdam_text(&["attach", "end", "box1"]);
    wait_until("the attachment is gone", || scene.list().is_empty());
}

#[test]
fn without_a_link_that_sandboxes_can_dial_it_is_a_configuration_error() {
    for relay in [None, Some(free_address())] {
        let with_port = |builder: Builder, _: &str| match relay {
            None => builder,
            Some(address) => builder.relay(&format!("tls = \"{address}\"")),
        };
        let Some(scene) = Scene::with(with_port) else { return };
        let mut attach = scene.start_attach(&["--dial-out"]);
        assert_eq!(attach.wait().code(), Some(78), "{}", attach.printed());
        assert!(
            attach.printed().contains("`relay.advertise` to a link such as \"wss://"),
            "{}",
            attach.printed()
        );
        assert_eq!(scene.platform.log(), Vec::<String>::new(), "nothing was sent to the sandbox");
    }
}

#[test]
fn a_sandbox_that_cannot_reach_the_sidecar_is_told_and_its_ticket_is_ended() {
    let Some(scene) = Scene::with(|builder, _| {
        let nowhere = free_address();
        builder.relay(&format!("tls = \"{}\"\nadvertise = \"wss://{nowhere}/\"", free_address()))
    }) else {
        return;
    };
    let mut attach = scene.start_attach(&["--dial-out"]);
    assert_eq!(attach.wait().code(), Some(69), "{}", attach.printed());
    assert!(attach.printed().contains("may it reach the link in `relay.advertise`?"), "{}", attach.printed());
    assert!(attach.printed().contains("Connection refused"), "it says why: {}", attach.printed());
    assert_eq!(scene.world.cofferdam_text(&["enrolments"]).matches("ticket").count(), 0);
    assert_eq!(std::fs::read_dir(scene.private_files()).unwrap().count(), 0, "no string is left");
}

#[test]
fn a_sandbox_of_daytona_dials_out_too() {
    let Some(platform) = DaytonaDouble::start(Speed(1)) else { return };
    let address = free_address();
    let relay = format!("tls = \"{address}\"\nadvertise = \"wss://{address}/relay\"");
    let world = on_daytona::builder(&platform).relay(&relay).start();
    let arguments = ["daytona", platform.sandbox_id(), "--grant", "dev", "--via", "dial-out"];
    let attach = Attach::start(&world, &arguments);
    attach.wait_until_attached(1);
    let home = platform.root().join("home/daytona");
    let mut shim = command(shim_binary());
    shim.args(["--server", "tools"]).env("HOME", home).env_remove("XDG_STATE_HOME");
    let mut shim = Harness::start(shim, "a shim that dials out").initialized();
    assert_eq!(shim.call_text("echo", json!({"text": "out"})), "out");
    attach.stop();
}
