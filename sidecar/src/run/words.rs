//! Words of a command line, quoted as a POSIX shell reads them.

use std::borrow::Cow;
use std::ffi::OsStr;

/// One word. What is not UTF-8 is shown with replacement characters: a shell is only given words that are.
pub(super) fn quoted(word: &OsStr) -> Cow<'_, str> {
    let text = word.to_string_lossy();
    let plain = |character: char| character.is_ascii_alphanumeric() || "%+,-./:=@_".contains(character);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => Cow::Owned(format!("'{}'", text.replace('\'', r"'\''"))),
    }
}

/// A whole line.
pub(super) fn line<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> String {
    words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
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
            assert_eq!(quoted(word.as_ref()), expected);
        }
    }
}
