//! Skips a value in one loop, without reporting its tokens or errors.
//!
//! Must stay true: [`Scanner`](super::Scanner) accepts every value that is accepted here, with the same end. [`skip_value`]
//! may return `None` for any value: then the scanner examines it and reports the error, if there is one.

use super::{Escapes, Shape, Surrogates, number, string};

/// The deepest nesting handled here: one bit per level.
const MAX_DEPTH: usize = 64;

/// The shape of the value that begins at `at`, and the position after it; `None` if it is nested more than `depth` deep.
/// Unpaired surrogates are accepted.
pub(super) fn skip_value(bytes: &[u8], at: usize, depth: usize) -> Option<(Shape, usize)> {
    let shape = match *bytes.get(at)? {
        b'"' => {
            let (quote, escapes) = match string::short_string_end(bytes, at + 1) {
                Some(quote) => (quote, Escapes::None),
                None => string::scan(bytes, at + 1, Surrogates::Any).ok()?,
            };
            return Some((Shape::String(escapes), quote + 1));
        }
        b'{' => Shape::Object,
        b'[' => Shape::Array,
        b'-' | b'0'..=b'9' => Shape::Number,
        _ => Shape::Literal,
    };
    Some((shape, skip_any_value(bytes, at, depth.min(MAX_DEPTH))?))
}

/// The position after the value at `at`, which may be nested `depth` deep; `depth` is at most [`MAX_DEPTH`].
fn skip_any_value(bytes: &[u8], mut at: usize, depth: usize) -> Option<usize> {
    // The open containers, the innermost at the lowest bit; set for an object.
    let (mut objects, mut open) = (0_u64, 0);
    loop {
        match *bytes.get(at)? {
            b'"' => at = string_end(bytes, at)?,
            first @ (b'{' | b'[') => {
                if open == depth {
                    return None;
                }
                at = skip_space(bytes, at + 1);
                let object = first == b'{';
                // In ASCII the closing bracket is the second after the opening one.
                if *bytes.get(at)? == first + 2 {
                    at += 1;
                } else {
                    (objects, open) = (objects << 1 | u64::from(object), open + 1);
                    if object {
                        at = skip_key(bytes, at)?;
                    }
                    continue;
                }
            }
            b'-' | b'0'..=b'9' => at = number::end(bytes, at)?,
            b't' => at = skip_literal(bytes, at, b"true")?,
            b'f' => at = skip_literal(bytes, at, b"false")?,
            b'n' => at = skip_literal(bytes, at, b"null")?,
            _ => return None,
        }
        // The end of a value, and perhaps of its containers.
        loop {
            if open == 0 {
                return Some(at);
            }
            at = skip_space(bytes, at);
            match (*bytes.get(at)?, objects & 1) {
                (b',', 1) => {
                    at = skip_key(bytes, skip_space(bytes, at + 1))?;
                    break;
                }
                (b',', _) => {
                    at = skip_space(bytes, at + 1);
                    break;
                }
                (b'}', 1) | (b']', 0) => (objects, open, at) = (objects >> 1, open - 1, at + 1),
                _ => return None,
            }
        }
    }
}

/// The position after the closing quote of the string whose opening quote is at `at`.
#[inline]
fn string_end(bytes: &[u8], at: usize) -> Option<usize> {
    match string::short_string_end(bytes, at + 1) {
        Some(quote) => Some(quote + 1),
        None => string::end(bytes, at + 1),
    }
}

/// The first position from `at` on that is not white space.
#[inline]
pub(super) fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\n' | b'\r') = bytes.get(at) {
        at += 1;
    }
    at
}

/// Skips the key at `at` and its colon; returns the position of its value.
#[inline]
fn skip_key(bytes: &[u8], at: usize) -> Option<usize> {
    if *bytes.get(at)? != b'"' {
        return None;
    }
    let colon = skip_space(bytes, string_end(bytes, at)?);
    (*bytes.get(colon)? == b':').then(|| skip_space(bytes, colon + 1))
}

fn skip_literal(bytes: &[u8], at: usize, literal: &[u8]) -> Option<usize> {
    bytes[at..].starts_with(literal).then_some(at + literal.len())
}
