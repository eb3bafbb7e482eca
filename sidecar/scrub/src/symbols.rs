//! Base64, base32 and hexadecimal as the numbers that their letters stand for.
//!
//! The symbols of all runs of a text are put one behind the other, with [`BREAK`] between them. Separators between
//! hexadecimal digits (`61:62`, `61 62`, `0x61, 0x62`) are left out.

use std::ops::Range;

use fearless_simd::prelude::*;
use fearless_simd::{Level, Simd, dispatch, mask8x64, u8x64};

use super::classes::{BLOCK, bytes_at, first_bits};
use super::origins::narrow;

/// An encoding of bytes by letters that each stand for the same number of bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Coding {
    Base32,
    /// With either alphabet: `+/` or `-_`.
    Base64,
    Hexadecimal,
}

/// The symbols of the runs of one coding in a text.
pub(super) struct Symbols {
    coding: Coding,
    /// Shorter runs are left out.
    shortest: usize,
    pub(super) numbers: Vec<u8>,
    /// Where the runs are in `numbers`.
    pub(super) runs: Vec<Range<usize>>,
}

/// Between two runs. No number of a symbol has the highest bit.
pub(super) const BREAK: u8 = 0xFF;

impl Coding {
    pub(super) const ALL: [Self; 3] = [Self::Base32, Self::Base64, Self::Hexadecimal];

    /// How many bits a symbol stands for.
    pub(super) const fn bits(self) -> usize {
        match self {
            Self::Base32 => 5,
            Self::Base64 => 6,
            Self::Hexadecimal => 4,
        }
    }
}

impl Symbols {
    /// The symbols of those runs in `text` that are not shorter than `shortest`.
    pub(super) fn new(coding: Coding, text: &[u8], of_text: &[Range<usize>], shortest: usize) -> Self {
        let mut symbols = Self { coding, shortest, numbers: Vec::new(), runs: Vec::new() };
        let most: usize = symbols.long_enough(of_text).map(|run| run.len() + 1).sum();
        // A block is written whole.
        symbols.numbers.reserve(most + BLOCK);
        dispatch!(Level::new(), simd => symbols.add_all(simd, text, of_text));
        symbols
    }

    #[inline(always)]
    fn add_all<S: Simd>(&mut self, simd: S, text: &[u8], of_text: &[Range<usize>]) {
        for run in self.long_enough(of_text) {
            let start = self.numbers.len();
            match self.coding {
                Coding::Base32 => self.add_letters::<S, 5>(simd, text, run),
                Coding::Base64 => self.add_letters::<S, 6>(simd, text, run),
                Coding::Hexadecimal => self.add_digits(simd, text, run),
            }
            self.runs.push(start..self.numbers.len());
            self.numbers.push(BREAK);
        }
    }

    /// Adds the numbers of the letters in a run.
    #[inline(always)]
    fn add_letters<S: Simd, const BITS: usize>(&mut self, simd: S, text: &[u8], run: Range<usize>) {
        let end = self.numbers.len() + run.len();
        for start in run.step_by(BLOCK) {
            let mut filled = [0; BLOCK];
            let letters = bytes_at(text, start, &mut filled);
            self.add_block(numbers_of::<S, BITS>(simd, letters));
        }
        self.numbers.truncate(end);
    }

    /// Adds the numbers of the digits in a run, without what is between them.
    #[inline(always)]
    fn add_digits<S: Simd>(&mut self, simd: S, text: &[u8], run: Range<usize>) {
        let mut is_digit_before = 0;
        for start in run.clone().step_by(BLOCK) {
            let mut filled = [0; BLOCK];
            let bytes = u8x64::load_array_ref(simd, bytes_at(text, start, &mut filled));
            let (from_a, from_0, lower) = ((bytes | 0x20) - b'a', bytes - b'0', bytes | 0x20);
            let is_letter = from_a.simd_lt(6);
            let numbers = is_letter.select(from_a + 10, from_0);
            let of_run = first_bits(run.end - start);
            let digits = (is_letter | from_0.simd_lt(10)).to_bitmask() & of_run;
            let x = lower.simd_eq(b'x').to_bitmask();
            let is_x_after = text.get(start + BLOCK).is_some_and(|byte| byte | 0x20 == b'x');
            let before_x = x >> 1 | u64::from(is_x_after) << (BLOCK - 1);
            // The zero of `0x` stands for nothing.
            let prefixes = from_0.simd_eq(0).to_bitmask() & before_x & !(digits << 1 | is_digit_before);
            is_digit_before = digits >> (BLOCK - 1);
            let kept = digits & !prefixes;
            let end = self.numbers.len() + kept.count_ones() as usize;
            self.add_block(match kept == of_run {
                true => numbers,
                false => numbers.compress(mask8x64::from_bitmask(simd, kept)),
            });
            self.numbers.truncate(end);
        }
    }

    #[inline(always)]
    fn add_block<S: Simd>(&mut self, block: u8x64<S>) {
        let mut numbers = [0; BLOCK];
        block.store_array(&mut numbers);
        self.numbers.extend_from_slice(&numbers);
    }

    fn long_enough<'a>(&self, runs: &'a [Range<usize>]) -> impl Iterator<Item = Range<usize>> + 'a + use<'a> {
        let shortest = self.shortest;
        runs.iter().filter(move |run| run.len() >= shortest).cloned()
    }

    /// How much memory they use.
    pub(super) fn bytes(&self) -> usize {
        self.numbers.len() + size_of_val(&*self.runs)
    }

    /// Frees what [`Self::positions`] does not need, which is as long as the text.
    pub(super) fn forget_numbers(&mut self) {
        (self.numbers, self.runs) = (Vec::new(), Vec::new());
    }

    /// Where in the text each symbol is. The text and its runs must be the same.
    pub(super) fn positions(&self, text: &[u8], of_text: &[Range<usize>]) -> Vec<u32> {
        let mut positions = Vec::with_capacity(text.len());
        for run in self.long_enough(of_text) {
            let end = narrow(run.end);
            match self.coding {
                Coding::Base32 | Coding::Base64 => positions.extend(narrow(run.start)..end),
                Coding::Hexadecimal => {
                    positions.extend(run.filter(|at| stands_for_bits(text, *at)).map(narrow))
                }
            }
            positions.push(end);
        }
        positions
    }
}

/// The numbers of letters that all belong to the coding.
#[inline(always)]
pub(super) fn numbers_of<S: Simd, const BITS: usize>(simd: S, letters: &[u8]) -> u8x64<S> {
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

/// Whether the byte at `at` is a hexadecimal digit that stands for bits.
fn stands_for_bits(text: &[u8], at: usize) -> bool {
    text[at].is_ascii_hexdigit() && !is_prefix(text, at)
}

/// Whether the zero at `at` is that of `0x`.
fn is_prefix(text: &[u8], at: usize) -> bool {
    text.get(at + 1).is_some_and(|next| next | 0x20 == b'x')
        && text[at] == b'0'
        && (at == 0 || !text[at - 1].is_ascii_hexdigit())
}

/// The number of each letter; [`BREAK`] for other bytes.
pub(super) const BASE64: [u8; 256] = {
    let mut numbers = numbers(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
    numbers[b'-' as usize] = 62;
    numbers[b'_' as usize] = 63;
    numbers
};

pub(super) const BASE32: [u8; 256] = in_any_case(numbers(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"));

const fn numbers(alphabet: &[u8]) -> [u8; 256] {
    let mut numbers = [BREAK; 256];
    let mut at = 0;
    while at < alphabet.len() {
        numbers[alphabet[at] as usize] = at as u8;
        at += 1;
    }
    numbers
}

const fn in_any_case(mut numbers: [u8; 256]) -> [u8; 256] {
    let mut letter = b'A';
    while letter <= b'Z' {
        numbers[letter.to_ascii_lowercase() as usize] = numbers[letter as usize];
        letter += 1;
    }
    numbers
}
