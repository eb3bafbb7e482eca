//! The command at a terminal: it has its own terminal, with the size of the user's, and gets Ctrl-C.

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::run_user::RunUser;
use cofferdam_tests::terminal::Terminal;
use cofferdam_tests::tools::Tool;

use super::user;

/// A terminal with `cofferdam run` on it.
#[track_caller]
fn start(user: &RunUser, arguments: &[&str]) -> Terminal {
    Terminal::of(user.command(arguments))
}

#[test]
fn ctrl_c_reaches_only_the_command_and_the_mode_of_the_terminal_is_restored() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let script = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.1; done";
    let pty_before = start(&user, &["--", "true"]);
    let before = pty_before.mode();
    let mut terminal = start(&user, &["--", "sh", "-c", script]);
    terminal.wait_for("ready");
    terminal.type_in("\x03");
    terminal.wait_for("interrupted");
    assert_eq!(terminal.exit_code(), Some(5));
    assert_eq!(terminal.mode(), before);
    drop(pty_before);
}

#[test]
fn a_shell_has_job_control_and_its_own_terminal() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let mut shell = user.command(&["--env", "PS1", "--", "sh", "-i"]);
    shell.env("PS1", "prompt> ");
    let mut terminal = Terminal::of(shell);
    terminal.wait_for("prompt> ");
    // When the job has written to the terminal, it is in the foreground, so Ctrl-C reaches it.
    terminal.type_in("tty; sh -c 'echo $((40 + 2)) > /dev/tty; exec sleep 1000'\n");
    terminal.wait_for("42");
    assert!(!terminal.shown().contains("job control turned off"), "{}", terminal.shown());
    terminal.type_in("\x03");
    wait_until("the shell prompts again", || terminal.shown().matches("prompt> ").count() == 2);
    terminal.type_in("exit 3\n");
    assert_eq!(terminal.exit_code(), Some(3));
    wait_until("everything is gone", || user.sidecars().is_empty());
}
