//! Finds many patterns in one pass that reads few of the bytes.
//!
//! From each pattern a window is chosen, all of the same length. The text is read in blocks of three bytes, at the end
//! of a possible window: a table gives for each block how far ahead the nearest window can end, so that most steps skip
//! almost the length of a window (Wu and Manber, 1994). Case is ignored here; the comparison of the whole pattern
//! respects it.
//!
//! The table reveals a few bits of every three bytes of the patterns, so it is wiped when dropped.

use std::ops::Range;

use zeroize::Zeroizing;

/// How many bytes are read at each step.
const BLOCK: usize = 3;
/// Longer windows allow longer steps, but fill the table more.
const LONGEST_WINDOW: usize = 32;

/// Finds the windows of its patterns.
pub(super) struct Filter {
    window: usize,
    /// For each hash of a block: its least distance from the end of any window.
    steps: Zeroizing<Vec<u8>>,
    /// The hash of each window's last block and the index of its pattern, sorted.
    ends: Zeroizing<Vec<(u32, u32)>>,
    /// How far a hash is shifted to become an index.
    shift: u32,
}

impl Filter {
    /// The shortest run that can contain a window.
    pub(super) const SHORTEST: usize = BLOCK;

    /// Takes each pattern with the range of bytes in which its window may lie, which must be at least `SHORTEST` long.
    ///
    /// Also returns where in each pattern its window begins.
    pub(super) fn new<'a>(
        patterns: impl Iterator<Item = (&'a [u8], Range<usize>)> + Clone,
    ) -> (Self, Vec<usize>) {
        let shortest = patterns.clone().map(|(_, run)| run.len()).min().unwrap_or(LONGEST_WINDOW);
        let window = shortest.clamp(BLOCK, LONGEST_WINDOW);
        // At most one entry in sixteen is used, unless the table has reached its maximum size. Then steps get shorter.
        let entries = (patterns.clone().count() * window * 16).next_power_of_two().clamp(1 << 12, 1 << 16);
        let shift = 32 - entries.trailing_zeros();
        let farthest = u8::try_from(window - BLOCK + 1).unwrap_or(u8::MAX);
        let mut steps = Zeroizing::new(vec![farthest; entries]);
        let mut ends = Zeroizing::new(Vec::with_capacity(patterns.clone().count()));
        let mut starts = Vec::new();
        for (index, (pattern, run)) in (0..).zip(patterns) {
            // From the middle, because many values begin alike: `ghp_`, `eyJhbGci`.
            let start = run.start + (run.len() - window) / 2;
            for (distance, block) in
                (0..farthest).zip(pattern[start..start + window].array_windows::<BLOCK>().rev())
            {
                let hash = hash(block, shift);
                steps[hash] = steps[hash].min(distance);
                if distance == 0 {
                    ends.push((u32::try_from(hash).unwrap_or(u32::MAX), index));
                }
            }
            starts.push(start);
        }
        ends.sort_unstable();
        (Self { window, steps, ends, shift }, starts)
    }

    /// The length of every window.
    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// Calls `visit` with each position where a window may begin and the index of its pattern, until it returns `Some`.
    #[inline]
    pub(super) fn candidates<T>(
        &self,
        text: &[u8],
        mut visit: impl FnMut(usize, usize) -> Option<T>,
    ) -> Option<T> {
        let mut at = self.window - BLOCK;
        while let Some(block) = text.get(at..).and_then(<[u8]>::first_chunk::<BLOCK>) {
            let hash = hash(block, self.shift);
            match self.steps[hash] {
                0 => {
                    let start = at + BLOCK - self.window;
                    let key = u32::try_from(hash).unwrap_or(u32::MAX);
                    let first = self.ends.partition_point(|(end, _)| *end < key);
                    for (_, pattern) in self.ends[first..].iter().take_while(|(end, _)| *end == key) {
                        if let Some(result) = visit(start, *pattern as usize) {
                            return Some(result);
                        }
                    }
                    at += 1;
                }
                step => at += usize::from(step),
            }
        }
        None
    }
}

/// The index of a block in the table, ignoring case.
#[inline]
fn hash(block: &[u8; BLOCK], shift: u32) -> usize {
    let folded = u32::from_le_bytes([block[0], block[1], block[2], 0]) | 0x0020_2020;
    (folded.wrapping_mul(0x9E37_79B1) >> shift) as usize
}
