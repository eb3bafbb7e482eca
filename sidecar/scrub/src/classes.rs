//! The classes that bytes of a text belong to, for 64 bytes at once.
//!
//! One pass over a text gives one bit for each byte and class; whatever is searched for later reads bits, not bytes. The
//! vector instructions are those of the processor that the program runs on.

use fearless_simd::prelude::*;
use fearless_simd::{Level, Simd, dispatch, u8x64};

/// The bytes that are classified at once.
pub(super) const BLOCK: usize = 64;

/// For each block of a text one number per class, with one bit for each byte, the first byte in the lowest bit.
#[derive(Default)]
pub(super) struct Classes {
    /// Letters of base64, of which base32 is a part.
    pub(super) letters: Vec<u64>,
    /// Hexadecimal digits and what may be between them.
    pub(super) digits: Vec<u64>,
    /// Bytes that begin an escape or are left out of a normal form.
    pub(super) marks: Vec<u64>,
}

impl Classes {
    pub(super) fn new(text: &[u8]) -> Self {
        let mut classes = Self::default();
        let blocks = text.len().div_ceil(BLOCK);
        for class in [&mut classes.letters, &mut classes.digits, &mut classes.marks] {
            class.reserve_exact(blocks);
        }
        dispatch!(Level::new(), simd => classify(simd, text, &mut classes));
        classes
    }

    pub(super) fn has_marks(&self) -> bool {
        self.marks.iter().any(|block| *block != 0)
    }
}

#[inline(always)]
fn classify<S: Simd>(simd: S, text: &[u8], classes: &mut Classes) {
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    for block in blocks {
        classify_block(simd, block, classes);
    }
    if !rest.is_empty() {
        // Filled up with bytes that belong to no class.
        let mut block = [b'!'; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        classify_block(simd, &block, classes);
    }
}

#[inline(always)]
fn classify_block<S: Simd>(simd: S, block: &[u8; BLOCK], classes: &mut Classes) {
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
    classes.letters.push(letters.to_bitmask());
    classes.digits.push(digits.to_bitmask());
    classes.marks.push(marks.to_bitmask());
}

/// For each letter of a run whether it may be base32, with capital and with small letters.
pub(super) fn each_base32_block(letters: &[u8], mut visit: impl FnMut(usize, [u64; 2])) {
    dispatch!(Level::new(), simd => base32_blocks(simd, letters, &mut visit));
}

#[inline(always)]
fn base32_blocks<S: Simd>(simd: S, letters: &[u8], visit: &mut impl FnMut(usize, [u64; 2])) {
    let classified = |block: &[u8; BLOCK]| {
        let bytes = u8x64::load_array_ref(simd, block);
        let digits = (bytes - b'2').simd_lt(6);
        let of_case = |first: u8| ((bytes - first).simd_lt(26) | digits).to_bitmask();
        [of_case(b'A'), of_case(b'a')]
    };
    let (blocks, rest) = letters.as_chunks::<BLOCK>();
    for (number, block) in blocks.iter().enumerate() {
        visit(number * BLOCK, classified(block));
    }
    if !rest.is_empty() {
        let mut block = [b'!'; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        visit(blocks.len() * BLOCK, classified(&block));
    }
}
