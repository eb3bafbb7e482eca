//! The content of JSON strings: finds their end fast, and decodes their escapes.

use std::borrow::Cow;

use super::scanner::Surrogates;
use super::{Escapes, JsonError, Problem};

/// The position of the closing quote of a short string without escapes; `at` is the position after the opening quote.
/// `None` for any other string: then [`scan`] is needed.
#[inline]
pub(super) fn short_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let first = mark_special(*bytes.get(at..)?.first_chunk()?);
    let quote = if first != 0 {
        at + (first.trailing_zeros() / 8) as usize
    } else {
        let second = mark_special(*bytes.get(at + 8..)?.first_chunk()?);
        if second == 0 {
            return None;
        }
        at + 8 + (second.trailing_zeros() / 8) as usize
    };
    (*bytes.get(quote)? == b'"').then_some(quote)
}

/// The position after the closing quote of the string whose first character is at `at`; `None` if it is malformed.
/// Unpaired surrogates are accepted.
pub(super) fn end(bytes: &[u8], at: usize) -> Option<usize> {
    let (quote, _) = scan(bytes, at, Surrogates::Any).ok()?;
    Some(quote + 1)
}

/// Reads a string; `at` is the position after its opening quote. Returns the position of the closing quote, and whether
/// there are escapes.
pub(super) fn scan(
    bytes: &[u8],
    mut at: usize,
    surrogates: Surrogates,
) -> Result<(usize, Escapes), JsonError> {
    let mut escapes = Escapes::None;
    loop {
        at = find_special(bytes, at);
        match bytes.get(at) {
            None => return Err(JsonError { offset: at, problem: Problem::UnexpectedEnd }),
            Some(b'"') => return Ok((at, escapes)),
            Some(b'\\') => {
                escapes = Escapes::Some;
                at = check_escape(bytes, at, surrogates)?;
            }
            Some(_) => return Err(JsonError { offset: at, problem: Problem::ControlCharacter }),
        }
    }
}

/// The text between the quotes; `None` if an escape is an unpaired surrogate.
pub(super) fn decode(inner: &str) -> Option<Cow<'_, str>> {
    let Some(first) = inner.find('\\') else { return Some(Cow::Borrowed(inner)) };
    let mut decoded = String::with_capacity(inner.len());
    decoded.push_str(&inner[..first]);
    let mut rest = &inner[first..];
    while let Some(stripped) = rest.strip_prefix('\\') {
        let (character, length) = match stripped.as_bytes().first()? {
            b'b' => ('\u{8}', 1),
            b'f' => ('\u{c}', 1),
            b'n' => ('\n', 1),
            b'r' => ('\r', 1),
            b't' => ('\t', 1),
            b'u' => decode_unicode_escape(stripped.as_bytes())?,
            other @ (b'"' | b'\\' | b'/') => (char::from(*other), 1),
            _ => return None,
        };
        decoded.push(character);
        let after = &stripped[length..];
        let plain = after.find('\\').unwrap_or(after.len());
        decoded.push_str(&after[..plain]);
        rest = &after[plain..];
    }
    Some(Cow::Owned(decoded))
}

/// The character of the escape `uXXXX` or `uXXXX\uXXXX`, and the length of the escape.
fn decode_unicode_escape(escape: &[u8]) -> Option<(char, usize)> {
    let first = read_hex(escape, 1)?;
    if !(0xD800..0xDC00).contains(&first) {
        return Some((char::from_u32(first)?, 5));
    }
    let second = read_hex(escape, 7).filter(|_| escape[5..].starts_with(b"\\u"))?;
    let low = second.checked_sub(0xDC00).filter(|low| *low < 0x400)?;
    Some((char::from_u32(0x1_0000 + ((first - 0xD800) << 10) + low)?, 11))
}

/// Checks the escape whose backslash is at `at` and returns the position after it.
fn check_escape(bytes: &[u8], at: usize, surrogates: Surrogates) -> Result<usize, JsonError> {
    let invalid = JsonError { offset: at, problem: Problem::InvalidEscape };
    match bytes.get(at + 1) {
        None => Err(JsonError { offset: at, problem: Problem::UnexpectedEnd }),
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u') => {
            let first = read_hex(bytes, at + 2).ok_or(invalid)?;
            if surrogates == Surrogates::Any || !(0xD800..0xE000).contains(&first) {
                return Ok(at + 6);
            }
            let low = bytes.get(at + 6..at + 8) == Some(b"\\u")
                && read_hex(bytes, at + 8).is_some_and(|second| (0xDC00..0xE000).contains(&second));
            if first < 0xDC00 && low {
                Ok(at + 12)
            } else {
                Err(JsonError { offset: at, problem: Problem::LoneSurrogate })
            }
        }
        Some(_) => Err(invalid),
    }
}

/// The value of the four hexadecimal digits at `at`.
fn read_hex(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 4)?;
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | char::from(*digit).to_digit(16)?))
}

/// The first quote, backslash or control character from `at` on, or the end.
///
/// Most strings are short, or have an escaped line end every so often: their first 256 bytes are examined in words of 8
/// bytes. Longer strings are examined in blocks, which the compiler turns into the widest vector instructions.
#[inline]
fn find_special(bytes: &[u8], mut at: usize) -> usize {
    let blocks_from = at + WORDS_FIRST;
    while let Some(word) = bytes[at..].first_chunk() {
        let marks = mark_special(*word);
        if marks != 0 {
            return at + (marks.trailing_zeros() / 8) as usize;
        }
        at += word.len();
        if at == blocks_from {
            at += plain_blocks(&bytes[at..]) * BLOCK;
        }
    }
    let tail = bytes[at..].iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1F));
    tail.map_or(bytes.len(), |found| at + found)
}

/// Bytes of one block.
const BLOCK: usize = 64;
/// The length from which blocks are faster: longer than a line of text.
const WORDS_FIRST: usize = 256;

/// How many blocks at the beginning contain no special byte.
///
/// Never inlined: inside a caller that is optimised for size it would be compiled to a loop over single bytes.
#[inline(never)]
fn plain_blocks(bytes: &[u8]) -> usize {
    bytes.chunks_exact(BLOCK).take_while(|block| is_plain(block)).count()
}

/// Whether no byte of the block is special. There is no early exit, so the compiler vectorises the loop.
#[inline]
fn is_plain(block: &[u8]) -> bool {
    let special = |byte: &u8| u8::from((*byte == b'"') | (*byte == b'\\') | (*byte < 0x20));
    block.iter().fold(0, |found, byte| found | special(byte)) == 0
}

/// Sets the high bit of each special byte. The lowest bit that is set is always correct; higher ones may be wrong.
#[inline]
fn mark_special(word: [u8; 8]) -> u64 {
    const ONES: u64 = u64::MAX / 0xFF;
    const HIGH: u64 = ONES * 0x80;
    let word = u64::from_le_bytes(word);
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    // `(x - n) & !x` sets the high bit of each byte below n; the three words have the same high bits, so one `!` is enough.
    // A borrow can mark a byte wrongly only above a byte that is marked correctly, so the lowest mark is always correct.
    let below = word.wrapping_sub(ONES * 0x20) | quote.wrapping_sub(ONES) | backslash.wrapping_sub(ONES);
    below & !word & HIGH
}
