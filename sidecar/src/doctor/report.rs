//! Prints findings: for a person, or as JSON.
//!
//! What must stay true: on a terminal no line is wider than it, and words are not cut; in a pipe each text is on one line; no
//! text of a file or server can control the terminal.

use serde::Serialize;

use super::finding::{Finding, Findings, Severity};
use crate::check::findings::count;
use crate::terminal::colour::{Colours, Role};
use crate::terminal::print_line;
use crate::terminal::table::TableWidth;
use crate::terminal::wrap::wrapped;

/// The output of `doctor --json`.
#[derive(Serialize)]
struct JsonReport<'a> {
    /// `None` if there is no configuration.
    file: Option<&'a str>,
    errors: usize,
    warnings: usize,
    findings: &'a [Finding],
}

const INDENT: &str = "         ";

pub(super) fn print_json(file: Option<&str>, findings: &Findings) {
    let (errors, warnings) = (findings.count(Severity::Error), findings.count(Severity::Warning));
    let report = JsonReport { file, errors, warnings, findings: &findings.0 };
    print_line(&serde_json::to_string_pretty(&report).expect("findings are plain data"));
}

pub(super) fn print(findings: &Findings, width: TableWidth) {
    let colours = Colours::of_stdout();
    for finding in &findings.0 {
        lines(finding, width, colours).iter().for_each(|line| print_line(line));
    }
    let (errors, warnings) = (findings.count(Severity::Error), findings.count(Severity::Warning));
    let (role, sum) = match (errors, warnings) {
        (0, 0) => (Role::Good, "nothing is wrong".to_owned()),
        (0, warnings) => (Role::Warning, format!("nothing is broken; {}", count(warnings, "warning"))),
        (errors, 0) => (Role::Bad, count(errors, "error")),
        (errors, warnings) => {
            (Role::Bad, format!("{}, {}", count(errors, "error"), count(warnings, "warning")))
        }
    };
    print_line(&colours.paint(role, &sum).to_string());
}

fn lines(finding: &Finding, width: TableWidth, colours: Colours) -> Vec<String> {
    let (word, role) = match finding.severity {
        Severity::Ok => ("ok", Role::Good),
        Severity::Warning => ("WARNING", Role::Warning),
        Severity::Error => ("ERROR", Role::Bad),
    };
    let Finding { code, about, what, why, next, line, .. } = finding;
    let line = line.map(|line| format!(", line {line}")).unwrap_or_default();
    let code = match finding.severity {
        Severity::Ok => String::new(),
        Severity::Warning | Severity::Error => format!(" [{code}]"),
    };
    let mut lines = wrapped(INDENT, &format!("{about}{line}: {what}{code}"), width);
    let spaces = " ".repeat(INDENT.len() - word.len());
    lines[0].replace_range(..INDENT.len(), &format!("{}{spaces}", colours.paint(role, word)));
    let mut labelled = |label: &str, role: Role, text: &str| {
        // The text's own indentation stays.
        let indentation = &text[..text.len() - text.trim_start_matches(' ').len()];
        let prefix = format!("{INDENT}{label:<6}{indentation}");
        let mut wrapped = wrapped(&prefix, text.trim_start_matches(' '), width);
        let painted = colours.paint(role, label).to_string();
        wrapped[0].replace_range(INDENT.len()..INDENT.len() + label.len(), &painted);
        lines.extend(wrapped);
    };
    if !why.is_empty() {
        labelled("why:", Role::Faint, why);
    }
    // Of a command or policy of several lines each begins on its own line, to be copied.
    for (index, part) in next.iter().flat_map(|next| next.lines()).enumerate() {
        labelled(if index == 0 { "next:" } else { "" }, Role::Hint, part);
    }
    lines
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    fn finding() -> Finding {
        let mut findings = Findings::default();
        findings.error(
            "server-ended",
            "server github",
            "the process ended \u{1b}[2J (it exited with code 1)",
            "run this:\n  path \"a\" {} # with a comment that does not fit",
        );
        findings.0.remove(0)
    }

    #[test]
    fn a_pipe_gets_whole_lines_and_a_terminal_lines_of_its_width() {
        let whole = lines(&finding(), TableWidth::Unlimited, Colours::Plain);
        assert_eq!(
            whole,
            [
                r"ERROR    server github: the process ended \u{1b}[2J (it exited with code 1) [server-ended]",
                "         why:  calls of this server are refused with `server_unavailable`",
                "         next: run this:",
                "                 path \"a\" {} # with a comment that does not fit",
            ]
        );
        let narrow = lines(&finding(), TableWidth::Columns(50), Colours::Plain);
        assert!(narrow.iter().all(|line| line.width() <= 50), "{narrow:?}");
        assert_eq!(
            narrow[narrow.len() - 2..],
            ["                 path \"a\" {} # with a comment that", "                 does not fit"],
            "the lines after the first are broken too, and keep their indentation"
        );
        assert_eq!(narrow[1..3], [r"         \u{1b}[2J (it exited with code 1)", "         [server-ended]"]);
    }

    #[test]
    fn a_colour_does_not_change_where_lines_are_broken() {
        let without_codes = |line: &String| {
            let mut parts = line.split('\u{1b}');
            let first = parts.next().unwrap_or_default().to_owned();
            parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, text)| text))
        };
        let coloured = lines(&finding(), TableWidth::Columns(50), Colours::Ansi);
        assert!(coloured[0].starts_with("\u{1b}[1m\u{1b}[31mERROR\u{1b}[0m    server"), "{coloured:?}");
        let plain = lines(&finding(), TableWidth::Columns(50), Colours::Plain);
        assert_eq!(coloured.iter().map(without_codes).collect::<Vec<_>>(), plain);
    }
}
