//! Quotes the words of a command line for a POSIX shell.

use std::borrow::Cow;
use std::ffi::OsStr;

/// Quotes one word. Bytes that are not UTF-8 become replacement characters: such words are only printed, never run by a shell.
fn quote(word: &OsStr) -> Cow<'_, str> {
    let text = word.to_string_lossy();
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "%+,-./:=@_".contains(character);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text,
        false => Cow::Owned(format!("'{}'", text.replace('\'', r"'\''"))),
    }
}

/// Quotes and joins the words of a command line.
pub(super) fn command_line<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> String {
    words.into_iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_a_shell_would_read_differently_are_quoted() {
        for (word, expected) in [
            ("plain-1.0", "plain-1.0"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("$(id)", "'$(id)'"),
            ("a\nb", "'a\nb'"),
            ("~", "'~'"),
        ] {
            assert_eq!(quote(word.as_ref()), expected);
        }
    }
}
