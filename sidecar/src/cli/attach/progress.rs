//! The steps of an attachment: a progress bar on a terminal, one plain line per step in a pipe, nothing with `--quiet`.
//! All of it goes to stderr.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::daemon::attachments::status::AttachmentState;

pub(super) struct Display {
    output: Output,
    /// The line that was shown last, so that it is not repeated.
    last: String,
    /// The warning that was shown last.
    last_warning: Option<String>,
}

enum Output {
    Lines,
    Nothing,
    Terminal(ProgressBar),
}

/// How often the terminal is drawn while nothing changes.
const TICK: Duration = Duration::from_millis(120);

impl Display {
    pub(super) fn new(quiet: bool) -> Self {
        let output = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Output::Nothing,
            (false, false) => Output::Lines,
            (false, true) => {
                Output::Terminal(ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()))
            }
        };
        Self { output, last: String::new(), last_warning: None }
    }

    pub(super) fn show(&mut self, state: &AttachmentState) {
        let (text, is_step) = describe(state);
        if let (Output::Terminal(bar), true) = (&self.output, is_step) {
            draw(bar, state, &text);
            return;
        }
        if text != self.last {
            self.say(&text);
            self.last = text;
        }
    }

    /// Prints a new warning, also with `--quiet`.
    pub(super) fn warn(&mut self, warning: Option<&str>) {
        let Some(warning) = warning.filter(|warning| self.last_warning.as_deref() != Some(*warning)) else {
            return;
        };
        self.clear();
        super::report(&format!("warning: {warning}"));
        self.last_warning = Some(warning.to_owned());
    }

    /// Prints a line that stays.
    pub(super) fn say(&self, text: &str) {
        match &self.output {
            Output::Lines => super::report(text),
            Output::Nothing => {}
            Output::Terminal(bar) => {
                bar.finish_and_clear();
                super::report(text);
            }
        }
    }

    pub(super) fn finish(&self, text: &str) {
        self.clear();
        self.say(text);
    }

    /// Removes the progress bar.
    pub(super) fn clear(&self) {
        if let Output::Terminal(bar) = &self.output {
            bar.finish_and_clear();
        }
    }
}

/// The text for a state, and whether it is a step on the way to being attached.
fn describe(state: &AttachmentState) -> (String, bool) {
    let seconds = |milliseconds: u64| milliseconds.div_ceil(1000);
    match state {
        AttachmentState::Finding => ("finding the sandbox".into(), true),
        AttachmentState::Resuming => ("resuming the sandbox".into(), true),
        AttachmentState::Uploading { total, .. } => {
            (format!("uploading the shim ({} KiB)", total.div_ceil(1024)), true)
        }
        AttachmentState::StartingHub => ("starting the hub in the sandbox".into(), true),
        AttachmentState::Connecting => ("connecting to the hub".into(), true),
        AttachmentState::Attached { key } => (format!("attached (the sandbox's key is {key})"), false),
        AttachmentState::Waiting { why, retry_in_ms } => {
            (format!("{why}; retrying in {} s", seconds(*retry_in_ms)), false)
        }
        AttachmentState::Suspended => {
            let next = "it is attached when it is resumed at its platform; `--resume` would resume it";
            (format!("the sandbox is suspended: {next}"), false)
        }
        AttachmentState::Refused { why, retry_in_ms } => {
            (format!("{why}; trying again in {} s", seconds(*retry_in_ms)), false)
        }
        AttachmentState::Over { why, .. } => (why.clone(), false),
    }
}

fn draw(bar: &ProgressBar, state: &AttachmentState, text: &str) {
    let style = |template| {
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
    };
    if bar.is_finished() {
        bar.reset();
    }
    bar.enable_steady_tick(TICK);
    match state {
        AttachmentState::Uploading { sent, total } => {
            bar.set_style(style("{spinner} {msg} [{bar:30}] {bytes}/{total_bytes}"));
            bar.set_length(*total);
            bar.set_position(*sent);
        }
        _ => bar.set_style(style("{spinner} {msg}")),
    }
    bar.set_message(text.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_is_one_line_in_a_pipe_and_every_wait_says_when_it_ends() {
        let text = |state| describe(&state).0;
        let uploading = |sent| text(AttachmentState::Uploading { sent, total: 2048 });
        assert_eq!(uploading(0), uploading(2048));
        let waiting = AttachmentState::Waiting { why: "find the sandbox: 503".into(), retry_in_ms: 1001 };
        assert_eq!(text(waiting), "find the sandbox: 503; retrying in 2 s");
        assert!(text(AttachmentState::Suspended).contains("`--resume`"));
    }
}
