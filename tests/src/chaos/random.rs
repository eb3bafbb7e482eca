//! Random numbers from a seed: the same seed gives the same plans.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::RangeInclusive;

/// SplitMix64: small, and random enough for plans.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed of this run: from `COFFERDAM_CHAOS_SEED`, else a random one. It is printed, to repeat the run.
    #[track_caller]
    pub fn seed() -> u64 {
        let seed = match std::env::var("COFFERDAM_CHAOS_SEED") {
            Ok(text) => text.parse().expect("COFFERDAM_CHAOS_SEED is a number"),
            Err(_) => RandomState::new().build_hasher().finish() >> 32,
        };
        // Several tests print at the same time; each runs in a thread with its name.
        let thread = std::thread::current();
        eprintln!("chaos: COFFERDAM_CHAOS_SEED={seed} for {}", thread.name().unwrap_or("a thread"));
        seed
    }

    #[expect(clippy::should_implement_trait, reason = "not an iterator; each call draws a number")]
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

    /// True with this probability in percent.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.next() % 100 < chance
    }
}
