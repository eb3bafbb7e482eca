//! What `attach` prints: a progress bar on a terminal, lines in a pipe, nothing with `--quiet`.

use cofferdam_tests::e2b_double::{Fault, Side};
use cofferdam_tests::terminal::Terminal;
use nix::sys::signal::Signal;

use super::*;

/// The control sequence that erases a line of a terminal.
const ERASE_LINE: &str = "\x1b[2K";

impl E2bSetup {
    /// Starts `attach e2b` on a terminal.
    #[track_caller]
    fn attach_on_terminal(&self, arguments: &[&str]) -> Terminal {
        let mut command = self.world.cofferdam_command();
        command.arg("-c").arg(&self.world.layout().config);
        command.args(["attach", "e2b", &self.sandbox, "--grant", "dev"]).args(arguments);
        Terminal::of(command)
    }
}

#[test]
fn on_a_terminal_the_upload_is_a_bar_that_is_erased() {
    let Some(setup) = E2bSetup::new() else { return };
    // The upload does not end before the interrupt.
    setup.platform.plan(Side::Envd, "/files", Fault::Silence, 1);
    let mut terminal = setup.attach_on_terminal(&[]);
    let size = shim_binary().metadata().expect("the shim is built").len();
    terminal.wait_for(&format!("uploading the shim ({} KiB) [", size.div_ceil(1024)));
    terminal.wait_for(" MiB/");
    terminal.signal(Signal::SIGINT);
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
    let shown = terminal.shown();
    let (_, after) = shown.rsplit_once("uploading the shim").expect("it was shown");
    assert!(after.contains(ERASE_LINE), "the bar is not erased: {shown:?}");
    assert!(
        !shown.contains("cofferdam attach: uploading"),
        "the upload is printed as a line besides the bar: {shown:?}"
    );
    setup.assert_nothing_left();

    let mut terminal = setup.attach_on_terminal(&[]);
    terminal.wait_for("cofferdam attach: attached (");
    let shown = terminal.shown();
    let (before, line) = shown.split_once("cofferdam attach: attached (").expect("it was shown");
    assert!(
        before.trim_end_matches(['\r', '\n']).ends_with(ERASE_LINE),
        "the bar was not erased before the line `attached`: {shown:?}"
    );
    assert!(!line.contains(ERASE_LINE), "the line is erased later: {shown:?}");
    terminal.signal(Signal::SIGINT);
    assert_eq!(terminal.exit_code(), Some(0));
    setup.assert_nothing_left();
}

#[test]
fn in_a_pipe_each_step_is_one_line_without_control_sequences() {
    let Some(setup) = E2bSetup::new() else { return };
    let attach = setup.attach(&[]);
    let printed = attach.printed();
    for step in ["uploading the shim (", "attached ("] {
        assert_eq!(printed.matches(&format!("cofferdam attach: {step}")).count(), 1, "{printed}");
    }
    assert!(!printed.contains('\x1b') && !printed.contains('\r'), "{printed:?}");
    attach.stop();
}

#[test]
fn with_quiet_only_an_error_is_printed() {
    let Some(setup) = E2bSetup::new() else { return };
    let mut attach = setup.start_attach(&["--quiet"]);
    setup.wait_until_state("attached");
    assert_eq!(setup.shim().call_text("echo", serde_json::json!({"text": "quiet"})), "quiet");
    attach.signal(Signal::SIGINT);
    assert!(attach.wait().success());
    assert_eq!(attach.printed(), "");

    let mut terminal = setup.attach_on_terminal(&["--quiet"]);
    setup.wait_until_state("attached");
    terminal.signal(Signal::SIGINT);
    assert_eq!((terminal.exit_code(), terminal.shown().as_str()), (Some(0), ""));

    let mut unknown = Attach::start(&setup.world, &["e2b", "i0unknown", "--grant", "dev", "--quiet"]);
    assert_eq!(unknown.wait().code(), Some(66));
    let printed = unknown.printed();
    assert!(printed.lines().count() == 1 && printed.contains("has no sandbox `i0unknown`"), "{printed}");
}
