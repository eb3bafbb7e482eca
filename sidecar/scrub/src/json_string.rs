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

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of a JSON string that must not be cut, and the text that each stands for.
    const UNITS: [(&str, &str); 16] = [
        ("x", "x"),
        ("\\b", "\u{8}"),
        ("\\f", "\u{c}"),
        ("\\n", "\n"),
        ("\\r", "\r"),
        ("\\t", "\t"),
        ("\\u0041", "A"),
        ("\\\\", "\\"),
        ("n", "n"),
        ("\\\"", "\""),
        ("\\/", "/"),
        ("é", "é"),
        ("\\u20AC", "€"),
        ("\\ud83d\\ude42", "🙂"),
        ("\\udbff\\udffe", "\u{10fffe}"),
        ("y", "y"),
    ];

    /// Where each unit begins, and the end: in the string and in its text.
    fn boundaries() -> Vec<(usize, usize)> {
        let mut all = vec![(0, 0)];
        for (encoded, text) in UNITS {
            let (string_end, text_end) = *all.last().unwrap();
            all.push((string_end + encoded.len(), text_end + text.len()));
        }
        all
    }

    fn string() -> String {
        UNITS.map(|(encoded, _)| encoded).concat()
    }

    #[test]
    fn every_escape_is_decoded_once() {
        let text = UNITS.map(|(_, text)| text).concat();
        assert_eq!(DecodedString::new(string().as_bytes()).text, text.as_bytes());
        assert_eq!(serde_json::from_str::<String>(&format!("\"{}\"", string())).unwrap(), text);
        for (invalid, text) in [
            ("\\ud83dx", "\u{fffd}x"),
            ("\\ude42\\ud83d", "\u{fffd}\u{fffd}"),
            ("\\ud83d\\u0041", "\u{fffd}A"),
            ("\\u00g1", "\\u00g1"),
            ("\\u004", "\\u004"),
            ("\\x", "\\x"),
            ("\\", "\\"),
        ] {
            assert_eq!(DecodedString::new(invalid.as_bytes()).text, text.as_bytes(), "{invalid}");
        }
    }

    #[test]
    fn a_part_of_the_string_and_the_text_that_it_encodes_are_found_from_each_other() {
        let decoded = DecodedString::new(string().as_bytes());
        let boundaries = boundaries();
        for (at, first) in boundaries.iter().enumerate() {
            for last in &boundaries[at + 1..] {
                assert_eq!(decoded.encoded(first.1..last.1), first.0..last.0);
                assert_eq!(decoded.decoded(first.0..last.0), Some(first.1..last.1));
            }
            assert_eq!(decoded.decoded(first.0..first.0), None, "an empty part");
        }
        let (escape, _) = boundaries[6];
        assert_eq!(&string()[escape..escape + 6], "\\u0041");
        assert_eq!(decoded.decoded(escape + 1..string().len()), None, "a part that begins inside an escape");
    }

    #[test]
    fn a_span_is_widened_to_whole_escapes_and_characters_and_no_further() {
        let string = string();
        let boundaries: Vec<usize> = boundaries().into_iter().map(|(at, _)| at).collect();
        for start in 0..string.len() {
            for end in start + 1..=string.len() {
                let whole_start = *boundaries.iter().rfind(|at| **at <= start).unwrap();
                let whole_end = *boundaries.iter().find(|at| **at >= end).unwrap();
                assert_eq!(
                    whole_units(string.as_bytes(), start..end),
                    whole_start..whole_end,
                    "{start}..{end}"
                );
                let characters = whole_characters(string.as_bytes(), start..end);
                assert_eq!(characters, string.floor_char_boundary(start)..string.ceil_char_boundary(end));
            }
        }
        assert_eq!(whole_characters(b"\x80\x80x", 1..2), 0..2, "text that begins inside a character");
    }
}
