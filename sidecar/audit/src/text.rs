//! Members of a JSON object, written directly into a buffer.
//!
//! The output is safe in a file of lines and on a terminal: beyond what JSON requires, every control character and
//! every invisible or direction character is escaped, so that a tool's name cannot move the cursor or reverse text.

use std::io::Write as _;

use cofferdam_base::text::is_invisible;

/// The name of a member as written in a record, up to the quote that begins a text.
///
/// Built at compile time: a record has some twenty small members, and each costs one copy for its name.
macro_rules! name {
    ($name:literal) => {
        concat!(",\"", $name, "\":\"")
    };
}
pub(super) use name;

/// Writes `,"name":value` into an object whose opening brace is already written. Names are [`name!`]s.
pub(super) struct Members<'a> {
    out: &'a mut Vec<u8>,
    /// Texts that are longer than this when escaped are cut, with a note of their length.
    max_field_bytes: usize,
}

impl<'a> Members<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>, max_field_bytes: usize) -> Self {
        Self { out, max_field_bytes }
    }

    #[inline]
    pub(super) fn text(&mut self, name: &'static str, value: &str) -> &mut Self {
        self.out.extend_from_slice(name.as_bytes());
        self.finish_string(value);
        self
    }

    /// Text that needs no escaping: constants of this program, hexadecimal digits, times.
    #[inline]
    pub(super) fn plain(&mut self, name: &'static str, value: &[u8]) -> &mut Self {
        debug_assert!(value.iter().all(|byte| is_plain(*byte)), "{} is not plain", value.escape_ascii());
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(value);
        self.out.push(b'"');
        self
    }

    #[inline]
    pub(super) fn optional_text(&mut self, name: &'static str, value: Option<&str>) -> &mut Self {
        match value {
            Some(value) => self.text(name, value),
            None => self,
        }
    }

    #[inline]
    pub(super) fn number(&mut self, name: &'static str, value: u64) -> &mut Self {
        self.out.extend_from_slice(&name.as_bytes()[..name.len() - 1]);
        write_number(self.out, value);
        self
    }

    /// Members that were formatted before.
    pub(super) fn formatted(&mut self, members: &[u8]) -> &mut Self {
        self.out.extend_from_slice(members);
        self
    }

    /// An array of objects, each written by `each`, which writes at least one member; omitted if empty.
    pub(super) fn objects<T>(
        &mut self,
        name: &'static str,
        items: &[T],
        mut each: impl FnMut(&mut Members<'_>, &T),
    ) -> &mut Self {
        if items.is_empty() {
            return self;
        }
        self.out.extend_from_slice(&name.as_bytes()[..name.len() - 1]);
        let mut before = b'[';
        for item in items {
            self.out.push(std::mem::replace(&mut before, b','));
            let start = self.out.len();
            each(self, item);
            // The first member of an object has no comma before it.
            self.out[start] = b'{';
            self.out.push(b'}');
        }
        self.out.push(b']');
        self
    }

    fn finish_string(&mut self, value: &str) {
        if escape(self.out, value, self.max_field_bytes) == Escaped::Cut {
            write!(self.out, "… ({} bytes)", value.len()).expect("writing to a vector cannot fail");
        }
        self.out.push(b'"');
    }
}

pub(super) fn write_number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Whether a text was written as a whole.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Escaped {
    Cut,
    Whole,
}

/// Writes the inside of a JSON string, at most `limit` bytes of it. The limit applies to the escaped text: six bytes of
/// `\u001b` for each byte of a hostile name would otherwise multiply what a sandbox can write.
pub(super) fn escape(out: &mut Vec<u8>, text: &str, limit: usize) -> Escaped {
    // Almost every text is plain: all its bytes are tested without branches.
    if text.len() <= limit && text.bytes().fold(true, |plain, byte| plain & is_plain(byte)) {
        out.extend_from_slice(text.as_bytes());
        return Escaped::Whole;
    }
    let mut left = limit;
    for character in text.chars() {
        let mut buffer = [0; MAX_ESCAPE_BYTES];
        let escaped = escape_character(character, &mut buffer);
        let Some(rest) = left.checked_sub(escaped.len()) else { return Escaped::Cut };
        out.extend_from_slice(escaped);
        left = rest;
    }
    Escaped::Whole
}

/// The length of `\u001b`, the longest form of one character.
const MAX_ESCAPE_BYTES: usize = 6;

/// The shortest form of a character that is safe in JSON, in a line and on a terminal.
fn escape_character(character: char, buffer: &mut [u8; MAX_ESCAPE_BYTES]) -> &[u8] {
    match character {
        '"' => b"\\\"",
        '\\' => b"\\\\",
        '\n' => b"\\n",
        '\r' => b"\\r",
        '\t' => b"\\t",
        '\u{8}' => b"\\b",
        '\u{c}' => b"\\f",
        character if is_invisible(character) => {
            write!(&mut buffer[..], "\\u{:04x}", u32::from(character)).expect("an escape has six bytes");
            buffer
        }
        character => character.encode_utf8(buffer).as_bytes(),
    }
}

/// Whether a byte needs no escaping in a JSON string, in a line and on a terminal.
fn is_plain(byte: u8) -> bool {
    (byte.wrapping_sub(b' ') <= b'~' - b' ') & (byte != b'"') & (byte != b'\\')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(value: &str, max_field_bytes: usize) -> String {
        let mut out = Vec::new();
        Members::new(&mut out, max_field_bytes).text(name!("a"), value);
        out[0] = b'{';
        out.push(b'}');
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn long_text_is_cut_between_characters_with_a_note_of_its_length() {
        assert_eq!(written("abcd", 4), r#"{"a":"abcd"}"#);
        assert_eq!(written("abcde", 4), r#"{"a":"abcd… (5 bytes)"}"#);
        assert_eq!(written("ab€€", 4), r#"{"a":"ab… (8 bytes)"}"#);
    }

    #[test]
    fn escapes_are_short_and_count_against_the_limit() {
        assert_eq!(written("\n\r\t\u{8}\u{c}", 10), r#"{"a":"\n\r\t\b\f"}"#);
        assert_eq!(written("\u{1b}\u{1b}", 12), r#"{"a":"\u001b\u001b"}"#);
        assert_eq!(written("\u{1b}\u{1b}", 11), r#"{"a":"\u001b… (2 bytes)"}"#);
        let hostile = "\u{1b}\u{7f}\"\u{2028}".repeat(100);
        assert!(written(&hostile, 256).len() <= 256 + r#"{"a":"… (600 bytes)"}"#.len());
    }

    #[test]
    fn nothing_that_moves_a_cursor_or_ends_a_line_is_written_as_it_is() {
        let hostile = "\u{1b}[2J\n\r\0\u{7f}\u{9b}\u{85}\u{2028}\u{202e}\u{feff}\"\\";
        let one_by_one = hostile.chars().map(String::from);
        for hostile in one_by_one.chain([hostile.to_owned()]) {
            let line = written(&hostile, 256);
            assert!(line.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{line}");
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(value["a"], hostile);
        }
    }

    #[test]
    fn objects_within_an_array() {
        let mut out = Vec::new();
        Members::new(&mut out, 9).number(name!("n"), 1).objects(name!("o"), &[1_u64, 2], |members, item| {
            members.number(name!("i"), *item).optional_text(name!("t"), None);
        });
        assert_eq!(String::from_utf8(out).unwrap(), r#","n":1,"o":[{"i":1},{"i":2}]"#);
    }

    proptest! {
        #[test]
        fn any_text_is_read_back_unchanged(value: String) {
            let read: serde_json::Value = serde_json::from_str(&written(&value, usize::MAX)).unwrap();
            prop_assert_eq!(read["a"].as_str().unwrap(), value);
        }

        #[test]
        fn any_cut_text_is_valid_json(value: String, max_field_bytes in 0_usize..40) {
            serde_json::from_str::<serde_json::Value>(&written(&value, max_field_bytes)).unwrap();
        }
    }
}
