//! The hash chain: the hash in each line covers that line and all lines before it. Pure: no files, no clock.
//!
//! A record is one line of JSON. Its first member is its number, counted from 1 through all files; its last is
//! `"chain"`: SHA-256 in hex over the previous record's chain (as its 64 characters) followed by this line up to the
//! comma before `"chain"`. The first record is preceded by 64 zeros. A line's chain covers the line itself, so a
//! changed last line is found without comparing it to anything; the numbers distinguish a missing line from a changed
//! one.

use std::fmt;
use std::str::FromStr;

use ring::digest::{Context, SHA256};

/// SHA-256 in lower-case hex.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Hash([u8; 64]);

impl Hash {
    /// The chain before the first record.
    pub const GENESIS: Self = Self([b'0'; 64]);

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hex digits are ASCII")
    }

    pub(super) fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }

    /// How many of the 64 digits differ.
    pub(super) fn differing_digits(&self, other: &Self) -> usize {
        self.0.iter().zip(&other.0).filter(|(left, right)| left != right).count()
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        Self::finish({
            let mut context = Context::new(&SHA256);
            context.update(bytes);
            context
        })
    }

    pub(super) fn finish(context: Context) -> Self {
        Self::from_digest(context.finish().as_ref())
    }

    /// Hex of 32 bytes, from SHA-256 or HMAC-SHA-256.
    pub(super) fn from_digest(digest: &[u8]) -> Self {
        let digest: &[u8; 32] = digest.try_into().expect("SHA-256 has 32 bytes");
        let mut hex = [b'0'; 64];
        for (pair, byte) in hex.as_chunks_mut().0.iter_mut().zip(digest) {
            *pair = [hex_digit(byte >> 4), hex_digit(byte & 0xf)];
        }
        Self(hex)
    }

    fn from_hex(text: &[u8]) -> Option<Self> {
        let hex: [u8; 64] = text.try_into().ok()?;
        hex.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some(Self(hex))
    }
}

impl FromStr for Hash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::from_hex(text.as_bytes()).ok_or(InvalidHash)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a hash is 64 digits of lower-case hex")]
pub struct InvalidHash;

/// Computed rather than looked up, so that the compiler can vectorise it: three hashes are formatted for each call.
fn hex_digit(value: u8) -> u8 {
    value + if value < 10 { b'0' } else { b'a' - 10 }
}

/// How many bytes `seal` adds to a line, including the newline.
pub(super) const SEAL_BYTES: usize = CHAIN_MEMBER.len() + 64 + RECORD_END.len() + 1;

/// Completes the object that begins at `start` (`{"number":…`, not closed) with its chain, brace and newline.
pub(super) fn seal(line: &mut Vec<u8>, start: usize, previous: &Hash) -> Hash {
    let chain = chain_hash(previous, &line[start..]);
    line.extend_from_slice(CHAIN_MEMBER);
    line.extend_from_slice(&chain.0);
    line.extend_from_slice(RECORD_END);
    line.push(b'\n');
    chain
}

/// A line in the form of a record. Whether it continues the chain is checked by [`SealedLine::follows`].
pub(super) struct SealedLine<'a> {
    pub(super) number: u64,
    pub(super) chain: Hash,
    body: &'a [u8],
}

impl<'a> SealedLine<'a> {
    /// Takes a line without its newline.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        let rest = line.strip_suffix(RECORD_END)?;
        let (rest, hex) = rest.split_at_checked(rest.len().checked_sub(64)?)?;
        let body = rest.strip_suffix(CHAIN_MEMBER)?;
        let digits = body.strip_prefix(RECORD_START)?;
        let digits = &digits[..digits.iter().position(|byte| *byte == b',')?];
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Some(Self { number, chain: Hash::from_hex(hex)?, body })
    }

    pub(super) fn follows(&self, previous: &Hash) -> bool {
        chain_hash(previous, self.body) == self.chain
    }
}

/// How every record begins; its number comes next.
pub(super) const RECORD_START: &[u8] = b"{\"number\":";
const CHAIN_MEMBER: &[u8] = b",\"chain\":\"";
const RECORD_END: &[u8] = b"\"}";

fn chain_hash(previous: &Hash, body: &[u8]) -> Hash {
    let mut context = Context::new(&SHA256);
    context.update(&previous.0);
    context.update(body);
    Hash::finish(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_is_computed_as_documented() {
        let mut line = br#"{"number":7,"kind":"event""#.to_vec();
        let unsealed = line.len();
        let chain = seal(&mut line, 0, &Hash::GENESIS);
        assert_eq!(line.len() - unsealed, SEAL_BYTES);
        let by_hand = Hash::of(format!("{}{}", "0".repeat(64), r#"{"number":7,"kind":"event""#).as_bytes());
        assert_eq!(chain, by_hand);
        assert_eq!(
            String::from_utf8(line).unwrap(),
            format!("{{\"number\":7,\"kind\":\"event\",\"chain\":\"{chain}\"}}\n")
        );
    }

    #[test]
    fn the_digest_of_abc_is_the_published_one() {
        assert_eq!(
            Hash::of(b"abc").as_str(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let hash = Hash::of(b"abc");
        assert_eq!((format!("{hash}"), format!("{hash:?}")), (hash.as_str().into(), hash.as_str().into()));
    }

    #[test]
    fn only_whole_records_parse() {
        let mut line = b"{\"number\":7,\"a\":1".to_vec();
        let chain = seal(&mut line, 0, &Hash::GENESIS);
        line.pop();
        let sealed = SealedLine::parse(&line).unwrap();
        assert_eq!((sealed.number, sealed.chain), (7, chain));
        assert!(sealed.follows(&Hash::GENESIS));
        assert!(!sealed.follows(&chain));
        for cut in 0..line.len() {
            assert!(SealedLine::parse(&line[..cut]).is_none(), "cut at {cut}");
        }
    }
}
