//! Tokens, accessors and lease ids.
//!
//! What must stay true: `Debug` shows no token and no lease id, and of an accessor only the first characters. A token
//! is exposed only as a header (`client`), as a member of a body (`body`), to the scrubber, and as the content of a
//! credential file of the sidecar.

use std::fmt;

use cofferdam_base::text::hex;
use cofferdam_scrub::Needle;
use ring::digest::{SHA256, digest};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Batch tokens have hundreds of bytes; no token has this many.
const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// A Vault token. Wiped when dropped.
pub struct Token(Zeroizing<String>);

/// Identifies a token for look-up and revocation without granting its permissions. It may be written to disk.
#[derive(Clone, Eq, Ord, PartialEq, PartialOrd)]
pub struct Accessor(String);

/// Identifies a lease. Secret, because Vault's default policy lets every token renew any lease whose id is known.
pub struct LeaseId(Zeroizing<String>);

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TokenError {
    #[error("it has a character that is not allowed in a token")]
    Character,
    #[error("it is empty")]
    Empty,
    #[error("it is longer than any token")]
    TooLong,
}

impl Token {
    /// Reads a token from the contents of a file, without the white space around it.
    pub fn read(bytes: &[u8]) -> Result<Self, TokenError> {
        let bytes = bytes.trim_ascii();
        if bytes.is_empty() {
            return Err(TokenError::Empty);
        }
        if bytes.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| TokenError::Character)?;
        match text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(Zeroizing::new(text.to_owned()))),
            false => Err(TokenError::Character),
        }
    }

    /// The value that scrubbers search for, and the label that they write in its place.
    pub fn needle(&self, label: &str) -> Needle {
        Needle { label: label.into(), value: Zeroizing::new(self.0.as_bytes().to_vec()) }
    }

    /// The token as it is written to a credential file.
    pub fn file_content(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.0.as_bytes().to_vec())
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }

    /// A hash by which the token is recognised later, without keeping the token.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(digest(&SHA256, self.0.as_bytes()).as_ref());
        fingerprint
    }
}

impl Accessor {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl LeaseId {
    pub(crate) fn new(text: Zeroizing<String>) -> Self {
        Self(text)
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Identifies the lease in the audit: the first 16 hexadecimal digits of the SHA-256 of its id.
    pub fn hash(&self) -> String {
        hex(&digest(&SHA256, self.0.as_bytes()).as_ref()[..8])
    }

    /// The value that scrubbers search for, and the label that they write in its place.
    pub fn needle(&self, label: &str) -> Needle {
        Needle { label: label.into(), value: Zeroizing::new(self.0.as_bytes().to_vec()) }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Shows the first characters, to tell accessors apart in a log.
impl fmt::Debug for Accessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let beginning: String = self.0.chars().take(4).collect();
        write!(f, "Accessor({beginning}…)")
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId(#{})", self.hash())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_around_a_token_is_removed() {
        let token = Token::read(b" hvs.CANARYCANARYCANARY\r\n").unwrap();
        assert_eq!(token.expose(), "hvs.CANARYCANARYCANARY");
        assert_eq!(format!("{token:?}"), "Token(…)");
    }

    #[test]
    fn a_text_that_could_split_a_header_is_refused() {
        assert_eq!(Token::read(b"\n").unwrap_err(), TokenError::Empty);
        assert_eq!(Token::read(b"s.a\r\nX-Evil: 1").unwrap_err(), TokenError::Character);
        assert_eq!(Token::read("s.ä".as_bytes()).unwrap_err(), TokenError::Character);
        assert_eq!(Token::read(&[b'x'; MAX_TOKEN_BYTES + 1]).unwrap_err(), TokenError::TooLong);
    }

    #[test]
    fn accessors_and_leases_can_be_told_apart_but_not_read() {
        let accessor = Accessor::new("AbCdEfGhIjKlMnOp");
        assert_eq!(format!("{accessor:?}"), "Accessor(AbCd…)");
        let lease = LeaseId::new(Zeroizing::new("database/creds/readonly/CANARY".into()));
        let shown = format!("{lease:?}");
        assert!(!shown.contains("CANARY") && !shown.contains("readonly"), "{shown}");
        assert_eq!(lease.hash().len(), 16);
    }
}
