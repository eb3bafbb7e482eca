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
    /// Whether there are escapes in it; without, what is between the quotes is the text.
    pub escaped: bool,
}

/// A whole value: what it is and where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Value {
    pub shape: Shape,
    pub span: Range<usize>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Shape {
    Array,
    Literal,
    Number,
    Object,
    String(Text),
}

impl Text {
    /// Where the characters between the quotes stand.
    pub fn inner(&self) -> Range<usize> {
        self.span.start + 1..self.span.end - 1
    }

    /// What this string of `source` says; none where it has half a surrogate pair.
    pub fn decode<'a>(&self, source: &'a str) -> Option<Cow<'a, str>> {
        let inner = &source[self.inner()];
        if self.escaped { string::decode(inner) } else { Some(Cow::Borrowed(inner)) }
    }
}
