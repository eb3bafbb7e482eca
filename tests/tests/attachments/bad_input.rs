//! Bad input to `attach e2b` and `attach daytona`. Each case has its exit code and an error that says what was being done, why
//! it failed and what to do next, and leaves nothing behind in the sidecar or in the sandbox.

use std::net::TcpListener;
use std::time::Duration;

use cofferdam_tests::daytona_double::{self, Fault as DaytonaFault};
use cofferdam_tests::e2b_double::{Fault, OTHER_API_KEY, Side};
use cofferdam_tests::process::{command, output_of, peak_memory_kib};

use super::on_daytona::DaytonaSetup;
use super::platform_setup::DoubleSetup;
use super::*;

/// A command gives up when the platform was unavailable for 30 s; the last of its requests may take 20 s more.
pub(super) const GIVES_UP_WITHIN: Duration = Duration::from_secs(90);
/// Much less than the gigabyte that the platform sends in one case.
const MAX_SIDECAR_MEMORY_KIB: u64 = 256 * 1024;
/// More requests than a command makes before it gives up.
const ALWAYS: usize = 1000;

/// One case: what is wrong, and what the command must do.
struct BadInput<S> {
    case: &'static str,
    api_key: &'static str,
    /// The id that is given to the command. `None`: the id of the platform's sandbox.
    sandbox: Option<&'static str>,
    /// Makes the platform fail. Gets an address to which nothing may connect.
    prepare: fn(&S, &str),
    code: i32,
    /// What was being done, why it failed and what to do next.
    says: [&'static str; 3],
}

impl<S: DoubleSetup> BadInput<S> {
    fn check(&self) {
        let case = self.case;
        let Some(mut setup) = S::with_key(self.api_key) else { return };
        let elsewhere = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        elsewhere.set_nonblocking(true).expect("a socket can be non-blocking");
        let address = elsewhere.local_addr().expect("a bound socket has an address");
        (self.prepare)(&setup, &format!("http://{address}/taken"));
        let arguments = setup.arguments(self.sandbox);
        let mut attach = Attach::start(setup.world(), &arguments);
        let code = attach.wait_within(GIVES_UP_WITHIN).code();
        let printed = attach.printed();
        assert_eq!(code, Some(self.code), "{case}: {printed}");
        let last = printed.lines().last().unwrap_or_default();
        for part in self.says {
            assert!(last.contains(part), "{case}: `{part}` is not in the last line of:\n{printed}");
        }
        wait_until(&format!("{case}: the hub has ended"), || !setup.has_hub());
        // No part of an upload, no file beside a harness's settings, no enrolment string.
        wait_until(&format!("{case}: no temporary file is left"), || setup.files_left().is_empty());
        let world = setup.world_mut();
        for list in [&["attach", "list", "--json"][..], &["enrolments", "--json"]] {
            wait_until(&format!("{case}: {list:?} is empty"), || world.cofferdam_text(list).trim() == "[]");
        }
        let stored = std::fs::read_dir(world.layout().state.join("attachments"));
        assert_eq!(stored.into_iter().flatten().count(), 0, "{case}: an attachment is stored");
        assert!(elsewhere.accept().is_err(), "{case}: the command connected to another host");
        world.assert_secret_not_leaked(self.api_key);
        let memory = peak_memory_kib(world.sidecar().id());
        assert!(memory < MAX_SIDECAR_MEMORY_KIB, "{case}: the sidecar used {memory} KiB");
    }
}

/// Runs the cases at the same time, because some wait until the command gives up.
fn check_all<S: DoubleSetup>(cases: &[BadInput<S>]) {
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| case.check());
        }
    });
}

const FIND_ON_E2B: &str = "find the sandbox on E2B: ";
const CHECK_KEY: &str = "check the secret that `api-key` of the platform's table names";
const CHECK_ID: &str = "is the id right, and does the sandbox belong to this account?";
const CHECK_ADDRESS: &str = "check `api-url` and `sandbox-url` of the platform's table";
const RUN_AGAIN: &str =
    "check the platform's status page and `api-url` of its table, then run the command again";
const END_SANDBOXES: &str = "end sandboxes that are not needed, or raise the account's limit";
const ID_RULES: [&str; 3] =
    ["is not the id of a sandbox", "letters, digits, `-` and `_`", "at most 128 characters"];

fn e2b(
    case: &'static str,
    prepare: fn(&E2bSetup, &str),
    code: i32,
    says: [&'static str; 3],
) -> BadInput<E2bSetup> {
    BadInput { case, api_key: API_KEY, sandbox: None, prepare, code, says }
}

fn fail_find(setup: &E2bSetup, fault: Fault) {
    setup.platform.plan(Side::Control, "/sandboxes/", fault, ALWAYS);
}

#[test]
fn bad_input_to_attach_e2b_has_its_exit_code_and_next_step_and_leaves_nothing() {
    let unchanged = |_: &E2bSetup, _: &str| {};
    let no_sandbox = [FIND_ON_E2B, "the platform has no sandbox `", CHECK_ID];
    check_all(&[
        BadInput {
            api_key: "e2b_of_no_account",
            ..e2b("a wrong key", unchanged, 77, [FIND_ON_E2B, "refused the API key (HTTP 401)", CHECK_KEY])
        },
        e2b(
            "an account that is blocked",
            |setup, _| fail_find(setup, Fault::Status(403)),
            77,
            [FIND_ON_E2B, "refused the API key (HTTP 403)", CHECK_KEY],
        ),
        BadInput { sandbox: Some("i0unknown"), ..e2b("an unknown sandbox", unchanged, 66, no_sandbox) },
        BadInput {
            sandbox: Some("Box_1"),
            ..e2b("an id that E2B never generates", unchanged, 66, no_sandbox)
        },
        BadInput { api_key: OTHER_API_KEY, ..e2b("a sandbox of another account", unchanged, 66, no_sandbox) },
        BadInput { sandbox: Some("../v2"), ..e2b("an id with `..`", unchanged, 66, ID_RULES) },
        BadInput { sandbox: Some("a/pause"), ..e2b("an id with `/`", unchanged, 66, ID_RULES) },
        e2b(
            "a quota",
            |setup, _| fail_find(setup, Fault::Status(429)),
            69,
            [FIND_ON_E2B, "the platform's limit is reached: HTTP 429", END_SANDBOXES],
        ),
        e2b(
            "an outage that lasts",
            |setup, _| fail_find(setup, Fault::Status(503)),
            69,
            [FIND_ON_E2B, "HTTP 503", RUN_AGAIN],
        ),
        e2b(
            "a control API that never responds",
            |setup, _| fail_find(setup, Fault::Silence),
            69,
            [FIND_ON_E2B, "time", RUN_AGAIN],
        ),
        e2b(
            "a response that ends too early",
            |setup, _| fail_find(setup, Fault::HalfResponse),
            69,
            [FIND_ON_E2B, "", RUN_AGAIN],
        ),
        e2b(
            "a half-closed stream of events",
            |setup, _| setup.platform.plan(Side::Envd, "/process.Process/Start", Fault::HalfStream, ALWAYS),
            69,
            ["in the sandbox: ", "the platform closed the stream before the process exited", RUN_AGAIN],
        ),
        e2b(
            "a redirect of the control API to another host",
            |setup, elsewhere| fail_find(setup, Fault::Redirect(elsewhere.to_owned())),
            69,
            [FIND_ON_E2B, "redirect to `127.0.0.1`, which is not followed", CHECK_ADDRESS],
        ),
        e2b(
            "a redirect of the upload to another host",
            |setup, elsewhere| {
                setup.platform.plan(Side::Envd, "/files", Fault::Redirect(elsewhere.to_owned()), ALWAYS);
            },
            69,
            ["upload the shim", "redirect to `127.0.0.1`, which is not followed", CHECK_ADDRESS],
        ),
        e2b(
            "a response of a gigabyte",
            |setup, _| fail_find(setup, Fault::Gigabyte),
            69,
            [FIND_ON_E2B, "1048576 bytes", CHECK_ADDRESS],
        ),
        e2b(
            "an upload of which the sandbox stores a part",
            |setup, _| setup.platform.truncate_uploads(&setup.sandbox, 100_000),
            69,
            ["upload the shim", "the upload is not complete", "free space on the disk of the sandbox"],
        ),
        e2b(
            "a sandbox that dies during the upload",
            |setup, _| setup.platform.die_during_upload(&setup.sandbox, 100_000),
            66,
            no_sandbox,
        ),
    ]);
}

const FIND_AT_DAYTONA: &str = "find the sandbox at Daytona: ";

fn daytona(
    case: &'static str,
    prepare: fn(&DaytonaSetup, &str),
    code: i32,
    says: [&'static str; 3],
) -> BadInput<DaytonaSetup> {
    BadInput { case, api_key: daytona_double::API_KEY, sandbox: None, prepare, code, says }
}

/// Fails every request to the control API about the sandbox.
fn fail_control(setup: &DaytonaSetup, fault: DaytonaFault) {
    setup.platform.fail_always("/api/sandbox/", fault);
}

#[test]
fn bad_input_to_attach_daytona_has_its_exit_code_and_next_step_and_leaves_nothing() {
    let unchanged = |_: &DaytonaSetup, _: &str| {};
    let no_sandbox = [FIND_AT_DAYTONA, "the platform has no sandbox `", CHECK_ID];
    check_all(&[
        BadInput {
            api_key: "dtn_of_no_account",
            ..daytona(
                "a wrong key",
                unchanged,
                77,
                [FIND_AT_DAYTONA, "refused the API key (HTTP 401)", CHECK_KEY],
            )
        },
        daytona(
            "an organisation that is suspended",
            |setup, _| fail_control(setup, DaytonaFault::Status(403, None)),
            77,
            [FIND_AT_DAYTONA, "refused the API key (HTTP 403)", CHECK_KEY],
        ),
        BadInput { sandbox: Some("unknown"), ..daytona("an unknown sandbox", unchanged, 66, no_sandbox) },
        BadInput {
            api_key: daytona_double::OTHER_API_KEY,
            ..daytona("a sandbox of another account", unchanged, 66, no_sandbox)
        },
        BadInput { sandbox: Some("../x"), ..daytona("an id with `..`", unchanged, 66, ID_RULES) },
        BadInput { sandbox: Some("x/start"), ..daytona("an id with `/`", unchanged, 66, ID_RULES) },
        daytona(
            "a quota",
            |setup, _| fail_control(setup, DaytonaFault::Status(429, None)),
            69,
            [FIND_AT_DAYTONA, "the platform's limit is reached: HTTP 429", END_SANDBOXES],
        ),
        daytona(
            "an outage that lasts",
            |setup, _| fail_control(setup, DaytonaFault::Status(503, None)),
            69,
            [FIND_AT_DAYTONA, "HTTP 503", RUN_AGAIN],
        ),
        daytona(
            "a control API that never responds",
            |setup, _| fail_control(setup, DaytonaFault::Silence),
            69,
            [FIND_AT_DAYTONA, "time", RUN_AGAIN],
        ),
        daytona(
            "a response of the toolbox that ends too early",
            |setup, _| setup.platform.fail_always("/process/execute", DaytonaFault::HalfResponse),
            69,
            ["in the sandbox: ", "", RUN_AGAIN],
        ),
        daytona(
            "a redirect of the control API to another host",
            |setup, elsewhere| fail_control(setup, DaytonaFault::Redirect(elsewhere.to_owned())),
            69,
            [FIND_AT_DAYTONA, "redirect to `127.0.0.1`, which is not followed", CHECK_ADDRESS],
        ),
        daytona(
            "a redirect of the upload to another host",
            |setup, elsewhere| {
                setup.platform.fail_always("/bulk-upload", DaytonaFault::Redirect(elsewhere.to_owned()));
            },
            69,
            ["upload the shim", "redirect to `127.0.0.1`, which is not followed", CHECK_ADDRESS],
        ),
        daytona(
            "a response of a gigabyte that is announced",
            |setup, _| fail_control(setup, DaytonaFault::Gigabyte { announced: true }),
            69,
            [FIND_AT_DAYTONA, "1048576 bytes", CHECK_ADDRESS],
        ),
        daytona(
            "a response of a gigabyte without its length",
            |setup, _| fail_control(setup, DaytonaFault::Gigabyte { announced: false }),
            69,
            [FIND_AT_DAYTONA, "1048576 bytes", CHECK_ADDRESS],
        ),
        daytona(
            "an upload of which the sandbox stores a part",
            |setup, _| setup.platform.fail_always("/bulk-upload", DaytonaFault::StorePart(300_000)),
            69,
            ["upload the shim", "the upload is not complete", "free space on the disk of the sandbox"],
        ),
        daytona(
            "a sandbox that dies during the upload",
            |setup, _| setup.platform.fail_next("/bulk-upload", DaytonaFault::DeleteAfter(300_000)),
            66,
            no_sandbox,
        ),
    ]);
}

/// The command that the output names ends the attachment when a shell runs it.
#[test]
fn a_name_that_needs_quoting_is_quoted_in_the_command_that_ends_the_attachment() {
    let Some(setup) = E2bSetup::new() else { return };
    for name in ["box 1", "it's $(touch taken)", "--all", "größe;x"] {
        let option = format!("--name={name}");
        let mut attach = setup.attach(&[&option, "--detach"]);
        assert!(attach.wait().success(), "{}", attach.printed());
        let mut second = setup.start_attach(&[&option]);
        assert_eq!(second.wait().code(), Some(69), "{}", second.printed());
        let [suggested, conflict] = [&attach, &second].map(|attach| {
            let printed = attach.printed();
            let (_, rest) =
                printed.split_once("`cofferdam attach end ").expect("the output names the command");
            rest.split('`').next().unwrap_or_default().to_owned()
        });
        assert_eq!(suggested, conflict);
        let mut shell = command("sh");
        let program = setup.world.cofferdam_command();
        shell.arg("-c").arg(format!("{:?} -c \"$CONFIG\" attach end {suggested}", program.get_program()));
        shell.env("CONFIG", &setup.world.layout().config).current_dir(setup.world.layout().root());
        let output = output_of(shell, "the suggested command");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        setup.assert_nothing_left();
        assert!(!setup.world.layout().root().join("taken").exists(), "the shell ran a part of the name");
    }
}
