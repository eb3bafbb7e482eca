//! A text that is usually short, such as an id: up to [`INLINE_BYTES`] bytes are stored inline.

use std::borrow::Cow;
use std::fmt;

/// An immutable text.
#[derive(Clone, Eq, PartialEq)]
pub struct ShortText(Storage);

const INLINE_BYTES: usize = 22;

/// A text has exactly one representation, with unused bytes zero, so that equal texts compare equal.
#[derive(Clone, Eq, PartialEq)]
enum Storage {
    Heap(Box<str>),
    Inline { length: u8, bytes: [u8; INLINE_BYTES] },
}

impl ShortText {
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Storage::Heap(text) => text.as_bytes(),
            Storage::Inline { length, bytes } => &bytes[..usize::from(*length)],
        }
    }

    pub fn as_str(&self) -> &str {
        match &self.0 {
            Storage::Heap(text) => text,
            Storage::Inline { .. } => {
                std::str::from_utf8(self.as_bytes()).expect("it was copied from a text")
            }
        }
    }
}

impl From<&str> for ShortText {
    fn from(text: &str) -> Self {
        let mut bytes = [0; INLINE_BYTES];
        Self(match bytes.get_mut(..text.len()) {
            Some(prefix) => {
                prefix.copy_from_slice(text.as_bytes());
                Storage::Inline { length: text.len() as u8, bytes }
            }
            None => Storage::Heap(text.into()),
        })
    }
}

impl From<String> for ShortText {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<Cow<'_, str>> for ShortText {
    fn from(text: Cow<'_, str>) -> Self {
        Self::from(&*text)
    }
}

impl std::ops::Deref for ShortText {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for ShortText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), formatter)
    }
}

impl fmt::Display for ShortText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_any_length_is_stored_unchanged() {
        let long = "ä€😀".repeat(10);
        let lengths = (0..=long.len()).filter(|length| long.is_char_boundary(*length));
        let texts: Vec<&str> = lengths.map(|length| &long[..length]).collect();
        for text in &texts {
            let short = ShortText::from(*text);
            assert_eq!((short.as_str(), short.as_bytes()), (*text, text.as_bytes()));
            assert_eq!(format!("{short} {short:?}"), format!("{text} {text:?}"));
            assert_eq!(texts.iter().filter(|other| ShortText::from(**other) == short).count(), 1);
        }
    }
}
