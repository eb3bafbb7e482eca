//! The texts that are encoded in runs of letters, whichever letter they begin at.
//!
//! Every listed spelling of a value is ASCII, and so is nearly every value. So only parts of runs are decoded in which
//! [`SHORTEST`] bytes of ASCII text follow each other. For blocks of letters, all bytes that could begin in them are tested
//! at once; which of these follow each other depends on the letter that the first one begins in. Bytes of an image are
//! excluded by one bit of each letter.

use std::ops::Range;

use fearless_simd::prelude::*;
use fearless_simd::{Level, Simd, dispatch, u8x64};

use super::budget::OverBudget;
use super::classes::BLOCK;
use super::origins::narrow;
use super::symbols::{BASE32, BASE64, Coding};

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

/// The letters that are tested at once, and those after them that their bytes reach into.
const WIDE: usize = BLOCK + 2;

impl<const BITS: usize> RunDecoder<'_, BITS> {
    const CODING: Coding = match BITS {
        4 => Coding::Hexadecimal,
        5 => Coding::Base32,
        _ => Coding::Base64,
    };

    /// How many letters stand for whole bytes together. Their number is how many ways there are to align bytes to
    /// letters.
    const GROUP: usize = match BITS {
        4 => 2,
        5 => 8,
        _ => 4,
    };

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

    /// The first letters of all groups of a block.
    const EVERY_GROUP: u64 = match BITS {
        4 => 0x5555_5555_5555_5555,
        5 => 0x0101_0101_0101_0101,
        _ => 0x1111_1111_1111_1111,
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
        let all = self.letters;
        let mut start = run.start;
        while start + self.trigger as usize <= run.end {
            let letters = &all[start..run.end];
            let mut filled = [0; WIDE];
            let block = match letters.first_chunk::<WIDE>() {
                Some(block) => block,
                None => {
                    filled[..letters.len()].copy_from_slice(letters);
                    &filled
                }
            };
            // The letters of random bytes are excluded by one bit of each.
            let low = low_bytes::<S, BITS>(simd, block);
            let is_low = |alignment: usize| {
                in_a_row(Self::positions(&low, alignment, letters.len()), self.trigger) != 0
            };
            if BITS == 6 && !(0..Self::GROUP).any(is_low) {
                start += Self::STRIDE;
                continue;
            }
            let Tested { ascii, zeros } = tested::<S, BITS>(simd, block);
            let only_zeros = in_a_row(zeros, self.trigger.saturating_sub(2).max(8));
            let groups = self.whole_groups(&ascii);
            for alignment in (0..Self::GROUP).filter(|alignment| groups & Self::EVERY_GROUP << alignment != 0)
            {
                let mut positions = Self::positions(&ascii, alignment, letters.len());
                positions = in_a_row(positions, self.trigger) & !only_zeros;
                if letters.len() > BLOCK {
                    positions &= !(u64::MAX << Self::STRIDE);
                }
                while positions != 0 {
                    let at = start + positions.trailing_zeros() as usize;
                    let covered = &mut covered[alignment];
                    let bit = Self::first_bit(at - run.start, alignment) + run.start * BITS;
                    if bit >= *covered {
                        *covered = self.add_around(run.clone(), bit, *covered);
                        if self.texts.bytes.len() > self.limit {
                            return Err(OverBudget);
                        }
                    }
                    // The next position that is not part of the text.
                    let next = (*covered / BITS).saturating_sub(start).max(at - start + 1);
                    positions &= u64::MAX.checked_shl(u32::try_from(next).unwrap_or(u32::MAX)).unwrap_or(0);
                }
            }
            start += Self::STRIDE;
        }
        Ok(())
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
        let first = |count: usize| if count >= BLOCK { u64::MAX } else { !(u64::MAX << count) };
        let mut positions = 0;
        let mut beginnings = 0;
        for (bytes, beginning) in ascii.iter().zip(Self::BEGINNINGS) {
            let here = Self::EVERY_GROUP << ((alignment + beginning) % Self::GROUP);
            // The letters that its bytes reach into, which the last letters do not have.
            let reach = if BITS == 5 && matches!(beginning, 1 | 4) { 2 } else { 1 };
            positions |= bytes & here & first(letters.saturating_sub(reach));
            beginnings |= here;
        }
        positions | !beginnings & first(letters)
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

    /// Adds the text around a bit, if it is long enough. Returns the bit from which on the next text may begin.
    #[inline(never)]
    fn add_around(&mut self, run: Range<usize>, bit: usize, covered: usize) -> usize {
        let mut start = bit;
        let mut history = History::new();
        while start >= covered + 8 && history.continues_with(self.byte_at(start - 8)) {
            start -= 8;
        }
        let begin = self.texts.bytes.len();
        let mut end = start;
        // The bits of the letter in which the text begins, without those before it.
        let mut at = start / BITS;
        let mut held = (at + 1) * BITS - start;
        let mut bits = u32::from(number_of::<BITS>(self.letters[at])) & ((1 << held) - 1);
        at += 1;
        let mut history = History::new();
        loop {
            if held == 0 {
                let groups = self.add_groups(at..run.end);
                if groups > 0 {
                    history = History::new();
                    at += groups * Self::GROUP;
                    end += groups * Self::GROUP * BITS;
                }
            }
            while held < 8 && at < run.end {
                bits = bits << BITS | u32::from(number_of::<BITS>(self.letters[at]));
                held += BITS;
                at += 1;
            }
            if held < 8 {
                break;
            }
            let byte = (bits >> (held - 8)) as u8;
            if !history.continues_with(byte) {
                break;
            }
            self.texts.bytes.push(byte);
            held -= 8;
            end += 8;
        }
        if self.texts.bytes.len() - begin < SHORTEST {
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
        end + 8
    }

    /// Adds the bytes of whole groups as long as all of them are text without NUL bytes. Returns how many groups.
    #[inline]
    fn add_groups(&mut self, letters: Range<usize>) -> usize {
        let count = Self::GROUP * BITS / 8;
        let mut added = 0;
        for group in self.letters[letters].chunks_exact(Self::GROUP) {
            let number = group
                .iter()
                .fold(0_u64, |number, letter| number << BITS | u64::from(number_of::<BITS>(*letter)));
            let bytes = (number << (64 - 8 * count)).to_be_bytes();
            if !bytes[..count].iter().all(|byte| is_text(*byte) & (*byte != 0)) {
                break;
            }
            self.texts.bytes.extend_from_slice(&bytes[..count]);
            added += 1;
        }
        added
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

/// The numbers of letters that all belong to the coding.
#[inline(always)]
fn numbers_of<S: Simd, const BITS: usize>(simd: S, letters: &[u8]) -> u8x64<S> {
    let letters = u8x64::from_slice(simd, letters);
    match BITS {
        4 => letters,
        5 => letters.simd_ge(b'A').select((letters | 0x20) - b'a', letters - (b'2' - 26)),
        _ => {
            let numbers = letters + (52_u8.wrapping_sub(b'0'));
            let numbers = letters.simd_ge(b'A').select(letters - b'A', numbers);
            let numbers = letters.simd_ge(b'a').select(letters - (b'a' - 26), numbers);
            let numbers =
                (letters.simd_eq(b'+') | letters.simd_eq(b'-')).select(u8x64::splat(simd, 62), numbers);
            (letters.simd_eq(b'/') | letters.simd_eq(b'_')).select(u8x64::splat(simd, 63), numbers)
        }
    }
}

/// For each byte of a group, one bit for each letter: whether that byte, if it begins in the letter, is below 128.
#[inline(always)]
fn low_bytes<S: Simd, const BITS: usize>(simd: S, letters: &[u8; WIDE]) -> [u64; 5] {
    let numbers = numbers_of::<S, BITS>(simd, &letters[..BLOCK]);
    let highest: [u8; 5] = match BITS {
        4 => [0x08, 0, 0, 0, 0],
        5 => [0x10, 0x02, 0x08, 0x01, 0x04],
        _ => [0x20, 0x08, 0x02, 0, 0],
    };
    let mut low = [0; 5];
    for (low, bit) in low.iter_mut().zip(highest) {
        if bit != 0 {
            *low = (numbers & bit).simd_eq(0).to_bitmask();
        }
    }
    low
}

/// What the letters of a block stand for, with one bit for each letter.
struct Tested {
    /// For each byte of a group: whether that byte, if it begins in the letter, is text of ASCII.
    ascii: [u64; 5],
    /// Whether the number of the letter is zero.
    zeros: u64,
}

#[inline(always)]
fn tested<S: Simd, const BITS: usize>(simd: S, letters: &[u8; WIDE]) -> Tested {
    let first = numbers_of::<S, BITS>(simd, &letters[..BLOCK]);
    let second = numbers_of::<S, BITS>(simd, &letters[1..=BLOCK]);
    let ascii = match BITS {
        4 => [is_ascii(first << 4 | second), 0, 0, 0, 0],
        5 => {
            let third = numbers_of::<S, BITS>(simd, &letters[2..]);
            [
                is_ascii(first << 3 | second >> 2),
                is_ascii(first << 6 | second << 1 | third >> 4),
                is_ascii(first << 4 | second >> 1),
                is_ascii(first << 7 | second << 2 | third >> 3),
                is_ascii(first << 5 | second),
            ]
        }
        _ => [
            is_ascii(first << 2 | second >> 4),
            is_ascii(first << 4 | second >> 2),
            is_ascii(first << 6 | second),
            0,
            0,
        ],
    };
    Tested { ascii, zeros: first.simd_eq(0).to_bitmask() }
}

/// One bit for each byte: whether it is text of ASCII.
#[inline(always)]
fn is_ascii<S: Simd>(bytes: u8x64<S>) -> u64 {
    let is_text =
        (bytes - b' ').simd_lt(0x60) | bytes.simd_eq(0) | (bytes - b'\t').simd_lt(2) | bytes.simd_eq(b'\r');
    is_text.to_bitmask()
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
/// The last eight bytes of a text. In UTF-16 of ASCII, also if it is written in UTF-16 again and once more, at most seven
/// NUL bytes follow each other.
struct History(u64);

impl History {
    fn new() -> Self {
        Self(u64::MAX)
    }

    /// Whether the text may continue with this byte.
    #[inline]
    fn continues_with(&mut self, byte: u8) -> bool {
        self.0 = self.0 << 8 | u64::from(byte);
        is_text(byte) && self.0 != 0
    }
}

/// Whether the byte may be part of text, in UTF-8 or UTF-16.
#[inline]
pub(super) fn is_text(byte: u8) -> bool {
    // Without branches, so that the compiler generates vector code for many bytes.
    (byte >= b' ') | (byte == 0) | (byte == b'\t') | (byte == b'\n') | (byte == b'\r')
}
