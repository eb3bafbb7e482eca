//! `attach … --dial-out`: the sandbox connects to the sidecar itself, with a key that it enrolled with an enrolment string.

use std::os::unix::fs::PermissionsExt as _;

use cofferdam_tests::daytona_double::{DaytonaDouble, Speed};
use cofferdam_tests::e2b_double::{Fault, Side};
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::command;
use serde_json::json;

use super::*;

/// A platform, and a sidecar that sandboxes can dial with `wss://`.
fn setup() -> Option<E2bSetup> {
    E2bSetup::with(|builder, _| {
        let address = free_address();
        builder.relay(&format!("tls = \"{address}\"\nadvertise = \"wss://{address}/relay\""))
    })
}

impl E2bSetup {
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
    let Some(setup) = setup() else { return };
    // Twice: the key of an ended enrolment must not prevent a new enrolment of the sandbox.
    for text in ["one", "two"] {
        let attach = setup.attach(&["--dial-out", "--name", "box1"]);
        wait_until("nothing runs in the sandbox", || setup.platform.processes(&setup.sandbox).is_empty());
        let mut shim = setup.dialling_shim();
        assert_eq!(shim.call_text("echo", json!({"text": text})), text);
        let enrolment = setup.list()[0]["enrolment"].as_str().unwrap().to_owned();
        let sessions = setup.world.cofferdam_text(&["sessions", "--json"]);
        assert!(sessions.contains(&enrolment) && sessions.contains("box1"), "{sessions}");
        attach.stop();
        wait_until("the session has ended", || setup.world.sessions() == json!([]));
        wait_until("the attachment is gone", || setup.list().is_empty());
        let refused = shim.call("echo", json!({"text": "too late"}));
        assert!(refused.to_string().contains("session_ended"), "{refused}");
    }
}

#[test]
fn kill_ends_the_attachment_of_a_sandbox_that_dials_out() {
    let Some(setup) = setup() else { return };
    let mut attach = setup.attach(&["--dial-out", "--name", "box1"]);
    let mut shim = setup.dialling_shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    let deadline = Deadline::after(GONE_WITHIN);
    setup.world.cofferdam_text(&["kill", "box1"]);
    setup.assert_nothing_left_by(deadline);
    assert_eq!(attach.wait().code(), Some(69), "{}", attach.printed());
    assert!(attach.printed().contains("it was ended by an operator"), "{}", attach.printed());
    let refused = shim.call("echo", json!({"text": "too late"}));
    assert!(refused.to_string().contains("session_ended"), "{refused}");
}

#[test]
fn a_killed_command_ends_the_enrolment_of_its_sandbox() {
    let Some(setup) = setup() else { return };
    let mut attach = setup.attach(&["--dial-out"]);
    let mut shim = setup.dialling_shim();
    attach.kill9();
    wait_until("the attachment is gone", || setup.list().is_empty());
    let refused = shim.call("echo", json!({"text": "too late"}));
    assert!(refused.to_string().contains("session_ended"), "{refused}");
}

#[test]
fn the_ticket_is_in_no_log_of_the_platform_and_in_no_file_of_the_sandbox() {
    let Some(setup) = setup() else { return };
    // The double of the platform sees the upload before the shim runs, so the directory must be private by then.
    setup.platform.plan(Side::Envd, "/files?path=/home/user/.local/lib/cofferdam/private", Fault::Cut, 1);
    let attach = setup.start_attach(&["--dial-out"]);
    attach.wait_until_attached(1);
    let directory = setup.private_files();
    assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "the enrolment string was not removed");
    let log = setup.platform.log().join("\n");
    let is_upload =
        |line: &&str| line.starts_with("Envd POST /files") && line.ends_with("/private/enrolment");
    assert_eq!(log.lines().filter(is_upload).count(), 2, "the upload that was cut, and the next: {log}");
    let heads: Vec<String> = setup.platform.heads().iter().map(|head| format!("{head:?}")).collect();
    let (heads, printed, own_log) = (heads.join("\n"), attach.printed(), setup.world.log());
    let pin = setup.world.cofferdam_text(&["key"]);
    for text in [&log, &heads, &printed, &own_log] {
        // The start of every enrolment string, and its part before the ticket.
        for secret in ["cofferdam:1:", &format!("{}:", pin.trim()), "wss://"] {
            assert!(!text.contains(secret), "{secret} of an enrolment string is in: {text}");
        }
    }
    let home = setup.platform.path(&setup.sandbox, "/home/user");
    let mut search = command("grep");
    search.args(["--recursive", "--files-with-matches", "--text", "--fixed-strings"]);
    search.arg(format!("cofferdam:1:{}", pin.trim())).arg(home);
    let found = cofferdam_tests::process::output_of(search, "grep");
    assert_eq!((found.status.code(), String::from_utf8_lossy(&found.stdout).as_ref()), (Some(1), ""));
    attach.stop();
}

#[test]
fn a_sandbox_that_is_detached_keeps_its_key_through_a_restart_of_the_sidecar() {
    let Some(mut setup) = setup() else { return };
    let mut attach = setup.start_attach(&["--dial-out", "--detach", "--name", "box1"]);
    assert_eq!(attach.wait().code(), Some(0), "{}", attach.printed());
    let mut shim = setup.dialling_shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    let enrolment = setup.list()[0]["enrolment"].clone();
    setup.world.stop_sidecar();
    setup.world.start_sidecar();
    setup.wait_until_state("attached");
    assert_eq!(setup.list()[0]["enrolment"], enrolment, "a second enrolment was created");
    assert_eq!(shim.call_text("echo", json!({"text": "two"})), "two");
    setup.world.cofferdam_text(&["attach", "end", "box1"]);
    wait_until("the attachment is gone", || setup.list().is_empty());
}

#[test]
fn a_command_keeps_its_sandbox_that_dials_out_through_a_restart_of_the_sidecar() {
    let Some(mut setup) = setup() else { return };
    let attach = setup.attach(&["--dial-out", "--name", "box1"]);
    let mut shim = setup.dialling_shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    let enrolment = setup.list()[0]["enrolment"].clone();
    setup.world.kill9_sidecar();
    setup.world.start_sidecar();
    attach.wait_until_attached(2);
    assert_eq!(setup.list()[0]["enrolment"], enrolment, "a second enrolment was created");
    assert_eq!(shim.call_text("echo", json!({"text": "two"})), "two");
    attach.stop();
    setup.assert_nothing_left();
    let stored = setup.world.layout().state.join("attachments");
    wait_until("the file of the attachment is removed", || std::fs::read_dir(&stored).unwrap().count() == 0);
}

/// What is followed belongs to its follower.
#[test]
fn a_sandbox_whose_command_died_while_the_sidecar_was_down_loses_its_key_after_the_grace() {
    let address = free_address();
    let relay = format!("tls = \"{address}\"\nadvertise = \"wss://{address}/relay\"\nresume-grace = \"1s\"");
    let Some(mut setup) = E2bSetup::with(|builder, _| builder.relay(&relay)) else { return };
    let mut attach = setup.attach(&["--dial-out", "--name", "box1"]);
    let mut shim = setup.dialling_shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    setup.world.stop_sidecar();
    attach.kill9();
    setup.world.start_sidecar();
    setup.assert_nothing_left();
    // The links of an enrolment end shortly after it.
    wait_until("the session has ended", || {
        shim.call("echo", json!({"text": "too late"})).to_string().contains("session_ended")
    });
    let stored = setup.world.layout().state.join("attachments");
    wait_until("the file of the attachment is removed", || std::fs::read_dir(&stored).unwrap().count() == 0);
}

#[test]
fn attach_end_ends_the_enrolment_although_the_platform_does_not_respond_after_a_restart() {
    let Some(mut setup) = setup() else { return };
    let mut attach = setup.start_attach(&["--dial-out", "--detach", "--name", "box1"]);
    assert_eq!(attach.wait().code(), Some(0), "{}", attach.printed());
    let mut shim = setup.dialling_shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    setup.world.stop_sidecar();
    setup.platform.plan(Side::Control, "/sandboxes", Fault::Status(503), 100);
    setup.world.start_sidecar();
    setup.wait_until_state("waiting");
    setup.world.cofferdam_text(&["attach", "end", "box1"]);
    wait_until("the enrolment is gone", || {
        setup.world.cofferdam_text(&["enrolments", "--json"]).trim() == "[]"
    });
    let refused = shim.call("echo", json!({"text": "too late"}));
    assert!(refused.to_string().contains("session_ended"), "{refused}");
}

/// A sandbox that dials out is enrolled late, so an attachment can be ended before it has an enrolment.
#[test]
fn attach_end_before_the_enrolment_says_that_an_operator_ended_it() {
    let Some(setup) = setup() else { return };
    setup.platform.plan(Side::Control, "/sandboxes/", Fault::Silence, 100);
    for (end, arguments) in [("attach end", &["attach", "end", "box1"][..]), ("kill", &["kill", "box1"])] {
        let mut attach = setup.start_attach(&["--dial-out", "--name", "box1"]);
        wait_until("the attachment is listed", || setup.list().len() == 1);
        assert_eq!(setup.list()[0]["enrolment"], Value::Null);
        setup.world.cofferdam_text(arguments);
        assert_eq!(attach.wait().code(), Some(69), "{end}: {}", attach.printed());
        assert!(attach.printed().contains("it was ended by an operator"), "{end}: {}", attach.printed());
        setup.assert_nothing_left();
    }
}

#[test]
fn dial_out_without_a_wss_address_is_a_configuration_error() {
    for relay in [None, Some(free_address())] {
        let with_port = |builder: Builder, _: &str| match relay {
            None => builder,
            Some(address) => builder.relay(&format!("tls = \"{address}\"")),
        };
        let Some(setup) = E2bSetup::with(with_port) else { return };
        let mut attach = setup.start_attach(&["--dial-out"]);
        assert_eq!(attach.wait().code(), Some(78), "{}", attach.printed());
        assert!(
            attach.printed().contains("`relay.advertise` to an address such as \"wss://"),
            "{}",
            attach.printed()
        );
        assert_eq!(setup.platform.log(), Vec::<String>::new(), "something was sent to the sandbox");
    }
}

#[test]
fn if_the_sandbox_cannot_reach_the_sidecar_the_command_fails_and_the_ticket_ends() {
    let Some(setup) = E2bSetup::with(|builder, _| {
        let nowhere = free_address();
        builder.relay(&format!("tls = \"{}\"\nadvertise = \"wss://{nowhere}/\"", free_address()))
    }) else {
        return;
    };
    let mut attach = setup.start_attach(&["--dial-out"]);
    assert_eq!(attach.wait().code(), Some(69), "{}", attach.printed());
    assert!(attach.printed().contains("check that it can reach the address"), "{}", attach.printed());
    assert!(attach.printed().contains("Connection refused"), "the cause is missing: {}", attach.printed());
    assert_eq!(setup.world.cofferdam_text(&["enrolments"]).matches("ticket").count(), 0);
    assert_eq!(
        std::fs::read_dir(setup.private_files()).unwrap().count(),
        0,
        "an enrolment string was left behind"
    );
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
