//! The file of an address `hub:FILE`: a hub's loopback port, the key that a shim must send, and the key that the hub
//! replies with.
//!
//! It has one line, `127.0.0.1:PORT SHIM-KEY HUB-KEY`, and only its owner can read it. A shim connects to that port and
//! first sends the shim key, 64 hexadecimal digits and a newline; the hub replies with the hub key in the same form. The
//! relay protocol follows.
//!
//! Must stay true: a hub replies only to a peer that sent the shim key, so another program cannot obtain the hub key and
//! pose as the hub once it has exited; and both keys are new for each hub, so a key sent to such a program is useless.

use std::fmt;

/// The content of a hub's file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HubFile {
    pub port: u16,
    /// Sent by a shim.
    pub shim_key: Key,
    /// The hub's reply.
    pub hub_key: Key,
}

/// 256 unguessable bits.
#[derive(Clone, Eq, PartialEq)]
pub struct Key([u8; Key::WIRE_BYTES]);

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "it is not a hub's file (`127.0.0.1:PORT SHIM-KEY HUB-KEY`); is it the file that the hub was given with --loopback, and \
     are hub and shim of the same version?"
)]
pub struct InvalidHubFile;

impl HubFile {
    /// In bytes; a longer file is refused.
    pub const MAX_BYTES: usize = 192;

    pub fn to_text(&self) -> String {
        format!("127.0.0.1:{} {} {}\n", self.port, self.shim_key.digits(), self.hub_key.digits())
    }

    pub fn from_text(text: &str) -> Result<Self, InvalidHubFile> {
        let line = text.strip_suffix('\n').ok_or(InvalidHubFile)?;
        let (address, keys) = line.split_once(' ').ok_or(InvalidHubFile)?;
        let (shim_key, hub_key) = keys.split_once(' ').ok_or(InvalidHubFile)?;
        let port = address.strip_prefix("127.0.0.1:").ok_or(InvalidHubFile)?;
        let port = crate::address::parse_number(port).filter(|port| *port != 0).ok_or(InvalidHubFile)?;
        let key = |digits| Key::from_hex(digits).ok_or(InvalidHubFile);
        Ok(Self { port, shim_key: key(shim_key)?, hub_key: key(hub_key)? })
    }
}

impl Key {
    /// Bytes of a key on the wire: 64 digits and a newline.
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

    const SHIM_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    const HUB_KEY: &str = "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100";

    #[test]
    fn a_hub_file_is_written_as_it_was_read() {
        let text = format!("127.0.0.1:40123 {SHIM_KEY} {HUB_KEY}\n");
        let hub_file = HubFile::from_text(&text).unwrap();
        assert_eq!(hub_file.port, 40123);
        assert_eq!(
            (Key::from_hex(SHIM_KEY), Key::from_hex(HUB_KEY)),
            (Some(hub_file.shim_key.clone()), Some(hub_file.hub_key.clone()))
        );
        assert_eq!(hub_file.to_text(), text);
        assert!(text.len() <= HubFile::MAX_BYTES);
        assert_eq!(format!("{hub_file:?}"), "HubFile { port: 40123, shim_key: Key(…), hub_key: Key(…) }");
    }

    #[test]
    fn invalid_hub_files_are_refused() {
        for text in [
            String::new(),
            format!("127.0.0.1:40123 {SHIM_KEY} {HUB_KEY}"),
            format!("127.0.0.1:40123 {SHIM_KEY}\n"),
            format!("127.0.0.1:0 {SHIM_KEY} {HUB_KEY}\n"),
            format!("127.0.0.1:+1 {SHIM_KEY} {HUB_KEY}\n"),
            format!("10.0.0.1:40123 {SHIM_KEY} {HUB_KEY}\n"),
            format!("127.0.0.1:40123 {} {HUB_KEY}\n", &SHIM_KEY[1..]),
            format!("127.0.0.1:40123 {SHIM_KEY} {}\n", &HUB_KEY[1..]),
            format!("127.0.0.1:40123  {SHIM_KEY} {HUB_KEY}\n"),
            format!("127.0.0.1:40123 {SHIM_KEY} {HUB_KEY} \n"),
            format!("127.0.0.1:40123 {SHIM_KEY} {HUB_KEY}\n\n"),
        ] {
            assert_eq!(HubFile::from_text(&text), Err(InvalidHubFile), "{text:?}");
        }
    }

    #[test]
    fn every_byte_of_a_key_is_compared() {
        let key = Key::from_hex(SHIM_KEY).unwrap();
        assert!(key.matches(key.on_wire()));
        for index in 0..Key::WIRE_BYTES {
            let mut other = *key.on_wire();
            other[index] ^= 1;
            assert!(!key.matches(&other));
        }
    }
}
