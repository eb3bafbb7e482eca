//! What is wrong with a configuration: each problem with its line, what it is, and the next step.
//!
//! Must stay true: messages repeat names that stand in the file (of keys, servers, secrets, placeholders), never
//! its values. A credential may be written there by mistake, and these texts reach logs.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::at::{At, Span};

/// Everything that is wrong with one file, in the order of its lines.
#[derive(Debug, Eq, PartialEq)]
pub struct Problems {
    pub path: PathBuf,
    pub list: Vec<Problem>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// None where the file as a whole is the problem.
    pub place: Option<Place>,
    pub message: String,
    /// The next step.
    pub hint: String,
}

/// Both count from one; the column counts characters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Place {
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
            if let Some(place) = problem.place {
                write!(f, "{}:", place.line)?;
            }
            write!(f, " {}\n  hint: {}", visible(&problem.message), visible(&problem.hint))?;
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
        let place = Some(self.place(span));
        self.list.push(Problem { place, message: message.into(), hint: hint.into() });
    }

    /// A problem of the file as a whole.
    pub(super) fn add_anywhere(&mut self, message: impl Into<String>, hint: impl Into<String>) {
        self.list.push(Problem { place: None, message: message.into(), hint: hint.into() });
    }

    /// A value that must lie in a range; what is outside is reported.
    pub(super) fn within<T: Copy + Ord + fmt::Display>(
        &mut self,
        key: &str,
        written: &At<T>,
        range: RangeInclusive<T>,
    ) -> Option<T> {
        if range.contains(&written.value) {
            return Some(written.value);
        }
        let (least, most) = range.into_inner();
        let complaint = match written.value < least {
            true => "too small",
            false => "too large",
        };
        self.add(
            &written.span,
            format!("`{key}` is {complaint}"),
            format!("use a value from {least} to {most}"),
        );
        None
    }

    pub(super) fn place(&self, span: &Span) -> Place {
        let before = &self.text[..self.text.floor_char_boundary(span.start)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place {
            line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn into_problems(mut self, path: PathBuf) -> Problems {
        self.list.sort_by_key(|problem| problem.place);
        Problems { path, list: self.list }
    }
}

/// Keys can hold anything; a terminal should not obey them.
fn visible(text: &str) -> String {
    let show = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    text.chars().map(show).collect()
}
