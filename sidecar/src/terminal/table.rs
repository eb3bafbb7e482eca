//! Tables on a terminal or in a pipe.
//!
//! What must stay true: every column is as wide as its widest cell, counted in columns of the terminal, so that long names and
//! wide characters do not shift what follows; in a pipe nothing is shortened; a cell cannot control the terminal; ids are never
//! shortened: where the terminal is too narrow for them, they are on a line of their own below the row.

use std::io::{self, IsTerminal as _};

use cofferdam_base::text::visible_lines;
use cofferdam_process::Window;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::colour::{Colours, Role};
use super::wrap;

/// A table while its rows are collected.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Row>,
}

/// A column: its title, and what happens to its cells if the terminal is too narrow.
pub(crate) struct Column {
    title: &'static str,
    fit: Fit,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fit {
    /// The cells go below their row, behind this label; empty ones are left out.
    Below(&'static str),
    /// The cells are shortened.
    Shorten,
    /// The cells are never shortened: ids, which are copied, numbers and states.
    Whole,
}

enum Row {
    Cells(Vec<Cell>),
    /// An indented text below a row.
    Note(Cell),
}

/// The text of a cell or note, and what it says.
pub(crate) struct Cell {
    text: String,
    role: Role,
}

/// The lines of a table before they are printed.
pub(crate) struct TableLayout {
    pub(crate) titles: Line,
    pub(crate) groups: Vec<Group>,
}

/// A row with what is below it.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) row: Line,
    /// The cells that have no place in the row.
    pub(crate) below: Vec<Line>,
    pub(crate) notes: Vec<Line>,
}

pub(crate) type Line = Vec<Span>;

/// A part of a line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Span {
    pub(crate) role: Role,
    pub(crate) text: String,
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
/// Before notes, and before cells below their row. A continued note is indented by twice as much.
const INDENT: &str = "  ";
/// A column is not made narrower than this.
const NARROWEST: usize = 8;
/// Where names would be shorter than this, ids go below their row instead.
const READABLE_NAME: usize = 12;
/// What ends a shortened cell.
const ELLIPSIS: char = '…';
/// A cell without a value.
pub(crate) const EMPTY: &str = "-";

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
    /// A column whose cells are on a line below their row, behind `label`, if the terminal is too narrow for all columns.
    pub(crate) fn below(title: &'static str, label: &'static str) -> Self {
        Self { title, fit: Fit::Below(label) }
    }

    /// A column of names, which are shortened if the terminal is too narrow.
    pub(crate) fn names(title: &'static str) -> Self {
        Self { title, fit: Fit::Shorten }
    }

    pub(crate) fn whole(title: &'static str) -> Self {
        Self { title, fit: Fit::Whole }
    }
}

impl Cell {
    pub(crate) fn new(role: Role, text: impl Into<String>) -> Self {
        Self { text: text.into(), role }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::new(Role::Normal, text)
    }
}

impl Table {
    pub(crate) fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self { columns: columns.into(), rows: Vec::new() }
    }

    /// Adds a row with one cell for each column.
    pub(crate) fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let cells: Vec<Cell> = cells.into_iter().map(|cell| visible(cell.into())).collect();
        debug_assert_eq!(cells.len(), self.columns.len(), "a row has as many cells as the table has columns");
        self.rows.push(Row::Cells(cells));
    }

    /// Adds an indented text below the last row.
    pub(crate) fn note(&mut self, text: impl Into<Cell>) {
        self.rows.push(Row::Note(visible(text.into())));
    }

    /// The lines of the table, first the titles.
    pub(crate) fn lines(&self, width: TableWidth, colours: Colours) -> Vec<String> {
        let TableLayout { titles, groups } = self.lay_out(width);
        let rendered = |line: &Line| {
            line.iter().map(|Span { role, text }| colours.paint(*role, text).to_string()).collect()
        };
        let lines = groups.iter().flat_map(Group::lines);
        std::iter::once(&titles).chain(lines).map(rendered).collect()
    }

    pub(crate) fn lay_out(&self, width: TableWidth) -> TableLayout {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let fits = match width {
            TableWidth::Columns(limit) => total(&self.readable_widths(&all)) <= limit,
            TableWidth::Unlimited => true,
        };
        let is_below = |index: &usize| matches!(self.columns[*index].fit, Fit::Below(_));
        let (below, shown) = match fits {
            true => (Vec::new(), all),
            false => all.into_iter().partition::<Vec<usize>, _>(is_below),
        };
        let widths = self.fitted_widths(&shown, width);
        let titles = shown.iter().map(|index| (self.columns[*index].title, Role::Heading));
        let titles = line(titles, &widths);
        let mut groups: Vec<Group> = Vec::new();
        for row in &self.rows {
            match row {
                Row::Cells(cells) => {
                    let texts = shown.iter().map(|index| (cells[*index].text.as_str(), cells[*index].role));
                    groups.push(Group {
                        row: line(texts, &widths),
                        below: self.lines_below(cells, &below, width),
                        notes: Vec::new(),
                    });
                }
                Row::Note(Cell { text, role }) => {
                    let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
                    let lines = wrap::joined(INDENT, &INDENT.repeat(2), &words, " ", width);
                    if let Some(group) = groups.last_mut() {
                        group.notes.extend(lines.iter().map(|line| indented(*role, line)));
                    }
                }
            }
        }
        TableLayout { titles, groups }
    }

    /// The cells that have no place in their row, each behind its label.
    fn lines_below(&self, cells: &[Cell], below: &[usize], width: TableWidth) -> Vec<Line> {
        let labelled = |index: &usize| match self.columns[*index].fit {
            Fit::Below(label) if cells[*index].text != EMPTY => {
                Some(format!("{label} {}", cells[*index].text))
            }
            _ => None,
        };
        let parts: Vec<String> = below.iter().filter_map(labelled).collect();
        if parts.is_empty() {
            return Vec::new();
        }
        let lines = wrap::joined(INDENT, INDENT, &parts, &" ".repeat(GAP), width);
        lines.iter().map(|line| indented(Role::Faint, line)).collect()
    }

    /// The width of the widest cell of each of these columns.
    fn natural_widths(&self, shown: &[usize]) -> Vec<usize> {
        let mut widths: Vec<usize> = shown.iter().map(|index| self.columns[*index].title.width()).collect();
        for row in &self.rows {
            if let Row::Cells(cells) = row {
                for (width, index) in widths.iter_mut().zip(shown) {
                    *width = (*width).max(cells[*index].text.width());
                }
            }
        }
        widths
    }

    /// Like [`Self::natural_widths`], with names as short as they may be in a row with ids.
    fn readable_widths(&self, shown: &[usize]) -> Vec<usize> {
        let natural = self.natural_widths(shown);
        let readable = natural.iter().zip(shown).map(|(width, index)| match self.columns[*index].fit {
            Fit::Shorten => (*width).min(READABLE_NAME),
            Fit::Below(_) | Fit::Whole => *width,
        });
        readable.collect()
    }

    fn fitted_widths(&self, shown: &[usize], width: TableWidth) -> Vec<usize> {
        let mut widths = self.natural_widths(shown);
        let TableWidth::Columns(limit) = width else { return widths };
        while total(&widths) > limit {
            let can_shrink =
                |index: &usize| self.columns[shown[*index]].fit == Fit::Shorten && widths[*index] > NARROWEST;
            let Some(widest) = (0..widths.len()).filter(can_shrink).max_by_key(|index| widths[*index]) else {
                break;
            };
            widths[widest] -= 1;
        }
        widths
    }
}

impl Group {
    fn lines(&self) -> impl Iterator<Item = &Line> {
        std::iter::once(&self.row).chain(&self.below).chain(&self.notes)
    }
}

/// The width of a line with columns of these widths.
fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

fn line<'a>(cells: impl Iterator<Item = (&'a str, Role)>, widths: &[usize]) -> Line {
    let mut line = Line::new();
    // Spaces are added before the next cell only, so that no line ends with them.
    let mut spaces = 0;
    for ((text, role), width) in cells.zip(widths) {
        let text = shortened(text, *width);
        let taken = text.width();
        if !text.is_empty() {
            line.push(Span { role: Role::Normal, text: " ".repeat(spaces) });
            line.push(Span { role, text });
            spaces = 0;
        }
        spaces += width.saturating_sub(taken) + GAP;
    }
    line
}

/// A line of one role; its indentation has none.
fn indented(role: Role, line: &str) -> Line {
    let (indentation, text) = line.split_at(line.len() - line.trim_start_matches(' ').len());
    vec![Span { role: Role::Normal, text: indentation.to_owned() }, Span { role, text: text.to_owned() }]
}

/// A text of at most this many columns; a longer one ends with an ellipsis.
pub(crate) fn shortened(text: &str, width: usize) -> String {
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

fn visible(cell: Cell) -> Cell {
    Cell { text: visible_lines(&cell.text).replace(['\n', '\t'], " "), role: cell.role }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(names: &[&str]) -> Table {
        let mut table = Table::new([Column::whole("ID"), Column::names("NAME"), Column::whole("STATE")]);
        for name in names {
            table.row(["0123456789abcdef", name, "connected"].map(str::to_owned));
        }
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_cell_and_a_pipe_shortens_nothing() {
        let long = "a-name-that-is-much-longer-than-any-title";
        let lines = table(&["box1", long]).lines(TableWidth::Unlimited, Colours::Plain);
        assert_eq!(lines[0].find("STATE"), lines[1].find("connected"));
        assert_eq!(lines[1].find("connected"), lines[2].find("connected"));
        assert!(lines[2].contains(long), "{lines:?}");
    }

    #[test]
    fn wide_characters_do_not_shift_the_next_column() {
        let lines = table(&["ascii", "沙箱一号", "e\u{301}galite\u{301}"])
            .lines(TableWidth::Unlimited, Colours::Plain);
        let columns: Vec<usize> =
            lines[1..].iter().map(|line| line.split("connected").next().unwrap().width()).collect();
        assert_eq!(columns, [28; 3], "{lines:?}");
    }

    #[test]
    fn a_narrow_terminal_shortens_names_and_no_ids() {
        let lines = table(&["a-name-that-is-much-longer-than-any-title"])
            .lines(TableWidth::Columns(40), Colours::Plain);
        assert_eq!(lines[1], "0123456789abcdef  a-name-tha…  connected");
        let lines = table(&["沙箱一号沙箱一号"]).lines(TableWidth::Columns(39), Colours::Plain);
        assert_eq!(
            lines[1], "0123456789abcdef  沙箱一号…   connected",
            "a wide character is not cut in half"
        );
        assert!(lines.iter().all(|line| line.width() <= 39), "{lines:?}");
        let lines = table(&["a-name-that-is-long"]).lines(TableWidth::Columns(10), Colours::Plain);
        assert_eq!(
            lines[1], "0123456789abcdef  a-name-…  connected",
            "only names are shortened, and not to nothing"
        );
    }

    #[test]
    fn a_cell_cannot_control_the_terminal() {
        let mut table = table(&["\u{1b}[2Jgone", "two\nlines"]);
        table.note("a reason\nof two lines".to_owned());
        let lines = table.lines(TableWidth::Unlimited, Colours::Plain);
        assert!(lines[1].contains("\\u{1b}[2Jgone") && lines[2].contains("two lines"), "{lines:?}");
        assert_eq!(lines[3], "  a reason of two lines");
    }

    #[test]
    fn ids_are_below_their_row_if_the_terminal_is_too_narrow() {
        let mut table = Table::new([
            Column::below("ID", "id"),
            Column::names("NAME"),
            Column::whole("STATE"),
            Column::below("OTHER", "other id"),
        ]);
        table.row(["0123456789abcdef", "box1", "connected", "-"].map(str::to_owned));
        table.row(["0123456789abcdef", "box2", "lost", "fedcba9876543210"].map(str::to_owned));
        table.note("a note of many words that is longer than forty columns".to_owned());
        assert_eq!(
            table.lines(TableWidth::Columns(40), Colours::Plain),
            [
                "NAME  STATE",
                "box1  connected",
                "  id 0123456789abcdef",
                "box2  lost",
                "  id 0123456789abcdef",
                "  other id fedcba9876543210",
                "  a note of many words that is longer",
                "    than forty columns",
            ]
        );
        let wide = table.lines(TableWidth::Columns(60), Colours::Plain);
        assert_eq!(wide[0], "ID                NAME  STATE      OTHER");
        assert_eq!(wide[2], "0123456789abcdef  box2  lost       fedcba9876543210");
    }

    #[test]
    fn a_role_colours_the_text_and_not_the_spaces() {
        let mut table = Table::new([Column::whole("A"), Column::whole("B")]);
        table.row([Cell::new(Role::Good, "ok"), Cell::new(Role::Normal, "x")]);
        let lines = table.lines(TableWidth::Columns(40), Colours::Ansi);
        assert_eq!(lines, ["\u{1b}[1mA\u{1b}[0m   \u{1b}[1mB\u{1b}[0m", "\u{1b}[32mok\u{1b}[0m  x"]);
    }
}
