//! All patterns of a set of values, ready to be searched for.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use zeroize::Zeroizing;

use super::entropy::Entropy;
use super::index::Index;
use super::patterns::{Pattern, Place, Reach, is_found_by_its_lines, is_found_decoded, patterns_of};
use super::runs::SHORTEST_LONG_RUN;
use super::symbols::{BREAK, Coding};
use super::{Needle, ValueId};

/// The patterns of a set of values.
pub(super) struct ValueIndex {
    pub(super) values: Vec<IndexedValue>,
    texts: PatternIndex,
    texts_in_lines: PatternIndex,
    base32: PatternIndex,
    base64: PatternIndex,
    hexadecimal: PatternIndex,
    /// A pattern may be in a run shorter than [`SHORTEST_LONG_RUN`].
    pub(super) needs_short_runs: bool,
    /// A value is text with other characters than ASCII. Bytes that are no text, such as a key, are found by their symbols.
    pub(super) has_other_characters: bool,
    /// The length of the longest value.
    pub(super) longest: usize,
    /// The length of the longest value that is not found line by line; zero if there is none.
    pub(super) longest_across_lines: usize,
}

/// What is known of a value that was found.
pub(super) struct IndexedValue {
    pub(super) id: ValueId,
    pub(super) label: std::sync::Arc<str>,
}

pub(super) struct PatternIndex {
    pub(super) index: Index,
    /// The length of the shortest pattern, if there is one.
    shortest: Option<usize>,
    targets: Vec<Target>,
}

/// What a pattern was made for, and how far a match reaches.
struct Target {
    of: PatternOwner,
    length: usize,
    reach: Reach,
}

/// The number of the value that a pattern finds.
#[derive(Clone, Copy)]
struct PatternOwner {
    value: usize,
    /// Of the value or of the pattern, whichever is lower.
    entropy: Entropy,
}

impl ValueIndex {
    /// If two needles have the same value, the first one's label is used.
    pub(super) fn new(needles: &[(ValueId, Needle)]) -> Self {
        let mut places: [Vec<(Pattern, PatternOwner)>; 5] = Default::default();
        let slot = |place: Place| match place {
            Place::Text => 0,
            Place::Symbols(Coding::Base32) => 1,
            Place::Symbols(Coding::Base64) => 2,
            Place::Symbols(Coding::Hexadecimal) => 3,
            Place::TextInLines => 4,
        };
        let mut needs_short_runs = false;
        for (number, (_, needle)) in needles.iter().enumerate() {
            let is_decoded = is_found_decoded(needle.value.trim_ascii());
            let of_value = Entropy::of(&needle.value);
            for pattern in patterns_of(&needle.value) {
                let of_symbols = matches!(pattern.place, Place::Symbols(_));
                if of_symbols && pattern.bytes.len() < SHORTEST_LONG_RUN {
                    needs_short_runs = true;
                }
                if !of_symbols || !is_decoded {
                    let owner = PatternOwner { value: number, entropy: of_value.min(pattern.entropy()) };
                    places[slot(pattern.place)].push((pattern, owner));
                }
            }
        }
        let [texts, base32, base64, hexadecimal, texts_in_lines] = places.map(PatternIndex::new);
        let lengths = needles.iter().map(|(_, needle)| needle.value.len());
        let is_text = |(_, needle): &&(ValueId, Needle)| std::str::from_utf8(&needle.value).is_ok();
        // Bytes that are no text have no lines either.
        let across_lines = needles
            .iter()
            .filter(|needle| is_text(needle) && !is_found_by_its_lines(needle.1.value.trim_ascii()));
        let value = |(id, needle): &(ValueId, Needle)| IndexedValue { id: *id, label: needle.label.clone() };
        Self {
            texts,
            texts_in_lines,
            base32,
            base64,
            hexadecimal,
            needs_short_runs,
            has_other_characters: needles.iter().any(|needle| is_text(&needle) && !needle.1.value.is_ascii()),
            longest: lengths.max().unwrap_or_default(),
            longest_across_lines: across_lines
                .map(|(_, needle)| needle.value.len())
                .max()
                .unwrap_or_default(),
            values: needles.iter().map(value).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.texts.index.is_empty()
    }

    /// How many symbols in this coding are searched for at least, if any are.
    pub(super) fn shortest_symbols(&self, coding: Coding) -> Option<usize> {
        self.symbols_of(coding).shortest
    }

    /// Whether a value is searched for in text whose lines are not joined.
    pub(super) fn has_texts_in_lines(&self) -> bool {
        !self.texts_in_lines.index.is_empty()
    }

    fn symbols_of(&self, coding: Coding) -> &PatternIndex {
        match coding {
            Coding::Base32 => &self.base32,
            Coding::Base64 => &self.base64,
            Coding::Hexadecimal => &self.hexadecimal,
        }
    }

    pub(super) fn patterns(&self, place: Place) -> &PatternIndex {
        match place {
            Place::Text => &self.texts,
            Place::TextInLines => &self.texts_in_lines,
            Place::Symbols(coding) => self.symbols_of(coding),
        }
    }
}

impl PatternIndex {
    /// Of equal patterns the first is kept, so that the earliest needle is reported. Of those that could be guessed, one is
    /// kept for each value, because only the reader of that value searches for it.
    fn new(patterns: Vec<(Pattern, PatternOwner)>) -> Self {
        let mut seen = HashSet::new();
        let keys = patterns.iter().map(|(pattern, owner)| {
            let only_for = (owner.entropy == Entropy::Low).then_some(owner.value);
            (pattern.bytes.as_slice(), only_for)
        });
        let is_first: Vec<bool> = keys.map(|key| seen.insert(key)).collect();
        let mut targets = Vec::new();
        let mut bytes: Vec<Zeroizing<Vec<u8>>> = Vec::new();
        for ((pattern, of), is_first) in patterns.into_iter().zip(is_first) {
            if is_first {
                targets.push(Target { of, length: pattern.bytes.len(), reach: pattern.reach });
                bytes.push(pattern.bytes);
            }
        }
        let shortest = bytes.iter().map(|pattern| pattern.len()).min();
        Self { index: Index::new(bytes), shortest, targets }
    }

    /// The match of a pattern that was found at `start`: where, the number of its value, and whether that could be guessed
    /// by such matches.
    pub(super) fn matched(
        &self,
        haystack: &[u8],
        start: usize,
        pattern: usize,
    ) -> (Range<usize>, usize, Entropy) {
        let Target { of, length, reach } = &self.targets[pattern];
        let end = start + length;
        let is_symbol = |at: usize| haystack.get(at).is_some_and(|symbol| *symbol != BREAK);
        let before = usize::from(reach.before > 0 && start > 0 && is_symbol(start - 1));
        let after = usize::from(reach.after > 0 && is_symbol(end));
        (start - before..end + after, of.value, of.entropy)
    }
}

impl fmt::Debug for ValueIndex {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ValueIndex").field("values", &self.values.len()).finish_non_exhaustive()
    }
}
