//! Attachments on E2B as a user sees them, on the double or on the real platform that `COFFERDAM_E2B_URL` names. Every call is
//! made by the shim in the sandbox.

use cofferdam_tests::e2b_platform::E2bPlatform;
use cofferdam_tests::process::is_alive;
use nix::sys::signal::Signal;

use super::*;

/// A platform with one sandbox, and a sidecar that knows the platform.
struct Anywhere {
    world: World,
    platform: E2bPlatform,
    sandbox: String,
}

impl Anywhere {
    /// `None` if a tool is missing, which is reported.
    #[track_caller]
    fn new() -> Option<Self> {
        let platform = E2bPlatform::start()?;
        let sandbox = platform.create();
        let world = builder_for(platform.api_url(), platform.sandbox_url(), platform.api_key()).start();
        Some(Self { world, platform, sandbox })
    }

    #[track_caller]
    fn attach(&self, arguments: &[&str]) -> Attach {
        let words = ["e2b", &self.sandbox, "--grant", "dev"];
        let attach = Attach::start(&self.world, &[&words, arguments].concat());
        attach.wait_until_attached(1);
        attach
    }

    /// Calls a tool with the shim in the sandbox; returns the text of the result.
    #[track_caller]
    fn call(&self, tool: &str, arguments: &str) -> String {
        let call = format!("PATH=$HOME/.local/bin:$PATH cofferdam-shim call tools {tool} '{arguments}'");
        let ran = self.platform.run(&self.sandbox, &call);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    #[track_caller]
    fn assert_echoes(&self, text: &str) {
        assert_eq!(self.call("echo", &format!("{{\"text\": \"{text}\"}}")), text);
    }

    #[track_caller]
    fn has_hub(&self) -> bool {
        self.platform.processes(&self.sandbox).iter().any(|line| line.contains(" hub --pin "))
    }

    /// Waits until nothing of an attachment is left, in the sandbox or in the sidecar.
    #[track_caller]
    fn assert_nothing_left(&self) {
        wait_until("the hub has ended", || !self.has_hub());
        for list in [&["attach", "list", "--json"][..], &["enrolments", "--json"]] {
            wait_until(&format!("{list:?} is empty"), || self.world.cofferdam_text(list).trim() == "[]");
        }
        let servers = self.world.fixture_processes("tools");
        wait_until("the servers have ended", || servers.iter().all(|id| !is_alive(*id)));
    }
}

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
    setup.world.assert_secret_not_leaked(setup.platform.api_key());
}

#[test]
fn a_pause_suspends_the_attachment_and_a_resume_attaches_it_again() {
    let Some(setup) = Anywhere::new() else { return };
    if !setup.platform.can_pause() {
        return;
    }
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
