//! The file of a `hub:FILE` link: a hub's loopback port, the key that a shim must send, and the key that the hub replies.
//!
//! It has one line, `127.0.0.1:PORT KEY ANSWER`, and only its owner can read it. A shim connects to that port and first
//! sends the key, 64 hexadecimal digits and a newline; the hub replies with its own. The relay protocol follows.
//!
//! Must stay true: a hub replies only to a peer that sent the key, so another program cannot learn the reply and
//! pose as the hub once it has exited; and both keys are new for each hub, so a key sent to such a program is useless.

use std::fmt;

/// The content of the file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HubFile {
    pub port: u16,
    pub key: Key,
    /// The hub's reply.
    pub answer: Key,
}

/// 256 unguessable bits.
#[derive(Clone, Eq, PartialEq)]
pub struct Key([u8; Key::WIRE_BYTES]);

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "it is not a hub's file (`127.0.0.1:PORT KEY ANSWER`); is it the one that the hub was given with --loopback, and are \
     hub and shim of one version?"
)]
pub struct InvalidHubFile;

impl HubFile {
    /// A longer file is refused.
    pub const MAX_FILE: usize = 192;

    pub fn to_text(&self) -> String {
        format!("127.0.0.1:{} {} {}\n", self.port, self.key.digits(), self.answer.digits())
    }

    pub fn from_text(text: &str) -> Result<Self, InvalidHubFile> {
        let line = text.strip_suffix('\n').ok_or(InvalidHubFile)?;
        let (address, keys) = line.split_once(' ').ok_or(InvalidHubFile)?;
        let (on_wire, answer) = keys.split_once(' ').ok_or(InvalidHubFile)?;
        let port = address.strip_prefix("127.0.0.1:").ok_or(InvalidHubFile)?;
        let port = crate::address::number(port).filter(|port| *port != 0).ok_or(InvalidHubFile)?;
        let key = |digits| Key::from_hex(digits).ok_or(InvalidHubFile);
        Ok(Self { port, key: key(on_wire)?, answer: key(answer)? })
    }
}

impl Key {
    /// Bytes on the wire: 64 digits and a newline.
    pub const WIRE_BYTES: usize = 65;

    pub fn from_hex(text: &str) -> Option<Self> {
        crate::key::decode_hex::<32>(text)?;
        let mut on_wire = [b'\n'; Self::WIRE_BYTES];
        on_wire[..64].copy_from_slice(text.as_bytes());
        Some(Self(on_wire))
    }

    fn digits(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.0.trim_ascii_end())
    }

    /// The bytes that a shim sends first, or a hub replies with.
    pub fn on_wire(&self) -> &[u8; Self::WIRE_BYTES] {
        &self.0
    }

    /// Compares in constant time.
    pub fn matches(&self, on_wire: &[u8; Self::WIRE_BYTES]) -> bool {
        let differing = self.0.iter().zip(on_wire).fold(0, |all, (one, other)| all | (one ^ other));
        std::hint::black_box(differing) == 0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    const ANSWER: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

    #[test]
    fn a_file_is_read_and_written_the_same() {
        let text = format!("127.0.0.1:40123 {KEY} {ANSWER}\n");
        let hub_file = HubFile::from_text(&text).unwrap();
        assert_eq!(hub_file.port, 40123);
        assert_eq!(
            (Key::from_hex(KEY), Key::from_hex(ANSWER)),
            (Some(hub_file.key.clone()), Some(hub_file.answer.clone()))
        );
        assert_eq!(hub_file.to_text(), text);
        assert!(text.len() <= HubFile::MAX_FILE);
        assert_eq!(format!("{hub_file:?}"), "HubFile { port: 40123, key: Key(…), answer: Key(…) }");
    }

    #[test]
    fn invalid_hub_files_are_refused() {
        for text in [
            String::new(),
            format!("127.0.0.1:40123 {KEY} {ANSWER}"),
            format!("127.0.0.1:40123 {KEY}\n"),
            format!("127.0.0.1:0 {KEY} {ANSWER}\n"),
            format!("127.0.0.1:+1 {KEY} {ANSWER}\n"),
            format!("10.0.0.1:40123 {KEY} {ANSWER}\n"),
            format!("127.0.0.1:40123 {} {ANSWER}\n", &KEY[1..]),
            format!("127.0.0.1:40123 {KEY} {}\n", &ANSWER[1..]),
            format!("127.0.0.1:40123  {KEY} {ANSWER}\n"),
            format!("127.0.0.1:40123 {KEY} {ANSWER} \n"),
            format!("127.0.0.1:40123 {KEY} {ANSWER}\n\n"),
        ] {
            assert_eq!(HubFile::from_text(&text), Err(InvalidHubFile), "{text:?}");
        }
    }

    #[test]
    fn every_byte_of_a_key_is_compared() {
        let key = Key::from_hex(KEY).unwrap();
        assert!(key.matches(key.on_wire()));
        for index in 0..Key::WIRE_BYTES {
            let mut other = *key.on_wire();
            other[index] ^= 1;
            assert!(!key.matches(&other));
        }
    }
}
