//! The texts that are encoded in runs of symbols, whichever letter they begin at.
//!
//! A value in base64 is found by its letters; decoding is for what is encoded twice, such as base64 of JSON or of
//! hexadecimal. What is encoded there is text. So runs of symbols are sampled, and only where four bytes in a row are
//! printable, the text around them is decoded: bytes of an image cost little.

use std::ops::Range;

use super::symbols::{BREAK, Coding, Symbols};

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
    start: usize,
    /// The bit of the symbols that its first byte begins with.
    bit: usize,
}

/// What was decoded is too long for the message it came from.
pub(super) struct OverBudget;

/// A byte that belongs to no encoding.
const SEPARATOR: u8 = 1;
/// Shorter texts cannot contain an encoded value.
const SHORTEST: usize = 9;

impl DecodedTexts {
    /// Adds the texts in these symbols; `bytes` becomes at most `limit` long.
    pub(super) fn add(&mut self, symbols: &Symbols, limit: usize) -> Result<(), OverBudget> {
        match symbols.coding {
            Coding::Base32 => self.sample::<5, 8>(symbols, limit),
            Coding::Base64 => self.sample::<6, 7>(symbols, limit),
            Coding::Hexadecimal => self.sample::<4, 10>(symbols, limit),
        }
    }

    /// `WIDTH` symbols of `BITS` bits contain 32 bits from any of the first eight on.
    fn sample<const BITS: usize, const WIDTH: usize>(
        &mut self,
        symbols: &Symbols,
        limit: usize,
    ) -> Result<(), OverBudget> {
        for run in &symbols.texts {
            self.sample_run::<BITS, WIDTH>(symbols, run.clone());
            if self.bytes.len() > limit {
                return Err(OverBudget);
            }
        }
        Ok(())
    }

    fn sample_run<const BITS: usize, const WIDTH: usize>(&mut self, symbols: &Symbols, run: Range<usize>) {
        // Bytes begin at all bits that are multiples of this.
        let unit = 1 << BITS.trailing_zeros();
        // Where the last text of each alignment of bytes to symbols ends.
        let mut covered = [run.start * BITS; 8];
        let step = 32 / BITS;
        let mut at = run.start;
        while let Some(sample) = symbols.numbers[..run.end].get(at..).and_then(<[u8]>::first_chunk::<WIDTH>) {
            let bits = sample.iter().fold(0_u64, |bits, number| bits << BITS | u64::from(*number));
            for shift in (0..8).step_by(unit) {
                let bit = at * BITS + shift;
                if is_printable((bits >> (WIDTH * BITS - 32 - shift)) as u32)
                    && bit >= covered[bit % 8]
                    && is_beside_text::<BITS>(&symbols.numbers, bit)
                {
                    covered[bit % 8] = self.add_around::<BITS>(symbols, bit, covered[bit % 8]);
                }
            }
            at += step;
        }
    }

    /// Adds the text around a bit, if it is long enough. Returns the bit at which it ends.
    fn add_around<const BITS: usize>(&mut self, symbols: &Symbols, bit: usize, covered: usize) -> usize {
        let numbers = &symbols.numbers;
        let mut start = bit;
        while start >= covered + 8 && byte_at::<BITS>(numbers, start - 8).is_some_and(is_text) {
            start -= 8;
        }
        let begin = self.bytes.len();
        let mut end = start;
        // The bits of the symbol in which the text begins, without those before it.
        let mut symbol = start / BITS;
        let mut held = (symbol + 1) * BITS - start;
        let mut bits = u32::from(numbers[symbol]) & ((1 << held) - 1);
        'text: loop {
            while held < 8 {
                symbol += 1;
                match numbers.get(symbol) {
                    Some(number) if number & BREAK == 0 => bits = bits << BITS | u32::from(*number),
                    _ => break 'text,
                }
                held += BITS;
            }
            let byte = (bits >> (held - 8)) as u8;
            if !is_text(byte) {
                break;
            }
            self.bytes.push(byte);
            held -= 8;
            end += 8;
        }
        if self.bytes.len() - begin < SHORTEST {
            self.bytes.truncate(begin);
        } else {
            self.pieces.push(Piece { coding: symbols.coding, start: begin, bit: start });
            self.bytes.push(SEPARATOR);
        }
        // The next sample may begin in the byte that ended the text.
        end + 8
    }

    /// The coding of the text at `at`, and the bit of the symbols that this byte begins with.
    pub(super) fn origin(&self, at: usize) -> (Coding, usize) {
        let next = self.pieces.partition_point(|piece| piece.start <= at);
        let Piece { coding, start, bit } = self.pieces[next - 1];
        (coding, bit + 8 * (at - start))
    }
}

/// The byte that begins with this bit.
fn byte_at<const BITS: usize>(numbers: &[u8], bit: usize) -> Option<u8> {
    let (first, last) = (bit / BITS, (bit + 7) / BITS);
    let mut bits = 0_u32;
    for number in numbers.get(first..=last)? {
        if number & BREAK != 0 {
            return None;
        }
        bits = bits << BITS | u32::from(*number);
    }
    Some((bits >> ((last + 1) * BITS - bit - 8)) as u8)
}

/// Whether the bytes before or after the four that begin with this bit are text too.
fn is_beside_text<const BITS: usize>(numbers: &[u8], bit: usize) -> bool {
    let are_text = |first: usize| {
        (0..3).all(|at| byte_at::<BITS>(numbers, first + 8 * at).is_some_and(is_text_in_ascii))
    };
    are_text(bit + 32) || bit.checked_sub(24).is_some_and(are_text)
}

/// Whether these are four printable characters of ASCII, or two in UTF-16.
#[inline]
fn is_printable(bytes: u32) -> bool {
    if bytes & 0x8080_8080 != 0 {
        return false;
    }
    let all_from_space = |bytes: u32| (bytes + 0x6060_6060) & 0x8080_8080 == 0x8080_8080;
    all_from_space(bytes)
        || (bytes & 0xFF00_FF00 == 0 && all_from_space(bytes | 0x2000_2000))
        || (bytes & 0x00FF_00FF == 0 && all_from_space(bytes | 0x0020_0020))
}

#[inline]
fn is_text_in_ascii(byte: u8) -> bool {
    is_text(byte) && byte.is_ascii()
}

/// Whether the byte may be part of text, in UTF-8 or UTF-16.
#[inline]
fn is_text(byte: u8) -> bool {
    byte >= b' ' || matches!(byte, 0 | b'\t' | b'\n' | b'\r')
}
