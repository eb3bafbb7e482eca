//! Problems of a configuration: each with its line, a message and a hint.
//!
//! What must stay true: messages quote names of the file (of keys, servers, secrets, placeholders), never its values. A
//! credential may be written there by mistake, and these messages reach logs.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::spanned::{Span, Spanned};

/// Everything that is wrong with one file, in the order of its lines.
#[derive(Debug, Eq, PartialEq)]
pub struct Problems {
    pub path: PathBuf,
    pub list: Vec<Problem>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// `None` for a problem of the file as a whole.
    pub position: Option<Position>,
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

/// Line and column, both counted from one. The column counts characters, not bytes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl std::error::Error for Problems {}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:", self.path.display())?;
            if let Some(position) = problem.position {
                write!(f, "{}:", position.line)?;
            }
            write!(f, " {}\n  hint: {}", escaped(&problem.message), escaped(&problem.hint))?;
        }
        Ok(())
    }
}

/// Problems while they are being collected.
#[derive(Debug)]
pub(super) struct Report<'a> {
    text: &'a str,
    list: Vec<Problem>,
}

impl<'a> Report<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, list: Vec::new() }
    }

    pub(super) fn add(&mut self, span: &Span, message: impl Into<String>, hint: impl Into<String>) {
        let position = Some(self.position(span));
        self.list.push(Problem { position, message: message.into(), hint: hint.into() });
    }

    /// Adds a problem of the file as a whole.
    pub(super) fn add_for_file(&mut self, message: impl Into<String>, hint: impl Into<String>) {
        self.list.push(Problem { position: None, message: message.into(), hint: hint.into() });
    }

    /// Returns the value if it lies in the range; otherwise reports it.
    pub(super) fn check_range<T: Copy + Ord + fmt::Display>(
        &mut self,
        key: &str,
        written: &Spanned<T>,
        range: RangeInclusive<T>,
    ) -> Option<T> {
        if range.contains(&written.value) {
            return Some(written.value);
        }
        let (min, max) = range.into_inner();
        let complaint = match written.value < min {
            true => "too small",
            false => "too large",
        };
        self.add(
            &written.span,
            format!("`{key}` is {complaint}"),
            format!("use a value from {min} to {max}"),
        );
        None
    }

    pub(super) fn position(&self, span: &Span) -> Position {
        let before = &self.text[..self.text.floor_char_boundary(span.start)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Position {
            line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn into_problems(mut self, path: PathBuf) -> Problems {
        self.list.sort_by_key(|problem| problem.position);
        Problems { path, list: self.list }
    }
}

/// Escapes control characters: a key can contain any, and a terminal would interpret them.
fn escaped(text: &str) -> String {
    let escape = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    text.chars().map(escape).collect()
}
