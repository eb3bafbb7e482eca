//! Runs of letters in text that may be base64, base32 or hexadecimal.

use std::ops::Range;

use fearless_simd::{Level, Simd, dispatch};

use super::classes::{BLOCK, Classes, each_base32_block, first_bits};

/// The runs of a text.
pub(super) struct Runs {
    pub(super) length: RunLength,
    /// Letters of base64, of which base32 is a part.
    pub(super) letters: Vec<Range<usize>>,
    /// Hexadecimal digits and what is between them.
    pub(super) digits: Vec<Range<usize>>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RunLength {
    /// From [`SHORTEST_LONG_RUN`] letters on.
    Long,
    /// From nine letters on, which takes longer.
    Short,
}

/// Shorter runs are common in prose.
pub(super) const SHORTEST_LONG_RUN: usize = 15;

impl RunLength {
    fn shortest(self) -> usize {
        match self {
            Self::Long => SHORTEST_LONG_RUN,
            Self::Short => 9,
        }
    }
}

impl Runs {
    /// The runs of a text of this length.
    pub(super) fn new(classes: &Classes, length: RunLength) -> Self {
        let letters = runs_of(classes.letters(), length.shortest());
        let digits = runs_of(classes.digits(), SHORTEST_LONG_RUN);
        Self { length, letters, digits }
    }

    /// Only those runs that `belongs` accepts, by where they begin.
    pub(super) fn filtered(mut self, belongs: impl Fn(usize) -> bool) -> Self {
        self.letters.retain(|run| belongs(run.start));
        self.digits.retain(|run| belongs(run.start));
        self
    }

    /// How much memory they use.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.letters) + size_of_val(&*self.digits)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.letters.is_empty() && self.digits.is_empty()
    }

    /// The longest parts of runs of letters that may be base32, in one case, without those inside of another: digits are
    /// read once.
    pub(super) fn base32(&self, text: &[u8]) -> Vec<Range<usize>> {
        let shortest = self.length.shortest();
        let [mut capital, mut small] = [Collector::new(shortest), Collector::new(shortest)];
        let mut whole = Vec::new();
        each_base32_block(text, &self.letters, |run, start, bits| {
            if run.len() <= BLOCK && bits.contains(&first_bits(run.len())) {
                whole.push(run.clone());
                return;
            }
            for (letters, bits) in [&mut capital, &mut small].into_iter().zip(bits) {
                letters.add(start, bits);
                if start + BLOCK >= run.end {
                    letters.end(run.end);
                }
            }
        });
        without_inner(whole, without_inner(capital.runs, small.runs))
    }
}

/// The parts of both lists in order, without those inside of others. No two of one list overlap.
fn without_inner(mut parts: Vec<Range<usize>>, mut others: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let is_sorted = parts.is_empty() || others.is_empty();
    parts.append(&mut others);
    if !is_sorted {
        parts.sort_by_key(|part| (part.start, usize::MAX - part.end));
        parts.dedup_by(|next, part| next.end <= part.end);
    }
    parts
}

/// The runs of one class, whose bits are given for each block.
fn runs_of(blocks: &[u64], shortest: usize) -> Vec<Range<usize>> {
    let mut collector = Collector::new(shortest);
    dispatch!(Level::new(), simd => collector.add_all(simd, blocks));
    collector.runs
}

/// The blocks that are searched together for the beginning of a run. In most texts there is none.
const TOGETHER: usize = 8;

/// One bit for each position from which on `count` bits are set, which are from 8 to 16.
#[inline(always)]
fn in_a_row(bits: u64, count: usize) -> u64 {
    let pairs = bits & bits >> 1;
    let fours = pairs & pairs >> 2;
    let eights = fours & fours >> 4;
    eights & eights >> (count - 8)
}

/// Collects the runs of one class from successive blocks.
struct Collector {
    /// At least eight.
    shortest: usize,
    /// Where the run began that the last block ended with.
    open: Option<usize>,
    runs: Vec<Range<usize>>,
}

impl Collector {
    fn new(shortest: usize) -> Self {
        Self { shortest, open: None, runs: Vec::new() }
    }

    /// Adds the blocks of a whole text.
    #[inline(always)]
    fn add_all<S: Simd>(&mut self, _simd: S, blocks: &[u64]) {
        let (groups, rest) = blocks.as_chunks::<TOGETHER>();
        let mut before = 0;
        let mut start = 0;
        for group in groups {
            if self.may_have_run(before, group) {
                self.open = self.continued(before, start);
                for (number, bits) in group.iter().enumerate() {
                    self.add(start + number * BLOCK, *bits);
                }
            } else {
                self.open = None;
            }
            before = group[TOGETHER - 1];
            start += TOGETHER * BLOCK;
        }
        self.open = self.continued(before, start);
        for (number, bits) in rest.iter().enumerate() {
            self.add(start + number * BLOCK, *bits);
        }
        self.end(blocks.len() * BLOCK);
    }

    /// Where the run began that the block before `start` ends with. In a block that was left out it is short.
    #[inline]
    fn continued(&self, before: u64, start: usize) -> Option<usize> {
        (before >> 63 == 1).then(|| self.open.unwrap_or(start - before.leading_ones() as usize))
    }

    /// Whether a run is in these blocks, or reaches into them from the block before.
    #[inline(always)]
    fn may_have_run(&self, before: u64, group: &[u64; TOGETHER]) -> bool {
        let mut previous = [before; TOGETHER];
        previous[1..].copy_from_slice(&group[..TOGETHER - 1]);
        let mut found = 0;
        for (bits, previous) in group.iter().zip(&previous) {
            // The second finds runs in two blocks, by the bits around the border.
            found |= in_a_row(*bits, self.shortest) | in_a_row(bits << 32 | previous >> 32, self.shortest);
        }
        found != 0
    }

    /// Adds the block that begins at `start`, with one bit for each byte of the class.
    #[inline]
    fn add(&mut self, start: usize, bits: u64) {
        if let Some(open) = self.open {
            if bits == u64::MAX {
                return;
            }
            self.close(open, start + bits.trailing_ones() as usize);
        }
        let mut long = in_a_row(bits, self.shortest);
        if self.open.is_some() {
            long &= u64::MAX << bits.trailing_ones();
        }
        while long != 0 {
            let first = long.trailing_zeros();
            let length = (bits >> first).trailing_ones();
            if first + length == u64::BITS {
                break;
            }
            self.close(start + first as usize, start + (first + length) as usize);
            long &= u64::MAX << (first + length);
        }
        let last = bits.leading_ones() as usize;
        self.open = (last > 0).then_some(start + BLOCK - last);
    }

    fn close(&mut self, start: usize, end: usize) {
        if end - start >= self.shortest {
            self.runs.push(start..end);
        }
    }

    /// The text ends here, or what comes next does not continue it.
    fn end(&mut self, end: usize) {
        if let Some(open) = self.open.take() {
            self.close(open, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The runs of a class, read byte by byte.
    fn runs_byte_by_byte(text: &[u8], shortest: usize, belongs: fn(u8) -> bool) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let length = text[at..].iter().take_while(|byte| belongs(**byte)).count();
            if length >= shortest {
                runs.push(at..at + length);
            }
            at += length + 1;
        }
        runs
    }

    /// Blocks without a run are left out together, so most of these texts have nothing else.
    #[test]
    fn a_single_run_is_found_wherever_it_is_and_however_long() {
        for length in [1, 8, 9, 14, 15, 16, 33, 64, 65, 600] {
            for start in 0..2 * TOGETHER * BLOCK {
                let mut text = vec![b'!'; start];
                text.extend(std::iter::repeat_n(b'f', length));
                text.extend_from_slice(&[b'!'; 70]);
                let classes = Classes::new(&text);
                for run_length in [RunLength::Long, RunLength::Short] {
                    let found = Runs::new(&classes, run_length);
                    let expected =
                        |shortest| Vec::from_iter((length >= shortest).then(|| start..start + length));
                    assert_eq!(found.letters, expected(run_length.shortest()), "{length} letters at {start}");
                    assert_eq!(found.digits, expected(SHORTEST_LONG_RUN), "{length} digits at {start}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn runs_are_those_of_a_search_byte_by_byte(
            text in "([A-Za-z2-7+/_-]{0,150}[ -~]{0,3}|[0-9a-f :,x-]{0,150}[ -~]{0,3}|[A-Z]{0,9}[2-7]{12,90}[A-Za-z]{0,20}){0,6}",
        ) {
            let text = text.as_bytes();
            for length in [RunLength::Long, RunLength::Short] {
                let runs = Runs::new(&Classes::new(text), length);
                let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte);
                let is_digit = |byte: u8| byte.is_ascii_hexdigit() || b" :-,xX".contains(&byte);
                prop_assert_eq!(&runs.letters, &runs_byte_by_byte(text, length.shortest(), is_letter));
                prop_assert_eq!(&runs.digits, &runs_byte_by_byte(text, SHORTEST_LONG_RUN, is_digit));
                let is_upper = |byte: u8| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte);
                let is_lower = |byte: u8| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte);
                let mut expected = runs_byte_by_byte(text, length.shortest(), is_upper);
                expected.extend(runs_byte_by_byte(text, length.shortest(), is_lower));
                let all = expected.clone();
                let is_inside = |part: &Range<usize>, other: &Range<usize>| {
                    part != other && other.start <= part.start && part.end <= other.end
                };
                expected.retain(|part| !all.iter().any(|other| is_inside(part, other)));
                expected.sort_by_key(|part| part.start);
                expected.dedup();
                prop_assert_eq!(runs.base32(text), expected);
            }
        }
    }
}
