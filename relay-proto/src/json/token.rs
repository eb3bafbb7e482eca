//! Tokens and values that the scanner returns, with their spans.

use std::borrow::Cow;
use std::ops::Range;

use super::string;

/// A token. Commas and colons are checked but not returned.
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

/// A string in the message, not decoded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Text {
    /// Its span, quotes included.
    pub span: Range<usize>,
    pub escapes: Escapes,
}

/// A whole value: its shape and span.
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

/// Whether a string has escapes. Without any, the bytes between its quotes are its text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Escapes {
    None,
    Some,
}

impl Text {
    /// The span between the quotes.
    pub fn inner(&self) -> Range<usize> {
        self.span.start + 1..self.span.end - 1
    }

    /// The text of this string of `source`; `None` if it has an unpaired surrogate.
    pub fn decode<'a>(&self, source: &'a str) -> Option<Cow<'a, str>> {
        let inner = &source[self.inner()];
        match self.escapes {
            Escapes::None => Some(Cow::Borrowed(inner)),
            Escapes::Some => string::decode(inner),
        }
    }
}

impl Value {
    /// The value as a string, if it is one.
    pub fn as_text(&self) -> Option<Text> {
        match self.shape {
            Shape::String(escapes) => Some(Text { span: self.span.clone(), escapes }),
            _ => None,
        }
    }
}
