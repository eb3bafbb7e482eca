//! Finds many patterns in one pass that reads few of the bytes.
//!
//! The text is read only at every `stride`-th position. Whatever the position of a pattern, one of the reads falls into
//! the first `stride` bytes of its *region*, so all grams (runs of up to eight bytes) that begin there are in a table.
//! Most reads miss a small Bloom filter and cost a few instructions; the others are looked up, and the whole pattern is
//! compared.
//!
//! Long patterns allow long strides, so short ones are kept apart. Of each pattern the region is used whose grams are
//! the rarest among all patterns: many values begin alike (`ghp_`, `eyJhbGci`), and the header of one must not cause
//! a comparison with each of the others.
//!
//! The tables reveal bits of the patterns, so they are wiped when dropped.

use std::collections::HashMap;

use zeroize::{Zeroize, Zeroizing};

/// Patterns from this length on have a table of their own.
const LONG: usize = 16;
/// The longest gram: what is read at once.
const LONGEST_GRAM: usize = 8;
/// More would not make the search faster: the text has to be read from memory in any case.
const LONGEST_STRIDE: usize = 32;
/// With more entries the Bloom filter would not fit into a processor's cache any more; strides get shorter instead.
const MAX_ENTRIES: usize = 1 << 17;
const SHORTEST_STRIDE: usize = 4;

/// Finds the patterns that it was built from.
pub(super) struct Index {
    patterns: Vec<Zeroizing<Vec<u8>>>,
    tables: Vec<Table>,
}

/// The grams of patterns of similar length.
struct Table {
    gram: usize,
    stride: usize,
    /// Keeps the bytes of a gram in a number of eight bytes.
    mask: u64,
    bloom: Zeroizing<Vec<u64>>,
    /// How far a hash is shifted to the right to become an index of `bloom`.
    bloom_shift: u32,
    /// For each value of the first bits of a hash: where its entries begin. One more than there are values.
    buckets: Zeroizing<Vec<u32>>,
    bucket_shift: u32,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
    pattern: u32,
    /// Where in the pattern the gram begins.
    offset: u32,
}

impl Index {
    pub(super) fn new(patterns: Vec<Zeroizing<Vec<u8>>>) -> Self {
        let (long, short): (Vec<u32>, Vec<u32>) = (0..u32::try_from(patterns.len()).unwrap_or(u32::MAX))
            .filter(|pattern| !patterns[*pattern as usize].is_empty())
            .partition(|pattern| patterns[*pattern as usize].len() >= LONG);
        let chosen = [long, short].into_iter().filter(|chosen| !chosen.is_empty());
        let tables = chosen.map(|chosen| Table::new(&patterns, &chosen)).collect();
        Self { patterns, tables }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Calls `found` with the position and the number of each pattern in the text.
    pub(super) fn find(&self, text: &[u8], mut found: impl FnMut(usize, usize)) {
        for table in &self.tables {
            table.candidates(text, |entry, at| {
                let pattern = &self.patterns[entry.pattern as usize];
                let Some(start) = at.checked_sub(entry.offset as usize) else { return };
                if text.get(start..start + pattern.len()).is_some_and(|there| *there == ***pattern) {
                    found(start, entry.pattern as usize);
                }
            });
        }
    }
}

impl Table {
    fn new(patterns: &[Zeroizing<Vec<u8>>], chosen: &[u32]) -> Self {
        let lengths = chosen.iter().map(|pattern| patterns[*pattern as usize].len());
        let shortest = lengths.min().unwrap_or(1);
        let gram = match shortest {
            LONG.. => LONGEST_GRAM,
            // Half of the pattern, so that the stride is the other half.
            8..LONG => shortest / 2 + 1,
            _ => shortest.div_ceil(2),
        };
        let affordable = (MAX_ENTRIES / chosen.len()).clamp(SHORTEST_STRIDE, LONGEST_STRIDE);
        let stride = (shortest - gram + 1).min(affordable);
        let mask = u64::MAX >> (64 - 8 * gram);
        let mut frequency: HashMap<u64, u32> = HashMap::new();
        let mut entries = Vec::with_capacity(chosen.len() * stride);
        for &number in chosen {
            let pattern = &patterns[number as usize];
            let last = pattern.len() - (gram + stride - 1);
            let hashes = |start: usize| {
                (start..start + stride).map(move |offset| (hash(read(pattern, offset) & mask), offset))
            };
            let commonness = |start: &usize| {
                hashes(*start).map(|(hash, _)| frequency.get(&hash).copied().unwrap_or(0)).max()
            };
            // The ends of values are more often random than their beginnings.
            let start = [last, last / 2, 0].into_iter().min_by_key(commonness).unwrap_or(last);
            for (hash, offset) in hashes(start) {
                *frequency.entry(hash).or_default() += 1;
                let offset = u32::try_from(offset).unwrap_or(u32::MAX);
                entries.push(Entry { hash, pattern: number, offset });
            }
        }
        entries.sort_unstable_by_key(|entry| (entry.hash, entry.pattern, entry.offset));
        let words = (entries.len() / 2).next_power_of_two().clamp(1 << 6, 1 << 15);
        let bloom_shift = 64 - words.trailing_zeros();
        let mut bloom = Zeroizing::new(vec![0_u64; words]);
        for entry in &entries {
            bloom[(entry.hash >> bloom_shift) as usize] |= bloom_bits(entry.hash);
        }
        let values = entries.len().next_power_of_two().max(2);
        let bucket_shift = 64 - values.trailing_zeros();
        let mut buckets = Zeroizing::new(Vec::with_capacity(values + 1));
        for value in 0..=values as u64 {
            let start = entries.partition_point(|entry| entry.hash >> bucket_shift < value);
            buckets.push(u32::try_from(start).unwrap_or(u32::MAX));
        }
        Self { gram, stride, mask, bloom, bloom_shift, buckets, bucket_shift, entries }
    }

    /// Calls `visit` with each entry whose gram may be in the text, and where.
    #[inline]
    fn candidates(&self, text: &[u8], mut visit: impl FnMut(&Entry, usize)) {
        let mut visit_all = |hash: u64, at: usize| {
            let bucket = (hash >> self.bucket_shift) as usize;
            let entries = &self.entries[self.buckets[bucket] as usize..self.buckets[bucket + 1] as usize];
            for entry in entries.iter().filter(|entry| entry.hash == hash) {
                visit(entry, at);
            }
        };
        let mut at = 0;
        while let Some(bytes) = text.get(at..).and_then(<[u8]>::first_chunk::<LONGEST_GRAM>) {
            let hash = hash(u64::from_le_bytes(*bytes) & self.mask);
            let bits = bloom_bits(hash);
            if self.bloom[(hash >> self.bloom_shift) as usize] & bits == bits {
                visit_all(hash, at);
            }
            at += self.stride;
        }
        // The last bytes, of which fewer than eight can be read.
        while at + self.gram <= text.len() {
            visit_all(hash(read(text, at) & self.mask), at);
            at += self.stride;
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for entry in &mut self.entries {
            entry.hash.zeroize();
        }
    }
}

/// Up to eight bytes from `at` on, as a number.
fn read(text: &[u8], at: usize) -> u64 {
    let mut bytes = [0; LONGEST_GRAM];
    let available = &text[at..text.len().min(at + LONGEST_GRAM)];
    bytes[..available.len()].copy_from_slice(available);
    u64::from_le_bytes(bytes)
}

#[inline]
fn hash(gram: u64) -> u64 {
    let product = gram.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (product ^ product >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Two of the 64 bits of a word.
#[inline]
fn bloom_bits(hash: u64) -> u64 {
    1 << (hash & 63) | 1 << (hash >> 6 & 63)
}
