//! The bytes that 64 letters stand for, all at once.
//!
//! Bytes and letters are aligned to each other again after a *group*: eight letters of base32 are five bytes, four of base64
//! are three, two hexadecimal digits are one.

use fearless_simd::prelude::*;
use fearless_simd::{Simd, mask8x64, u8x64};

use crate::classes::BLOCK;
use crate::symbols::numbers_of;

/// The letters that are read at once, and those after them that their bytes reach into.
pub(super) const WIDE: usize = BLOCK + 2;

/// How many letters of so many bits are a group. Their number is how many ways there are to align bytes to letters.
pub(super) const fn letters_in_group(bits: usize) -> usize {
    match bits {
        4 => 2,
        5 => 8,
        _ => 4,
    }
}

/// How many bytes a group stands for.
pub(super) const fn bytes_in_group(bits: usize) -> usize {
    letters_in_group(bits) * bits / 8
}

/// The first letters of all groups of a block.
pub(super) const fn every_group(bits: usize) -> u64 {
    match bits {
        4 => 0x5555_5555_5555_5555,
        5 => 0x0101_0101_0101_0101,
        _ => 0x1111_1111_1111_1111,
    }
}

/// For each byte of a group, one bit for each letter: whether that byte, if it begins in the letter, is below 128.
#[inline(always)]
pub(super) fn low_bytes<S: Simd, const BITS: usize>(simd: S, letters: &[u8; WIDE]) -> [u64; 5] {
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
pub(super) struct Tested {
    /// For each byte of a group: whether that byte, if it begins in the letter, is text of ASCII.
    pub(super) ascii: [u64; 5],
    /// Whether the number of the letter is zero.
    pub(super) zeros: u64,
}

#[inline(always)]
pub(super) fn tested<S: Simd, const BITS: usize>(simd: S, letters: &[u8; WIDE]) -> Tested {
    let bytes = bytes_of::<S, BITS>(simd, letters);
    let mut ascii = [0; 5];
    for (ascii, bytes) in ascii.iter_mut().zip(bytes).take(bytes_in_group(BITS)) {
        *ascii = is_ascii(bytes);
    }
    Tested { ascii, zeros: numbers_of::<S, BITS>(simd, &letters[..BLOCK]).simd_eq(0).to_bitmask() }
}

/// For each byte of a group, what it is if it begins in each letter of a block. Without meaning are those that a group
/// does not have.
#[inline(always)]
fn bytes_of<S: Simd, const BITS: usize>(simd: S, letters: &[u8; WIDE]) -> [u8x64<S>; 5] {
    let first = numbers_of::<S, BITS>(simd, &letters[..BLOCK]);
    let second = numbers_of::<S, BITS>(simd, &letters[1..=BLOCK]);
    let third = numbers_of::<S, BITS>(simd, &letters[2..]);
    match BITS {
        4 => [first << 4 | second; 5],
        5 => [
            first << 3 | second >> 2,
            first << 6 | second << 1 | third >> 4,
            first << 4 | second >> 1,
            first << 7 | second << 2 | third >> 3,
            first << 5 | second,
        ],
        _ => [first << 2 | second >> 4, first << 4 | second >> 2, first << 6 | second, first, first],
    }
}

/// The bytes of the groups that a block consists of, one behind the other.
#[inline(always)]
pub(super) fn block_of_groups<S: Simd, const BITS: usize>(simd: S, letters: &[u8; WIDE]) -> u8x64<S> {
    let [first, second, third, fourth, fifth] = bytes_of::<S, BITS>(simd, letters);
    let every_group = every_group(BITS);
    let begins_in = |letter: u32| mask8x64::from_bitmask(simd, every_group << letter);
    let (bytes, none) = match BITS {
        4 => (first, every_group << 1),
        5 => {
            let bytes = begins_in(1).select(second, first);
            let bytes = begins_in(3).select(third, bytes);
            let bytes = begins_in(4).select(fourth, bytes);
            (begins_in(6).select(fifth, bytes), every_group << 2 | every_group << 5 | every_group << 7)
        }
        _ => {
            let bytes = begins_in(1).select(second, first);
            (begins_in(2).select(third, bytes), every_group << 3)
        }
    };
    bytes.compress(mask8x64::from_bitmask(simd, !none))
}

/// How many bytes at the beginning may be part of text.
#[inline(always)]
pub(super) fn bytes_of_text<S: Simd>(bytes: u8x64<S>) -> usize {
    (bytes.simd_ge(b' ') | is_control_of_text(bytes)).to_bitmask().trailing_ones() as usize
}

/// One bit for each byte: whether it is text of ASCII.
#[inline(always)]
fn is_ascii<S: Simd>(bytes: u8x64<S>) -> u64 {
    ((bytes - b' ').simd_lt(0x60) | is_control_of_text(bytes)).to_bitmask()
}

#[inline(always)]
fn is_control_of_text<S: Simd>(bytes: u8x64<S>) -> mask8x64<S> {
    bytes.simd_eq(0) | (bytes - b'\t').simd_lt(2) | bytes.simd_eq(b'\r')
}
