//! A strict JSON scanner (RFC 8259, UTF-8) that finds values in a message without changing a byte.
//!
//! [`Scanner`] reads a message once, front to back, without recursion, and returns tokens with their positions.
//! What must stay true: it accepts valid JSON and nothing else, it allocates at most one bit per level of nesting, and
//! every span that it returns lies on character boundaries of the message.
//!
//! [`member`], [`elements`] and [`text`] look up values in JSON that was scanned before. The `quick_*` functions are a
//! fast path for messages that were not. [`edit`] changes a message by splicing.

pub mod edit;
mod nesting;
mod number;
mod quick;
mod scanner;
mod string;
#[cfg(test)]
mod tests;
mod token;

use std::borrow::Cow;
use std::ops::Range;

pub use edit::{line_safe, remove_elements, replace};
pub use scanner::{Rules, Scanner, Surrogates};
pub use token::{Escapes, Shape, Text, Token, Value};

/// The first error in the JSON.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{problem} at byte {offset}")]
pub struct JsonError {
    pub offset: usize,
    pub problem: Problem,
}

/// What is wrong at the offset.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Problem {
    #[error("a raw control character in a string")]
    ControlCharacter,
    #[error("a colon was expected")]
    ExpectedColon,
    #[error("a comma or a closing bracket was expected")]
    ExpectedCommaOrClose,
    #[error("a key in quotes was expected")]
    ExpectedKey,
    #[error("a value was expected")]
    ExpectedValue,
    #[error("an invalid escape in a string")]
    InvalidEscape,
    #[error("a number that JSON does not allow")]
    InvalidNumber,
    #[error("bytes that are not UTF-8")]
    InvalidUtf8,
    #[error("an unpaired surrogate in a string")]
    LoneSurrogate,
    #[error("nesting that is too deep")]
    TooDeep,
    #[error("more text after the end of the value")]
    TrailingData,
    #[error("the text ends inside a value")]
    UnexpectedEnd,
}

/// The position of a value that is still to be skipped, and how deep it may be nested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueStart {
    at: usize,
    depth: usize,
}

/// Walks the object `source`, nested at most `depth` deep, in one pass: `member` is called with each key, skips its value
/// and returns the position after it. Returns whether the whole object was accepted.
///
/// A fast path for usual messages, with short keys without escapes and little nesting: it may reject any message, but
/// accepts none that [`Scanner`] refuses.
pub(crate) fn quick_message<'a>(
    source: &'a str,
    depth: usize,
    member: impl FnMut(&'a str, ValueStart) -> Option<usize>,
) -> bool {
    let bytes = source.as_bytes();
    let object = quick_object(source, ValueStart { at: quick::skip_space(bytes, 0), depth }, member);
    object.is_some_and(|object| quick::skip_space(bytes, object.span.end) == bytes.len())
}

/// Like [`quick_message`], for an object inside a message.
pub(crate) fn quick_object<'a>(
    source: &'a str,
    ValueStart { at: start, depth }: ValueStart,
    mut member: impl FnMut(&'a str, ValueStart) -> Option<usize>,
) -> Option<Value> {
    let bytes = source.as_bytes();
    let depth_inside = depth.checked_sub(1)?;
    let skip_byte = |at: usize, byte: u8| (*bytes.get(at)? == byte).then(|| quick::skip_space(bytes, at + 1));
    let object = |end| Some(Value { shape: Shape::Object, span: start..end });
    let mut at = skip_byte(start, b'{')?;
    if *bytes.get(at)? == b'}' {
        return object(at + 1);
    }
    loop {
        skip_byte(at, b'"')?;
        let key = at + 1..string::short_string_end(bytes, at + 1)?;
        let value = skip_byte(quick::skip_space(bytes, key.end + 1), b':')?;
        let end = member(&source[key], ValueStart { at: value, depth: depth_inside })?;
        let after = quick::skip_space(bytes, end);
        if let Some(next) = skip_byte(after, b',') {
            at = next;
            continue;
        }
        return if *bytes.get(after)? == b'}' { object(after + 1) } else { None };
    }
}

/// Like [`quick_message`], for any value inside a message.
pub(crate) fn quick_value(source: &str, start: ValueStart) -> Option<Value> {
    let (shape, end) = quick::skip_value(source.as_bytes(), start.at, start.depth)?;
    Some(Value { shape, span: start.at..end })
}

impl ValueStart {
    /// Whether the value begins with `{`.
    pub(crate) fn is_object(self, source: &str) -> bool {
        source.as_bytes().get(self.at) == Some(&b'{')
    }
}

/// The span of the value of `key` in the object at `object`, a span of valid JSON. If the key is repeated, the first
/// value is returned.
pub fn member(bytes: &[u8], object: Range<usize>, key: &str) -> Option<Range<usize>> {
    let base = object.start;
    let mut scanner = Scanner::new(bytes.get(object)?, Rules::LENIENT).ok()?;
    if scanner.next().ok()?? != Token::ObjectStart {
        return None;
    }
    while let Some(found) = scanner.key().ok()? {
        let value = scanner.value().ok()?;
        if found.decode(scanner.source()).is_some_and(|found| found == key) {
            return Some(base + value.span.start..base + value.span.end);
        }
    }
    None
}

/// The spans of the elements of the array at `array`, in order; empty if it is not an array.
pub fn elements(bytes: &[u8], array: Range<usize>) -> Vec<Range<usize>> {
    elements_of(bytes, array).unwrap_or_default()
}

/// The decoded string at `span`; `None` if it is not a string, or has an unpaired surrogate.
pub fn text(bytes: &[u8], span: Range<usize>) -> Option<Cow<'_, str>> {
    let mut scanner = Scanner::new(bytes.get(span)?, Rules::LENIENT).ok()?;
    let Token::String(text) = scanner.next().ok()?? else { return None };
    match scanner.next() {
        Ok(None) => text.decode(scanner.source()),
        Ok(Some(_)) | Err(_) => None,
    }
}

fn elements_of(bytes: &[u8], array: Range<usize>) -> Option<Vec<Range<usize>>> {
    let base = array.start;
    let mut scanner = Scanner::new(bytes.get(array)?, Rules::LENIENT).ok()?;
    if scanner.next().ok()?? != Token::ArrayStart {
        return None;
    }
    let mut spans = Vec::new();
    while let Some(value) = scanner.element().ok()? {
        spans.push(base + value.span.start..base + value.span.end);
    }
    Some(spans)
}
