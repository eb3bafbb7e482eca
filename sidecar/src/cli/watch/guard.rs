//! Takes the terminal over for a full-screen view, and gives it back however the program ends.
//!
//! What must stay true: after [`TerminalGuard`] was dropped, after a panic in any thread, and after [`give_up`], the terminal has
//! its mode back; after the first two also its screen and cursor.

use std::io::{self, Write as _};
use std::panic;

use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use crate::terminal::failure::Sysexit;

/// The terminal belongs to the view until this is dropped.
pub(super) struct TerminalGuard(());

impl TerminalGuard {
    pub(super) fn new() -> io::Result<Self> {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            restore();
            report(panicked);
            exit(Sysexit::Software);
        }));
        let guard = Self(());
        // Fails without a terminal to read keys from. Then signals end the view.
        let _ = enable_raw_mode();
        execute!(io::stdout(), EnterAlternateScreen)?;
        Ok(guard)
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        let _ = panic::take_hook();
        restore();
    }
}

fn restore() {
    // Failures are ignored: a terminal that is gone needs no mode.
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = io::stdout().flush();
}

/// Ends the program while another thread is stuck writing to the terminal, which therefore keeps its screen.
pub(super) fn give_up() {
    let _ = disable_raw_mode();
    exit(Sysexit::Io);
}

#[expect(clippy::exit, reason = "the thread that draws cannot be told to end")]
fn exit(code: Sysexit) {
    std::process::exit(code as i32);
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::process::Stdio;

    use cofferdam_process::{Pty, Window};
    use nix::sys::termios::{LocalFlags, tcgetattr};

    use super::*;

    /// Set in the process that panics.
    const CHILD: &str = "COFFERDAM_TEST_PANICKING_VIEW";

    /// The other process of the next test; in the usual run there is nothing to do.
    #[test]
    fn panicking_view() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let _guard = TerminalGuard::new().expect("stdout is a terminal");
        let _ = std::thread::spawn(|| panic!("on purpose")).join();
        panic!("the program goes on after a panic in another thread");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "this program itself is started once more")]
    fn after_a_panic_in_any_thread_the_terminal_is_given_back_and_the_message_is_shown_on_it() {
        let pty = Pty::open(Window::new(24, 80)).expect("a terminal can be made");
        let end = || Stdio::from(pty.inside.try_clone().expect("it can be duplicated"));
        let mut program = std::process::Command::new(std::env::current_exe().expect("it is running"));
        program.args(["--exact", "--nocapture", "cli::watch::guard::tests::panicking_view"]).env(CHILD, "1");
        let mut child = program.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it starts");
        drop(program);
        let status = child.wait().expect("it was started");
        let mode = tcgetattr(&pty.inside).expect("it is a terminal").local_flags;
        drop(pty.inside);
        let mut shown = Vec::new();
        // Ends with an error when no process has the terminal open any more.
        let _ = File::from(pty.host).read_to_end(&mut shown);
        let shown = String::from_utf8_lossy(&shown);
        assert_eq!(status.code(), Some(Sysexit::Software as i32), "{shown}");
        let (view, usual) = shown.split_once("\u{1b}[?1049l").expect("the usual screen is back");
        assert!(view.contains("\u{1b}[?1049h") && usual.contains("on purpose"), "{shown}");
        assert!(mode.contains(LocalFlags::ICANON | LocalFlags::ECHO), "{mode:?}");
    }
}
