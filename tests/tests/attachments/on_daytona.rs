//! Attachments on Daytona: `cofferdam attach daytona`, by the preview link and by SSH, and `[attach.NAME]`.

use std::sync::mpsc;
use std::time::Duration;

use cofferdam_tests::attach::{connected, shim_binary};
use cofferdam_tests::daytona_double::{API_KEY, DaytonaDouble, Fault, ServiceName, Speed};
use cofferdam_tests::deadline::{
    BACK_AFTER_START, Deadline, GONE_WITHIN, assert_within, holds_before, wait_until,
};
use cofferdam_tests::harness::{Harness, text_of};
use cofferdam_tests::process::is_alive;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use nix::sys::signal::Signal;
use serde_json::json;

use super::attach_line;
use super::calls::calls_through_interruptions;
use super::interrupts::{temporary_files, wait_until_step};
use super::platform_setup::PlatformSetup as _;

/// The header of a request that does not count as use of the sandbox.
const SKIP_ACTIVITY: &str = "x-daytona-skip-last-activity-update";

/// Daytona with one sandbox, and a sidecar that knows it.
pub(super) struct DaytonaSetup {
    pub(super) world: World,
    pub(super) platform: DaytonaDouble,
}

/// A sidecar that knows the platform.
pub(super) fn builder(platform: &DaytonaDouble) -> Builder {
    let table = format!(
        "platforms.daytona = {{ api-key = '{{daytona-key.value}}', api-url = '{}', sandbox-url = '{}', shim = '{}' }}",
        platform.api_url(),
        platform.proxy_url(),
        shim_binary().display()
    );
    World::new().server("tools", Server::fixture()).secret_file("daytona-key", API_KEY).line(&table)
}

impl DaytonaSetup {
    /// `None` if bubblewrap is missing, which is reported.
    #[track_caller]
    pub(super) fn new() -> Option<Self> {
        Self::with(|builder, _| builder)
    }

    /// Like [`Self::new`], with changes to the configuration, which get the sandbox's id.
    #[track_caller]
    pub(super) fn with(change: impl FnOnce(Builder, &str) -> Builder) -> Option<Self> {
        let platform = DaytonaDouble::start(Speed(1))?;
        let world = change(builder(&platform), platform.sandbox_id()).start();
        Some(Self { world, platform })
    }

    /// A harness in the sandbox.
    #[track_caller]
    pub(super) fn shim(&self) -> Harness {
        let socket = self.platform.root().join("run/cofferdam/relay/relay.sock");
        wait_until("the hub's socket is there", || socket.exists());
        connected(&format!("unix:{}", socket.display()), "tools")
    }

    #[track_caller]
    fn wait_until_state(&self, state: &str) {
        wait_until(&format!("the attachment is {state}"), || {
            self.list().first().is_some_and(|status| status["state"] == state)
        });
    }

    pub(super) fn has_hub(&self) -> bool {
        self.platform.processes().iter().any(|line| line.contains(" hub --pin "))
    }

    /// Asserts that within the promised time hub, attachment, enrolment, servers and temporary files are gone.
    #[track_caller]
    pub(super) fn assert_gone(&self) {
        self.assert_gone_by(Deadline::after(GONE_WITHIN));
    }

    /// Like [`Self::assert_gone`], for a time that began before the command which ended the attachment.
    #[track_caller]
    fn assert_gone_by(&self, deadline: Deadline) {
        let servers = self.world.fixture_processes("tools");
        let home = self.platform.root().join("home/daytona");
        let is_gone = || {
            !self.has_hub()
                && self.list().is_empty()
                && servers.iter().all(|id| !is_alive(*id))
                && self.world.cofferdam_text(&["enrolments", "--json"]).trim() == "[]"
                && temporary_files(&home).is_empty()
        };
        assert!(
            holds_before(deadline, is_gone),
            "left after {GONE_WITHIN:?}: hub {}, {:?}, {:?}",
            self.has_hub(),
            self.list(),
            temporary_files(&home)
        );
    }
}

#[test]
fn a_daytona_sandbox_is_attached_by_preview_and_by_ssh_and_again_after_a_stop() {
    for via in ["preview", "ssh"] {
        let Some(setup) = DaytonaSetup::new() else { return };
        let attach = setup.attach(&["--via", via]);
        let mut shim = setup.shim();
        assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one", "{via}");
        setup.platform.stop();
        attach.wait_until_output_has("the sandbox is suspended");
        let waiting = shim.send_call("echo", json!({"text": "two"}));
        setup.platform.start_again();
        assert_within(BACK_AFTER_START, "attached after a start", || attach.times_attached() >= 2);
        assert_eq!(text_of(&shim.answer_to(&waiting)), "two", "{via}");
        assert_eq!(setup.world.times_executed("tools", "echo"), 2, "{via}");
        attach.stop();
        setup.assert_gone();
        setup.world.assert_secret_not_leaked(API_KEY);
    }
}

/// Daytona archives a sandbox that was stopped for long, and restores its files before it starts the sandbox again.
#[test]
fn an_archived_daytona_sandbox_is_listed_with_the_reason_and_attached_again_after_its_start() {
    let Some(setup) = DaytonaSetup::new() else { return };
    let attach = setup.attach(&["--name", "box1"]);
    let mut shim = setup.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    setup.platform.archive();
    setup.wait_until_state("suspended");
    attach.wait_until_output_has("the sandbox is suspended: the platform reports that it is archived");
    let [status] = setup.list().try_into().expect("one attachment");
    assert_eq!(status["why"], "the platform reports that it is archived");
    for list in [&["attach", "list"][..], &["sessions"]] {
        let printed = setup.world.cofferdam_text(list);
        assert!(printed.contains(" suspended ") && printed.contains("it is archived"), "{printed}");
    }
    let waiting = shim.send_call("echo", json!({"text": "two"}));
    setup.platform.start_again();
    assert_within(BACK_AFTER_START, "attached after a start from the archive", || {
        attach.times_attached() >= 2
    });
    assert_eq!(text_of(&shim.answer_to(&waiting)), "two");
    assert_eq!(setup.world.times_executed("tools", "echo"), 2);
    attach.stop();
    setup.assert_gone();
}

/// Between the rounds of calls the platform cuts the preview connection, or stops the sandbox and starts it again.
#[track_caller]
fn calls_through_cuts_and_stops(rounds: usize, calls_per_round: usize) {
    let Some(setup) = DaytonaSetup::new() else { return };
    let attach = setup.attach(&[]);
    calls_through_interruptions(
        &setup.world,
        [setup.shim(), setup.shim()],
        rounds,
        calls_per_round,
        |round| match round % 4 {
            3 => {
                setup.platform.stop();
                setup.platform.start_again();
            }
            _ => setup.platform.cut(),
        },
    );
    assert!(attach.times_attached() > rounds / 2, "{} pipes", attach.times_attached());
    attach.stop();
    setup.world.assert_secret_not_leaked(API_KEY);
}

#[test]
fn calls_into_a_daytona_sandbox_survive_cuts_and_stops() {
    calls_through_cuts_and_stops(8, 100);
}

#[test]
#[ignore = "minutes: just slow"]
fn ten_thousand_calls_into_a_daytona_sandbox_survive_cuts_and_stops() {
    calls_through_cuts_and_stops(50, 200);
}

#[test]
fn an_end_a_kill_and_an_interrupt_end_hub_command_and_servers() {
    for end in ["attach end", "kill", "interrupt"] {
        let Some(setup) = DaytonaSetup::new() else { return };
        let mut attach = setup.attach(&["--name", "box1"]);
        assert_eq!(setup.shim().call_text("echo", json!({"text": "one"})), "one");
        assert!(setup.has_hub());
        let deadline = Deadline::after(GONE_WITHIN);
        match end {
            "attach end" => drop(setup.world.cofferdam_text(&["attach", "end", "box1"])),
            "kill" => drop(setup.world.cofferdam_text(&["kill", "box1"])),
            _ => attach.signal(Signal::SIGINT),
        }
        setup.assert_gone_by(deadline);
        assert_eq!(attach.wait().code(), Some(if end == "interrupt" { 0 } else { 69 }), "{end}");
    }
}

#[test]
fn the_deletion_of_an_attached_daytona_sandbox_ends_the_command_with_its_reason() {
    let Some(setup) = DaytonaSetup::new() else { return };
    let mut attach = setup.attach(&["--name", "box1"]);
    assert_eq!(setup.shim().call_text("echo", json!({"text": "one"})), "one");
    setup.platform.delete();
    assert_eq!(attach.wait().code(), Some(66), "{}", attach.printed());
    assert!(attach.printed().contains("was deleted"), "{}", attach.printed());
    setup.assert_gone();
}

#[test]
fn a_hub_without_a_pipe_is_ended_with_its_attachment_too() {
    let Some(mut setup) = DaytonaSetup::new() else { return };
    let mut attach = setup.attach(&["--name", "box1", "--detach"]);
    assert!(attach.wait().success());
    setup.world.stop_sidecar();
    assert!(setup.has_hub(), "the hub must stay for the next sidecar");
    // The next sidecar cannot open a pipe.
    for _ in 0..50 {
        setup.platform.fail_next_upgrade(Fault::Status(503, None));
    }
    setup.world.start_sidecar();
    wait_until("no pipe is open", || {
        setup.list().first().is_some_and(|status| status["state"] != "attached")
    });
    setup.world.cofferdam_text(&["attach", "end", "box1"]);
    setup.assert_gone();
}

#[test]
fn the_configuration_attaches_daytona_sandboxes_and_a_reload_changes_and_ends_them() {
    let with_box1 = |builder: Builder, id: &str| builder.line(&attach_line("box1", "daytona", id));
    let Some(mut setup) = DaytonaSetup::with(with_box1) else { return };
    setup.wait_until_state("attached");
    let mut shim = setup.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "one"})), "one");
    setup.platform.stop();
    setup.wait_until_state("suspended");
    setup.platform.start_again();
    setup.wait_until_state("attached");
    assert_eq!(shim.call_text("echo", json!({"text": "two"})), "two");

    let id = setup.platform.sandbox_id().to_owned();
    let renamed = builder(&setup.platform).line(&attach_line("box2", "daytona", &id));
    setup.world.rewrite(|_| renamed);
    setup.world.cofferdam_text(&["reload"]);
    wait_until("the sandbox has its new name", || {
        let list = setup.list();
        list.len() == 1 && list[0]["name"] == "box2" && list[0]["state"] == "attached"
    });
    assert_eq!(setup.shim().call_text("echo", json!({"text": "three"})), "three");
    let without = builder(&setup.platform);
    setup.world.rewrite(|_| without);
    setup.world.cofferdam_text(&["reload"]);
    setup.assert_gone();
}

#[test]
fn refusals_of_daytona_have_their_exit_codes_and_leave_nothing_behind() {
    let Some(setup) = DaytonaSetup::new() else { return };
    let id = setup.platform.sandbox_id().to_owned();
    let name = setup.platform.sandbox_name();
    let first = setup.attach(&["--name", "box1"]);
    for (arguments, expected, said) in [
        (&["daytona", "unknown", "--grant", "dev"][..], 66, "has no sandbox `unknown`"),
        (&["daytona", "../x", "--grant", "dev"], 66, "is not the id of a sandbox"),
        // Daytona finds the sandbox by its name, but a second attachment of it must be recognised by its id.
        (&["daytona", &name, "--grant", "dev"], 66, "; attach it by that id"),
        // The error does not reveal the name to another grant.
        (&["daytona", &id, "--grant", "prod"], 69, "is attached already, with another grant"),
        (&["daytona", &id, "--grant", "dev"], 69, "is attached as `box1` already"),
        (&["e2b", &id, "--grant", "dev"], 78, "add a table `[platforms.e2b]`"),
    ] {
        let (code, printed) = setup.refused(arguments);
        assert_eq!(code, expected, "{arguments:?}: {printed}");
        assert!(printed.contains(said), "{arguments:?}: {printed}");
    }
    assert_eq!(setup.shim().call_text("echo", json!({"text": "still"})), "still");
    first.stop();
    let (code, printed) = setup.refused(&["daytona", &id, "--grant", "prod"]);
    assert_eq!(code, 78, "{printed}");
    let (code, printed) = setup.refused(&["daytona", &id, "--grant", "dev", "--shim", "/usr/bin/env"]);
    assert_eq!(code, 69, "{printed}");
    setup.platform.stop();
    setup.platform.fail_next("/start", Fault::Status(403, None));
    let (code, printed) = setup.refused(&["daytona", &id, "--grant", "dev", "--resume"]);
    assert_eq!(code, 69, "{printed}");
    assert!(printed.contains("limit"), "{printed}");
    setup.assert_gone();
}

#[test]
fn a_wrong_or_unreadable_key_of_daytona_is_reported() {
    for (code, secret) in
        [(77, "exec = ['echo', 'dtn_of_another_account']"), (78, "env = 'COFFERDAM_TEST_UNSET'")]
    {
        let Some(setup) = DaytonaSetup::with(|builder, _| builder.secret("daytona-key", secret)) else {
            return;
        };
        let mut attach = setup.start_attach(&[]);
        assert_eq!(attach.wait().code(), Some(code), "{}", attach.printed());
        assert!(attach.printed().contains("API key"), "{}", attach.printed());
        setup.assert_gone();
    }
}

#[test]
fn an_interrupt_leaves_nothing_in_daytona() {
    for text in [
        "finding the sandbox",
        "uploading the shim",
        "starting the hub",
        "connecting to the hub",
        "attached (",
    ] {
        let Some(setup) = DaytonaSetup::new() else { return };
        let mut attach = setup.start_attach(&[]);
        wait_until_step(&attach, text);
        attach.signal(Signal::SIGINT);
        assert!(attach.wait().success(), "{text}: {}", attach.printed());
        setup.assert_gone();
    }
}

/// The platform may still have to write what it received of an upload when the upload is interrupted.
#[test]
fn an_interrupted_upload_that_daytona_writes_later_is_removed() {
    let Some(setup) = DaytonaSetup::new() else { return };
    let (sender, written) = mpsc::channel();
    setup.platform.fail_next("/bulk-upload", Fault::LateWrite(sender));
    let mut attach = setup.start_attach(&[]);
    wait_until("the upload arrives", || {
        setup.platform.requests().iter().any(|request| request.line.contains("/bulk-upload"))
    });
    attach.signal(Signal::SIGINT);
    assert!(attach.wait().success(), "{}", attach.printed());
    written.recv_timeout(GONE_WITHIN).expect("the double writes what it received");
    setup.assert_gone();
}

#[test]
fn calls_count_as_use_of_a_daytona_sandbox_and_an_idle_attachment_does_not() {
    let Some(setup) = DaytonaSetup::new() else { return };
    let attach = setup.attach(&[]);
    let inside = |service| matches!(service, ServiceName::Preview | ServiceName::Toolbox);
    let requests = setup.platform.requests();
    let mut counted = requests.iter().filter(|request| inside(request.service));
    assert!(counted.all(|request| request.headers.get(SKIP_ACTIVITY).is_some_and(|value| value == "true")));
    assert_eq!(setup.platform.activity(), 0);
    assert_eq!(setup.shim().call_text("echo", json!({"text": "one"})), "one");
    wait_until("the call is reported", || setup.platform.activity() == 1);
    attach.stop();
}

/// The preview proxy closes a connection after 70 s without traffic. The heartbeats of the pipe keep this one open, and so would
/// the pings of the WebSocket alone, every 20 s; the heartbeats of the links are rarer than the timeout here.
#[test]
fn an_idle_attachment_outlasts_the_idle_timeout_of_the_preview_proxy() {
    let speed = Speed(2);
    let Some(platform) = DaytonaDouble::start(speed) else { return };
    let world = builder(&platform).relay("heartbeat = '10m'").start();
    let setup = DaytonaSetup { world, platform };
    let attach = setup.attach(&[]);
    let mut shim = setup.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "before"})), "before");
    // Longer than the idle timeout on the platform's clock.
    std::thread::sleep(Duration::from_secs(90) / speed.0);
    assert_eq!(attach.times_attached(), 1, "the proxy closed the pipe: {}", attach.printed());
    assert_eq!(shim.call_text("echo", json!({"text": "after"})), "after");
    assert_eq!(attach.times_attached(), 1, "the proxy closed the pipe: {}", attach.printed());
    attach.stop();
}

#[test]
fn keep_awake_makes_an_idle_attachment_count_as_use() {
    let awake = |builder: Builder, id: &str| {
        let table = format!(
            "attach.box1 = {{ platform = 'daytona', sandbox = '{id}', grant = 'dev', keep-awake = true }}"
        );
        builder.line(&table)
    };
    let Some(setup) = DaytonaSetup::with(awake) else { return };
    setup.wait_until_state("attached");
    let requests = setup.platform.requests();
    let pipe =
        requests.iter().find(|request| request.service == ServiceName::Preview).expect("a pipe is open");
    assert_eq!(pipe.headers.get(SKIP_ACTIVITY), None, "the open connection must count as use");
    assert!(setup.platform.activity() > 0);
}
