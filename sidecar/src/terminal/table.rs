//! Tables on a terminal or in a pipe.
//!
//! What must stay true: every column is as wide as its widest cell, counted in columns of the terminal, so that long names and
//! wide characters do not shift what follows; in a pipe nothing is shortened; a cell cannot control the terminal.

use std::io::{self, IsTerminal as _};

use cofferdam_base::text::visible_lines;
use cofferdam_process::Window;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// A table while its rows are collected.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Row>,
}

/// A column: its title, and whether its cells may be shortened.
pub(crate) struct Column {
    title: &'static str,
    fit: Fit,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fit {
    /// The cells are shortened if the terminal is too narrow.
    Shorten,
    /// The cells are never shortened: ids, which are copied, numbers and states.
    Whole,
}

enum Row {
    Cells(Vec<String>),
    /// An indented line below a row.
    Note(String),
}

/// How wide the lines may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum TableWidth {
    /// This many columns of a terminal.
    Columns(usize),
    Unlimited,
}

/// Spaces between two columns.
const GAP: usize = 2;
/// A column is not made narrower than this.
const NARROWEST: usize = 8;
/// What ends a shortened cell.
const ELLIPSIS: char = '…';

impl TableWidth {
    /// The width of the terminal; unlimited if stdout is a pipe or a file, or if the terminal does not report its width.
    pub(crate) fn of_stdout() -> Self {
        if !io::stdout().is_terminal() {
            return Self::Unlimited;
        }
        match Window::of(io::stdout()).map_or(0, Window::columns) {
            0 => Self::Unlimited,
            columns => Self::Columns(columns.into()),
        }
    }
}

impl Column {
    /// A column of names, which are shortened if the terminal is too narrow.
    pub(crate) fn names(title: &'static str) -> Self {
        Self { title, fit: Fit::Shorten }
    }

    pub(crate) fn whole(title: &'static str) -> Self {
        Self { title, fit: Fit::Whole }
    }
}

impl Table {
    pub(crate) fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self { columns: columns.into(), rows: Vec::new() }
    }

    /// Adds a row with one cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| on_one_line(&cell)).collect();
        debug_assert_eq!(cells.len(), self.columns.len(), "a row has as many cells as the table has columns");
        self.rows.push(Row::Cells(cells));
    }

    /// Adds an indented line below the last row. It may be as long as it needs to be.
    pub(crate) fn note(&mut self, text: &str) {
        self.rows.push(Row::Note(on_one_line(text)));
    }

    /// The lines of the table, first the titles.
    pub(crate) fn lines(&self, width: TableWidth) -> Vec<String> {
        let widths = self.fitted_widths(width);
        let titles = self.columns.iter().map(|column| column.title);
        let mut lines = vec![line(titles, &widths)];
        for row in &self.rows {
            lines.push(match row {
                Row::Cells(cells) => line(cells.iter().map(String::as_str), &widths),
                Row::Note(text) => format!("  {text}"),
            });
        }
        lines
    }

    fn fitted_widths(&self, width: TableWidth) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| column.title.width()).collect();
        for row in &self.rows {
            if let Row::Cells(cells) = row {
                for (width, cell) in widths.iter_mut().zip(cells) {
                    *width = (*width).max(cell.width());
                }
            }
        }
        let TableWidth::Columns(limit) = width else { return widths };
        let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        while total(&widths) > limit {
            let can_shrink =
                |index: &usize| self.columns[*index].fit == Fit::Shorten && widths[*index] > NARROWEST;
            let Some(widest) = (0..widths.len()).filter(can_shrink).max_by_key(|index| widths[*index]) else {
                break;
            };
            widths[widest] -= 1;
        }
        widths
    }
}

fn line<'a>(cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
    let mut line = String::new();
    for (cell, width) in cells.zip(widths) {
        let cell = shortened(cell, *width);
        line.push_str(&cell);
        line.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.width()) + GAP));
    }
    line.truncate(line.trim_end().len());
    line
}

/// A text of at most this many columns; a longer one ends with an ellipsis.
fn shortened(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |character: &char| {
        let taken = character.width().unwrap_or(0);
        let fits = taken <= left;
        left = left.saturating_sub(taken);
        fits
    };
    let mut short: String = text.chars().take_while(fits).collect();
    short.push(ELLIPSIS);
    short
}

fn on_one_line(text: &str) -> String {
    visible_lines(text).replace(['\n', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(names: &[&str]) -> Table {
        let mut table = Table::new([Column::whole("ID"), Column::names("NAME"), Column::whole("STATE")]);
        for name in names {
            table.row(["0123456789abcdef".into(), (*name).into(), "connected".into()]);
        }
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_cell_and_a_pipe_shortens_nothing() {
        let long = "a-name-that-is-much-longer-than-any-title";
        let lines = table(&["box1", long]).lines(TableWidth::Unlimited);
        assert_eq!(lines[0].find("STATE"), lines[1].find("connected"));
        assert_eq!(lines[1].find("connected"), lines[2].find("connected"));
        assert!(lines[2].contains(long), "{lines:?}");
    }

    #[test]
    fn wide_characters_do_not_shift_the_next_column() {
        let lines = table(&["ascii", "沙箱一号", "e\u{301}galite\u{301}"]).lines(TableWidth::Unlimited);
        let columns: Vec<usize> =
            lines[1..].iter().map(|line| line.split("connected").next().unwrap().width()).collect();
        assert_eq!(columns, [28; 3], "{lines:?}");
    }

    #[test]
    fn a_narrow_terminal_shortens_names_and_no_ids() {
        let lines = table(&["a-name-that-is-much-longer-than-any-title"]).lines(TableWidth::Columns(40));
        assert_eq!(lines[1], "0123456789abcdef  a-name-tha…  connected");
        let lines = table(&["沙箱一号沙箱一号"]).lines(TableWidth::Columns(39));
        assert_eq!(
            lines[1], "0123456789abcdef  沙箱一号…   connected",
            "a wide character is not cut in half"
        );
        assert!(lines.iter().all(|line| line.width() <= 39), "{lines:?}");
        let lines = table(&["a-name-that-is-long"]).lines(TableWidth::Columns(10));
        assert_eq!(
            lines[1], "0123456789abcdef  a-name-…  connected",
            "only names are shortened, and not to nothing"
        );
    }

    #[test]
    fn a_cell_cannot_control_the_terminal() {
        let mut table = table(&["\u{1b}[2Jgone", "two\nlines"]);
        table.note("a reason\nof two lines");
        let lines = table.lines(TableWidth::Unlimited);
        assert!(lines[1].contains("\\u{1b}[2Jgone") && lines[2].contains("two lines"), "{lines:?}");
        assert_eq!(lines[3], "  a reason of two lines");
    }
}
