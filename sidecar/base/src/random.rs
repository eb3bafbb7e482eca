//! Random bytes from the operating system.

use ring::rand::{SecureRandom, SystemRandom};

/// `N` bytes that nobody can guess.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the operating system gives random numbers");
    bytes
}

/// The same in lower-case hex.
pub fn hex<const N: usize>() -> String {
    bytes::<N>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// From 0 to 1, 1 excluded.
pub fn chance() -> f64 {
    f64::from(u32::from_be_bytes(bytes())) / (f64::from(u32::MAX) + 1.0)
}
