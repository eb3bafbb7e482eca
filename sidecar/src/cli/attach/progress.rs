//! Shows the steps of an attachment on stderr.

use cofferdam_platforms::Progress as Step;

use crate::daemon::attachments::status::AttachmentState;
use crate::terminal::progress::{Output, Progress, Transferred};

pub(super) struct ProgressDisplay {
    progress: Progress,
    /// The text that was shown last, so that it is not repeated.
    last_text: String,
    /// The warning that was shown last.
    last_warning: Option<String>,
}

impl ProgressDisplay {
    pub(super) fn new(output: Output) -> Self {
        Self {
            progress: Progress::new("cofferdam attach", output),
            last_text: String::new(),
            last_warning: None,
        }
    }

    pub(super) fn show(&mut self, state: &AttachmentState) {
        let (text, is_step) = describe(state);
        if text == self.last_text && !(is_step && self.progress.is_terminal()) {
            return;
        }
        match state {
            AttachmentState::Opening(Step::Uploading { sent, total }) => {
                self.progress.transfer(&text, Transferred { sent: *sent, total: *total });
            }
            _ if is_step => self.progress.step(&text),
            _ => self.progress.line(&text),
        }
        self.last_text = text;
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

    /// Prints a line that is not replaced by the next step.
    pub(super) fn print_line(&self, text: &str) {
        self.progress.line(text);
    }

    /// Removes the progress bar.
    pub(super) fn clear(&self) {
        self.progress.clear();
    }
}

/// The text for a state, and whether it is a step on the way to being attached.
fn describe(state: &AttachmentState) -> (String, bool) {
    let seconds = |milliseconds: u64| milliseconds.div_ceil(1000);
    match state {
        AttachmentState::Opening(Step::Finding) => ("finding the sandbox".into(), true),
        AttachmentState::Opening(Step::Resuming) => ("resuming the sandbox".into(), true),
        AttachmentState::Opening(Step::Uploading { total, .. }) => {
            (format!("uploading the shim ({} KiB)", total.div_ceil(1024)), true)
        }
        AttachmentState::Opening(Step::StartingHub) => ("starting the hub in the sandbox".into(), true),
        AttachmentState::Opening(Step::Connecting) => ("connecting to the hub".into(), true),
        AttachmentState::Attached { key } => (format!("attached (the sandbox's key is {key})"), false),
        AttachmentState::Waiting { why, retry_in_ms } => {
            (format!("{why}; retrying in {} s", seconds(*retry_in_ms)), false)
        }
        AttachmentState::Suspended { why } => {
            let next =
                "it will be attached once you resume it on its platform; use `--resume` to resume it now";
            (format!("the sandbox is suspended: {why}; {next}"), false)
        }
        AttachmentState::Refused { why, retry_in_ms } => {
            (format!("{why}; trying again in {} s", seconds(*retry_in_ms)), false)
        }
        AttachmentState::Over { why, .. } => (why.clone(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_upload_does_not_change_while_bytes_are_sent() {
        let uploading = |sent| describe(&AttachmentState::Opening(Step::Uploading { sent, total: 2048 }));
        assert_eq!(uploading(0), uploading(2048));
    }

    #[test]
    fn the_text_of_a_waiting_state_says_what_comes_next() {
        let text = |state| describe(&state).0;
        let waiting = AttachmentState::Waiting { why: "find the sandbox: 503".into(), retry_in_ms: 1001 };
        assert_eq!(text(waiting), "find the sandbox: 503; retrying in 2 s");
        let suspended = text(AttachmentState::Suspended { why: "it is archived".into() });
        assert!(suspended.starts_with("the sandbox is suspended: it is archived; "), "{suspended}");
        assert!(suspended.contains("`--resume`"), "{suspended}");
    }
}
