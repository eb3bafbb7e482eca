//! The real Claude Code at a terminal, with a fake model, and what a person types there.

use std::time::Duration;

use crate::deadline::{PATIENCE, holds_within};
use crate::fake_model::FakeModel;
use crate::terminal::Terminal;

/// Trusts the directory, types a prompt, and returns the result of the tool that the model then calls, as the model has it.
///
/// # Panics
/// When Claude Code asks for approval of the servers of a project, or does not come to the model's last word.
#[track_caller]
pub fn result_of_prompt(terminal: &mut Terminal, model: &FakeModel) -> String {
    // The question whether the directory is trusted: the second answer is yes.
    terminal.wait_for("safety");
    for key in ["\x1b[B", "\r"] {
        terminal.wait_until_still();
        terminal.type_in(key);
    }
    let result = || {
        let mut requests = model.requests().into_iter().map(|request| request.body.to_string());
        requests.rfind(|body| body.contains("tool_result"))
    };
    // Its display never rests, so the prompt is typed again until the model has a request.
    let called = holds_within(PATIENCE * 2, || {
        if model.requests().is_empty() {
            terminal.type_in("go\r");
        }
        holds_within(Duration::from_secs(2), || result().is_some())
    });
    assert!(called, "{}", terminal.shown());
    assert!(!words(&terminal.shown()).contains("found in this project"), "{}", terminal.shown());
    terminal.wait_for("FINISHED");
    result().unwrap_or_default()
}

/// After the first Ctrl-C the harness may only ask for confirmation.
#[track_caller]
pub fn assert_exits_at_ctrl_c(terminal: &mut Terminal) {
    let ended = holds_within(PATIENCE, || {
        let ended = terminal.has_exited();
        if !ended {
            terminal.type_in("\x03");
        }
        ended
    });
    assert!(ended, "{}", terminal.shown());
}

/// What a terminal shows, with single spaces where it moves its cursor.
fn words(shown: &str) -> String {
    let mut words = String::new();
    for part in shown.split('\u{1b}') {
        let text = part
            .trim_start_matches(|character: char| "[?;".contains(character) || character.is_ascii_digit());
        // The sequence ends with one letter.
        let text = text.get(1..).unwrap_or_default();
        words.extend(text.split_whitespace().flat_map(|word| [" ", word]));
    }
    words
}
