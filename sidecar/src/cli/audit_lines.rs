//! Lays out records of the audit: on one line in a pipe, within its width on a terminal.
//!
//! What must stay true: in a pipe a record is one line; on a terminal no line is wider than it, unless a single field is; the
//! ids are whole, in the form that `audit show` accepts.

use cofferdam_audit::{HumanRecord, Tone};

use crate::terminal::colour::{Colours, Role};
use crate::terminal::table::TableWidth;
use crate::terminal::wrap;

/// The width and the colours of the lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Layout {
    pub(super) width: TableWidth,
    pub(super) colours: Colours,
}

/// The column of what happened: the longest verdict or result is `outcome_unknown`.
const WHAT_WIDTH: usize = 15;
/// The same column where there is little room: `allow`, `deny` and `result` fit.
const NARROW_WHAT_WIDTH: usize = 7;
/// A terminal with fewer columns gets times in seconds, and the narrow column.
const WIDE: usize = 120;
/// Between two fields.
const GAP: &str = "  ";
/// Characters of a time in seconds: `2026-11-18T12:00:00`.
const SECONDS_LENGTH: usize = 19;

impl Layout {
    pub(super) fn of_stdout() -> Self {
        Self { width: TableWidth::of_stdout(), colours: Colours::of_stdout() }
    }

    pub(super) fn lines(self, record: &str) -> Vec<String> {
        let Self { width, colours } = self;
        let HumanRecord { time, what, tone, details, ids, .. } = match HumanRecord::of(record) {
            Ok(record) => record,
            Err(not_a_record) => {
                return wrap::wrapped("", &not_a_record, width)
                    .iter()
                    .map(|line| colours.paint(Role::Warning, line).to_string())
                    .collect();
            }
        };
        let (time, what_width) = match width {
            TableWidth::Columns(columns) if columns < WIDE => (seconds(&time), NARROW_WHAT_WIDTH),
            TableWidth::Columns(_) | TableWidth::Unlimited => (time, WHAT_WIDTH),
        };
        let prefix = format!("{time}{GAP}{what:<what_width$}{GAP}");
        let indent = " ".repeat(time.len() + GAP.len());
        let mut fields: Vec<String> = details;
        if let TableWidth::Columns(columns) = width {
            // A field that is too long for a line of its own is broken between words.
            let room = TableWidth::Columns(columns.saturating_sub(indent.len()));
            fields = fields.iter().flat_map(|field| wrap::wrapped("", field, room)).collect();
        }
        fields.extend(ids.clone());
        let mut lines = wrap::joined(&prefix, &indent, &fields, GAP, width);
        // Painted last, because codes have no width.
        if let Some(ids) = ids
            && let Some(last) = lines.last_mut()
            && let Some(place) = last.rfind(&ids)
        {
            last.replace_range(place.., &colours.paint(Role::Faint, &ids).to_string());
        }
        let role = role(tone);
        let start = time.len() + GAP.len();
        lines[0].replace_range(start..start + what.len(), &colours.paint(role, &what).to_string());
        lines[0].replace_range(..time.len(), &colours.paint(Role::Faint, &time).to_string());
        lines
    }
}

pub(super) fn role(tone: Tone) -> Role {
    match tone {
        Tone::Bad => Role::Bad,
        Tone::Good => Role::Good,
        Tone::Neutral => Role::Normal,
        Tone::Warning => Role::Warning,
    }
}

/// A time without fractions of a second. Its zone, UTC, is not shown.
pub(super) fn seconds(time: &str) -> String {
    match time.get(..SECONDS_LENGTH) {
        Some(seconds) => seconds.replace('T', " "),
        None => time.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECISION: &str = r#"{"time":"2026-11-18T12:00:00.123Z","kind":"decision","session":"0123456789abcdef","link":"fedcba9876543210","seq":7,"server":"github","method":"tools/call","tool":"get_me","verdict":"allow","rule":"tools.allow get_*","bytes":90}"#;

    fn lines(width: TableWidth, colours: Colours) -> Vec<String> {
        Layout { width, colours }.lines(DECISION)
    }

    #[test]
    fn a_record_fits_a_terminal_and_is_one_line_in_a_pipe() {
        assert_eq!(lines(TableWidth::Unlimited, Colours::Plain), [cofferdam_audit::human(DECISION)]);
        assert_eq!(lines(TableWidth::Columns(200), Colours::Plain), [cofferdam_audit::human(DECISION)]);
        assert_eq!(
            lines(TableWidth::Columns(80), Colours::Plain),
            [
                "2026-11-18 12:00:00  allow    github  tools/call get_me  [tools.allow get_*]",
                "                     90 B  0123456789abcdef/fedcba9876543210/7",
            ]
        );
    }

    #[test]
    fn colours_mark_the_verdict_and_do_not_change_the_layout() {
        let coloured = lines(TableWidth::Columns(80), Colours::Ansi);
        assert!(coloured[0].contains("\u{1b}[32mallow\u{1b}[0m    github"), "{coloured:?}");
        assert!(
            coloured[1].ends_with("\u{1b}[2m0123456789abcdef/fedcba9876543210/7\u{1b}[0m"),
            "{coloured:?}"
        );
        assert_eq!(coloured.len(), 2);
    }

    #[test]
    fn a_torn_line_is_marked() {
        let layout = Layout { width: TableWidth::Columns(80), colours: Colours::Plain };
        assert_eq!(layout.lines("{\"number\u{1b}"), ["(not a whole record) {\"number\\u{1b}"]);
    }
}
