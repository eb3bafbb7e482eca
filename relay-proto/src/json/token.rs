//! What the scanner finds: pieces of JSON, and where they stand.

use std::borrow::Cow;
use std::ops::Range;

use super::string;

/// A piece of JSON. Commas and colons are checked and not told.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Token {
    ArrayEnd,
    ArrayStart,
    Key(Text),
    /// `true`, `false` or `null`.
    Literal(Range<usize>),
    Number(Range<usize>),
    ObjectEnd,
    ObjectStart,
    String(Text),
}

/// A string as it is spelled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Text {
    /// Where it stands, quotes included.
    pub span: Range<usize>,
    pub escapes: Escapes,
}

/// A whole value: what it is and where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Value {
    pub shape: Shape,
    pub span: Range<usize>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shape {
    Array,
    Literal,
    Number,
    Object,
    String(Escapes),
}

/// Whether a string has escapes; without, what is between its quotes is its text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Escapes {
    None,
    Some,
}

impl Text {
    /// Where the characters between the quotes stand.
    pub fn inner(&self) -> Range<usize> {
        self.span.start + 1..self.span.end - 1
    }

    /// What this string of `source` says; none where it has half a surrogate pair.
    pub fn decode<'a>(&self, source: &'a str) -> Option<Cow<'a, str>> {
        let inner = &source[self.inner()];
        match self.escapes {
            Escapes::None => Some(Cow::Borrowed(inner)),
            Escapes::Some => string::decode(inner),
        }
    }
}

impl Value {
    /// The string that it is; none where it is something else.
    pub fn as_text(&self) -> Option<Text> {
        match self.shape {
            Shape::String(escapes) => Some(Text { span: self.span.clone(), escapes }),
            _ => None,
        }
    }
}
