//! Text with its escapes or percent-encoding decoded, and the map from each decoded byte back to its source.

use std::ops::Range;

/// An encoding of bytes as other bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Coding {
    /// `\n`, `\u0041`. Other bytes decode to themselves, so that any text can be decoded.
    JsonEscapes,
    /// `%41`, whichever bytes were encoded.
    Percent,
}

/// For each decoded byte, and for the end, where in the source it begins.
pub(super) struct SourceMap(Vec<usize>);

impl Coding {
    /// The decoded text; `None` if there is nothing to decode.
    pub(super) fn decode(self, source: &[u8]) -> Option<Vec<u8>> {
        let first = self.next_mark(source, 0)?;
        let mut decoded = Vec::with_capacity(source.len());
        decoded.extend_from_slice(&source[..first]);
        self.decode_from(source, first, |bytes, _| decoded.extend_from_slice(bytes));
        (decoded.len() < source.len()).then_some(decoded)
    }

    /// Where the bytes that [`Coding::decode`] returns come from.
    pub(super) fn source_map(self, source: &[u8]) -> SourceMap {
        let mut starts = Vec::with_capacity(source.len() + 1);
        self.decode_from(source, 0, |bytes, piece| match piece {
            Piece::Coded(start) => starts.extend(bytes.iter().map(|_| start)),
            Piece::Plain(start) => starts.extend(start..start + bytes.len()),
        });
        starts.push(source.len());
        SourceMap(starts)
    }

    fn decode_from(self, source: &[u8], mut at: usize, mut put: impl FnMut(&[u8], Piece)) {
        while at < source.len() {
            let mark = self.next_mark(source, at).unwrap_or(source.len());
            put(&source[at..mark], Piece::Plain(at));
            if mark == source.len() {
                return;
            }
            at = match self.decode_unit(&source[mark..]) {
                Some(unit) => {
                    put(&unit.bytes[..unit.decoded], Piece::Coded(mark));
                    mark + unit.length
                }
                None => {
                    put(&source[mark..=mark], Piece::Plain(mark));
                    mark + 1
                }
            };
        }
    }

    /// The next byte that may begin an escape or percent-encoded byte.
    fn next_mark(self, source: &[u8], at: usize) -> Option<usize> {
        let mark = match self {
            Self::JsonEscapes => b'\\',
            Self::Percent => b'%',
        };
        source[at..].iter().position(|byte| *byte == mark).map(|found| at + found)
    }

    /// Decodes the escape or percent-encoded byte at the beginning of `source`, which starts with `\` or `%`.
    fn decode_unit(self, source: &[u8]) -> Option<Unit> {
        match self {
            Self::JsonEscapes => decode_escape(source),
            Self::Percent => {
                let byte = u8::try_from(hexadecimal(source.get(1..3)?)?).ok()?;
                Some(Unit { bytes: [byte, 0, 0, 0], decoded: 1, length: 3 })
            }
        }
    }
}

impl SourceMap {
    /// The source of a decoded span, with every unit that it touches in full.
    pub(super) fn span(&self, decoded: Range<usize>) -> Range<usize> {
        let last = self.0[decoded.end - 1];
        let end = self.0[decoded.end..].iter().find(|start| **start > last);
        self.0[decoded.start]..*end.expect("the end of the source is after all its bytes")
    }
}

/// A span widened so that it cuts neither an escape nor a character in two.
pub(super) fn whole_units(text: &[u8], span: Range<usize>) -> Range<usize> {
    let continues = |at: usize| text.get(at).is_some_and(|byte| byte & 0xC0 == 0x80);
    let Range { mut start, mut end } = span;
    while start > 0 && continues(start) {
        start -= 1;
    }
    while continues(end) {
        end += 1;
    }
    let start = escape_around(text, start).map_or(start, |escape| escape.start);
    let end = escape_around(text, end).map_or(end, |escape| escape.end);
    start..end
}

/// Where a decoded piece begins in the source.
enum Piece {
    Coded(usize),
    Plain(usize),
}

/// One escape or percent-encoded byte: the decoded bytes, and its length in the source.
struct Unit {
    bytes: [u8; 4],
    decoded: usize,
    length: usize,
}

impl Unit {
    fn new(character: char, length: usize) -> Self {
        let mut bytes = [0; 4];
        let decoded = character.encode_utf8(&mut bytes).len();
        Self { bytes, decoded, length }
    }
}

/// Decodes the escape at the beginning of `source`. Half a surrogate pair decodes to U+FFFD.
fn decode_escape(source: &[u8]) -> Option<Unit> {
    let character = match source.get(1)? {
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let first = hexadecimal(source.get(2..6)?)?;
            let second = source
                .get(6..12)
                .filter(|next| next.starts_with(b"\\u"))
                .and_then(|next| hexadecimal(&next[2..]));
            return Some(match (first, second) {
                (0xD800..0xDC00, Some(second @ 0xDC00..0xE000)) => {
                    let code = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
                    Unit::new(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12)
                }
                _ => Unit::new(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), 6),
            });
        }
        other @ (b'"' | b'\\' | b'/') => char::from(*other),
        _ => return None,
    };
    Some(Unit::new(character, 2))
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
        let end = start + decode_escape(&text[start..])?.length;
        (end > at).then_some(start..end)
    })
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | char::from(*digit).to_digit(16)?))
}
