//! Questions to the person at the terminal.
//!
//! What must stay true: what is typed in answer to [`read_hidden`] is neither shown nor kept in memory that is not wiped; the
//! terminal's mode is restored, also after Ctrl-C and before a signal ends the process.

use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsFd as _;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use super::failure::{Failure, Sysexit};

/// More than any token or password; what is typed beyond it is ignored.
const MAX_ANSWER_BYTES: usize = 8 * 1024;
const INTERRUPT: u8 = 0x03;
const END_OF_INPUT: u8 = 0x04;
const ERASE: [u8; 2] = [0x08, 0x7f];
/// Signals that end a process and that another process sends, or the kernel for a terminal that is closed.
const ENDING: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    No,
    Yes,
}

/// Asks for a confirmation of changes. Without one, and without a terminal to ask at, the command fails.
pub(crate) fn confirmed(question: &str) -> Result<(), Failure> {
    match confirm(question).map_err(|error| Failure::new(Sysexit::Io, error))? {
        Some(Answer::Yes) => Ok(()),
        Some(Answer::No) => Err(Failure::new(Sysexit::Unavailable, "not confirmed: nothing was changed")),
        None => {
            let what = "nothing was changed: there is no terminal to ask for a confirmation";
            Err(Failure::new(Sysexit::Usage, what).hint("give --yes, or --dry-run to see the changes only"))
        }
    }
}

/// Asks for a confirmation. `None` if there is no terminal to ask at.
pub(crate) fn confirm(question: &str) -> io::Result<Option<Answer>> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Ok(None);
    }
    eprint!("{question} [y/N] ");
    Ok(Some(match read_line().unwrap_or_default().to_ascii_lowercase().as_str() {
        "y" | "yes" => Answer::Yes,
        _ => Answer::No,
    }))
}

/// Asks until the answer is yes, no, or empty for the default. The end of input is an error.
pub(crate) fn ask_yes_or_no(question: &str, default: Answer) -> io::Result<Answer> {
    loop {
        eprint!("{question} {} ", if default == Answer::Yes { "[Y/n]" } else { "[y/N]" });
        match read_line()?.to_ascii_lowercase().as_str() {
            "y" | "yes" => return Ok(Answer::Yes),
            "n" | "no" => return Ok(Answer::No),
            "" => return Ok(default),
            _ => {}
        }
    }
}

/// Asks for a line, with an answer that Enter alone gives. `None` if there is no terminal to ask at.
pub(crate) fn ask(question: &str, proposed: Option<&str>) -> io::Result<Option<String>> {
    if !io::stdin().is_terminal() {
        return Ok(None);
    }
    loop {
        match proposed {
            Some("") | None => eprint!("{question} "),
            Some(proposed) => eprint!("{question} [{proposed}] "),
        }
        match (read_line()?, proposed) {
            (answer, Some(proposed)) if answer.is_empty() => return Ok(Some(proposed.to_owned())),
            (answer, _) if answer.is_empty() => {}
            (answer, _) => return Ok(Some(answer)),
        }
    }
}

/// A line without the white space around it. The end of input is an error.
fn read_line() -> io::Result<String> {
    let mut line = String::new();
    match io::stdin().lock().take(MAX_ANSWER_BYTES as u64).read_line(&mut line)? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the input has ended")),
        _ => Ok(line.trim().to_owned()),
    }
}

/// Asks for a secret at the controlling terminal, without showing what is typed. `None` if there is no terminal. The end of
/// input is an error.
pub(crate) fn read_hidden(question: &str) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let Ok(mut terminal) = File::options().read(true).write(true).open("/dev/tty") else { return Ok(None) };
    let answer = {
        let mode = HiddenInput::start(terminal.try_clone()?)?;
        terminal.write_all(question.as_bytes())?;
        let answer = read_answer(&mut terminal, &mode);
        // A signal that has come ends the process here.
        drop(mode);
        answer
    };
    terminal.write_all(b"\n")?;
    answer.map(Some)
}

/// Reads up to the end of the line. The terminal makes no signals, so that Ctrl-C is a character.
fn read_answer(terminal: &mut File, mode: &HiddenInput) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut answer = Zeroizing::new(Vec::with_capacity(MAX_ANSWER_BYTES));
    let mut key = Zeroizing::new([0]);
    loop {
        mode.wait_for_key()?;
        let has_ended = terminal.read(&mut *key)? == 0 || key[0] == END_OF_INPUT;
        if has_ended && answer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the input has ended"));
        }
        match key[0] {
            _ if has_ended => return Ok(answer),
            b'\r' | b'\n' => return Ok(answer),
            INTERRUPT => return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted")),
            erase if ERASE.contains(&erase) => {
                answer.pop();
            }
            byte if answer.len() < MAX_ANSWER_BYTES => answer.push(byte),
            _ => {}
        }
    }
}

/// A terminal that does not show what is typed, until this is dropped. Meanwhile signals do not end the process: one that comes
/// does so afterwards.
struct HiddenInput {
    terminal: File,
    previous: Termios,
    signals: SignalFd,
    previous_mask: SigSet,
}

impl HiddenInput {
    fn start(terminal: File) -> io::Result<Self> {
        let previous = tcgetattr(&terminal)?;
        let mut mode = previous.clone();
        mode.local_flags.remove(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG);
        let ending: SigSet = ENDING.into_iter().collect();
        let signals = SignalFd::with_flags(&ending, SfdFlags::SFD_CLOEXEC)?;
        let previous_mask = ending.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let hidden = Self { terminal, previous, signals, previous_mask };
        tcsetattr(&hidden.terminal, SetArg::TCSAFLUSH, &mode)?;
        Ok(hidden)
    }

    /// Waits until there is something to read. A signal is an error; it stays pending.
    fn wait_for_key(&self) -> io::Result<()> {
        let mut ready = [&self.terminal.as_fd(), &self.signals.as_fd()]
            .map(|descriptor| PollFd::new(*descriptor, PollFlags::POLLIN));
        loop {
            match poll(&mut ready, PollTimeout::NONE) {
                // After a stop, for instance.
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) if ready[1].any() == Some(true) => {
                    return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted by a signal"));
                }
                Ok(_) => return Ok(()),
            }
        }
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // A terminal that is gone needs no mode.
        let _ = tcsetattr(&self.terminal, SetArg::TCSAFLUSH, &self.previous);
        // Setting a valid mask cannot fail.
        let _ = self.previous_mask.thread_set_mask();
    }
}
