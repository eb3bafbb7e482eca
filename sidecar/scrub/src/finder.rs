//! Finds all patterns of all values in one pass.
//!
//! `filter` returns the positions where a pattern may be; here the whole pattern is compared.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use super::encodings::{Case, Pattern, Reach, is_found_by_its_lines};
use super::filter::Filter;

/// A match: where, and of which needle.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Found {
    pub(super) span: Range<usize>,
    pub(super) needle: usize,
}

pub(super) struct Finder {
    filter: Filter,
    /// The patterns in the filter, by its index.
    targets: Vec<Target>,
    /// Patterns that the filter cannot find: no run of `Filter::SHORTEST` bytes is the same in plain text and JSON.
    unfiltered: Vec<Target>,
    /// The shortest pattern: a shorter text contains none, not even after decoding, which never makes text longer.
    shortest: usize,
    longest: usize,
    longest_across_lines: usize,
}

struct Target {
    pattern: Pattern,
    needle: usize,
    /// Where in the pattern the window of the filter begins.
    window: usize,
}

impl Finder {
    pub(super) fn new(patterns: impl Iterator<Item = (Pattern, usize)>) -> Self {
        let all: Vec<(Pattern, usize)> = without_duplicates(patterns.collect()).collect();
        let shortest = all.iter().map(|(pattern, _)| pattern.bytes.len()).min().unwrap_or_default();
        let longest = all.iter().map(|(pattern, _)| pattern.bytes.len()).max().unwrap_or_default();
        let across_lines = all.iter().filter(|(pattern, _)| !is_found_by_its_lines(&pattern.bytes));
        let longest_across_lines =
            across_lines.map(|(pattern, _)| pattern.bytes.len()).max().unwrap_or_default();
        let (filtered, unfiltered): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(pattern, _)| plain_run(&pattern.bytes).len() >= Filter::SHORTEST);
        let runs = filtered.iter().map(|(pattern, _)| (pattern.bytes.as_slice(), plain_run(&pattern.bytes)));
        let (filter, windows) = Filter::new(runs);
        let target = |((pattern, needle), window)| Target { pattern, needle, window };
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

    /// The length of the longest pattern.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// The length of the longest pattern that is not found line by line; zero if there is none.
    pub(super) fn longest_across_lines(&self) -> usize {
        self.longest_across_lines
    }

    /// Whether the text may contain a value, as it is or after decoding. Fast; may be true without a value.
    pub(super) fn might_match(&self, text: &[u8]) -> bool {
        if self.is_empty() || text.len() < self.shortest {
            return false;
        }
        !self.unfiltered.is_empty()
            || may_be_encoded(text)
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
        text.get(at..at + window.len())?.eq_ignore_ascii_case(&target.pattern.bytes[window]).then_some(())
    }
}

impl Target {
    /// The match that begins at `start`, if the whole pattern is there.
    fn at(&self, text: &[u8], start: usize) -> Option<Found> {
        let span = start..start + self.pattern.bytes.len();
        let candidate = text.get(span.clone())?;
        let equal = match self.pattern.case {
            Case::Any => candidate.eq_ignore_ascii_case(&self.pattern.bytes),
            Case::Exact => *candidate == **self.pattern.bytes,
        };
        equal.then(|| Found { span: self.pattern.reach.widened(text, span), needle: self.needle })
    }
}

impl Reach {
    /// The span, widened by the adjacent bytes that are removed too.
    fn widened(self, text: &[u8], span: Range<usize>) -> Range<usize> {
        /// Longer than any line of wrapped text, line end included.
        const MAX_LINE: usize = 128;
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
                before.take(MAX_LINE).take_while(|byte| wrapped(byte)).count(),
                after.take(MAX_LINE).take_while(|byte| wrapped(byte)).count(),
            ),
        };
        span.start - before..span.end + after
    }
}

impl fmt::Debug for Finder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns = self.targets.len() + self.unfiltered.len();
        formatter.debug_struct("Finder").field("patterns", &patterns).finish_non_exhaustive()
    }
}

/// Keeps the first of equal patterns, so that the earliest needle is reported.
fn without_duplicates(patterns: Vec<(Pattern, usize)>) -> impl Iterator<Item = (Pattern, usize)> {
    let mut seen = HashSet::new();
    let first: Vec<bool> =
        patterns.iter().map(|(pattern, _)| seen.insert((pattern.bytes.as_slice(), pattern.case))).collect();
    patterns.into_iter().zip(first).filter_map(|(pattern, first)| first.then_some(pattern))
}

/// The longest run of bytes that are the same in plain text and in a JSON string, however deeply nested, unless `\u` or
/// `\/` is used: the other escapes of JSON encode characters that are not in the run.
fn plain_run(pattern: &[u8]) -> Range<usize> {
    let plain = |byte: &u8| *byte >= 0x20 && !b"\"\\".contains(byte);
    let mut longest = 0..0;
    let mut start = 0;
    for run in pattern.split(|byte| !plain(byte)) {
        if run.len() > longest.len() {
            longest = start..start + run.len();
        }
        start += run.len() + 1;
    }
    longest
}

/// Whether there is a `\u`, a `\/` or a percent sign before a hexadecimal digit, so that a value may appear only
/// after decoding.
fn may_be_encoded(text: &[u8]) -> bool {
    /// Tested without branches, so that the compiler generates vector code.
    const CHUNK: usize = 256;
    let coded = |first: u8, second: u8| {
        let digit = (second.wrapping_sub(b'0') < 10) | ((second | 0x20).wrapping_sub(b'a') < 6);
        ((first == b'%') & digit) | ((first == b'\\') & ((second == b'u') | (second == b'/')))
    };
    // Fast path: most small messages contain neither a backslash nor a percent sign.
    let (blocks, rest) = text.as_chunks::<32>();
    if !blocks.iter().any(|block| has_backslash_or_percent(block)) && !has_backslash_or_percent(rest) {
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

#[inline]
fn has_backslash_or_percent(text: &[u8]) -> bool {
    text.iter().fold(0, |found, byte| found | u8::from(*byte == b'\\') | u8::from(*byte == b'%')) != 0
}
