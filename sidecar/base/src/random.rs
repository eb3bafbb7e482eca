//! Random bytes from the operating system.

use ring::rand::{SecureRandom, SystemRandom};

use crate::text;

/// `N` bytes that cannot be predicted.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the operating system provides random numbers");
    bytes
}

/// `N` random bytes in lower-case hexadecimal digits.
pub fn hex<const N: usize>() -> String {
    text::hex(&bytes::<N>())
}

/// A unique name: the prefix and 64 random bits.
pub fn id(prefix: &str) -> String {
    format!("{prefix}{}", hex::<8>())
}

/// A random number from 0 to 1, 1 excluded.
pub fn fraction() -> f64 {
    f64::from(u32::from_be_bytes(bytes())) / (f64::from(u32::MAX) + 1.0)
}
