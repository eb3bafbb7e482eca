//! The escapes of one JSON string, decoded exactly once, and the map from the decoded text back to the string.

use std::ops::Range;

/// The text of a JSON string, and where in the string each of its bytes comes from.
pub(super) struct DecodedString {
    pub(super) text: Vec<u8>,
    /// For each byte of the text, and for its end, where in the string its escape or character begins.
    starts: Vec<u32>,
}

impl DecodedString {
    /// Decodes the inside of a JSON string. Half a surrogate pair decodes to U+FFFD.
    pub(super) fn new(string: &[u8]) -> Self {
        let mut text = Vec::with_capacity(string.len());
        let mut starts = Vec::with_capacity(string.len() + 1);
        let mut at = 0;
        while let Some(byte) = string.get(at) {
            let start = narrow(at);
            match escape(&string[at..]) {
                Some(Escape { character, length }) => {
                    let mut bytes = [0; 4];
                    let decoded = character.encode_utf8(&mut bytes).as_bytes();
                    text.extend_from_slice(decoded);
                    starts.extend(decoded.iter().map(|_| start));
                    at += length;
                }
                None => {
                    text.push(*byte);
                    starts.push(start);
                    at += 1;
                }
            }
        }
        starts.push(narrow(string.len()));
        Self { text, starts }
    }

    /// The part of the string that encodes a part of the text, every escape in full.
    pub(super) fn encoded(&self, part: Range<usize>) -> Range<usize> {
        let last = self.starts[part.end - 1];
        let end = self.starts[part.end..].iter().find(|start| **start > last).copied().unwrap_or(last + 1);
        self.starts[part.start] as usize..end as usize
    }

    /// The part of the text that a part of the string encodes; `None` if that part begins inside an escape.
    pub(super) fn decoded(&self, part: Range<usize>) -> Option<Range<usize>> {
        let start = self.starts.partition_point(|start| (*start as usize) < part.start);
        let end = self.starts[..self.text.len()].partition_point(|start| (*start as usize) < part.end);
        (self.starts[start] as usize == part.start && start < end).then_some(start..end)
    }
}

/// A span widened so that it cuts neither an escape nor a character in two.
pub(super) fn whole_units(text: &[u8], span: Range<usize>) -> Range<usize> {
    let Range { start, end } = whole_characters(text, span);
    let start = escape_around(text, start).map_or(start, |escape| escape.start);
    let end = escape_around(text, end).map_or(end, |escape| escape.end);
    start..end
}

/// A span widened so that it cuts no character in two.
pub(super) fn whole_characters(text: &[u8], span: Range<usize>) -> Range<usize> {
    let continues = |at: usize| text.get(at).is_some_and(|byte| byte & 0xC0 == 0x80);
    let Range { mut start, mut end } = span;
    while start > 0 && continues(start) {
        start -= 1;
    }
    while continues(end) {
        end += 1;
    }
    start..end
}

struct Escape {
    character: char,
    length: usize,
}

/// The escape at the beginning of these bytes.
fn escape(bytes: &[u8]) -> Option<Escape> {
    let [b'\\', kind, ..] = bytes else { return None };
    let character = match kind {
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return numeric_escape(bytes),
        b'"' | b'\\' | b'/' => char::from(*kind),
        _ => return None,
    };
    Some(Escape { character, length: 2 })
}

fn numeric_escape(bytes: &[u8]) -> Option<Escape> {
    let code = |digits: &[u8]| {
        digits.iter().try_fold(0, |code, digit| Some(code << 4 | char::from(*digit).to_digit(16)?))
    };
    let first = code(bytes.get(2..6)?)?;
    let second = bytes.get(6..12).filter(|next| next.starts_with(b"\\u")).and_then(|next| code(&next[2..]));
    let or_invalid = |code| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    Some(match (first, second) {
        (0xD800..0xDC00, Some(second @ 0xDC00..0xE000)) => {
            let code = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
            Escape { character: or_invalid(code), length: 12 }
        }
        _ => Escape { character: or_invalid(first), length: 6 },
    })
}

/// The escape that begins before `at` and ends after it.
fn escape_around(text: &[u8], at: usize) -> Option<Range<usize>> {
    /// Of a surrogate pair.
    const MAX_ESCAPE_BYTES: usize = 12;
    (at.saturating_sub(MAX_ESCAPE_BYTES - 1)..at).find_map(|start| {
        let backslashes = text[..start].iter().rev().take_while(|byte| **byte == b'\\').count();
        if text[start] != b'\\' || backslashes % 2 == 1 {
            return None;
        }
        let end = start + escape(&text[start..])?.length;
        (end > at).then_some(start..end)
    })
}

/// Messages are far smaller than 4 GiB.
fn narrow(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}
