//! Numbers from a seed: the same seed gives the same chaos.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::RangeInclusive;

/// SplitMix64: small, and good enough to be unkind with.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed of this run: from `COFFERDAM_CHAOS_SEED`, else another one each time. It is printed, for a second look.
    #[track_caller]
    pub fn seed() -> u64 {
        let seed = match std::env::var("COFFERDAM_CHAOS_SEED") {
            Ok(text) => text.parse().expect("COFFERDAM_CHAOS_SEED is a number"),
            Err(_) => RandomState::new().build_hasher().finish() >> 32,
        };
        // Several tests talk at the same time; each runs in a thread that has its name.
        let thread = std::thread::current();
        eprintln!("chaos: COFFERDAM_CHAOS_SEED={seed} for {}", thread.name().unwrap_or("a thread"));
        seed
    }

    #[expect(clippy::should_implement_trait, reason = "no iterator: it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.next() % (range.end() - range.start() + 1)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.next() % 100 < chance
    }
}
