//! The texts that are encoded in runs of letters, whichever letter they begin at.
//!
//! Every listed spelling of a value is ASCII, and so is nearly every value. So only parts of runs are decoded in which
//! [`SHORTEST`] bytes of ASCII text follow each other. For blocks of letters, all bytes that could begin in them are tested
//! at once; which of these follow each other depends on the letter that the first one begins in. Bytes of an image are
//! excluded by one bit of each letter.

mod blocks;

use std::ops::Range;

use fearless_simd::prelude::*;
use fearless_simd::{Level, Simd, dispatch};

use super::budget::OverBudget;
use super::classes::{BLOCK, bytes_at, first_bits};
use super::origins::narrow;
use super::symbols::{BASE32, BASE64, Coding};
use blocks::{
    Tested, WIDE, block_of_groups, bytes_in_group, bytes_of_text, every_group, letters_in_group, low_bytes,
    tested,
};

/// The texts found at one level, one behind the other, with [`SEPARATOR`] between them.
#[derive(Default)]
pub(super) struct DecodedTexts {
    pub(super) bytes: Vec<u8>,
    pieces: Vec<Piece>,
}

/// One of the texts.
struct Piece {
    coding: Coding,
    /// Where it begins in `bytes`.
    start: u32,
    /// The letter that its first byte begins in, and at which bit of it. There may be a piece for each twelve letters.
    letter: u32,
    bit: u8,
}

/// How many bytes of ASCII follow each other at least in the texts that are decoded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LeastAscii {
    /// [`SHORTEST`].
    Shortest,
    /// Six, for values with other characters, which takes longer.
    FewBytes,
}

/// A byte that belongs to no encoding.
const SEPARATOR: u8 = 1;
/// Shorter texts contain neither a value whose symbols are not searched for nor an encoded value.
pub(super) const SHORTEST: usize = 9;

impl DecodedTexts {
    /// Adds the texts in runs of one coding. Hexadecimal digits are given as their numbers. As soon as `bytes` is longer
    /// than `limit`, no more is added.
    pub(super) fn add(
        &mut self,
        coding: Coding,
        letters: &[u8],
        runs: &[Range<usize>],
        limit: usize,
        least: LeastAscii,
    ) -> Result<(), OverBudget> {
        match coding {
            Coding::Base32 => self.add_runs::<5>(letters, runs, limit, least),
            Coding::Base64 => self.add_runs::<6>(letters, runs, limit, least),
            Coding::Hexadecimal => self.add_runs::<4>(letters, runs, limit, least),
        }
    }

    fn add_runs<const BITS: usize>(
        &mut self,
        letters: &[u8],
        runs: &[Range<usize>],
        limit: usize,
        least: LeastAscii,
    ) -> Result<(), OverBudget> {
        let trigger = RunDecoder::<BITS>::trigger(least);
        let mut decoder = RunDecoder::<BITS> { letters, texts: self, limit, trigger };
        dispatch!(Level::new(), simd => decoder.decode_all(simd, runs))
    }

    /// How much memory they use.
    pub(super) fn memory(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.pieces)
    }

    /// The coding of the text at `at`, and the bit of the letters that this byte begins with.
    pub(super) fn origin(&self, at: usize) -> (Coding, usize) {
        let next = self.pieces.partition_point(|piece| piece.start as usize <= at);
        let Piece { coding, start, letter, bit } = self.pieces[next - 1];
        let first = letter as usize * coding.bits() + usize::from(bit);
        (coding, first + 8 * (at - start as usize))
    }
}

/// Decodes the runs of one coding, whose letters stand for `BITS` bits each.
struct RunDecoder<'a, const BITS: usize> {
    letters: &'a [u8],
    texts: &'a mut DecodedTexts,
    /// The length that `texts` may have.
    limit: usize,
    /// How many positions in a row must belong to text of ASCII.
    trigger: u32,
}

impl<const BITS: usize> RunDecoder<'_, BITS> {
    const CODING: Coding = match BITS {
        4 => Coding::Hexadecimal,
        5 => Coding::Base32,
        _ => Coding::Base64,
    };

    const GROUP: usize = letters_in_group(BITS);
    const BYTES: usize = bytes_in_group(BITS);
    const EVERY_GROUP: u64 = every_group(BITS);

    /// The letters of a group in which its bytes begin.
    const BEGINNINGS: &'static [usize] = match BITS {
        4 => &[0],
        5 => &[0, 1, 3, 4, 6],
        _ => &[0, 1, 2],
    };

    /// How far the blocks are apart: so that each sequence of positions that is long enough is within one of them. A
    /// multiple of every group.
    const STRIDE: usize = match BITS {
        4 => 40,
        _ => 48,
    };

    /// The positions in a row that [`SHORTEST`] bytes of ASCII take at least, with letters in which no byte begins.
    const fn trigger(least: LeastAscii) -> u32 {
        match (BITS, least) {
            (4, _) => 18,
            (5, LeastAscii::Shortest) => 14,
            (_, LeastAscii::Shortest) => 12,
            (_, LeastAscii::FewBytes) => 8,
        }
    }

    #[inline(always)]
    fn decode_all<S: Simd>(&mut self, simd: S, runs: &[Range<usize>]) -> Result<(), OverBudget> {
        for run in runs {
            self.decode(simd, run.clone())?;
        }
        Ok(())
    }

    #[inline(always)]
    fn decode<S: Simd>(&mut self, simd: S, run: Range<usize>) -> Result<(), OverBudget> {
        // Where the last text of each alignment ends, as a bit of the letters.
        let mut covered = [run.start * BITS; 8];
        let mut start = run.start;
        while start + self.trigger as usize <= run.end {
            // The letters of a block that are behind the run count for nothing.
            let left = run.end - start;
            let mut filled = [0; WIDE];
            let block = bytes_at(self.letters, start, &mut filled);
            // The letters of random bytes are excluded by one bit of each.
            let low = low_bytes::<S, BITS>(simd, block);
            if self.may_be_text(&low, left) {
                let Tested { ascii, zeros } = tested::<S, BITS>(simd, block);
                let only_zeros = in_a_row(zeros, self.trigger.saturating_sub(2).max(8));
                for alignment in self.alignments(&ascii, left) {
                    let mut positions = Self::positions(&ascii, alignment, left);
                    positions = in_a_row(positions, self.trigger) & !only_zeros;
                    if left > BLOCK {
                        positions &= first_bits(Self::STRIDE);
                    }
                    while positions != 0 {
                        let at = start + positions.trailing_zeros() as usize;
                        let covered = &mut covered[alignment];
                        let bit = Self::first_bit(at - run.start, alignment) + run.start * BITS;
                        if bit >= *covered {
                            *covered = self.add_around(simd, run.clone(), bit, *covered);
                            if self.texts.bytes.len() > self.limit {
                                return Err(OverBudget);
                            }
                        }
                        // The next position that is not part of the text.
                        let next = (*covered / BITS).saturating_sub(start).max(at - start + 1);
                        positions &= !first_bits(next);
                    }
                }
            }
            start += Self::STRIDE;
        }
        Ok(())
    }

    /// Whether a text may begin in a block of which this many letters belong to the run.
    #[inline(always)]
    fn may_be_text(&self, low: &[u64; 5], letters: usize) -> bool {
        let is_long_enough =
            |alignment: usize| in_a_row(Self::positions(low, alignment, letters), self.trigger) != 0;
        self.alignments(low, letters).any(is_long_enough)
    }

    /// The alignments in which a text may begin in a block of which this many letters belong to the run.
    #[inline(always)]
    fn alignments(&self, ascii: &[u64; 5], letters: usize) -> impl Iterator<Item = usize> + use<BITS> {
        let groups = self.whole_groups(ascii) & first_bits(letters);
        let count = if groups == 0 { 0 } else { Self::GROUP };
        (0..count).filter(move |alignment| groups & Self::EVERY_GROUP << alignment != 0)
    }

    /// The positions in a block at which groups of ASCII text begin, as many in a row as are in [`SHORTEST`] bytes however
    /// these are aligned. All positions, if fewer bytes are enough.
    #[inline(always)]
    fn whole_groups(&self, ascii: &[u64; 5]) -> u64 {
        if self.trigger < Self::trigger(LeastAscii::Shortest) {
            return u64::MAX;
        }
        let bytes = Self::BEGINNINGS.iter().zip(ascii);
        let groups = bytes.fold(u64::MAX, |groups, (beginning, bytes)| groups & bytes >> beginning);
        let [first, second, third, fourth, fifth] = ascii;
        // Of the other bytes, two at least are before the groups or two behind them.
        match BITS {
            4 => {
                let two = groups & groups >> 2;
                let four = two & two >> 4;
                four & four >> 8
            }
            5 => groups & (first >> 8 & second >> 9 | fourth << 4 & fifth << 2),
            _ => groups & groups >> 4 & (first >> 8 & second >> 9 | second << 3 & third << 2),
        }
    }

    /// The positions in a block of letters at which a byte of ASCII text begins, or none, with this alignment.
    #[inline(always)]
    fn positions(ascii: &[u64; 5], alignment: usize, letters: usize) -> u64 {
        let mut positions = 0;
        let mut beginnings = 0;
        for (bytes, beginning) in ascii.iter().zip(Self::BEGINNINGS) {
            let here = Self::EVERY_GROUP << ((alignment + beginning) % Self::GROUP);
            // The letters that its bytes reach into, which the last letters do not have.
            let reach = if BITS == 5 && matches!(beginning, 1 | 4) { 2 } else { 1 };
            positions |= bytes & here & first_bits(letters.saturating_sub(reach));
            beginnings |= here;
        }
        positions | !beginnings & first_bits(letters)
    }

    /// The first bit of the byte that begins in the letter at `at`, or in the next one.
    #[inline]
    fn first_bit(at: usize, alignment: usize) -> usize {
        let in_group = |at: usize| (at + Self::GROUP - alignment) % Self::GROUP;
        let beginning = |at: usize| Self::BEGINNINGS.iter().position(|letter| *letter == in_group(at));
        let (at, byte) = match beginning(at) {
            Some(byte) => (at, byte),
            None => (at + 1, beginning(at + 1).unwrap_or_default()),
        };
        at * BITS + 8 * byte - in_group(at) * BITS
    }

    /// Adds the text around a bit, if it is long enough. Returns the bit from which on the next text may begin. Not inlined,
    /// because most blocks have no text: the search for it becomes slower with this in its loop.
    #[inline(never)]
    fn add_around<S: Simd>(&mut self, simd: S, run: Range<usize>, bit: usize, covered: usize) -> usize {
        simd.vectorize(
            #[inline(always)]
            || self.add_text_around(simd, run, bit, covered),
        )
    }

    #[inline(always)]
    fn add_text_around<S: Simd>(&mut self, simd: S, run: Range<usize>, bit: usize, covered: usize) -> usize {
        let mut start = bit;
        let mut zeros = Zeros::default();
        while start >= covered + 8 && zeros.continue_with(self.byte_at(start - 8)) {
            start -= 8;
        }
        let begin = self.texts.bytes.len();
        // The bits of the letter in which the text begins, without those before it.
        let mut at = start / BITS;
        let mut held = (at + 1) * BITS - start;
        let mut bits = u32::from(number_of::<BITS>(self.letters[at])) & ((1 << held) - 1);
        at += 1;
        let mut zeros = Zeros::default();
        let mut goes_on = true;
        // Until a group begins.
        while goes_on && held > 0 {
            while held < 8 && at < run.end {
                bits = bits << BITS | u32::from(number_of::<BITS>(self.letters[at]));
                held += BITS;
                at += 1;
            }
            let byte = (bits >> held.saturating_sub(8)) as u8;
            goes_on = held >= 8 && zeros.continue_with(byte);
            if goes_on {
                self.texts.bytes.push(byte);
                held -= 8;
            }
        }
        if goes_on {
            self.add_groups(simd, at..run.end, zeros);
        }
        let length = self.texts.bytes.len() - begin;
        if length < SHORTEST {
            self.texts.bytes.truncate(begin);
        } else {
            self.texts.pieces.push(Piece {
                coding: Self::CODING,
                start: narrow(begin),
                letter: narrow(start / BITS),
                bit: (start % BITS) as u8,
            });
            self.texts.bytes.push(SEPARATOR);
        }
        // The byte that ended the text is not part of another.
        start + 8 * length + 8
    }

    /// Adds the bytes of these letters, the first of which begins a group, as long as the text goes on.
    #[inline(always)]
    fn add_groups<S: Simd>(&mut self, simd: S, letters: Range<usize>, mut zeros: Zeros) {
        for at in letters.clone().step_by(BLOCK) {
            let mut filled = [0; WIDE];
            let block = bytes_at(self.letters, at, &mut filled);
            let bytes = block_of_groups::<S, BITS>(simd, block);
            let most = Self::BYTES * BLOCK / Self::GROUP;
            let count = most.min((letters.end - at) * BITS / 8).min(bytes_of_text(bytes));
            let count = zeros.continue_with_all(bytes.simd_eq(0).to_bitmask() & first_bits(count), count);
            let mut block = [0; BLOCK];
            bytes.store_array(&mut block);
            let end = self.texts.bytes.len() + count;
            self.texts.bytes.extend_from_slice(&block);
            self.texts.bytes.truncate(end);
            if count < most {
                return;
            }
        }
    }

    /// The byte that begins with this bit.
    fn byte_at(&self, bit: usize) -> u8 {
        let (first, last) = (bit / BITS, (bit + 7) / BITS);
        let letters = self.letters[first..=last].iter();
        let bits = letters.fold(0_u32, |bits, letter| bits << BITS | u32::from(number_of::<BITS>(*letter)));
        (bits >> ((last + 1) * BITS - bit - 8)) as u8
    }
}

#[inline]
fn number_of<const BITS: usize>(letter: u8) -> u8 {
    match BITS {
        4 => letter,
        5 => BASE32[letter as usize],
        _ => BASE64[letter as usize],
    }
}

/// The first bit of each sequence of at least `count` ones, from 8 to 24, and those after it that begin one too.
#[inline(always)]
fn in_a_row(bits: u64, count: u32) -> u64 {
    let pairs = bits & bits >> 1;
    let fours = pairs & pairs >> 2;
    let eights = fours & fours >> 4;
    let sixteens = eights & eights >> (count.min(16) - 8);
    sixteens & sixteens >> count.saturating_sub(16)
}

/// How many NUL bytes a text ends with. In UTF-16 of ASCII, also if it is written in UTF-16 again and once more, at most
/// seven follow each other.
#[derive(Default)]
struct Zeros(usize);

impl Zeros {
    const MOST: usize = 7;

    /// Whether the text may continue with this byte.
    #[inline]
    fn continue_with(&mut self, byte: u8) -> bool {
        self.0 = if byte == 0 { self.0 + 1 } else { 0 };
        is_text(byte) && self.0 <= Self::MOST
    }

    /// Continues the text with so many bytes, of which `is_zero` tells whether they are zero; returns how many of them it
    /// continues with.
    #[inline(always)]
    fn continue_with_all(&mut self, is_zero: u64, count: usize) -> usize {
        let first = is_zero.trailing_ones() as usize;
        let pairs = is_zero & is_zero >> 1;
        let fours = pairs & pairs >> 2;
        let eights = fours & fours >> 4;
        let count = match self.0 + first > Self::MOST {
            true => Self::MOST - self.0,
            false => count.min(eights.trailing_zeros() as usize + Self::MOST),
        };
        let last = if count == 0 { 0 } else { (is_zero << (BLOCK - count)).leading_ones() as usize };
        self.0 = if last == count { self.0 + last } else { last };
        count
    }
}

/// Whether the byte may be part of text, in UTF-8 or UTF-16.
#[inline]
pub(super) fn is_text(byte: u8) -> bool {
    // Without branches, so that the compiler generates vector code for many bytes.
    (byte >= b' ') | (byte == 0) | (byte == b'\t') | (byte == b'\n') | (byte == b'\r')
}

#[cfg(test)]
mod tests;
