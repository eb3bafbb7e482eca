//! The public keys of sandboxes and sidecars: Ed25519, 32 bytes, hexadecimal as text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ed25519 public key. It is not secret; sandboxes pin the sidecar's.
#[derive(Clone, Copy, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; PublicKey::LENGTH]);

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a key has 64 hexadecimal digits; this text has {0} characters, or some that are not digits")]
pub struct InvalidKey(pub usize);

impl PublicKey {
    pub const LENGTH: usize = 32;

    pub fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl FromStr for PublicKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        decode_hex(text).map(Self).ok_or_else(|| InvalidKey(text.chars().count()))
    }
}

impl TryFrom<String> for PublicKey {
    type Error = InvalidKey;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// Decodes exactly `N` bytes from lower- or upper-case hex.
pub(crate) fn decode_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (digits, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let bytes: Option<Vec<u8>> = digits
        .iter()
        .map(|[high, low]| {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            Some((digit(*high)? * 16 + digit(*low)?) as u8)
        })
        .take(N + 1)
        .collect();
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_displayed_as_it_was_parsed() {
        let text = "00112233445566778899aabbccddeeff".repeat(2);
        let key: PublicKey = text.parse().unwrap();
        assert_eq!(key.to_string(), text);
        assert_eq!(text.to_uppercase().parse(), Ok(key));
        assert_eq!(serde_json::to_string(&key).unwrap(), format!("\"{text}\""));
    }

    #[test]
    fn invalid_keys_are_refused() {
        for text in
            ["", "00", &"0".repeat(63), &"0".repeat(65), &"0".repeat(66), &"g".repeat(64), &"é".repeat(32)]
        {
            assert_eq!(text.parse::<PublicKey>(), Err(InvalidKey(text.chars().count())), "{text}");
        }
    }
}
