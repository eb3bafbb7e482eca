//! Tokens, accessors and lease ids.
//!
//! What must stay true: none of them prints. A token leaves its wrapper to become a header (`http`), a member of a body
//! (`body`) or something for the scrubber to find; nowhere else.

use std::fmt;

use cofferdam_base::text::hex;
use cofferdam_scrub::Needle;
use ring::digest::{SHA256, digest};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Batch tokens have hundreds of characters; nothing has this many.
const MAX_TOKEN: usize = 8 * 1024;

/// A Vault token. Wiped when dropped.
pub struct Token(Zeroizing<String>);

/// What a token can be looked up and revoked by, without being one. It may be written to disk.
#[derive(Clone, Eq, Ord, PartialEq, PartialOrd)]
pub struct Accessor(String);

/// What a lease can be renewed by. Vault's default policy lets everybody renew every lease whose id he knows.
pub struct LeaseId(Zeroizing<String>);

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TokenError {
    #[error("it holds a character that no token has")]
    Character,
    #[error("it is empty")]
    Empty,
    #[error("it is longer than any token")]
    Long,
}

impl Token {
    /// Reads a token as it stands in a file: white space around it does not count.
    pub fn read(bytes: &[u8]) -> Result<Self, TokenError> {
        let bytes = bytes.trim_ascii();
        if bytes.is_empty() {
            return Err(TokenError::Empty);
        }
        if bytes.len() > MAX_TOKEN {
            return Err(TokenError::Long);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| TokenError::Character)?;
        match text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(Zeroizing::new(text.to_owned()))),
            false => Err(TokenError::Character),
        }
    }

    /// For the scrubber: this must not leave the sidecar.
    pub fn needle(&self, label: &str) -> Needle {
        Needle { label: label.into(), value: Zeroizing::new(self.0.as_bytes().to_vec()) }
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }

    /// To recognise it later without keeping it.
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

    /// What stands for it in the audit: the first 16 hex digits of its SHA-256.
    pub fn hash(&self) -> String {
        hex(&digest(&SHA256, self.0.as_bytes()).as_ref()[..8])
    }

    /// For the scrubber: this must not leave the sidecar.
    pub fn needle(&self, label: &str) -> Needle {
        Needle { label: label.into(), value: Zeroizing::new(self.0.as_bytes().to_vec()) }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The beginning tells two of them apart in a log.
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
    fn a_file_ends_with_a_newline_and_a_token_does_not() {
        let token = Token::read(b" hvs.CANARYCANARYCANARY\r\n").unwrap();
        assert_eq!(token.expose(), "hvs.CANARYCANARYCANARY");
        assert_eq!(format!("{token:?}"), "Token(…)");
    }

    #[test]
    fn what_could_split_a_header_is_no_token() {
        assert_eq!(Token::read(b"\n").unwrap_err(), TokenError::Empty);
        assert_eq!(Token::read(b"s.a\r\nX-Evil: 1").unwrap_err(), TokenError::Character);
        assert_eq!(Token::read("s.ä".as_bytes()).unwrap_err(), TokenError::Character);
        assert_eq!(Token::read(&[b'x'; MAX_TOKEN + 1]).unwrap_err(), TokenError::Long);
    }

    #[test]
    fn accessors_and_leases_are_told_apart_without_being_told() {
        let accessor = Accessor::new("AbCdEfGhIjKlMnOp");
        assert_eq!(format!("{accessor:?}"), "Accessor(AbCd…)");
        let lease = LeaseId::new(Zeroizing::new("database/creds/readonly/CANARY".into()));
        let shown = format!("{lease:?}");
        assert!(!shown.contains("CANARY") && !shown.contains("readonly"), "{shown}");
        assert_eq!(lease.hash().len(), 16);
    }
}
