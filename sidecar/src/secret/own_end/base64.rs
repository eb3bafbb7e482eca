//! Base64, read strictly: one alphabet, whole groups, no bit that means nothing.

use zeroize::Zeroizing;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Alphabet {
    /// With `+` and `/`, filled up with `=`.
    Standard,
    /// With `-` and `_`, not filled up.
    UrlSafe,
}

pub(super) fn decode(text: &[u8], alphabet: Alphabet) -> Option<Zeroizing<Vec<u8>>> {
    let letters = match alphabet {
        Alphabet::UrlSafe => text,
        Alphabet::Standard if text.len().is_multiple_of(4) => {
            let one = text.strip_suffix(b"=").unwrap_or(text);
            one.strip_suffix(b"=").unwrap_or(one)
        }
        Alphabet::Standard => return None,
    };
    let mut decoded = Zeroizing::new(Vec::with_capacity(letters.len() / 4 * 3 + 2));
    for group in letters.chunks(4) {
        let mut bits = 0_u32;
        for letter in group {
            bits = bits << 6 | u32::from(value(*letter, alphabet)?);
        }
        let bytes = match group.len() {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => return None,
        };
        let bits = bits << (6 * (4 - group.len()));
        let [_, whole @ ..] = bits.to_be_bytes();
        if whole[bytes..].iter().any(|rest| *rest != 0) {
            return None;
        }
        decoded.extend_from_slice(&whole[..bytes]);
    }
    Some(decoded)
}

fn value(letter: u8, alphabet: Alphabet) -> Option<u8> {
    Some(match (letter, alphabet) {
        (b'A'..=b'Z', _) => letter - b'A',
        (b'a'..=b'z', _) => letter - b'a' + 26,
        (b'0'..=b'9', _) => letter - b'0' + 52,
        (b'+', Alphabet::Standard) | (b'-', Alphabet::UrlSafe) => 62,
        (b'/', Alphabet::Standard) | (b'_', Alphabet::UrlSafe) => 63,
        _ => return None,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The other way round, for those who need something to read.
    pub(in crate::secret::own_end) fn encode(bytes: &[u8], alphabet: Alphabet) -> String {
        let letters = match alphabet {
            Alphabet::Standard => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
            Alphabet::UrlSafe => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
        };
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let mut group = [0; 4];
            group[1..=chunk.len()].copy_from_slice(chunk);
            let group = u32::from_be_bytes(group);
            for place in 0..4 {
                match (place <= chunk.len(), alphabet) {
                    (true, _) => text.push(char::from(letters[(group >> (18 - 6 * place)) as usize & 63])),
                    (false, Alphabet::Standard) => text.push('='),
                    (false, Alphabet::UrlSafe) => {}
                }
            }
        }
        text
    }

    #[test]
    fn what_was_encoded_is_read_and_nothing_else() {
        let read = |text: &str, alphabet| decode(text.as_bytes(), alphabet).map(|bytes| bytes.to_vec());
        for length in 0..9 {
            let bytes: Vec<u8> = (0..length).map(|byte| 250 + byte % 6).collect();
            for alphabet in [Alphabet::Standard, Alphabet::UrlSafe] {
                assert_eq!(read(&encode(&bytes, alphabet), alphabet), Some(bytes.clone()));
            }
        }
        assert_eq!(read("aGk=", Alphabet::Standard).unwrap(), b"hi");
        assert_eq!(read("aGk", Alphabet::UrlSafe).unwrap(), b"hi");
        for bad in ["aGk", "aGl=", "a===", "====", "aG=k", "aGk=aGk=", "aGk\n", "aG-_", "aGk=\n", "ä"] {
            assert_eq!(read(bad, Alphabet::Standard), None, "{bad:?}");
        }
        for bad in ["aGk=", "aGl", "a", "aG+/", "aGk ", "aGkaG"] {
            assert_eq!(read(bad, Alphabet::UrlSafe), None, "{bad:?}");
        }
    }
}
