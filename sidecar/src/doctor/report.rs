//! Prints findings: for a person, or as JSON.
//!
//! What must stay true: on a terminal no line is wider than it, and words are not cut; in a pipe each text is on one line; no
//! text of a file or server can control the terminal.

use cofferdam_base::text::visible_lines;
use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;

use super::finding::{Finding, Findings, Severity};
use crate::check::findings::count;
use crate::terminal::print_line;
use crate::terminal::table::TableWidth;

/// The output of `doctor --json`.
#[derive(Serialize)]
struct JsonReport<'a> {
    /// `None` if there is no configuration.
    file: Option<&'a str>,
    errors: usize,
    warnings: usize,
    findings: &'a [Finding],
}

/// Narrower terminals get lines of this width.
const NARROWEST: usize = 40;
const INDENT: &str = "         ";

pub(super) fn print_json(file: Option<&str>, findings: &Findings) {
    let (errors, warnings) = (findings.count(Severity::Error), findings.count(Severity::Warning));
    let report = JsonReport { file, errors, warnings, findings: &findings.0 };
    print_line(&serde_json::to_string_pretty(&report).expect("findings are plain data"));
}

pub(super) fn print(findings: &Findings, width: TableWidth) {
    for finding in &findings.0 {
        lines(finding, width).iter().for_each(|line| print_line(line));
    }
    let (errors, warnings) = (findings.count(Severity::Error), findings.count(Severity::Warning));
    print_line(&match (errors, warnings) {
        (0, 0) => "nothing is wrong".to_owned(),
        (0, warnings) => format!("nothing is broken; {}", count(warnings, "warning")),
        (errors, 0) => count(errors, "error"),
        (errors, warnings) => format!("{}, {}", count(errors, "error"), count(warnings, "warning")),
    });
}

fn lines(finding: &Finding, width: TableWidth) -> Vec<String> {
    let word = match finding.severity {
        Severity::Ok => "ok",
        Severity::Warning => "WARNING",
        Severity::Error => "ERROR",
    };
    let Finding { code, about, what, why, next, line, .. } = finding;
    let line = line.map(|line| format!(", line {line}")).unwrap_or_default();
    let code = match finding.severity {
        Severity::Ok => String::new(),
        Severity::Warning | Severity::Error => format!(" [{code}]"),
    };
    let mut lines = wrapped(&format!("{word:<7}  "), &format!("{about}{line}: {what}{code}"), width);
    if !why.is_empty() {
        lines.extend(wrapped(&format!("{INDENT}why:  "), why, width));
    }
    if let Some(next) = next {
        // A command or policy of several lines is printed as it is, to be copied.
        let mut parts = next.lines();
        lines.extend(wrapped(&format!("{INDENT}next: "), parts.next().unwrap_or_default(), width));
        lines.extend(parts.map(|part| format!("{INDENT}      {}", visible_lines(part))));
    }
    lines
}

/// `text` behind `prefix`, broken between words; continued lines are indented by the width of `prefix`.
fn wrapped(prefix: &str, text: &str, width: TableWidth) -> Vec<String> {
    let text = visible_lines(text).replace(['\n', '\t'], " ");
    let TableWidth::Columns(columns) = width else { return vec![format!("{prefix}{text}")] };
    let columns = columns.max(NARROWEST);
    let indent = " ".repeat(prefix.width());
    let (mut lines, mut line) = (Vec::new(), prefix.to_owned());
    let mut is_empty = true;
    for word in text.split(' ') {
        if !is_empty && line.width() + 1 + word.width() > columns {
            lines.push(std::mem::replace(&mut line, indent.clone()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding() -> Finding {
        let mut findings = Findings::default();
        findings.error(
            "server-ended",
            "server github",
            "the process ended \u{1b}[2J (it exited with code 1)",
            "run this:\npath \"a\" {}",
        );
        findings.0.remove(0)
    }

    #[test]
    fn a_pipe_gets_whole_lines_and_a_terminal_lines_of_its_width() {
        let whole = lines(&finding(), TableWidth::Unlimited);
        assert_eq!(
            whole,
            [
                r"ERROR    server github: the process ended \u{1b}[2J (it exited with code 1) [server-ended]",
                "         why:  calls of this server are refused with `server_unavailable`",
                "         next: run this:",
                "               path \"a\" {}",
            ]
        );
        let narrow = lines(&finding(), TableWidth::Columns(50));
        assert!(narrow.iter().all(|line| line.width() <= 50), "{narrow:?}");
        assert_eq!(narrow[1..3], [r"         \u{1b}[2J (it exited with code 1)", "         [server-ended]"]);
    }
}
