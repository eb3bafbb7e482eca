//! Runs of text that may be base64, base32 or hexadecimal, as the numbers that their letters stand for.
//!
//! All runs of a text are put one behind the other, with [`BREAK`] between them. Separators between hexadecimal digits
//! (`61:62`, `61 62`, `0x61, 0x62`) are left out.

use std::ops::Range;

/// An encoding of bytes by letters that each stand for the same number of bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Coding {
    Base32,
    /// With either alphabet: `+/` or `-_`.
    Base64,
    Hexadecimal,
}

/// Which runs are read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Runs {
    pub(super) length: RunLength,
    pub(super) start: RunStart,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RunLength {
    /// From [`SHORTEST_LONG_RUN`] letters on.
    Long,
    /// From nine letters on, which takes longer.
    Short,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RunStart {
    AfterBackslash,
    Anywhere,
}

/// Runs of this length contain eight letters in a row at a multiple of eight.
pub(super) const SHORTEST_LONG_RUN: usize = 15;

/// The symbols of all runs of one coding in a text.
pub(super) struct Symbols {
    pub(super) coding: Coding,
    pub(super) numbers: Vec<u8>,
}

/// Between two runs. No number of a symbol has this bit.
pub(super) const BREAK: u8 = 0x80;
/// In the tables of numbers: a letter that does not belong to the alphabet.
const OTHER: u8 = 0xFF;

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

    /// Calls `put` with each symbol of the runs in `text` and its position, and with [`BREAK`] after each run.
    fn read(self, text: &[u8], runs: Runs, mut put: impl FnMut(u8, usize)) {
        match self {
            Self::Base64 => each_run(text, runs, is_base64, |run| {
                text[run.clone()]
                    .iter()
                    .zip(run.clone())
                    .for_each(|(byte, at)| put(BASE64[*byte as usize], at));
                put(BREAK, run.end);
            }),
            Self::Base32 => {
                let mut put_run = |run: Range<usize>| {
                    text[run.clone()]
                        .iter()
                        .zip(run.clone())
                        .for_each(|(byte, at)| put(BASE32[*byte as usize], at));
                    put(BREAK, run.end);
                };
                each_run(text, runs, |byte| is_base32(byte, b'A'), &mut put_run);
                each_run(text, runs, |byte| is_base32(byte, b'a'), &mut put_run);
            }
            Self::Hexadecimal => {
                each_run(text, Runs { length: RunLength::Long, ..runs }, is_hexadecimal, |run| {
                    for (at, byte) in run.clone().zip(&text[run.clone()]) {
                        match HEXADECIMAL[*byte as usize] {
                            OTHER => {}
                            digit if !is_prefix(text, at) => put(digit, at),
                            _ => {}
                        }
                    }
                    put(BREAK, run.end);
                })
            }
        }
    }
}

impl Symbols {
    /// The symbols of all runs in `text`; `None` if there are no runs.
    pub(super) fn new(coding: Coding, text: &[u8], runs: Runs) -> Option<Self> {
        let mut numbers = Vec::new();
        coding.read(text, runs, |number, _| numbers.push(number));
        (!numbers.is_empty()).then_some(Self { coding, numbers })
    }

    /// Where in the text each symbol is. The text must be the same.
    pub(super) fn positions(&self, text: &[u8], runs: Runs) -> Vec<u32> {
        let mut positions = Vec::with_capacity(self.numbers.len());
        self.coding.read(text, runs, |_, at| positions.push(u32::try_from(at).unwrap_or(u32::MAX)));
        positions
    }
}

/// Whether the zero at `at` is that of `0x`.
fn is_prefix(text: &[u8], at: usize) -> bool {
    text[at] == b'0' && text.get(at + 1).is_some_and(|next| next | 0x20 == b'x')
}

/// Calls `visit` with each longest run of bytes that `belongs` accepts, if it is long enough.
fn each_run(text: &[u8], runs: Runs, belongs: impl Fn(u8) -> bool, mut visit: impl FnMut(Range<usize>)) {
    const BLOCK: usize = 32;
    let mut at = 0;
    let mut last_end = 0;
    while at < text.len() {
        let hit = match text[at..].first_chunk::<BLOCK>() {
            Some(block) => {
                // Without branches, so that the compiler generates vector code.
                let accepted = block.map(|byte| u8::from(belongs(byte)));
                match runs.length {
                    RunLength::Long => full_group::<8>(&accepted),
                    RunLength::Short => full_group::<4>(&accepted),
                }
            }
            None => text[at..].iter().position(|byte| belongs(*byte)),
        };
        let Some(hit) = hit else {
            at += BLOCK;
            continue;
        };
        let before = text[last_end..at + hit].iter().rev().take_while(|byte| belongs(**byte)).count();
        let after = text[at + hit..].iter().take_while(|byte| belongs(**byte)).count();
        let run = at + hit - before..at + hit + after;
        at = run.end + 1;
        last_end = run.end;
        if run.len() >= runs.length.shortest() && runs.start.allows(&text[..run.start]) {
            visit(run);
        }
    }
}

impl RunLength {
    fn shortest(self) -> usize {
        match self {
            Self::Long => SHORTEST_LONG_RUN,
            Self::Short => 9,
        }
    }
}

impl RunStart {
    fn allows(self, before: &[u8]) -> bool {
        match self {
            Self::AfterBackslash => before.ends_with(b"\\"),
            Self::Anywhere => true,
        }
    }
}

/// Where the first group of `SIZE` accepted bytes begins.
#[inline]
fn full_group<const SIZE: usize>(accepted: &[u8; 32]) -> Option<usize> {
    let (groups, _) = accepted.as_chunks::<SIZE>();
    groups.iter().position(|group| *group == [1; SIZE]).map(|group| group * SIZE)
}

#[inline]
fn is_base64(byte: u8) -> bool {
    ((byte | 0x20).wrapping_sub(b'a') < 26)
        | (byte.wrapping_sub(b'0') < 10)
        | (byte == b'+')
        | (byte == b'/')
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
        | (byte.wrapping_sub(b'0') < 10)
        | (byte == b' ')
        | (byte == b':')
        | (byte == b'-')
        | (byte == b',')
        | (byte | 0x20 == b'x')
}

const BASE64: [u8; 256] = {
    let mut numbers = numbers(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
    numbers[b'-' as usize] = 62;
    numbers[b'_' as usize] = 63;
    numbers
};

const BASE32: [u8; 256] = in_any_case(numbers(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"));

const HEXADECIMAL: [u8; 256] = in_any_case(numbers(b"0123456789ABCDEF"));

/// The number of each letter of an alphabet.
const fn numbers(alphabet: &[u8]) -> [u8; 256] {
    let mut numbers = [OTHER; 256];
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
