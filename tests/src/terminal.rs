//! A terminal with a command on it, as a person has it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use cofferdam_process::{Pty, Window};
use nix::sys::signal::Signal;
use nix::sys::termios::{Termios, tcgetattr};

use crate::deadline::{PATIENCE, holds_within, wait_until};
use crate::process::Running;

/// A terminal of 24 lines and 80 columns with a command on it. On drop the command is ended.
pub struct Terminal {
    run: Running,
    host: File,
    inside: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts the command on a new terminal.
    #[track_caller]
    pub fn of(mut command: Command) -> Self {
        let pty = Pty::open(Window::new(24, 80)).expect("a terminal can be made");
        let end = || Stdio::from(pty.inside.try_clone().expect("it can be duplicated"));
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm");
        let run = Running::spawn(command, "the command on a terminal");
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

    /// Everything that was written to the terminal so far, control sequences included.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no holder panics")).into_owned()
    }

    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        if !holds_within(PATIENCE, || self.shown().contains(text)) {
            panic!("`{text}` was not shown in:\n{}", self.shown());
        }
    }

    pub fn type_in(&mut self, text: &str) {
        self.host.write_all(text.as_bytes()).expect("the terminal takes input");
    }

    /// Changes the size of the window and sends SIGWINCH, as a terminal does.
    pub fn resize(&self, rows: u16, columns: u16) {
        Window::new(rows, columns).apply(&self.host).expect("it has a size");
        self.signal(Signal::SIGWINCH);
    }

    /// Waits until a second has passed in which nothing was shown.
    #[track_caller]
    pub fn wait_until_still(&self) {
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

    pub fn signal(&self, signal: Signal) {
        self.run.signal(signal);
    }

    pub fn id(&self) -> u32 {
        self.run.id()
    }

    pub fn has_exited(&mut self) -> bool {
        !self.run.is_running()
    }

    /// The terminal's mode, which a command may change.
    pub fn mode(&self) -> Termios {
        tcgetattr(&self.inside).expect("it is a terminal")
    }

    #[track_caller]
    pub fn exit_code(&mut self) -> Option<i32> {
        self.run.wait(PATIENCE).code()
    }
}
