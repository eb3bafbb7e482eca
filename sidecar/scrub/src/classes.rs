//! The classes that bytes of a text belong to, for 64 bytes at once.
//!
//! One pass over a text gives one bit for each byte and class; whatever is searched for later reads bits, not bytes. The
//! vector instructions are those of the processor that the program runs on.

use std::ops::Range;

use fearless_simd::prelude::*;
use fearless_simd::{Level, Simd, dispatch, u8x64};

/// The bytes that are classified at once.
pub(super) const BLOCK: usize = 64;

/// The classes of a text.
pub(super) struct Classes {
    /// For each class the numbers of all blocks, with one bit for each byte of a block, the first byte in the lowest bit.
    numbers: Vec<u64>,
    blocks: usize,
}

/// The classes of one block.
struct BlockClasses {
    letters: u64,
    digits: u64,
    marks: u64,
}

impl Classes {
    pub(super) fn new(text: &[u8]) -> Self {
        let blocks = text.len().div_ceil(BLOCK);
        let mut numbers = vec![0; 3 * blocks];
        dispatch!(Level::new(), simd => classify(simd, text, &mut numbers));
        Self { numbers, blocks }
    }

    /// Letters of base64, of which base32 is a part.
    pub(super) fn letters(&self) -> &[u64] {
        &self.numbers[..self.blocks]
    }

    /// Hexadecimal digits and what may be between them.
    pub(super) fn digits(&self) -> &[u64] {
        &self.numbers[self.blocks..2 * self.blocks]
    }

    /// Bytes that begin an escape or are left out of a normal form.
    pub(super) fn marks(&self) -> &[u64] {
        &self.numbers[2 * self.blocks..]
    }

    /// How much memory they use.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.numbers)
    }

    pub(super) fn has_marks(&self) -> bool {
        self.marks().iter().any(|block| *block != 0)
    }
}

/// The bytes from `start` on. If the text ends before that many, they are filled up with zeros.
#[inline(always)]
pub(super) fn bytes_at<'a, const COUNT: usize>(
    text: &'a [u8],
    start: usize,
    filled: &'a mut [u8; COUNT],
) -> &'a [u8; COUNT] {
    let rest = &text[start..];
    match rest.first_chunk() {
        Some(bytes) => bytes,
        None => {
            filled[..rest.len()].copy_from_slice(rest);
            filled
        }
    }
}

/// The lowest bits of a number, at most as many as it has.
#[inline(always)]
pub(super) fn first_bits(count: usize) -> u64 {
    if count >= BLOCK { u64::MAX } else { !(u64::MAX << count) }
}

/// Writes the numbers of the three classes one behind the other.
#[inline(always)]
fn classify<S: Simd>(simd: S, text: &[u8], numbers: &mut [u64]) {
    let (letters, others) = numbers.split_at_mut(numbers.len() / 3);
    let (digits, marks) = others.split_at_mut(letters.len());
    let numbers = letters.iter_mut().zip(digits).zip(marks);
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    // Filled up with bytes that belong to no class.
    let mut last = [b'!'; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    for (((letters, digits), marks), block) in numbers.zip(blocks.iter().chain([&last])) {
        let classes = classify_block(simd, block);
        (*letters, *digits, *marks) = (classes.letters, classes.digits, classes.marks);
    }
}

#[inline(always)]
fn classify_block<S: Simd>(simd: S, block: &[u8; BLOCK]) -> BlockClasses {
    let bytes = u8x64::load_array_ref(simd, block);
    let lower = bytes | 0x20;
    let from_a = lower - b'a';
    let letters = from_a.simd_lt(26)
        | (bytes - b'/').simd_lt(11)
        | bytes.simd_eq(b'+')
        | bytes.simd_eq(b'-')
        | bytes.simd_eq(b'_');
    let digits = from_a.simd_lt(6)
        | (bytes - b'0').simd_lt(11)
        | bytes.simd_eq(b' ')
        | (bytes | 1).simd_eq(b'-')
        | lower.simd_eq(b'x');
    let marks = bytes.simd_eq(b'\\')
        | bytes.simd_eq(b'%')
        | bytes.simd_eq(b'&')
        | bytes.simd_eq(b'\n')
        | bytes.simd_eq(0);
    BlockClasses { letters: letters.to_bitmask(), digits: digits.to_bitmask(), marks: marks.to_bitmask() }
}

/// Calls `visit` with each block of these runs: where it begins, and for each letter whether it may be base32, with
/// capital and with small letters. The last block of a run may be shorter.
pub(super) fn each_base32_block(
    text: &[u8],
    runs: &[Range<usize>],
    mut visit: impl FnMut(&Range<usize>, usize, [u64; 2]),
) {
    dispatch!(Level::new(), simd => base32_blocks(simd, text, runs, &mut visit));
}

#[inline(always)]
fn base32_blocks<S: Simd>(
    simd: S,
    text: &[u8],
    runs: &[Range<usize>],
    visit: &mut impl FnMut(&Range<usize>, usize, [u64; 2]),
) {
    for run in runs {
        for start in run.clone().step_by(BLOCK) {
            let mut filled = [0; BLOCK];
            let letters = base32_letters(simd, bytes_at(text, start, &mut filled));
            visit(run, start, letters.map(|bits| bits & first_bits(run.end - start)));
        }
    }
}

#[inline(always)]
fn base32_letters<S: Simd>(simd: S, block: &[u8; BLOCK]) -> [u64; 2] {
    let bytes = u8x64::load_array_ref(simd, block);
    let digits = (bytes - b'2').simd_lt(6);
    let capital = (bytes - b'A').simd_lt(26) | digits;
    let small = (bytes - b'a').simd_lt(26) | digits;
    [capital.to_bitmask(), small.to_bitmask()]
}
