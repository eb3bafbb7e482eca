//! Exit code, signals and terminal in every kind of sandbox that this machine has.

use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::process::{Running, output_of};
use cofferdam_tests::terminal::Terminal;
use nix::sys::signal::Signal;

use super::sandbox_kind::SandboxKind;
use super::{text, user};

/// The first process of a container ignores signals for which it has no handler, so the outer shell stays.
#[test]
fn the_exit_code_of_the_command_passes_in_every_kind() {
    for kind in SandboxKind::all() {
        let user = user();
        for (script, code) in [("exit 42", 42), ("exit 1", 1), ("sh -c 'kill -TERM $$'; exit $?", 128 + 15)] {
            let output = output_of(kind.command(&user, &["--", "sh", "-c", script]), "cofferdam run");
            let name = kind.name();
            assert_eq!(output.status.code(), Some(code), "{name}, {script}: {}", text(&output.stderr));
            kind.assert_nothing_left(&user);
        }
    }
}

#[test]
fn signals_reach_the_command_in_every_kind() {
    for kind in SandboxKind::all() {
        let user = user();
        for (signal, name) in [(Signal::SIGINT, "INT"), (Signal::SIGTERM, "TERM"), (Signal::SIGHUP, "HUP")] {
            let script = format!("trap 'exit 9' {name}; touch ready; while :; do sleep 0.1; done");
            let mut run = Running::spawn(kind.command(&user, &["--", "sh", "-c", &script]), "cofferdam run");
            wait_until("the command runs", || user.project().join("ready").exists() && kind.is_running());
            run.signal(signal);
            assert_eq!(run.wait(PATIENCE).code(), Some(9), "{}, {signal}", kind.name());
            std::fs::remove_file(user.project().join("ready")).expect("it is there");
            kind.assert_nothing_left(&user);
        }
    }
}

#[test]
fn the_command_gets_the_size_of_the_window_and_its_changes_in_every_kind() {
    for kind in SandboxKind::all() {
        let user = user();
        // Podman forwards the signal before it changes the size, and the change then causes another signal.
        let script = "stty size; trap 'stty size; [ \"$(stty size)\" != \"33 101\" ] || exit 7' WINCH; \
                      echo ready; while :; do sleep 0.1; done";
        let mut terminal = Terminal::of(kind.command(&user, &["--", "sh", "-c", script]));
        terminal.wait_for("24 80");
        terminal.wait_for("ready");
        terminal.resize(33, 101);
        terminal.wait_for("33 101");
        assert_eq!(terminal.exit_code(), Some(7), "{}", kind.name());
        kind.assert_nothing_left(&user);
    }
}

#[test]
fn ctrl_c_reaches_the_command_in_every_kind() {
    for kind in SandboxKind::all() {
        let user = user();
        let script = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.1; done";
        let mut terminal = Terminal::of(kind.command(&user, &["--", "sh", "-c", script]));
        terminal.wait_for("ready");
        terminal.type_in("\x03");
        terminal.wait_for("interrupted");
        assert_eq!(terminal.exit_code(), Some(5), "{}", kind.name());
        kind.assert_nothing_left(&user);
    }
}
