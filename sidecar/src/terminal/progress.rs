//! The steps of something that takes time: a progress bar on a terminal, one plain line per step in a pipe, nothing with
//! `--quiet`.
//!
//! What must stay true: all of it goes to stderr, and after [`Progress::clear`] nothing of it is on the terminal, so that it
//! never mixes with the output of a command.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Whether a command says what it does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Output {
    Lines,
    Quiet,
}

/// Shows steps.
pub(crate) struct Progress {
    /// What every line begins with.
    program: &'static str,
    display: Display,
}

enum Display {
    Lines,
    Nothing,
    Terminal(ProgressBar),
}

/// How much of a transfer is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transferred {
    pub(crate) sent: u64,
    pub(crate) total: u64,
}

/// How often the terminal is drawn while nothing changes.
const TICK: Duration = Duration::from_millis(120);
const STEP: &str = "{spinner} {msg}";
const TRANSFER: &str = "{spinner} {msg} [{bar:30}] {bytes}/{total_bytes}";

impl Progress {
    pub(crate) fn new(program: &'static str, output: Output) -> Self {
        let display = match (output, io::stderr().is_terminal()) {
            (Output::Quiet, _) => Display::Nothing,
            (Output::Lines, false) => Display::Lines,
            (Output::Lines, true) => {
                Display::Terminal(ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()))
            }
        };
        Self { program, display }
    }

    /// Shows what is being done now.
    pub(crate) fn step(&self, text: &str) {
        match &self.display {
            Display::Terminal(bar) => draw(bar, STEP, text),
            Display::Lines | Display::Nothing => self.line(text),
        }
    }

    /// Shows how much of a transfer is done. In a pipe this is a line like any other: the caller shows it once.
    pub(crate) fn transfer(&self, text: &str, transferred: Transferred) {
        match &self.display {
            Display::Terminal(bar) => {
                draw(bar, TRANSFER, text);
                bar.set_length(transferred.total);
                bar.set_position(transferred.sent);
            }
            Display::Lines | Display::Nothing => self.line(text),
        }
    }

    /// Prints a line that stays.
    pub(crate) fn line(&self, text: &str) {
        self.clear();
        if !matches!(self.display, Display::Nothing) {
            // In one write, because a command may write there too. A closed stderr is ignored.
            let _ = io::stderr().write_all(format!("{}: {text}\n", self.program).as_bytes());
        }
    }

    /// Whether each step is drawn over the one before it.
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self.display, Display::Terminal(_))
    }

    /// Removes the progress bar. The next step shows it again.
    pub(crate) fn clear(&self) {
        if let Display::Terminal(bar) = &self.display {
            bar.finish_and_clear();
        }
    }
}

fn draw(bar: &ProgressBar, template: &str, text: &str) {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner());
    if bar.is_finished() {
        bar.reset();
    }
    bar.enable_steady_tick(TICK);
    bar.set_style(style);
    bar.set_message(text.to_owned());
}
