//! The texts that are encoded in runs of letters, whichever letter they begin at.
//!
//! Every listed spelling of a value is ASCII, and so is nearly every value. So only parts of runs are decoded in which
//! [`SHORTEST`] bytes of ASCII follow each other: whether a byte is ASCII depends on one bit of one letter, and these
//! bits are tested for many letters at once. Bytes of an image cost little.

use std::ops::Range;

use super::runs::{BLOCK, bits};
use super::symbols::{BASE32, BASE64, BREAK, Coding};

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
    /// The bit of the letters that its first byte begins with.
    bit: usize,
}

/// What was decoded is too long for the message it came from.
pub(super) struct OverBudget;

/// A byte that belongs to no encoding.
const SEPARATOR: u8 = 1;
/// Shorter texts contain neither a value whose symbols are not searched for nor an encoded value.
pub(super) const SHORTEST: usize = 9;

impl DecodedTexts {
    /// Adds the texts in a run; `bytes` becomes at most `limit` long. Hexadecimal digits are given as their numbers.
    pub(super) fn add(
        &mut self,
        coding: Coding,
        letters: &[u8],
        run: Range<usize>,
        limit: usize,
    ) -> Result<(), OverBudget> {
        match coding {
            Coding::Base32 => Run::<5> { letters, run }.decode(self, limit),
            Coding::Base64 => Run::<6> { letters, run }.decode(self, limit),
            Coding::Hexadecimal => Run::<4> { letters, run }.decode(self, limit),
        }
    }

    /// The coding of the text at `at`, and the bit of the letters that this byte begins with.
    pub(super) fn origin(&self, at: usize) -> (Coding, usize) {
        let next = self.pieces.partition_point(|piece| piece.start <= at);
        let Piece { coding, start, bit } = self.pieces[next - 1];
        (coding, bit + 8 * (at - start))
    }
}

/// The letters that are tested at once.
const WINDOW: usize = 4 * BLOCK;
/// The same, and the letters after them that the tests read.
const WIDE: usize = WINDOW + 32;

/// If more letters of a window may begin text, those are excluded at once that begin control characters.
const MANY_CANDIDATES: u32 = 16;

/// A run of letters that stand for `BITS` bits each.
struct Run<'a, const BITS: usize> {
    letters: &'a [u8],
    run: Range<usize>,
}

impl<const BITS: usize> Run<'_, BITS> {
    const CODING: Coding = match BITS {
        4 => Coding::Hexadecimal,
        5 => Coding::Base32,
        _ => Coding::Base64,
    };

    /// How many letters in a row stand for whole bytes and are tested for ASCII.
    const TESTED: usize = match BITS {
        4 => 16,
        _ => 8,
    };

    fn decode(&self, texts: &mut DecodedTexts, limit: usize) -> Result<(), OverBudget> {
        // Where the last text of each alignment of bytes to letters ends.
        let mut covered = [self.run.start * BITS; 8];
        if self.run.len() < BLOCK {
            // Not worth the copies that the tests of many letters need.
            for at in self.run.start..(self.run.end + 1).saturating_sub(Self::TESTED).max(self.run.start) {
                if self.is_ascii_at(at) {
                    self.decode_at(at, &mut covered, texts);
                }
            }
            return Ok(());
        }
        for start in self.run.clone().step_by(WINDOW) {
            let numbers = self.numbers_from(start);
            let mut obstacles = obstacles::<BITS>(&numbers);
            let mut candidates = without_obstacles(&obstacles);
            if candidates.iter().map(|block| block.count_ones()).sum::<u32>() > MANY_CANDIDATES {
                add_controls::<BITS>(&numbers, &mut obstacles);
                candidates = without_obstacles(&obstacles);
            }
            for (number, mut candidates) in candidates.into_iter().enumerate() {
                while candidates != 0 {
                    let tested = start + number * BLOCK + candidates.trailing_zeros() as usize;
                    candidates &= candidates - 1;
                    let at = match BITS {
                        // The first two letters end the byte before.
                        6 => tested + 2,
                        _ => tested,
                    };
                    self.decode_at(at, &mut covered, texts);
                }
            }
            if texts.bytes.len() > limit {
                return Err(OverBudget);
            }
        }
        Ok(())
    }

    /// Adds the text that the letter at `at` is part of, if its bytes begin with that letter.
    #[inline]
    fn decode_at(&self, at: usize, covered: &mut [usize; 8], texts: &mut DecodedTexts) {
        let bit = at * BITS;
        let covered = &mut covered[bit % 8];
        if bit >= *covered && self.is_text_at(at) {
            *covered = self.add_around(texts, bit, *covered);
        }
    }

    /// The numbers of the letters from `start` on; [`BREAK`] after the end of the run.
    #[inline]
    fn numbers_from(&self, start: usize) -> [u8; WIDE] {
        let letters = &self.letters[start..self.run.end];
        if let Some(letters) = letters.first_chunk() {
            return numbers_of::<BITS>(letters);
        }
        let mut filled = [0; WIDE];
        filled[..letters.len()].copy_from_slice(letters);
        let mut numbers = numbers_of::<BITS>(&filled);
        numbers[letters.len()..].fill(BREAK);
        numbers
    }

    /// Whether the first bytes that begin with this letter are ASCII.
    #[inline]
    fn is_ascii_at(&self, at: usize) -> bool {
        let Some(letters) = self.letters.get(at..at + 8) else { return false };
        let number = |at: usize| number_of::<BITS>(letters[at]);
        match BITS {
            4 => (number(0) | number(2)) & 0x08 == 0,
            5 => number(0) & 0x10 | number(1) & 0x02 | number(3) & 0x08 | number(4) & 0x01 == 0,
            _ => number(0) & 0x20 | number(1) & 0x08 | number(2) & 0x02 == 0,
        }
    }

    /// Whether the bytes that were tested for ASCII are text.
    #[inline]
    fn is_text_at(&self, at: usize) -> bool {
        let Some(letters) = self.letters[..self.run.end].get(at..at + Self::TESTED) else { return false };
        let bits =
            letters.iter().fold(0_u64, |bits, letter| bits << BITS | u64::from(number_of::<BITS>(*letter)));
        bits != 0 && (0..Self::TESTED * BITS / 8).all(|byte| is_text((bits >> (8 * byte)) as u8))
    }

    /// Adds the text around a bit, if it is long enough. Returns the bit from which on the next text may begin.
    fn add_around(&self, texts: &mut DecodedTexts, bit: usize, covered: usize) -> usize {
        let mut start = bit;
        let mut history = History::new();
        while start >= covered + 8 && history.continues_with(self.byte_at(start - 8)) {
            start -= 8;
        }
        let begin = texts.bytes.len();
        let mut end = start;
        // The bits of the letter in which the text begins, without those before it.
        let mut at = start / BITS;
        let mut held = (at + 1) * BITS - start;
        let mut bits = u32::from(number_of::<BITS>(self.letters[at])) & ((1 << held) - 1);
        at += 1;
        let mut history = History::new();
        loop {
            while held < 8 && at < self.run.end {
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
            texts.bytes.push(byte);
            held -= 8;
            end += 8;
        }
        if texts.bytes.len() - begin < SHORTEST {
            texts.bytes.truncate(begin);
        } else {
            texts.pieces.push(Piece { coding: Self::CODING, start: begin, bit: start });
            texts.bytes.push(SEPARATOR);
        }
        // The byte that ended the text is not part of another.
        end + 8
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

/// The numbers of letters that all belong to the coding. Without branches and tables, so that the compiler generates
/// vector code.
#[inline]
fn numbers_of<const BITS: usize>(letters: &[u8; WIDE]) -> [u8; WIDE] {
    let select = |condition: bool, this: u8, other: u8| if condition { this } else { other };
    letters.map(|letter| match BITS {
        4 => letter,
        5 => select(letter >= b'A', (letter | 0x20).wrapping_sub(b'a'), letter.wrapping_sub(b'2' - 26)),
        _ => {
            let number = letter.wrapping_add(52 - b'0');
            let number = select(letter >= b'A', letter.wrapping_sub(b'A'), number);
            let number = select(letter >= b'a', letter.wrapping_sub(b'a' - 26), number);
            let number = select((letter == b'+') | (letter == b'-'), 62, number);
            select((letter == b'/') | (letter == b'_'), 63, number)
        }
    })
}

/// For each letter: zero if the bytes that begin with it are ASCII, as far as they are whole bytes of one group (two
/// groups of base64 and the byte before them, nine bytes of hexadecimal). Of `SHORTEST` bytes in a row, these are a part.
#[inline]
fn obstacles<const BITS: usize>(numbers: &[u8; WIDE]) -> [u8; WINDOW] {
    let mut obstacles = [0; WINDOW];
    match BITS {
        4 => {
            let two: [u8; WINDOW + 14] = std::array::from_fn(|at| numbers[at] | numbers[at + 2]);
            let four: [u8; WINDOW + 10] = std::array::from_fn(|at| two[at] | two[at + 4]);
            for (at, obstacle) in obstacles.iter_mut().enumerate() {
                *obstacle = (four[at] | four[at + 8] | numbers[at + 16]) & 0x08;
            }
        }
        5 => {
            for (at, obstacle) in obstacles.iter_mut().enumerate() {
                let (first, second) = (numbers[at] & 0x10 | numbers[at + 1] & 0x02, numbers[at + 3] & 0x08);
                *obstacle = first | second | numbers[at + 4] & 0x01 | numbers[at + 6] & 0x04;
            }
        }
        _ => {
            let group: [u8; WINDOW + 6] = std::array::from_fn(|at| {
                numbers[at] & 0x20 | numbers[at + 1] & 0x08 | numbers[at + 2] & 0x02
            });
            for (at, obstacle) in obstacles.iter_mut().enumerate() {
                *obstacle = numbers[at] & 0x02 | group[at + 2] | group[at + 6];
            }
        }
    }
    obstacles
}

/// For each block a number with one bit for each letter whose obstacle is zero.
#[inline]
fn without_obstacles(obstacles: &[u8; WINDOW]) -> [u64; WINDOW / BLOCK] {
    let mut candidates = [0; WINDOW / BLOCK];
    let (blocks, _) = obstacles.as_chunks::<BLOCK>();
    for (candidates, block) in candidates.iter_mut().zip(blocks) {
        *candidates = bits(block, |obstacle| obstacle == 0);
    }
    candidates
}

/// Makes the obstacles of letters not zero whose bytes contain other control characters than text does.
#[inline(never)]
fn add_controls<const BITS: usize>(numbers: &[u8; WIDE], obstacles: &mut [u8; WINDOW]) {
    let control = |byte: u8| if is_text(byte) { 0 } else { 0xFF };
    // For each letter: whether the bytes of the group that begins with it contain a control character.
    let mut groups = [0; WINDOW + 16];
    for (group, numbers) in groups.iter_mut().zip(numbers.array_windows::<8>()) {
        let [first, second, third, fourth, fifth, sixth, seventh, eighth] = *numbers;
        *group = match BITS {
            4 => control(first << 4 | second),
            5 => {
                control(first << 3 | second >> 2)
                    | control(second << 6 | third << 1 | fourth >> 4)
                    | control(fourth << 4 | fifth >> 1)
                    | control(fifth << 7 | sixth << 2 | seventh >> 3)
                    | control(seventh << 5 | eighth)
            }
            _ => {
                control(first << 2 | second >> 4)
                    | control(second << 4 | third >> 2)
                    | control(third << 6 | fourth)
            }
        };
    }
    for (at, obstacle) in obstacles.iter_mut().enumerate() {
        *obstacle |= match BITS {
            4 => groups[at] | groups[at + 2] | groups[at + 4] | groups[at + 6] | groups[at + 8],
            5 => groups[at],
            _ => groups[at + 2] | groups[at + 6],
        };
    }
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
