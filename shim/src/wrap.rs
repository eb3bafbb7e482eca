//! Breaks text into lines between words, in the width of the terminal.

use std::io::{self, IsTerminal as _};

/// Narrower terminals get lines of this width.
const NARROWEST: usize = 40;

/// The width of stdout's terminal; `None` if stdout is no terminal, or one that does not report its width.
pub(crate) fn terminal_width() -> Option<usize> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Appends `text` behind `prefix`. Without a width on one line; otherwise continued lines are indented by the prefix's length.
pub(crate) fn push_wrapped(lines: &mut String, prefix: &str, text: &str, width: Option<usize>) {
    let limit = width.map_or(usize::MAX, |columns| columns.max(NARROWEST));
    lines.push_str(prefix);
    let indent = prefix.chars().count();
    let mut column = indent;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > indent {
            if column + 1 + length > limit {
                lines.push('\n');
                lines.extend(std::iter::repeat_n(' ', indent));
                column = indent;
            } else {
                lines.push(' ');
                column += 1;
            }
        }
        lines.push_str(word);
        column += length;
    }
    lines.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(text: &str, width: Option<usize>) -> String {
        let mut lines = String::new();
        push_wrapped(&mut lines, "next: ", text, width);
        lines
    }

    #[test]
    fn a_terminal_gets_lines_of_its_width_and_a_pipe_one_line() {
        let text = "run a command on the host, with an option, and look at what it says";
        assert_eq!(wrapped(text, None), format!("next: {text}\n"));
        assert_eq!(
            wrapped(text, Some(40)),
            "next: run a command on the host, with an\n      option, and look at what it says\n"
        );
        assert_eq!(wrapped(text, Some(5)), wrapped(text, Some(40)), "not one word a line");
        let long = "x".repeat(60);
        assert_eq!(wrapped(&format!("a {long}"), Some(40)), format!("next: a\n      {long}\n"));
    }
}
