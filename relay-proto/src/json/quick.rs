//! Skipping a value in one loop, without reporting its tokens or errors.
//!
//! Must stay true: what is accepted here is what [`Scanner`](super::Scanner) accepts token by token, and no byte more. It
//! may return `None` for anything: then the scanner examines the value and reports the error, if there is one.

use super::{Escapes, Shape, Surrogates, number, string};

/// The deepest nesting handled here: one bit per level.
const DEPTH: usize = 64;

/// The shape of the value that begins at `at`, and where it ends. It is nested at most `depth` deep; unpaired surrogates
/// are accepted.
pub(super) fn skip_value(bytes: &[u8], at: usize, depth: usize) -> Option<(Shape, usize)> {
    let shape = match *bytes.get(at)? {
        b'"' => {
            let (quote, escapes) = match string::short(bytes, at + 1) {
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
    Some((shape, value(bytes, at, depth.min(DEPTH))?))
}

/// The end of the value at `at`, which is nested at most `depth` deep; `depth` is at most [`DEPTH`].
fn value(bytes: &[u8], mut at: usize, depth: usize) -> Option<usize> {
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
                        at = key(bytes, at)?;
                    }
                    continue;
                }
            }
            b'-' | b'0'..=b'9' => at = number::end(bytes, at)?,
            b't' => at = literal(bytes, at, b"true")?,
            b'f' => at = literal(bytes, at, b"false")?,
            b'n' => at = literal(bytes, at, b"null")?,
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
                    at = key(bytes, skip_space(bytes, at + 1))?;
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
    match string::short(bytes, at + 1) {
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

/// The start of the value of the key at `at`.
#[inline]
fn key(bytes: &[u8], at: usize) -> Option<usize> {
    if *bytes.get(at)? != b'"' {
        return None;
    }
    let colon = skip_space(bytes, string_end(bytes, at)?);
    (*bytes.get(colon)? == b':').then(|| skip_space(bytes, colon + 1))
}

fn literal(bytes: &[u8], at: usize, literal: &[u8]) -> Option<usize> {
    bytes[at..].starts_with(literal).then_some(at + literal.len())
}
