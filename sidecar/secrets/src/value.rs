//! One secret value. Its memory is wiped when it is dropped.

use std::fmt;

use zeroize::Zeroizing;

/// Shorter values occur in other text by chance: scrubbing them would destroy that text.
pub const MIN_VALUE_BYTES: usize = 8;

/// One secret value.
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    pub fn new(value: Zeroizing<Vec<u8>>) -> Self {
        Self(value)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of the value. Only the module [`opened`](super::opened) may call this; `.clippy.toml` bans other uses.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
