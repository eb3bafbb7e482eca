//! Finds many patterns in one pass that reads few of the bytes.
//!
//! The text is read only at every `stride`-th position. Whatever the position of a pattern, one of the reads falls into
//! the first `stride` bytes of its *region*, so all grams (runs of up to eight bytes) that begin there are in a table.
//! Most reads miss a small Bloom filter and cost a few instructions; the others are looked up, and the whole pattern is
//! compared.
//!
//! Long patterns allow long strides, so short ones are kept apart. Of each pattern the region is used whose grams are
//! the rarest among all patterns: many values begin alike (`ghp_`, `eyJhbGci`), and the header of one must not cause
//! a comparison with each of the others. A [`JointFilter`] finds the long patterns of several indexes in one pass.
//!
//! The tables reveal bits of the patterns, so they are wiped when dropped.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use zeroize::{Zeroize, Zeroizing};

/// Patterns from this length on have a table of their own.
const LONG: usize = 16;
/// The longest gram: what is read at once.
const LONGEST_GRAM: usize = 8;
/// More would not make the search faster: the text has to be read from memory in any case.
const LONGEST_STRIDE: usize = 32;
/// With more entries the Bloom filter would not fit into a processor's cache any more; strides get shorter instead.
const MAX_ENTRIES: usize = 1 << 19;
const SHORTEST_STRIDE: usize = 4;
/// The sizes of a Bloom filter, in words. The largest takes half of a common second-level cache.
const FILTER_WORDS: RangeInclusive<usize> = 1 << 6..=1 << 17;

/// Finds the patterns that it was built from.
pub(super) struct Index {
    patterns: Vec<Zeroizing<Vec<u8>>>,
    /// Where the region of each pattern begins.
    regions: Vec<u32>,
    long: Option<Table>,
    short: Option<Table>,
}

/// The grams of the long patterns of several indexes.
pub(super) struct JointFilter {
    filter: Filter,
    /// The shortest of the indexes' strides: with it, at least one read falls into each region.
    stride: usize,
}

/// The grams of patterns of similar length.
struct Table {
    gram: usize,
    stride: usize,
    filter: Filter,
    /// For each value of the first bits of a hash: where its entries begin. One more than there are values.
    buckets: Zeroizing<Vec<u32>>,
    bucket_shift: u32,
    entries: Vec<Entry>,
}

/// A Bloom filter of hashes.
#[derive(Clone)]
struct Filter {
    words: Zeroizing<Vec<u64>>,
    /// How far a hash is shifted to the right to become an index of `words`.
    shift: u32,
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
        let mut regions = vec![0; patterns.len()];
        let mut table =
            |chosen: Vec<u32>| (!chosen.is_empty()).then(|| Table::new(&patterns, &chosen, &mut regions));
        let (long, short) = (table(long), table(short));
        Self { patterns, regions, long, short }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.long.is_none() && self.short.is_none()
    }

    /// Calls `found` with the position and the number of each pattern in the text.
    pub(super) fn find(&self, text: &[u8], mut found: impl FnMut(usize, usize)) {
        for table in self.long.iter().chain(&self.short) {
            self.find_in(table, text, &mut found);
        }
    }

    /// The same for the patterns that a [`JointFilter`] does not find.
    pub(super) fn find_short(&self, text: &[u8], found: impl FnMut(usize, usize)) {
        if let Some(table) = &self.short {
            self.find_in(table, text, found);
        }
    }

    fn find_in(&self, table: &Table, text: &[u8], mut found: impl FnMut(usize, usize)) {
        let Table { filter, gram, stride, .. } = table;
        filter.candidates(text, *gram, *stride, |hash, at| {
            self.compare(table, (hash, at), *stride, text, &mut found);
        });
    }

    /// Compares the patterns with a gram of this hash at this position. Of several reads in a region only the first
    /// counts, so that each match is found once.
    fn compare(
        &self,
        table: &Table,
        (hash, at): (u64, usize),
        stride: usize,
        text: &[u8],
        mut found: impl FnMut(usize, usize),
    ) {
        for entry in table.entries_of(hash) {
            let (number, offset) = (entry.pattern as usize, entry.offset as usize);
            let pattern = &self.patterns[number];
            let Some(start) = at.checked_sub(offset) else { continue };
            let is_first = offset < self.regions[number] as usize + stride;
            if is_first && text.get(start..start + pattern.len()).is_some_and(|there| *there == ***pattern) {
                found(start, number);
            }
        }
    }
}

impl JointFilter {
    /// `None` if fewer than two of the indexes have long patterns.
    pub(super) fn of<'a>(indexes: impl Iterator<Item = &'a Index>) -> Option<Self> {
        let mut tables: Vec<&Table> = indexes.filter_map(|index| index.long.as_ref()).collect();
        tables.sort_by_key(|table| table.entries.len());
        let (largest, others) = tables.split_last().filter(|(_, others)| !others.is_empty())?;
        let mut filter = largest.filter.clone();
        others.iter().for_each(|table| table.entries.iter().for_each(|entry| filter.insert(entry.hash)));
        let stride = tables.iter().map(|table| table.stride).min()?;
        Some(Self { filter, stride })
    }

    /// Calls `found` with the number of an index that this filter was made of, the position and the number of its pattern,
    /// for each long pattern in the text.
    pub(super) fn find<'a>(
        &self,
        indexes: impl Iterator<Item = &'a Index> + Clone,
        text: &[u8],
        mut found: impl FnMut(usize, usize, usize),
    ) {
        self.filter.candidates(text, LONGEST_GRAM, self.stride, |hash, at| {
            for (number, index) in indexes.clone().enumerate() {
                if let Some(table) = &index.long {
                    index.compare(table, (hash, at), self.stride, text, |start, pattern| {
                        found(number, start, pattern);
                    });
                }
            }
        });
    }
}

impl Table {
    fn new(patterns: &[Zeroizing<Vec<u8>>], chosen: &[u32], regions: &mut [u32]) -> Self {
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
        let mask = mask(gram);
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
            regions[number as usize] = u32::try_from(start).unwrap_or(u32::MAX);
            for (hash, offset) in hashes(start) {
                *frequency.entry(hash).or_default() += 1;
                let offset = u32::try_from(offset).unwrap_or(u32::MAX);
                entries.push(Entry { hash, pattern: number, offset });
            }
        }
        entries.sort_unstable_by_key(|entry| (entry.hash, entry.pattern, entry.offset));
        let mut filter = Filter::for_entries(entries.len());
        entries.iter().for_each(|entry| filter.insert(entry.hash));
        let values = entries.len().next_power_of_two().max(2);
        let bucket_shift = 64 - values.trailing_zeros();
        let mut buckets = Zeroizing::new(Vec::with_capacity(values + 1));
        for value in 0..=values as u64 {
            let start = entries.partition_point(|entry| entry.hash >> bucket_shift < value);
            buckets.push(u32::try_from(start).unwrap_or(u32::MAX));
        }
        Self { gram, stride, filter, buckets, bucket_shift, entries }
    }

    fn entries_of(&self, hash: u64) -> impl Iterator<Item = &Entry> {
        let bucket = (hash >> self.bucket_shift) as usize;
        let entries = &self.entries[self.buckets[bucket] as usize..self.buckets[bucket + 1] as usize];
        entries.iter().filter(move |entry| entry.hash == hash)
    }
}

impl Filter {
    fn for_entries(count: usize) -> Self {
        let words = (count / 2).next_power_of_two().clamp(*FILTER_WORDS.start(), *FILTER_WORDS.end());
        Self { words: Zeroizing::new(vec![0; words]), shift: 64 - words.trailing_zeros() }
    }

    fn insert(&mut self, hash: u64) {
        self.words[(hash >> self.shift) as usize] |= bloom_bits(hash);
    }

    #[inline]
    fn may_have(&self, hash: u64) -> bool {
        let bits = bloom_bits(hash);
        self.words[(hash >> self.shift) as usize] & bits == bits
    }

    /// Calls `visit` with the hash of each gram that may have been inserted, and where it is.
    #[inline]
    fn candidates(&self, text: &[u8], gram: usize, stride: usize, mut visit: impl FnMut(u64, usize)) {
        let mask = mask(gram);
        let mut at = 0;
        while let Some(bytes) = text.get(at..).and_then(<[u8]>::first_chunk::<LONGEST_GRAM>) {
            let hash = hash(u64::from_le_bytes(*bytes) & mask);
            if self.may_have(hash) {
                visit(hash, at);
            }
            at += stride;
        }
        // The last bytes, of which fewer than eight can be read.
        while at + gram <= text.len() {
            visit(hash(read(text, at) & mask), at);
            at += stride;
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

/// Keeps the bytes of a gram in a number of eight bytes.
fn mask(gram: usize) -> u64 {
    u64::MAX >> (64 - 8 * gram)
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
