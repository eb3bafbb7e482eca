//! Finds all spellings of all values in one pass.
//!
//! `filter` gives the positions where a spelling may be; here the whole spelling is compared.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use super::encodings::{Case, Reach, Spelling, is_found_by_its_lines};
use super::filter::Filter;

/// A match: where, and of which needle.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Found {
    pub(super) span: Range<usize>,
    pub(super) needle: usize,
}

pub(super) struct Finder {
    filter: Filter,
    /// The spellings in the filter, by its index.
    targets: Vec<Target>,
    /// Spellings that the filter cannot take: no run of `Filter::SHORTEST` bytes is the same in plain text and JSON.
    unfiltered: Vec<Target>,
    /// The shortest spelling: a shorter text contains none, not even after decoding, which never makes text longer.
    shortest: usize,
    longest: usize,
    longest_across_lines: usize,
}

struct Target {
    spelling: Spelling,
    needle: usize,
    /// Where in the spelling the window of the filter begins.
    window: usize,
}

impl Finder {
    pub(super) fn new(spellings: impl Iterator<Item = (Spelling, usize)>) -> Self {
        let all: Vec<(Spelling, usize)> = first_of_each(spellings.collect()).collect();
        let shortest = all.iter().map(|(spelling, _)| spelling.bytes.len()).min().unwrap_or_default();
        let longest = all.iter().map(|(spelling, _)| spelling.bytes.len()).max().unwrap_or_default();
        let across_lines = all.iter().filter(|(spelling, _)| !is_found_by_its_lines(&spelling.bytes));
        let longest_across_lines =
            across_lines.map(|(spelling, _)| spelling.bytes.len()).max().unwrap_or_default();
        let (filtered, unfiltered): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(spelling, _)| plain_run(&spelling.bytes).len() >= Filter::SHORTEST);
        let runs =
            filtered.iter().map(|(spelling, _)| (spelling.bytes.as_slice(), plain_run(&spelling.bytes)));
        let (filter, windows) = Filter::new(runs);
        let target = |((spelling, needle), window)| Target { spelling, needle, window };
        Self {
            filter,
            targets: filtered.into_iter().zip(windows).map(target).collect(),
            unfiltered: unfiltered.into_iter().map(|found| target((found, 0))).collect(),
            shortest,
            longest,
            longest_across_lines,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.unfiltered.is_empty()
    }

    /// The length of the longest spelling.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// The length of the longest spelling that is not found line by line; zero if there is none.
    pub(super) fn longest_across_lines(&self) -> usize {
        self.longest_across_lines
    }

    /// Whether the text may contain a value, as it is or after decoding. A fast test.
    pub(super) fn might_match(&self, text: &[u8]) -> bool {
        if self.is_empty() || text.len() < self.shortest {
            return false;
        }
        !self.unfiltered.is_empty()
            || is_coded(text)
            || self.filter.candidates(text, |at, target| self.window_matches(text, at, target)).is_some()
    }

    /// Every match in the bytes as they are, without decoding.
    pub(super) fn find(&self, text: &[u8]) -> Vec<Found> {
        let mut found = Vec::new();
        if self.is_empty() {
            return found;
        }
        self.filter.candidates(text, |at, target| {
            let target = &self.targets[target];
            found.extend(at.checked_sub(target.window).and_then(|start| target.at(text, start)));
            None::<()>
        });
        for target in &self.unfiltered {
            found.extend((0..text.len()).filter_map(|start| target.at(text, start)));
        }
        found
    }

    /// Whether the window of a target is at `at`. The bytes around it may be escaped, so they are not compared here.
    fn window_matches(&self, text: &[u8], at: usize, target: usize) -> Option<()> {
        let target = &self.targets[target];
        let window = target.window..target.window + self.filter.window();
        text.get(at..at + window.len())?.eq_ignore_ascii_case(&target.spelling.bytes[window]).then_some(())
    }
}

impl Target {
    /// The match that begins at `start`, if the whole spelling is there.
    fn at(&self, text: &[u8], start: usize) -> Option<Found> {
        let span = start..start + self.spelling.bytes.len();
        let candidate = text.get(span.clone())?;
        let equal = match self.spelling.case {
            Case::Any => candidate.eq_ignore_ascii_case(&self.spelling.bytes),
            Case::Exact => *candidate == **self.spelling.bytes,
        };
        equal.then(|| Found { span: self.spelling.reach.around(text, span), needle: self.needle })
    }
}

impl Reach {
    fn around(self, text: &[u8], span: Range<usize>) -> Range<usize> {
        /// Longer than any line of a wrapped text with its end.
        const LINE: usize = 128;
        let letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte);
        let wrapped = |byte: &u8| letter(byte) || b"\r\n".contains(byte);
        let (before, after) = (text[..span.start].iter().rev(), text[span.end..].iter());
        let (before, after) = match self {
            Self::Letters { before: left, after: right } => (
                before.take(left).take_while(|byte| letter(byte)).count(),
                after.take(right).take_while(|byte| letter(byte)).count(),
            ),
            Self::Nothing => (0, 0),
            Self::WrappedLine => (
                before.take(LINE).take_while(|byte| wrapped(byte)).count(),
                after.take(LINE).take_while(|byte| wrapped(byte)).count(),
            ),
        };
        span.start - before..span.end + after
    }
}

impl fmt::Debug for Finder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spellings = self.targets.len() + self.unfiltered.len();
        formatter.debug_struct("Finder").field("spellings", &spellings).finish_non_exhaustive()
    }
}

/// Drops spellings that an earlier needle has too.
fn first_of_each(spellings: Vec<(Spelling, usize)>) -> impl Iterator<Item = (Spelling, usize)> {
    let mut seen = HashSet::new();
    let first: Vec<bool> = spellings
        .iter()
        .map(|(spelling, _)| seen.insert((spelling.bytes.as_slice(), spelling.case)))
        .collect();
    spellings.into_iter().zip(first).filter_map(|(spelling, first)| first.then_some(spelling))
}

/// The longest run of bytes that are the same in plain text and in a JSON string, however deeply nested, unless `\u` or
/// `\/` is used: the other escapes of JSON encode characters that are not in the run.
fn plain_run(spelling: &[u8]) -> Range<usize> {
    let plain = |byte: &u8| *byte >= 0x20 && !b"\"\\".contains(byte);
    let mut longest = 0..0;
    let mut start = 0;
    for run in spelling.split(|byte| !plain(byte)) {
        if run.len() > longest.len() {
            longest = start..start + run.len();
        }
        start += run.len() + 1;
    }
    longest
}

/// Whether there is a `\u`, a `\/` or a percent sign before a hexadecimal digit, so that a value may appear only
/// after decoding.
fn is_coded(text: &[u8]) -> bool {
    /// Tested without branches, so that the compiler generates vector code.
    const CHUNK: usize = 256;
    let coded = |first: u8, second: u8| {
        let digit = (second.wrapping_sub(b'0') < 10) | ((second | 0x20).wrapping_sub(b'a') < 6);
        ((first == b'%') & digit) | ((first == b'\\') & ((second == b'u') | (second == b'/')))
    };
    // Fast path: most small messages contain neither a backslash nor a percent sign.
    let (blocks, rest) = text.as_chunks::<32>();
    if !blocks.iter().any(|block| has_sign(block)) && !has_sign(rest) {
        return false;
    }
    (0..text.len()).step_by(CHUNK).any(|at| {
        let chunk = &text[at..text.len().min(at + CHUNK + 1)];
        chunk
            .iter()
            .zip(&chunk[1..])
            .fold(0, |found, (first, second)| found | u8::from(coded(*first, *second)))
            != 0
    })
}

/// Whether there is a backslash or a percent sign.
#[inline]
fn has_sign(text: &[u8]) -> bool {
    text.iter().fold(0, |found, byte| found | u8::from(*byte == b'\\') | u8::from(*byte == b'%')) != 0
}
