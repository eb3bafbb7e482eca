//! The file behind a `hub:FILE` link: where a hub's loopback port is, the key that opens it, and the one that proves the
//! hub.
//!
//! It has one line, `127.0.0.1:PORT KEY ANSWER`, and is for one user's eyes. A shim connects to that port and says the
//! key, 64 hexadecimal digits and a newline, before anything else; the hub says its own. The relay protocol follows.
//!
//! Must stay true: a hub answers nobody who did not show the key, so whoever takes its port when it is gone knows no
//! answer; and both keys are a hub's own, so what such a one hears opens nothing.

use std::fmt;

/// What the file says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Door {
    pub port: u16,
    pub key: Key,
    /// What the hub shows in return.
    pub answer: Key,
}

/// 256 unguessable bits.
#[derive(Clone, Eq, PartialEq)]
pub struct Key([u8; Key::SHOWN]);

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "it is not a hub's file (`127.0.0.1:PORT KEY ANSWER`); is it the one that the hub was given with --loopback, and are \
     hub and shim of one version?"
)]
pub struct InvalidDoor;

impl Door {
    /// A file that is longer is not one.
    pub const MAX_FILE: usize = 192;

    pub fn to_text(&self) -> String {
        format!("127.0.0.1:{} {} {}\n", self.port, self.key.digits(), self.answer.digits())
    }

    pub fn from_text(text: &str) -> Result<Self, InvalidDoor> {
        let line = text.strip_suffix('\n').ok_or(InvalidDoor)?;
        let (place, keys) = line.split_once(' ').ok_or(InvalidDoor)?;
        let (shown, answer) = keys.split_once(' ').ok_or(InvalidDoor)?;
        let port = place.strip_prefix("127.0.0.1:").ok_or(InvalidDoor)?;
        let port = crate::address::number(port).filter(|port| *port != 0).ok_or(InvalidDoor)?;
        let key = |digits| Key::from_hex(digits).ok_or(InvalidDoor);
        Ok(Self { port, key: key(shown)?, answer: key(answer)? })
    }
}

impl Key {
    /// As it is shown: 64 digits and a newline.
    pub const SHOWN: usize = 65;

    pub fn from_hex(text: &str) -> Option<Self> {
        crate::key::decode_hex::<32>(text)?;
        let mut shown = [b'\n'; Self::SHOWN];
        shown[..64].copy_from_slice(text.as_bytes());
        Some(Self(shown))
    }

    fn digits(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.0.trim_ascii_end())
    }

    /// What a shim says first, or a hub answers.
    pub fn shown(&self) -> &[u8; Self::SHOWN] {
        &self.0
    }

    /// Takes the same time wherever they differ.
    pub fn is(&self, shown: &[u8; Self::SHOWN]) -> bool {
        let differing = self.0.iter().zip(shown).fold(0, |all, (one, other)| all | (one ^ other));
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
        let door = Door::from_text(&text).unwrap();
        assert_eq!(door.port, 40123);
        assert_eq!(
            (Key::from_hex(KEY), Key::from_hex(ANSWER)),
            (Some(door.key.clone()), Some(door.answer.clone()))
        );
        assert_eq!(door.to_text(), text);
        assert!(text.len() <= Door::MAX_FILE);
        assert_eq!(format!("{door:?}"), "Door { port: 40123, key: Key(…), answer: Key(…) }");
    }

    #[test]
    fn the_rest_is_refused() {
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
            assert_eq!(Door::from_text(&text), Err(InvalidDoor), "{text:?}");
        }
    }

    #[test]
    fn a_key_is_known_by_all_of_it() {
        let key = Key::from_hex(KEY).unwrap();
        assert!(key.is(key.shown()));
        for place in 0..Key::SHOWN {
            let mut other = *key.shown();
            other[place] ^= 1;
            assert!(!key.is(&other));
        }
    }
}
