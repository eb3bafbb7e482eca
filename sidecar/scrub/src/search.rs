//! Finds values however they are encoded: in text, in its normal form, and in texts that are encoded in it.
//!
//! Each level searches a text as it is and in its normal form (see `normal`). What the runs of base64, base32 and
//! hexadecimal in it encode, if it is text, is the next level (see `runs`, `decoded`). Values that are short or not
//! ASCII are also searched for by their symbols (see `symbols`).
//!
//! What must stay true: the work is at most a fixed number of passes over the text. What is decoded in total is limited
//! by the length of the text; a text that needs more cannot be searched and is removed whole.

use std::ops::Range;

use super::budget::{Budget, FREE_BYTES, OverBudget};
use super::classes::Classes;
use super::decoded::{DecodedTexts, LeastAscii};
use super::normal::{Lines, Syntax, normal_form, origins_of, without_escapes};
use super::patterns::Place;
use super::runs::{RunLength, Runs};
use super::symbols::{Coding, Symbols};
use super::{Entropy, Scrubber, Shown};

/// How often base64, base32 and hexadecimal are decoded.
const MAX_DECODED: usize = 3;

/// A match: where, and of what.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Found {
    pub(super) span: Range<usize>,
    pub(super) what: Match,
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) enum Match {
    /// A value, by the number of its index and its own number in that.
    Value { index: usize, value: usize },
    /// Text that may hold a value, but decodes to too much to be searched.
    Unsearchable,
}

impl Scrubber {
    /// The spans of values in `text`, disjoint and in order.
    pub(super) fn search(&self, text: &[u8], syntax: Syntax) -> Result<Vec<Found>, OverBudget> {
        self.search_within(text, syntax, &mut Budget::new(text.len()))
    }

    /// Like [`Scrubber::search`], with the rest of a budget.
    pub(super) fn search_within(
        &self,
        text: &[u8],
        syntax: Syntax,
        budget: &mut Budget,
    ) -> Result<Vec<Found>, OverBudget> {
        Ok(merge(self.search_level(text, syntax, 0, budget)?))
    }

    /// Like [`Scrubber::search`]; text that cannot be searched is one match.
    pub(super) fn search_whole(&self, text: &[u8], syntax: Syntax) -> Vec<Found> {
        let unsearchable = |OverBudget| vec![Found { span: 0..text.len(), what: Match::Unsearchable }];
        self.search(text, syntax).unwrap_or_else(unsearchable)
    }

    /// The matches in the text as it is.
    pub(super) fn search_undecoded(&self, text: &[u8]) -> Vec<Found> {
        let mut found = Vec::new();
        self.find(Place::Text, text, &mut found);
        merge(found)
    }

    fn search_level(
        &self,
        text: &[u8],
        syntax: Syntax,
        depth: usize,
        budget: &mut Budget,
    ) -> Result<Vec<Found>, OverBudget> {
        let mut found = Vec::new();
        self.find(Place::Text, text, &mut found);
        if depth == MAX_DECODED {
            return Ok(found);
        }
        let length = self.run_length();
        let classes = Classes::new(text);
        let runs = Runs::new(&classes, length);
        let Some(normal) = normal_form(text, &classes, budget)? else {
            self.search_encoded(text, &runs, depth, budget, &mut found)?;
            return Ok(found);
        };
        // In the normal form, a backslash or percent sign before a run takes its first letters.
        let runs = runs.filtered(|start| syntax.has_mark_before(text, start));
        if !runs.is_empty() {
            self.search_encoded(text, &runs, depth, budget, &mut found)?;
        }
        if self.indexes.iter().any(|values| values.has_texts_in_lines()) {
            let mut in_lines = Vec::new();
            let text_in_lines = without_escapes(text, &classes, budget)?.unwrap_or_default();
            self.find(Place::TextInLines, &text_in_lines, &mut in_lines);
            if !in_lines.is_empty() {
                let origins = origins_of(text, &classes, Lines::Kept);
                found.extend(in_lines.into_iter().map(|found| found.moved(|span| origins.span(span))));
            }
        }
        let mut in_normal = Vec::new();
        self.find(Place::Text, &normal, &mut in_normal);
        let runs = Runs::new(&Classes::new(&normal), length);
        self.search_encoded(&normal, &runs, depth, budget, &mut in_normal)?;
        if !in_normal.is_empty() {
            drop(normal);
            let origins = origins_of(text, &classes, Lines::Joined);
            found.extend(in_normal.into_iter().map(|found| found.moved(|span| origins.span(span))));
        }
        Ok(found)
    }

    /// Adds the matches in base64, base32 and hexadecimal.
    fn search_encoded(
        &self,
        text: &[u8],
        runs: &Runs,
        depth: usize,
        budget: &mut Budget,
        found: &mut Vec<Found>,
    ) -> Result<(), OverBudget> {
        for coding in Coding::ALL.into_iter().filter(|coding| self.has_symbols_of(*coding)) {
            let symbols = Symbols::new(coding, text, runs);
            let mut in_symbols = Vec::new();
            self.find(Place::Symbols(coding), &symbols.numbers, &mut in_symbols);
            symbols.locate(text, runs, in_symbols, found);
        }
        let limit = budget.decoded.min(text.len() + FREE_BYTES);
        let least = self.least_ascii();
        let mut texts = DecodedTexts::default();
        texts.add(Coding::Base32, text, &runs.base32(text), limit, least)?;
        texts.add(Coding::Base64, text, &runs.letters, limit, least)?;
        let digits = Symbols::new(Coding::Hexadecimal, text, runs);
        texts.add(Coding::Hexadecimal, &digits.numbers, &digits.runs, limit, least)?;
        if texts.bytes.is_empty() {
            return Ok(());
        }
        budget.take_decoded(texts.bytes.len());
        let mut in_digits = Vec::new();
        for inside in self.search_level(&texts.bytes, Syntax::Unknown, depth + 1, budget)? {
            let (coding, first) = texts.origin(inside.span.start);
            let (_, last) = texts.origin(inside.span.end - 1);
            let span = first / coding.bits()..(last + 7) / coding.bits() + 1;
            match coding {
                Coding::Base32 | Coding::Base64 => found.push(Found { span, ..inside }),
                Coding::Hexadecimal => in_digits.push(Found { span, ..inside }),
            }
        }
        digits.locate(text, runs, in_digits, found);
        Ok(())
    }

    /// Adds the matches of all values that this scrubber may reveal the presence of.
    fn find(&self, place: Place, haystack: &[u8], found: &mut Vec<Found>) {
        for (index, values) in self.indexes.iter().enumerate() {
            values.find(place, haystack, |span, value| {
                let indexed = &values.values[value];
                if indexed.entropy == Entropy::Enough || self.shown(indexed) != Shown::NotSearched {
                    found.push(Found { span, what: Match::Value { index, value } });
                }
            });
        }
    }

    fn has_symbols_of(&self, coding: Coding) -> bool {
        self.indexes.iter().any(|values| values.has_symbols_of(coding))
    }

    fn least_ascii(&self) -> LeastAscii {
        match self.indexes.iter().any(|values| values.has_other_characters) {
            true => LeastAscii::FewBytes,
            false => LeastAscii::Shortest,
        }
    }

    fn run_length(&self) -> RunLength {
        match self.indexes.iter().any(|values| values.needs_short_runs) {
            true => RunLength::Short,
            false => RunLength::Long,
        }
    }
}

impl Symbols {
    /// Adds matches in these symbols to those in the text that they were read from.
    fn locate(&self, text: &[u8], runs: &Runs, in_symbols: Vec<Found>, found: &mut Vec<Found>) {
        if in_symbols.is_empty() {
            return;
        }
        let positions = self.positions(text, runs);
        let located =
            |span: Range<usize>| positions[span.start] as usize..positions[span.end - 1] as usize + 1;
        found.extend(in_symbols.into_iter().map(|found| found.moved(located)));
    }
}

impl Found {
    fn moved(self, to: impl Fn(Range<usize>) -> Range<usize>) -> Self {
        Self { span: to(self.span), ..self }
    }
}

/// Merges overlapping matches; the result is of the longest one's value.
pub(super) fn merge(mut found: Vec<Found>) -> Vec<Found> {
    found.sort_by_key(|found| (found.span.start, usize::MAX - found.span.len(), found.what));
    let mut merged: Vec<(Found, usize)> = Vec::with_capacity(found.len());
    for next in found {
        let length = next.span.len();
        match merged.last_mut() {
            Some((last, longest)) if next.span.start < last.span.end => {
                last.span.end = last.span.end.max(next.span.end);
                if length > *longest {
                    (last.what, *longest) = (next.what, length);
                }
            }
            _ => merged.push((next, length)),
        }
    }
    merged.into_iter().map(|(found, _)| found).collect()
}
