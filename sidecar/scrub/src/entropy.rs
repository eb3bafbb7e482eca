//! How hard a value is to guess, at most.
//!
//! Redaction tells a sandbox whether a guess was right. For a value with few possibilities that is a way to find it: so
//! it is searched for only where its own server answers. The same holds for each line of a value of several lines, and for
//! every other text that a value is found by.

/// Whether a value, or a text that it is found by, can be found by guessing.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Entropy {
    /// Fewer than 2^32 values have this length and alphabet, such as 8 digits.
    Low,
    Enough,
}

impl Entropy {
    /// Length × log2 of the alphabet that the value uses; zero for one character repeated.
    pub fn of(value: &[u8]) -> Self {
        const ENOUGH_BITS: f64 = 32.0;
        let value = value.trim_ascii();
        let uses = |class: fn(&u8) -> bool| value.iter().any(class);
        let is_hexadecimal = |letter: fn(&u8) -> bool| {
            value.iter().all(|byte| byte.is_ascii_digit() || (letter(byte) && byte.is_ascii_hexdigit()))
        };
        let letters = match () {
            () if is_hexadecimal(u8::is_ascii_lowercase) || is_hexadecimal(u8::is_ascii_uppercase) => {
                6 * usize::from(uses(u8::is_ascii_alphabetic))
            }
            () => {
                26 * (usize::from(uses(u8::is_ascii_lowercase)) + usize::from(uses(u8::is_ascii_uppercase)))
            }
        };
        let alphabet = letters
            + 10 * usize::from(uses(u8::is_ascii_digit))
            + 33 * usize::from(uses(|byte| byte.is_ascii_punctuation() || *byte == b' '))
            + 161 * usize::from(uses(|byte| !byte.is_ascii() || byte.is_ascii_control()));
        let repeated = value.iter().all(|byte| Some(byte) == value.first());
        let bits = if repeated { 0.0 } else { value.len() as f64 * (alphabet as f64).log2() };
        if bits < ENOUGH_BITS { Self::Low } else { Self::Enough }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_values_of_few_characters_have_low_entropy() {
        for low in ["73519824", "123456789", "aaaaaaaaaaaaaaaa", "abcdef", "Ab1!", ""] {
            assert_eq!(Entropy::of(low.as_bytes()), Entropy::Low, "{low}");
        }
        for enough in ["7351982436", "12ab34cd", "password", "ghp_0123456789abcdef", "Tr0ub4d&r"] {
            assert_eq!(Entropy::of(enough.as_bytes()), Entropy::Enough, "{enough}");
        }
    }

    /// For each alphabet the longest value with less than 32 bits, and one that is a character longer.
    #[test]
    fn each_kind_of_character_adds_to_the_alphabet() {
        for (low, enough) in [
            ("735198246", "7351982460"),
            ("12ab34c", "12ab34cd"),
            ("12AB34C", "12AB34CD"),
            ("xyzuvw", "xyzuvwq"),
            ("XYZUVW", "XYZUVWQ"),
            ("xyZuV", "xyZuVw"),
            ("xy1z2w", "xy1z2w3"),
            ("1aB2c", "1aB2cD"),
            ("!?#$%&", "!?#$%&*"),
            ("1!2 3", "1!2 34"),
            ("x1 y", "x1 yz2"),
            ("\u{1}\u{2}\u{3}\u{4}", "\u{1}\u{2}\u{3}\u{4}\u{5}"),
            ("éa", "éaà"),
        ] {
            assert_eq!(Entropy::of(low.as_bytes()), Entropy::Low, "{low}");
            assert_eq!(Entropy::of(enough.as_bytes()), Entropy::Enough, "{enough}");
        }
    }
}
