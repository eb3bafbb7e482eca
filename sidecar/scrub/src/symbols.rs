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

/// The runs of a text.
pub(super) struct Runs {
    length: RunLength,
    /// Letters of base64, of which base32 is a part.
    letters: Vec<Range<usize>>,
    /// Hexadecimal digits and what is between them.
    digits: Vec<Range<usize>>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RunLength {
    /// From [`SHORTEST_LONG_RUN`] letters on.
    Long,
    /// From nine letters on, which takes longer.
    Short,
}

/// Runs of this length contain eight letters in a row at a multiple of eight.
pub(super) const SHORTEST_LONG_RUN: usize = 15;

/// The symbols of all runs of one coding in a text.
pub(super) struct Symbols {
    pub(super) coding: Coding,
    pub(super) numbers: Vec<u8>,
    /// The runs in `numbers` that may encode text.
    pub(super) texts: Vec<Range<usize>>,
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

    /// Whether a run can be the encoding of text. Words, hashes and other runs without both cases are no base64, and
    /// long runs without a digit no base32.
    fn may_encode_text(self, run: &[u8]) -> bool {
        // Without branches, so that the compiler generates vector code.
        let has = |first: u8, count: u8| {
            let (blocks, rest) = run.as_chunks::<32>();
            let any =
                |bytes: &[u8]| bytes.iter().fold(false, |any, byte| any | (byte.wrapping_sub(first) < count));
            blocks.iter().any(|block| any(block)) || any(rest)
        };
        match self {
            Self::Base32 => run.len() < 64 || has(b'0', 10),
            Self::Base64 => has(b'A', 26) && has(b'a', 26),
            Self::Hexadecimal => true,
        }
    }

    /// Calls `visit` with each run of this coding.
    fn each_run(self, text: &[u8], runs: &Runs, mut visit: impl FnMut(Range<usize>)) {
        match self {
            Self::Base64 => runs.letters.iter().cloned().for_each(visit),
            // Runs of base32 are parts of runs of base64.
            Self::Base32 => {
                for run in &runs.letters {
                    for first in [b'A', b'a'] {
                        let visit = |part: Range<usize>| visit(run.start + part.start..run.start + part.end);
                        each_part(&text[run.clone()], runs.length, |byte| is_base32(byte, first), visit);
                    }
                }
            }
            Self::Hexadecimal => runs.digits.iter().cloned().for_each(visit),
        }
    }
}

impl Symbols {
    /// The symbols of all runs in `text`; `None` if there are no runs.
    pub(super) fn new(coding: Coding, text: &[u8], runs: &Runs) -> Option<Self> {
        let mut numbers = Vec::new();
        let mut texts = Vec::new();
        coding.each_run(text, runs, |run| {
            let start = numbers.len();
            let may_encode_text = coding.may_encode_text(&text[run.clone()]);
            let letters = text[run.clone()].iter();
            match coding {
                Coding::Base32 => numbers.extend(letters.map(|byte| BASE32[*byte as usize])),
                Coding::Base64 => numbers.extend(letters.map(|byte| BASE64[*byte as usize])),
                Coding::Hexadecimal => each_digit(text, run, |digit, _| numbers.push(digit)),
            }
            if may_encode_text {
                texts.push(start..numbers.len());
            }
            numbers.push(BREAK);
        });
        (!numbers.is_empty()).then_some(Self { coding, numbers, texts })
    }

    /// Where in the text each symbol is. The text must be the same.
    pub(super) fn positions(&self, text: &[u8], runs: &Runs) -> Vec<u32> {
        let mut positions = Vec::with_capacity(self.numbers.len());
        let narrow = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        self.coding.each_run(text, runs, |run| {
            let end = narrow(run.end);
            match self.coding {
                Coding::Base32 | Coding::Base64 => positions.extend(narrow(run.start)..end),
                Coding::Hexadecimal => each_digit(text, run, |_, at| positions.push(narrow(at))),
            }
            positions.push(end);
        });
        positions
    }
}

/// Whether a run may begin after a backslash or percent sign.
pub(super) fn has_run_after_mark(text: &[u8], length: RunLength) -> bool {
    let shortest = length.shortest();
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    let is_before_run = |mark: usize| {
        let first = text.get(mark + 1..mark + 1 + shortest);
        first.is_some_and(|run| {
            run.iter().all(|byte| is_base64(*byte)) || run.iter().all(|byte| is_hexadecimal(*byte))
        })
    };
    let any_in = |start: usize, block: &[u8]| {
        block
            .iter()
            .enumerate()
            .any(|(at, byte)| (*byte == b'\\' || *byte == b'%') && is_before_run(start + at))
    };
    let has_mark =
        |block: &[u8]| block.iter().fold(false, |any, byte| any | (*byte == b'\\') | (*byte == b'%'));
    let mut starts = (0..).step_by(BLOCK).zip(blocks);
    starts.any(|(start, block)| has_mark(block) && any_in(start, block)) || any_in(blocks.len() * BLOCK, rest)
}

/// Calls `put` with each digit of a run and its position.
fn each_digit(text: &[u8], run: Range<usize>, mut put: impl FnMut(u8, usize)) {
    for at in run {
        let digit = HEXADECIMAL[text[at] as usize];
        if digit != OTHER && !is_prefix(text, at) {
            put(digit, at);
        }
    }
}

/// Whether the zero at `at` is that of `0x`.
fn is_prefix(text: &[u8], at: usize) -> bool {
    let begins = at == 0 || !text[at - 1].is_ascii_hexdigit();
    begins && text[at] == b'0' && text.get(at + 1).is_some_and(|next| next | 0x20 == b'x')
}

/// The bit of a letter of base64 in [`CLASSES`].
const LETTER: u8 = 1;
/// The bit of a hexadecimal digit, and of what may be between two.
const DIGIT: u8 = 2;

impl Runs {
    /// Finds all runs in one pass.
    pub(super) fn new(text: &[u8], length: RunLength) -> Self {
        let (mut letters, mut digits) = (Vec::new(), Vec::new());
        let size = length.group();
        let mut at = 0;
        while let Some(next) = next_group(&text[at..], size) {
            let (start, class) = (at + next.0, next.1);
            if class & LETTER != 0 {
                add_run(text, start, length.shortest(), is_base64, &mut letters);
            }
            if class & DIGIT != 0 {
                add_run(text, start, SHORTEST_LONG_RUN, is_hexadecimal, &mut digits);
            }
            at = start + size;
            if at > text.len() {
                break;
            }
        }
        Self { length, letters, digits }
    }

    /// Only the runs that begin after a backslash or percent sign.
    pub(super) fn after_mark(mut self, text: &[u8]) -> Self {
        for runs in [&mut self.letters, &mut self.digits] {
            runs.retain(|run| text[..run.start].ends_with(b"\\") || text[..run.start].ends_with(b"%"));
        }
        self
    }
}

/// Where the next group of `size` bytes begins that are all letters or all digits, and which.
fn next_group(text: &[u8], size: usize) -> Option<(usize, u8)> {
    let class =
        |group: &[u8]| group.iter().fold(LETTER | DIGIT, |class, byte| class & CLASSES[*byte as usize]);
    let (groups, rest) = text.as_chunks::<8>();
    for (number, group) in groups.iter().enumerate() {
        match size {
            8 => match class(group) {
                0 => {}
                found => return Some((number * 8, found)),
            },
            _ => {
                for half in [0, 4] {
                    match class(&group[half..half + 4]) {
                        0 => {}
                        found => return Some((number * 8 + half, found)),
                    }
                }
            }
        }
    }
    let found = rest.iter().position(|byte| CLASSES[*byte as usize] != 0)?;
    Some((groups.len() * 8 + found, CLASSES[rest[found] as usize]))
}

/// Adds the run around `at`, unless it is the last one already or too short.
fn add_run(
    text: &[u8],
    at: usize,
    shortest: usize,
    belongs: impl Fn(u8) -> bool + Copy,
    runs: &mut Vec<Range<usize>>,
) {
    let last_end = runs.last().map_or(0, |last| last.end);
    if at < last_end {
        return;
    }
    let start = at - text[last_end..at].iter().rev().take_while(|byte| belongs(**byte)).count();
    let end = at + run_length(&text[at..], belongs);
    if end - start >= shortest {
        runs.push(start..end);
    }
}

/// Calls `visit` with each longest part of a run that `belongs` accepts, if it is long enough.
fn each_part(
    text: &[u8],
    length: RunLength,
    belongs: impl Fn(u8) -> bool + Copy,
    mut visit: impl FnMut(Range<usize>),
) {
    let mut at = 0;
    let mut last_end = 0;
    while at < text.len() {
        let Some(hit) = next_full_group(&text[at..], length, belongs) else { return };
        let hit = at + hit;
        let start = hit - text[last_end..hit].iter().rev().take_while(|byte| belongs(**byte)).count();
        let end = hit + run_length(&text[hit..], belongs);
        at = end + 1;
        last_end = end;
        if end - start >= length.shortest() {
            visit(start..end);
        }
    }
}

const BLOCK: usize = 32;

/// Where the next group of bytes begins that `belongs` accepts: eight, or four for short runs.
fn next_full_group(text: &[u8], length: RunLength, belongs: impl Fn(u8) -> bool + Copy) -> Option<usize> {
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    for (number, block) in blocks.iter().enumerate() {
        let accepted = accepted(block, belongs);
        let group = match length {
            RunLength::Long => full_group::<8>(&accepted),
            RunLength::Short => full_group::<4>(&accepted),
        };
        if let Some(group) = group {
            return Some(number * BLOCK + group);
        }
    }
    rest.iter().position(|byte| belongs(*byte)).map(|found| blocks.len() * BLOCK + found)
}

/// For each byte, one if `belongs` accepts it. A function of its own, so that the compiler generates vector code.
#[inline(never)]
fn accepted(block: &[u8; BLOCK], belongs: impl Fn(u8) -> bool) -> [u8; BLOCK] {
    let mut accepted = [0; BLOCK];
    for (accepted, byte) in accepted.iter_mut().zip(block) {
        *accepted = u8::from(belongs(*byte));
    }
    accepted
}

/// How many of the first bytes `belongs` accepts.
fn run_length(text: &[u8], belongs: impl Fn(u8) -> bool + Copy) -> usize {
    let (blocks, _) = text.as_chunks::<BLOCK>();
    let is_full = |block: &&[u8; BLOCK]| accepted(block, belongs) == [1; BLOCK];
    let full = blocks.iter().take_while(is_full).count() * BLOCK;
    full + text[full..].iter().take_while(|byte| belongs(**byte)).count()
}

impl RunLength {
    /// A run of this length contains a group of this many letters at a multiple of it.
    fn group(self) -> usize {
        match self {
            Self::Long => 8,
            Self::Short => 4,
        }
    }

    fn shortest(self) -> usize {
        match self {
            Self::Long => SHORTEST_LONG_RUN,
            Self::Short => 9,
        }
    }
}

/// Where the first group of `SIZE` accepted bytes begins.
#[inline]
fn full_group<const SIZE: usize>(accepted: &[u8; BLOCK]) -> Option<usize> {
    let (groups, _) = accepted.as_chunks::<SIZE>();
    groups.iter().position(|group| *group == [1; SIZE]).map(|group| group * SIZE)
}

#[inline]
const fn is_base64(byte: u8) -> bool {
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
const fn is_hexadecimal(byte: u8) -> bool {
    ((byte | 0x20).wrapping_sub(b'a') < 6)
        | (byte.wrapping_sub(b'0') < 10)
        | (byte == b' ')
        | (byte == b':')
        | (byte == b'-')
        | (byte == b',')
        | (byte | 0x20 == b'x')
}

/// The bits of each byte: [`LETTER`] and [`DIGIT`].
const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = (LETTER * is_base64(byte as u8) as u8) | (DIGIT * is_hexadecimal(byte as u8) as u8);
        byte += 1;
    }
    classes
};

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
