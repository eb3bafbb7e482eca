//! Base64, base32 and hexadecimal as the numbers that their letters stand for.
//!
//! The symbols of all runs of a text are put one behind the other, with [`BREAK`] between them. Separators between
//! hexadecimal digits (`61:62`, `61 62`, `0x61, 0x62`) are left out.

use std::ops::Range;

use super::classes::BLOCK;
use super::runs::Runs;

/// An encoding of bytes by letters that each stand for the same number of bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Coding {
    Base32,
    /// With either alphabet: `+/` or `-_`.
    Base64,
    Hexadecimal,
}

/// The symbols of all runs of one coding in a text.
pub(super) struct Symbols {
    coding: Coding,
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

    /// Calls `visit` with each run of this coding.
    pub(super) fn each_run(self, text: &[u8], runs: &Runs, visit: impl FnMut(Range<usize>)) {
        match self {
            Self::Base64 => runs.letters.iter().cloned().for_each(visit),
            Self::Base32 => runs.base32(text).into_iter().for_each(visit),
            Self::Hexadecimal => runs.digits.iter().cloned().for_each(visit),
        }
    }
}

impl Symbols {
    /// The symbols of all runs in `text`.
    pub(super) fn new(coding: Coding, text: &[u8], of_text: &Runs) -> Self {
        let (mut numbers, mut runs) = (Vec::new(), Vec::new());
        coding.each_run(text, of_text, |run| {
            let start = numbers.len();
            let letters = text[run.clone()].iter();
            match coding {
                Coding::Base32 => numbers.extend(letters.map(|byte| BASE32[*byte as usize])),
                Coding::Base64 => numbers.extend(letters.map(|byte| BASE64[*byte as usize])),
                Coding::Hexadecimal => {
                    // A block is written whole.
                    numbers.resize(start + run.len() + BLOCK, BREAK);
                    let length = write_digits(text, run, &mut numbers[start..]);
                    numbers.truncate(start + length);
                }
            }
            runs.push(start..numbers.len());
            numbers.push(BREAK);
        });
        Self { coding, numbers, runs }
    }

    /// How much memory they use.
    pub(super) fn bytes(&self) -> usize {
        self.numbers.len() + size_of_val(&*self.runs)
    }

    /// Frees what [`Self::positions`] does not need, which is as long as the text.
    pub(super) fn forget_numbers(&mut self) {
        (self.numbers, self.runs) = (Vec::new(), Vec::new());
    }

    /// Where in the text each symbol is. The text must be the same.
    pub(super) fn positions(&self, text: &[u8], runs: &Runs) -> Vec<u32> {
        let mut positions = Vec::with_capacity(text.len());
        let narrow = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        self.coding.each_run(text, runs, |run| {
            let end = narrow(run.end);
            match self.coding {
                Coding::Base32 | Coding::Base64 => positions.extend(narrow(run.start)..end),
                Coding::Hexadecimal => each_byte(text, run, |_, is_kept, at| {
                    if is_kept {
                        positions.push(narrow(at));
                    }
                }),
            }
            positions.push(end);
        });
        positions
    }
}

/// Writes the numbers of the digits in a run; returns how many there are. `numbers` is longer than the run by a block.
fn write_digits(text: &[u8], run: Range<usize>, numbers: &mut [u8]) -> usize {
    let mut end = 0;
    let mut start = run.start;
    while start < run.end {
        let block = start..run.end.min(start + BLOCK);
        if let Some(letters) = text[block.clone()].first_chunk::<BLOCK>()
            && let Some(digits) = numbers[end..].first_chunk_mut::<BLOCK>()
            && write_numbers(letters, digits)
        {
            end += BLOCK;
        } else {
            // Each byte is written, and kept if it is a digit: without a branch that depends on the text.
            each_byte(text, block.clone(), |digit, is_kept, _| {
                numbers[end] = digit;
                end += usize::from(is_kept);
            });
        }
        start = block.end;
    }
    end
}

/// Writes the numbers of hexadecimal digits. Returns whether all of them are digits.
#[inline]
fn write_numbers(digits: &[u8; BLOCK], numbers: &mut [u8; BLOCK]) -> bool {
    let mut others = 0;
    for (number, digit) in numbers.iter_mut().zip(digits) {
        let letter = (digit | 0x20).wrapping_sub(b'a');
        let decimal = digit.wrapping_sub(b'0');
        *number = if letter < 6 { letter + 10 } else { decimal };
        others |= u8::from((letter >= 6) & (decimal >= 10));
    }
    others == 0
}

/// Calls `visit` with the number of each byte of a run, whether it is a digit that stands for bits, and its position.
#[inline]
fn each_byte(text: &[u8], run: Range<usize>, mut visit: impl FnMut(u8, bool, usize)) {
    for at in run {
        let digit = HEXADECIMAL[text[at] as usize];
        visit(digit, (digit != BREAK) & !is_prefix(text, at), at);
    }
}

/// Whether the zero at `at` is that of `0x`.
#[inline]
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

const HEXADECIMAL: [u8; 256] = in_any_case(numbers(b"0123456789ABCDEF"));

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
