//! Programs that the user runs at a terminal, such as a sandbox. They are not servers, so they have no keeper.
//!
//! What must stay true: an untrusted program gets a new terminal (a [`Pty`]), never the user's. With the user's terminal
//! as its controlling terminal it could insert characters into the input of the user's shell (TIOCSTI).

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::fcntl::{OFlag, open};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::sys::wait::{WaitPidFlag, waitpid};

use super::{children, os};

/// A new terminal: bytes written to `inside` are read from `host`, and the reverse.
#[derive(Debug)]
pub struct Pty {
    pub host: OwnedFd,
    /// The stdin, stdout and stderr of the program.
    pub inside: OwnedFd,
}

/// The size of a terminal's window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Window(nix::libc::winsize);

/// Puts a terminal into raw mode: every key is passed on as bytes, control characters included. The previous mode is
/// restored on drop.
#[derive(Debug)]
pub struct RawMode<T: AsFd> {
    terminal: T,
    previous: Termios,
}

/// A command that runs with the user's rights and without a keeper, such as a sandbox or the sidecar itself.
#[expect(
    clippy::disallowed_methods,
    reason = "it is not a server and gets no credential; the caller waits for its exit"
)]
pub fn user_command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

/// Passes of [`kill_adopted`]; a killed process is usually reaped in the first or second pass.
const MAX_PASSES: u32 = 100;
const PASS_INTERVAL: Duration = Duration::from_millis(10);

/// While this exists, this process is the parent of its descendants' orphans, for [`kill_adopted`].
#[derive(Debug)]
pub struct OrphanAdoption {
    /// Whether this process was the parent of orphans already.
    before: bool,
}

impl OrphanAdoption {
    pub fn begin() -> io::Result<Self> {
        let before = prctl::get_child_subreaper()?;
        prctl::set_child_subreaper(true)?;
        Ok(Self { before })
    }
}

impl Drop for OrphanAdoption {
    fn drop(&mut self) {
        // Setting the flag cannot fail: the kernel accepts every value.
        let _ = prctl::set_child_subreaper(self.before);
    }
}

/// Creates a user namespace for a process that exits at once. The error is the kernel's, if it does not permit one.
pub fn try_user_namespace() -> io::Result<()> {
    // Any program would do; this one exists for sure.
    let mut command = user_command("/proc/self/exe");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    os::start_in_user_namespace(&mut command);
    command.spawn()?.wait().map(drop)
}

/// Kills and reaps all children of this process but `spared`, and the orphans that become its children meanwhile. Takes at
/// most a second. To be called after the children that the caller waits for have exited.
pub fn kill_adopted(spared: Option<u32>) -> io::Result<()> {
    let is_spared = |pid: nix::unistd::Pid| spared == u32::try_from(pid.as_raw()).ok();
    for _ in 0..MAX_PASSES {
        let found = children::signal_children(Signal::SIGKILL, is_spared)?;
        if found.is_empty() {
            return Ok(());
        }
        for pid in found {
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
        }
        std::thread::sleep(PASS_INTERVAL);
    }
    Err(io::ErrorKind::TimedOut.into())
}

impl Pty {
    /// Both ends are closed at `execve`, except where they become a program's stdio.
    pub fn open(window: Window) -> io::Result<Self> {
        let host = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)?;
        grantpt(&host)?;
        unlockpt(&host)?;
        let name = ptsname_r(&host)?;
        let inside = open(name.as_str(), OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC, Mode::empty())?;
        let pty = Self { host: host.into(), inside };
        window.apply(&pty.host)?;
        Ok(pty)
    }
}

impl Window {
    pub fn new(rows: u16, columns: u16) -> Self {
        Self(nix::libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
    }

    pub fn of(terminal: impl AsFd) -> io::Result<Self> {
        os::window_size(terminal.as_fd()).map(Self)
    }

    pub fn rows(self) -> u16 {
        self.0.ws_row
    }

    pub fn columns(self) -> u16 {
        self.0.ws_col
    }

    /// Gives a terminal this size.
    pub fn apply(self, terminal: impl AsFd) -> io::Result<()> {
        os::set_window_size(terminal.as_fd(), &self.0)
    }
}

impl<T: AsFd> RawMode<T> {
    pub fn enter(terminal: T) -> io::Result<Self> {
        let previous = tcgetattr(&terminal)?;
        let mut raw = previous.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&terminal, SetArg::TCSADRAIN, &raw)?;
        Ok(Self { terminal, previous })
    }
}

impl<T: AsFd> Drop for RawMode<T> {
    fn drop(&mut self) {
        // Fails if the terminal was closed, which does not matter.
        let _ = tcsetattr(&self.terminal, SetArg::TCSADRAIN, &self.previous);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_the_size_that_it_was_given() {
        let pty = Pty::open(Window::new(17, 71)).unwrap();
        assert_eq!(Window::of(&pty.inside).unwrap(), Window::new(17, 71));
        Window::new(20, 90).apply(&pty.host).unwrap();
        assert_eq!(Window::of(&pty.inside).unwrap(), Window::new(20, 90));
    }

    #[test]
    fn the_mode_of_a_terminal_is_restored() {
        let pty = Pty::open(Window::new(24, 80)).unwrap();
        let before = tcgetattr(&pty.inside).unwrap();
        let raw = RawMode::enter(pty.inside.try_clone().unwrap()).unwrap();
        assert_ne!(tcgetattr(&pty.inside).unwrap(), before);
        drop(raw);
        assert_eq!(tcgetattr(&pty.inside).unwrap(), before);
    }
}
