//! A token for one sandbox: a preview token or an SSH token.
//!
//! What must stay true: the token is sent in a header or written to a private file, and is in no URL, argument, log or error.

use std::fmt;

use bytes::Bytes;
use http::HeaderValue;
use serde::{Deserialize, Deserializer, de};
use zeroize::Zeroizing;

/// Current tokens have 32 to 40 characters.
const MAX_LENGTH: usize = 512;

#[derive(Clone)]
pub(super) struct SandboxToken(Zeroizing<String>);

impl SandboxToken {
    pub(super) fn new(text: String) -> Option<Self> {
        let text = Zeroizing::new(text);
        // No quote, space or `#`, so that the token is one word in a configuration file of `ssh`.
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+/=~".contains(&byte);
        ((1..=MAX_LENGTH).contains(&text.len()) && text.bytes().all(is_allowed)).then_some(Self(text))
    }

    /// The token as the value of a header, marked as sensitive.
    pub(super) fn header(&self) -> HeaderValue {
        let bytes = Bytes::from_owner(Zeroizing::new(self.0.as_bytes().to_vec()));
        let mut value = HeaderValue::from_maybe_shared(bytes).expect("a token has printable characters only");
        value.set_sensitive(true);
        value
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for SandboxToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(text).ok_or_else(|| de::Error::custom("not a token"))
    }
}

impl fmt::Debug for SandboxToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SandboxToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word_and_is_not_printed() {
        let token = SandboxToken::new("t0k.en-_".into()).unwrap();
        assert!(!format!("{token:?} {:?}", token.header()).contains("t0k"));
        for bad in ["", "a b", "a\nUser root", "a#b", "\"a", "ä", &"x".repeat(513)] {
            assert!(SandboxToken::new(bad.into()).is_none(), "{bad}");
        }
    }
}
