//! The progress of a command that takes time: a progress bar on a terminal, one plain line per step in a pipe, nothing with
//! `--quiet`.
//!
//! What must stay true: progress goes to stderr only, and [`Progress::clear`] removes the bar from the terminal, so that it
//! never mixes with the output of a command.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Whether a command prints its progress.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Output {
    Lines,
    Quiet,
}

/// Prints the steps of a command.
pub(crate) struct Progress {
    /// The prefix of every line.
    program: &'static str,
    display: ProgressDisplay,
}

enum ProgressDisplay {
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

/// How often the spinner is redrawn.
const TICK: Duration = Duration::from_millis(120);
const STEP_TEMPLATE: &str = "{spinner} {msg}";
const TRANSFER_TEMPLATE: &str = "{spinner} {msg} [{bar:30}] {bytes}/{total_bytes}";

impl Progress {
    pub(crate) fn new(program: &'static str, output: Output) -> Self {
        let display = match (output, io::stderr().is_terminal()) {
            (Output::Quiet, _) => ProgressDisplay::Nothing,
            (Output::Lines, false) => ProgressDisplay::Lines,
            (Output::Lines, true) => {
                ProgressDisplay::Terminal(ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()))
            }
        };
        Self { program, display }
    }

    /// Shows what is being done now.
    pub(crate) fn step(&self, text: &str) {
        match &self.display {
            ProgressDisplay::Terminal(bar) => draw(bar, STEP_TEMPLATE, text),
            ProgressDisplay::Lines | ProgressDisplay::Nothing => self.line(text),
        }
    }

    /// Shows how much of a transfer is done. In a pipe every call prints a line, so the caller calls this once per transfer.
    pub(crate) fn transfer(&self, text: &str, transferred: Transferred) {
        match &self.display {
            ProgressDisplay::Terminal(bar) => {
                draw(bar, TRANSFER_TEMPLATE, text);
                bar.set_length(transferred.total);
                bar.set_position(transferred.sent);
            }
            ProgressDisplay::Lines | ProgressDisplay::Nothing => self.line(text),
        }
    }

    /// Prints a line that is not drawn over later.
    pub(crate) fn line(&self, text: &str) {
        self.clear();
        if !matches!(self.display, ProgressDisplay::Nothing) {
            // In one write, because another process may write to stderr too. A closed stderr is ignored.
            let _ = io::stderr().write_all(format!("{}: {text}\n", self.program).as_bytes());
        }
    }

    /// Whether progress is a bar, in which each step replaces the previous one.
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self.display, ProgressDisplay::Terminal(_))
    }

    /// Removes the progress bar. The next step shows it again.
    pub(crate) fn clear(&self) {
        if let ProgressDisplay::Terminal(bar) = &self.display {
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
