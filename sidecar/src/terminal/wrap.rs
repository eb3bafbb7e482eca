//! Breaks text into lines between words.
//!
//! What must stay true: words are not cut; a text that has no space to break at may be wider than the terminal; the text
//! cannot control the terminal.

use cofferdam_base::text::visible_lines;
use unicode_width::UnicodeWidthStr as _;

use super::table::TableWidth;

/// Narrower terminals get lines of this width.
const NARROWEST: usize = 40;

/// `text` behind `prefix`, broken between words; continued lines are indented by the width of `prefix`.
pub(crate) fn wrapped(prefix: &str, text: &str, width: TableWidth) -> Vec<String> {
    let text = visible_lines(text).replace(['\n', '\t'], " ");
    let parts: Vec<String> = text.split(' ').map(str::to_owned).collect();
    joined(prefix, &" ".repeat(prefix.width()), &parts, " ", width)
}

/// `parts` behind `prefix`, with `separator` between those on one line; continued lines begin with `indent`. The parts must not
/// be able to control the terminal.
pub(crate) fn joined(
    prefix: &str,
    indent: &str,
    parts: &[String],
    separator: &str,
    width: TableWidth,
) -> Vec<String> {
    let limit = match width {
        TableWidth::Columns(columns) => columns.max(NARROWEST),
        TableWidth::Unlimited => usize::MAX,
    };
    let (mut lines, mut line) = (Vec::new(), prefix.to_owned());
    let mut is_empty = true;
    for part in parts {
        let needed = part.width() + if is_empty { 0 } else { separator.len() };
        // A part that does not fit behind a long prefix has more room on the next line.
        if line.width() + needed > limit && (!is_empty || line.width() > indent.width()) {
            line.truncate(line.trim_end().len());
            lines.push(std::mem::replace(&mut line, indent.to_owned()));
            is_empty = true;
        }
        if !is_empty {
            line.push_str(separator);
        }
        line.push_str(part);
        is_empty = false;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_are_indented_by_the_prefix() {
        let text = "a text of several words that does not fit on one line of 40 columns";
        let lines = wrapped("why: ", text, TableWidth::Columns(40));
        assert_eq!(
            lines,
            ["why: a text of several words that does", "     not fit on one line of 40 columns"]
        );
        assert_eq!(wrapped("why: ", text, TableWidth::Unlimited), [format!("why: {text}")]);
    }

    #[test]
    fn what_does_not_fit_behind_a_long_prefix_is_on_the_next_line() {
        let parts = ["thirty characters in this part".to_owned(), "end".to_owned()];
        let lines = joined("a prefix of 22 columns  ", "  ", &parts, "  ", TableWidth::Columns(40));
        assert_eq!(lines, ["a prefix of 22 columns", "  thirty characters in this part  end"]);
    }

    #[test]
    fn a_long_word_is_not_cut_and_a_text_cannot_control_the_terminal() {
        let long = "x".repeat(60);
        assert_eq!(wrapped("", &format!("a {long}"), TableWidth::Columns(40)), ["a".to_owned(), long]);
        assert_eq!(wrapped("", "\u{1b}[2J\nb", TableWidth::Unlimited), ["\\u{1b}[2J b"]);
    }
}
