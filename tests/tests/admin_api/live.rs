//! `cofferdam sessions --watch` on a terminal: what it shows, that it gives the terminal back, and that it delays nothing.

use std::process::{Command, Stdio};

use cofferdam_process::{Pty, Window};
use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::process::{Running, is_stopped};
use cofferdam_tests::terminal::Terminal;
use cofferdam_tests::tmux::{Capture, Tmux};
use nix::libc::SYS_write;
use nix::sys::signal::Signal;

use super::*;

/// What a terminal gets when its usual screen comes back.
const LEAVE_SCREEN: &str = "\u{1b}[?1049l";

/// What ends the view.
#[derive(Clone, Copy, Debug)]
enum TerminalEnd {
    Key(&'static str),
    Signal(Signal),
}

fn watch_command(world: &World) -> Command {
    let mut command = world.cofferdam_command();
    command.arg("-c").arg(&world.layout().config).args(["sessions", "--watch"]);
    command
}

#[test]
fn sessions_links_rates_and_decisions_are_shown_as_they_change() {
    let world = two_grants().start();
    let Some(tmux) = Tmux::run(30, 130, &watch_command(&world)) else { return };
    tmux.wait_for(&["0 sandboxes   0 links   0 servers   0.0 calls/s", "no sessions", "LAST DECISIONS"]);
    let mut shim = world.connected("tools");
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    tmux.wait_for(&["1 sandbox   1 link   1 server", &session, "connected"]);
    // Calls go on until a sample shows that there were some.
    wait_until("the rate is shown", || {
        shim.call_text("echo", json!({"text": "hello"}));
        let screen = tmux.screen(Capture::Text);
        !screen.contains(" 0.0 calls/s") && screen.contains("tools/call echo")
    });
    drop(shim);
    world.cofferdam(&["kill", &session]);
    tmux.wait_for(&["0 sandboxes   0 links", "no sessions"]);
    tmux.press("q");
    wait_until("the usual screen is back", || !tmux.screen(Capture::Text).contains("LAST DECISIONS"));
}

#[test]
fn keys_move_through_both_lists_and_a_resized_terminal_is_filled() {
    let world = two_grants().start();
    let mut shims: Vec<_> = (0..4).map(|_| world.connected("tools")).collect();
    for number in 0..30 {
        shims[0].call_text("echo", json!({"text": number.to_string()}));
    }
    let Some(tmux) = Tmux::run(24, 80, &watch_command(&world)) else { return };
    let is_marked = |line: usize| {
        tmux.screen(Capture::Text)
            .lines()
            .filter(|text| text.starts_with(['>', ' ']) && text.contains("connected"))
            .nth(line)
            .is_some_and(|text| text.starts_with('>'))
    };
    tmux.wait_for(&["4 links", "tools/call echo"]);
    wait_until("the first session is marked", || is_marked(0));
    tmux.press("Down");
    tmux.press("j");
    wait_until("the third session is marked", || is_marked(2));
    tmux.press("k");
    wait_until("the second session is marked", || is_marked(1));
    tmux.press("Tab");
    tmux.press("Up");
    tmux.wait_for(&["LAST DECISIONS, 1 newer below"]);
    tmux.resize(40, 150);
    tmux.wait_for(&["ENROLMENT", "SANDBOX"]);
    let keys = tmux.screen(Capture::Text).lines().position(|line| line.starts_with("q quits"));
    assert_eq!(keys, Some(39), "the last line of the terminal says what the keys do");
    tmux.press("C-c");
    wait_until("the usual screen is back", || !tmux.screen(Capture::Text).contains("LAST DECISIONS"));
}

#[test]
fn a_sidecar_that_does_not_answer_is_shown_and_the_next_one_is_followed() {
    let mut world = two_grants().start();
    let Some(tmux) = Tmux::run(24, 80, &watch_command(&world)) else { return };
    tmux.wait_for(&["no sessions"]);
    world.kill9_sidecar();
    tmux.wait_for(&["no answer for ", "cannot connect to the sidecar"]);
    world.start_sidecar();
    wait_until("the sidecar answers again", || !tmux.screen(Capture::Text).contains("no answer for "));
    tmux.press("q");
}

#[test]
fn decisions_that_cannot_be_read_are_missing_with_the_reason() {
    let world = two_grants().start();
    let audit = world.layout().state.join("audit");
    std::fs::rename(&audit, world.layout().state.join("elsewhere")).unwrap();
    let Some(tmux) = Tmux::run(24, 80, &watch_command(&world)) else { return };
    tmux.wait_for(&["LAST DECISIONS", "cannot be read", "run this as the sidecar's user"]);
    std::fs::rename(world.layout().state.join("elsewhere"), &audit).unwrap();
    world.connected("tools").call_text("echo", json!({"text": "hello"}));
    tmux.wait_for(&["tools/call echo"]);
}

#[test]
fn the_terminal_is_given_back_at_every_end() {
    let world = two_grants().start();
    let ends = [
        TerminalEnd::Key("q"),
        TerminalEnd::Key("\u{3}"),
        TerminalEnd::Signal(Signal::SIGINT),
        TerminalEnd::Signal(Signal::SIGTERM),
    ];
    for end in ends {
        // The mode is compared with that of a terminal on which nothing ran.
        let mut sleep = cofferdam_tests::process::command("sleep");
        sleep.arg("0");
        let usual = Terminal::of(sleep).mode();
        let mut terminal = Terminal::of(watch_command(&world));
        terminal.wait_for("q quits");
        assert_ne!(terminal.mode(), usual, "keys are read one by one");
        match end {
            TerminalEnd::Key(key) => terminal.type_in(key),
            TerminalEnd::Signal(signal) => terminal.signal(signal),
        }
        assert_eq!(terminal.exit_code(), Some(0), "{end:?}");
        terminal.wait_for(LEAVE_SCREEN);
        assert_eq!(terminal.mode(), usual, "{end:?}");
    }
}

/// A stopped process, and one that waits for its terminal.
#[test]
fn a_view_that_does_not_go_on_delays_neither_calls_nor_a_kill() {
    let world = two_grants().start();
    let mut stopped = Terminal::of(watch_command(&world));
    stopped.wait_for("q quits");
    let unread = Pty::open(Window::new(100, 200)).expect("a terminal can be made");
    let mut shim = world.connected("tools");
    for number in 0..300 {
        shim.call_text("echo", json!({"text": number.to_string()}));
    }
    let mut command = watch_command(&world);
    let end = || Stdio::from(unread.inside.try_clone().expect("it can be duplicated"));
    command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm");
    let mut waiting = Running::spawn(command, "sessions --watch on a terminal that is not read");
    let writes = format!("{SYS_write} 0x1 ");
    let mut rows = 100;
    wait_until("it waits for its terminal", || {
        // Each new size is drawn whole, until nothing more is stored for a reader.
        rows ^= 1;
        Window::new(rows, 200).apply(&unread.host).expect("it has a size");
        waiting.signal(Signal::SIGWINCH);
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", waiting.id())).unwrap_or_default();
        call.starts_with(&writes)
    });
    stopped.signal(Signal::SIGSTOP);
    wait_until("the other view is stopped", || is_stopped(stopped.id()));
    for number in 0..300 {
        assert_eq!(shim.call_text("echo", json!({"text": number.to_string()})), number.to_string());
    }
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    let killed = world.cofferdam_text(&["kill", &session]);
    assert!(killed.contains("ended after"), "{killed}");

    waiting.signal(Signal::SIGTERM);
    assert_eq!(waiting.wait(PATIENCE).code(), Some(74), "it ends although its terminal takes no output");
    stopped.signal(Signal::SIGCONT);
    stopped.signal(Signal::SIGTERM);
    assert_eq!(stopped.exit_code(), Some(0));
}
