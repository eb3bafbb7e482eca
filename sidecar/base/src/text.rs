//! Formats text: hexadecimal digits, percent-encoding, escapes for terminals, an error with its causes.

use std::borrow::Cow;
use std::error::Error;
use std::iter;

/// Bytes in lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| hex_digits(*byte)).map(char::from).collect()
}

/// The two lower-case hexadecimal digits of a byte, in ASCII.
pub const fn hex_digits(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [DIGITS[(byte >> 4) as usize], DIGITS[(byte & 0xf) as usize]]
}

/// A byte percent-encoded as in a URL: `%2F`.
pub const fn percent_encoded(byte: u8) -> [u8; 3] {
    let [high, low] = hex_digits(byte);
    [b'%', high.to_ascii_uppercase(), low.to_ascii_uppercase()]
}

/// The unreserved characters of RFC 3986: a URL means the same whether they are percent-encoded or not.
pub const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// A text as a part of a URL: every byte is percent-encoded except the unreserved ones and those in `unencoded`.
pub fn percent_encoded_text(text: &str, unencoded: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match is_unreserved(byte) || unencoded.contains(&byte) {
            true => encoded.push(char::from(byte)),
            false => encoded.extend(percent_encoded(byte).map(char::from)),
        }
    }
    encoded
}

/// Characters that change the display instead of being visible: controls (C0, DEL, C1), line and paragraph separators,
/// zero-width and direction marks. All are in the basic plane, so four hexadecimal digits suffice.
pub fn is_invisible(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
        )
}

/// Lines that are safe on a terminal: invisible characters are written as escapes such as `\u{1b}`. Tabs and the line
/// feeds between the lines stay.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    let needs_escape = |character: char| is_invisible(character) && !matches!(character, '\n' | '\t');
    if !text.contains(needs_escape) {
        return Cow::Borrowed(text);
    }
    let mut visible = String::with_capacity(text.len());
    for character in text.chars() {
        match needs_escape(character) {
            true => visible.extend(character.escape_unicode()),
            false => visible.push(character),
        }
    }
    Cow::Owned(visible)
}

/// An error and its causes on one line, separated by colons. A cause is omitted if the text already ends with it: many
/// wrappers repeat the error that they wrap.
pub fn error_chain(error: &dyn Error) -> String {
    causes(error).fold(error.to_string(), |mut text, cause| {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        text
    })
}

/// The causes of an error, nearest first, without the error itself.
pub fn causes(error: &dyn Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    iter::successors(error.source(), |cause| (*cause).source())
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct TestError(&'static str, Option<Box<Self>>);

    impl fmt::Display for TestError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for TestError {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn bytes_are_encoded_in_hex_and_percent_encoding() {
        assert_eq!(hex(&[0x00, 0x9f, 0xff]), "009fff");
        assert_eq!(hex(&[]), "");
        assert_eq!(&percent_encoded(b'/'), b"%2F");
        assert_eq!(&percent_encoded(0xe9), b"%E9");
        assert_eq!(percent_encoded_text("a/b ü~", b""), "a%2Fb%20%C3%BC~");
        assert_eq!(percent_encoded_text("a/b:c", b"/"), "a/b%3Ac");
        assert!(b"aZ9-._~".iter().all(|byte| is_unreserved(*byte)));
        assert!(b"/%+ :@=\x80".iter().all(|byte| !is_unreserved(*byte)));
    }

    #[test]
    fn characters_that_change_a_terminal_are_escaped() {
        let hostile = "a\u{1b}[2Jb\r\u{9b}31mc\u{202e}d\u{2066}e\u{2028}f\u{85}g\u{7f}";
        let visible = r"a\u{1b}[2Jb\u{d}\u{9b}31mc\u{202e}d\u{2066}e\u{2028}f\u{85}g\u{7f}";
        assert_eq!(visible_lines(hostile), visible);
        assert_eq!(visible_lines(visible), visible, "escaping is not repeated");
        assert!(matches!(visible_lines("two\n\tlines, é and 日本\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn an_error_is_shown_with_its_causes_and_without_repetition() {
        let refused = || Some(Box::new(TestError("refused", None)));
        let error = TestError("log in", Some(Box::new(TestError("connect: refused", refused()))));
        assert_eq!(error_chain(&error), "log in: connect: refused");
        assert_eq!(causes(&error).count(), 2);
        assert_eq!(error_chain(&TestError("alone", None)), "alone");
    }
}
