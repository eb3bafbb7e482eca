//! The command at a terminal: it has its own terminal, with the size of the user's, and gets Ctrl-C.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use cofferdam_process::{Pty, Window};
use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::local_run::LocalRun;
use cofferdam_tests::process::Running;
use cofferdam_tests::tools::Tool;
use nix::sys::termios::{Termios, tcgetattr};

use super::user;

/// A terminal with `cofferdam run` on it.
pub(crate) struct Terminal {
    run: Running,
    host: File,
    inside: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    #[track_caller]
    fn start(user: &LocalRun, arguments: &[&str]) -> Self {
        Self::start_with(user, arguments, &[])
    }

    /// As [`Self::start`], with these environment variables.
    #[track_caller]
    fn start_with(user: &LocalRun, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = user.command(arguments);
        command.envs(variables.iter().copied());
        Self::of(command)
    }

    #[track_caller]
    pub(crate) fn of(mut command: Command) -> Self {
        let pty = Pty::open(Window::new(24, 80)).expect("a terminal can be made");
        let end = || Stdio::from(pty.inside.try_clone().expect("it can be duplicated"));
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm");
        let run = Running::spawn(command, "cofferdam run");
        let host = File::from(pty.host);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, seen) = (host.try_clone().expect("it can be duplicated"), Arc::clone(&shown));
        // The thread ends when the terminal is closed.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                seen.lock().expect("no holder panics").extend_from_slice(&buffer[..length]);
            }
        });
        Self { run, host, inside: pty.inside, shown }
    }

    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no holder panics")).into_owned()
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) {
        if !cofferdam_tests::deadline::holds_within(PATIENCE, || self.shown().contains(text)) {
            panic!("`{text}` was not shown in:\n{}", self.shown());
        }
    }

    pub(crate) fn type_in(&mut self, text: &str) {
        self.host.write_all(text.as_bytes()).expect("the terminal takes input");
    }

    /// Changes the size of the window and sends SIGWINCH, as a terminal does.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        Window::new(rows, columns).apply(&self.host).expect("it has a size");
        self.run.signal(nix::sys::signal::Signal::SIGWINCH);
    }

    /// Waits until a second has passed in which nothing was shown.
    #[track_caller]
    pub(crate) fn wait_until_still(&self) {
        let mut before = usize::MAX;
        wait_until("nothing more is shown", || {
            let shown = self.shown().len();
            let is_still = shown == before;
            before = shown;
            is_still || {
                std::thread::sleep(std::time::Duration::from_secs(1));
                false
            }
        });
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        !self.run.is_running()
    }

    fn mode(&self) -> Termios {
        tcgetattr(&self.inside).expect("it is a terminal")
    }

    #[track_caller]
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        self.run.wait(PATIENCE).code()
    }
}

#[test]
fn the_command_gets_the_size_of_the_window_and_its_changes() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let script = "stty size; trap 'stty size; exit 7' WINCH; echo ready; while :; do sleep 0.1; done";
    let mut terminal = Terminal::start(&user, &["--", "sh", "-c", script]);
    terminal.wait_for("24 80");
    terminal.wait_for("ready");
    terminal.resize(33, 101);
    terminal.wait_for("33 101");
    assert_eq!(terminal.exit_code(), Some(7));
    user.assert_nothing_left();
}

#[test]
fn ctrl_c_reaches_only_the_command_and_the_mode_of_the_terminal_is_restored() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let script = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.1; done";
    let pty_before = Terminal::start(&user, &["--", "true"]);
    let before = pty_before.mode();
    let mut terminal = Terminal::start(&user, &["--", "sh", "-c", script]);
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
    let mut terminal =
        Terminal::start_with(&user, &["--env", "PS1", "--", "sh", "-i"], &[("PS1", "prompt> ")]);
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
