//! Runs of letters in text that may be base64, base32 or hexadecimal.
//!
//! Text is classified in blocks of 64 bytes: for each block, a number has one bit for each byte that belongs to a class.
//! Runs are read from the bits. Most blocks of prose have no eight letters in a row and are left out before that.

use std::ops::Range;

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
    /// Finds all runs in one pass.
    pub(super) fn new(text: &[u8], length: RunLength) -> Self {
        let mut letters = Collector::new(text, length.shortest(), is_base64);
        let mut digits = Collector::new(text, SHORTEST_LONG_RUN, is_hexadecimal);
        each_block(text, |start, block| {
            letters.add(start, block);
            digits.add(start, block);
        });
        Self { length, letters: letters.finish(), digits: digits.finish() }
    }

    /// Only the runs that begin after one of these marks.
    pub(super) fn after_marks(mut self, marks: &[usize]) -> Self {
        let is_after_mark =
            |run: &Range<usize>| run.start > 0 && marks.binary_search(&(run.start - 1)).is_ok();
        self.letters.retain(is_after_mark);
        self.digits.retain(is_after_mark);
        self
    }

    /// Calls `visit` with each longest part of a run of letters that may be base32, in one case.
    pub(super) fn each_base32(&self, text: &[u8], mut visit: impl FnMut(Range<usize>)) {
        let shortest = self.length.shortest();
        for run in &self.letters {
            let letters = &text[run.clone()];
            let mut upper = Collector::new(letters, shortest, |byte| is_base32(byte, b'A'));
            let mut lower = Collector::new(letters, shortest, |byte| is_base32(byte, b'a'));
            if letters.len() < BLOCK {
                upper.add_bytes();
                lower.add_bytes();
            } else {
                each_block(letters, |start, block| {
                    upper.add(start, block);
                    lower.add(start, block);
                });
            }
            for part in upper.finish().into_iter().chain(lower.finish()) {
                visit(run.start + part.start..run.start + part.end);
            }
        }
    }
}

/// Whether a run begins with the first of these bytes.
#[inline]
pub(super) fn begins_with_run(text: &[u8], length: RunLength) -> bool {
    let begins = |shortest: usize, belongs: fn(u8) -> bool| {
        text.get(..shortest).is_some_and(|run| run.iter().all(|byte| belongs(*byte)))
    };
    begins(length.shortest(), is_base64) || begins(SHORTEST_LONG_RUN, is_hexadecimal)
}

/// Collects the runs of one class from successive blocks.
struct Collector<'a, B> {
    text: &'a [u8],
    shortest: usize,
    belongs: B,
    /// Where a run began that has not ended, and of which eight bytes or more were read.
    open: Option<usize>,
    runs: Vec<Range<usize>>,
}

impl<'a, B: Fn(u8) -> bool> Collector<'a, B> {
    fn new(text: &'a [u8], shortest: usize, belongs: B) -> Self {
        Self { text, shortest, belongs, open: None, runs: Vec::new() }
    }

    /// Adds the block that begins at `start`.
    #[inline]
    fn add(&mut self, start: usize, block: &[u8; BLOCK]) {
        let accepted = accepted(block, &self.belongs);
        // A long run has eight bytes in a row at a multiple of eight.
        if self.open.is_none() && self.shortest >= SHORTEST_LONG_RUN && !has_eight(&accepted) {
            return;
        }
        let bits = highest_bits(&accepted);
        let first = bits.trailing_ones() as usize;
        if self.open.is_none() && first > 0 && first + 7 >= self.shortest {
            let before = self.text[..start].iter().rev().take_while(|byte| (self.belongs)(**byte)).count();
            self.open = Some(start - before);
        }
        if bits == u64::MAX {
            return;
        }
        let mut inside = bits;
        if let Some(open) = self.open.take() {
            self.close(open, start + first);
            inside &= u64::MAX << first;
        }
        // Each of these bits is the first of eight in a row.
        let pairs = inside & inside >> 1;
        let fours = pairs & pairs >> 2;
        let mut eights = fours & fours >> 4;
        while eights != 0 {
            let first = eights.trailing_zeros() as usize;
            let length = (bits >> first).trailing_ones() as usize;
            if first + length == BLOCK {
                break;
            }
            self.close(start + first, start + first + length);
            eights &= u64::MAX << (first + length);
        }
        let last = bits.leading_ones() as usize;
        if last >= 8 {
            self.open = Some(start + BLOCK - last);
        }
    }

    fn close(&mut self, start: usize, end: usize) {
        if end - start >= self.shortest {
            self.runs.push(start..end);
        }
    }

    /// Adds the whole text, byte by byte.
    fn add_bytes(&mut self) {
        let mut start = 0;
        while start < self.text.len() {
            let length = self.text[start..].iter().take_while(|byte| (self.belongs)(**byte)).count();
            self.close(start, start + length);
            start += length + 1;
        }
    }

    fn finish(mut self) -> Vec<Range<usize>> {
        if let Some(open) = self.open.take() {
            self.close(open, self.text.len());
        }
        self.runs
    }
}

pub(super) const BLOCK: usize = 64;

/// Calls `visit` with each block and its position. The last one is filled up with bytes that belong to no class.
#[inline]
fn each_block(text: &[u8], mut visit: impl FnMut(usize, &[u8; BLOCK])) {
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    for (number, block) in blocks.iter().enumerate() {
        visit(number * BLOCK, block);
    }
    if !rest.is_empty() {
        let mut block = [0; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        visit(blocks.len() * BLOCK, &block);
    }
}

/// A number with one bit for each byte: whether `belongs` accepts it.
#[inline]
pub(super) fn bits(block: &[u8; BLOCK], belongs: impl Fn(u8) -> bool) -> u64 {
    highest_bits(&accepted(block, belongs))
}

/// For each byte 255 if `belongs` accepts it, and zero otherwise. Without branches, so that the compiler generates vector
/// code.
#[inline]
fn accepted(block: &[u8; BLOCK], belongs: impl Fn(u8) -> bool) -> [u8; BLOCK] {
    let mut accepted = [0; BLOCK];
    for (accepted, byte) in accepted.iter_mut().zip(block) {
        *accepted = if belongs(*byte) { 0xFF } else { 0 };
    }
    accepted
}

/// Whether eight bytes in a row at a multiple of eight were accepted.
#[inline]
fn has_eight(accepted: &[u8; BLOCK]) -> bool {
    let (words, _) = accepted.as_chunks::<8>();
    words.iter().fold(false, |any, word| any | (u64::from_le_bytes(*word) == u64::MAX))
}

/// The highest bit of each byte.
#[inline]
fn highest_bits(bytes: &[u8; BLOCK]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let eight = |word: &[u8; 8]| {
        let lowest = u64::from_le_bytes(*word) >> 7 & 0x0101_0101_0101_0101;
        lowest.wrapping_mul(0x0102_0408_1020_4080) >> 56
    };
    words.iter().rev().fold(0, |bits, word| bits << 8 | eight(word))
}

#[inline]
fn is_base64(byte: u8) -> bool {
    ((byte | 0x20).wrapping_sub(b'a') < 26)
        | (byte.wrapping_sub(b'/') < 11)
        | (byte == b'+')
        | (byte == b'-')
        | (byte == b'_')
}

/// Whether the byte belongs to base32 with letters from `first` on: `A` or `a`.
#[inline]
fn is_base32(byte: u8, first: u8) -> bool {
    (byte.wrapping_sub(first) < 26) | (byte.wrapping_sub(b'2') < 6)
}

/// Whether the byte is a hexadecimal digit or between two of them.
#[inline]
fn is_hexadecimal(byte: u8) -> bool {
    ((byte | 0x20).wrapping_sub(b'a') < 6)
        | (byte.wrapping_sub(b'0') < 11)
        | (byte == b' ')
        | (byte | 1 == b'-')
        | (byte | 0x20 == b'x')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The runs of a class, read byte by byte.
    fn runs_of(text: &[u8], shortest: usize, belongs: fn(u8) -> bool) -> Vec<Range<usize>> {
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

    proptest! {
        #[test]
        fn runs_are_those_of_a_search_byte_by_byte(text in "([A-Za-z2-7+/_-]{0,150}[ -~]{0,3}|[0-9a-f :,x-]{0,150}[ -~]{0,3}){0,6}") {
            let text = text.as_bytes();
            for length in [RunLength::Long, RunLength::Short] {
                let runs = Runs::new(text, length);
                let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte);
                let is_digit = |byte: u8| byte.is_ascii_hexdigit() || b" :-,xX".contains(&byte);
                prop_assert_eq!(&runs.letters, &runs_of(text, length.shortest(), is_letter));
                prop_assert_eq!(&runs.digits, &runs_of(text, SHORTEST_LONG_RUN, is_digit));
                let mut parts = Vec::new();
                runs.each_base32(text, |part| parts.push(part));
                let is_upper = |byte: u8| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte);
                let is_lower = |byte: u8| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte);
                let mut expected = runs_of(text, length.shortest(), is_upper);
                expected.extend(runs_of(text, length.shortest(), is_lower));
                parts.sort_by_key(|part| (part.start, part.end));
                expected.sort_by_key(|part| (part.start, part.end));
                prop_assert_eq!(parts, expected);
            }
        }
    }
}
