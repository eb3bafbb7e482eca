//! Finds values however they are encoded: in text, in its normal form, and in texts that are encoded in it.
//!
//! Each level searches a text as it is and in its normal form (see `normal`). What the runs of base64, base32 and
//! hexadecimal in it encode, if it is text, is the next level (see `runs`, `decoded`). Values that are short or not
//! ASCII are also searched for by their symbols (see `symbols`).
//!
//! What must stay true: the work is at most a fixed number of passes over the text. What is decoded in total is limited
//! by the length of the text; a text that needs more cannot be searched and is removed whole.

use std::ops::Range;

use super::budget::{Budget, Exceeded, FREE_BYTES, MAX_MATCHES, OverBudget};
use super::classes::Classes;
use super::decoded::{DecodedTexts, LeastAscii};
use super::normal::{Lines, Syntax, normal_form, origins_of, without_escapes};
use super::patterns::Place;
use super::runs::{RunLength, Runs};
use super::symbols::{Coding, Symbols};
use super::{Entropy, Scrubber};

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
    /// Text that may hold a value, but decodes to too much to be searched, or holds too many.
    Unsearchable(Exceeded),
}

impl Scrubber {
    /// The spans of values in `text`, disjoint and in order.
    pub(super) fn search(&self, text: &[u8], syntax: Syntax) -> Result<Vec<Found>, Exceeded> {
        let mut budget = Budget::new(text.len());
        self.search_within(text, syntax, &mut budget).map_err(|OverBudget| budget.exceeded)
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
        self.search(text, syntax).unwrap_or_else(|exceeded| {
            let span = 0..text.len();
            // There is nothing to replace in an empty text.
            Vec::from_iter((!span.is_empty()).then_some(Found { span, what: Match::Unsearchable(exceeded) }))
        })
    }

    /// The matches in the text as it is, without those inside `removed`, which are in order.
    pub(super) fn search_undecoded(
        &self,
        text: &[u8],
        removed: &[Range<usize>],
        most: usize,
    ) -> Result<Vec<Found>, OverBudget> {
        let is_left = |span: &Range<usize>| {
            let next = removed.partition_point(|removed| removed.end < span.end);
            removed.get(next).is_none_or(|removed| span.start < removed.start)
        };
        let mut found = Vec::new();
        self.find_where(Place::Text, text, &mut found, most, is_left);
        match found.len() > most {
            true => Err(OverBudget),
            false => Ok(merge(found)),
        }
    }

    fn search_level(
        &self,
        text: &[u8],
        syntax: Syntax,
        depth: usize,
        budget: &mut Budget,
    ) -> Result<Vec<Found>, OverBudget> {
        let mut found = Vec::new();
        if depth == MAX_DECODED {
            self.find(Place::Text, text, &mut found);
            budget.take_matches(found.len())?;
            return Ok(found);
        }
        let before = budget.memory();
        self.search_text(text, syntax, depth, budget, &mut found)?;
        budget.free_memory_to(before);
        Ok(found)
    }

    /// Adds the matches in a text that is not the last level.
    fn search_text(
        &self,
        text: &[u8],
        syntax: Syntax,
        depth: usize,
        budget: &mut Budget,
        found: &mut Vec<Found>,
    ) -> Result<(), OverBudget> {
        let length = self.run_length();
        let classes = Classes::new(text);
        budget.use_memory(classes.bytes())?;
        // First, because only this may fail before the text has been read once.
        let normal = normal_form(text, &classes, budget)?;
        budget.use_memory(normal.as_ref().map_or(0, Vec::len))?;
        self.find(Place::Text, text, found);
        budget.take_matches(found.len())?;
        let runs = Runs::new(&classes, length);
        let Some(normal) = normal else {
            return self.search_encoded(text, &runs, depth, budget, found);
        };
        // In the normal form, a backslash or percent sign before a run takes its first letters.
        let runs = runs.filtered(|start| syntax.has_mark_before(text, start));
        self.search_encoded(text, &runs, depth, budget, found)?;
        drop(runs);
        if self.indexes.iter().any(|values| values.has_texts_in_lines()) {
            let mut in_lines = Vec::new();
            let text_in_lines = without_escapes(text, &classes, budget)?.unwrap_or_default();
            self.find(Place::TextInLines, &text_in_lines, &mut in_lines);
            budget.take_matches(in_lines.len())?;
            if !in_lines.is_empty() {
                let origins = origins_of(text, &classes, Lines::Kept);
                found.extend(in_lines.into_iter().map(|found| found.moved(|span| origins.span(span))));
            }
        }
        let mut in_normal = Vec::new();
        self.find(Place::Text, &normal, &mut in_normal);
        budget.take_matches(in_normal.len())?;
        let runs = Runs::new(&Classes::new(&normal), length);
        self.search_encoded(&normal, &runs, depth, budget, &mut in_normal)?;
        drop(runs);
        if !in_normal.is_empty() {
            drop(normal);
            let origins = origins_of(text, &classes, Lines::Joined);
            found.extend(in_normal.into_iter().map(|found| found.moved(|span| origins.span(span))));
        }
        Ok(())
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
        if runs.is_empty() {
            return Ok(());
        }
        let before = budget.memory();
        let base32 = runs.base32(text);
        let runs_of = |coding| match coding {
            Coding::Base32 => &base32,
            Coding::Base64 => &runs.letters,
            Coding::Hexadecimal => &runs.digits,
        };
        let of_runs = runs.bytes() + size_of_val(&*base32);
        budget.use_memory(of_runs)?;
        let symbols_of = |coding, shortest| Symbols::new(coding, text, runs_of(coding), shortest);
        let mut digits = None;
        for coding in Coding::ALL {
            let Some(shortest) = self.shortest_symbols(coding) else { continue };
            // Separators may be between digits, and texts of shorter runs are decoded from them.
            let shortest = if coding == Coding::Hexadecimal { 0 } else { shortest };
            let symbols = symbols_of(coding, shortest);
            budget.use_memory(symbols.bytes())?;
            let mut in_symbols = Vec::new();
            self.find(Place::Symbols(coding), &symbols.numbers, &mut in_symbols);
            budget.take_matches(in_symbols.len())?;
            symbols.locate(text, runs_of(coding), in_symbols, found);
            match coding {
                Coding::Base32 | Coding::Base64 => budget.free_memory_to(before + of_runs),
                Coding::Hexadecimal => digits = Some(symbols),
            }
        }
        let limit = budget.decoded.min(text.len() + FREE_BYTES);
        let least = self.least_ascii();
        let mut texts = DecodedTexts::default();
        texts.add(Coding::Base32, text, &base32, limit, least)?;
        texts.add(Coding::Base64, text, &runs.letters, limit, least)?;
        let mut digits = digits.unwrap_or_else(|| symbols_of(Coding::Hexadecimal, 0));
        texts.add(Coding::Hexadecimal, &digits.numbers, &digits.runs, limit, least)?;
        digits.forget_numbers();
        budget.free_memory_to(before);
        if texts.bytes.is_empty() {
            return Ok(());
        }
        budget.use_memory(of_runs + texts.memory())?;
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
        budget.free_memory_to(before);
        digits.locate(text, &runs.digits, in_digits, found);
        Ok(())
    }

    /// Adds the matches of all values that this scrubber may reveal the presence of, up to one more than a budget allows.
    fn find(&self, place: Place, haystack: &[u8], found: &mut Vec<Found>) {
        self.find_where(place, haystack, found, MAX_MATCHES, |_| true);
    }

    fn find_where(
        &self,
        place: Place,
        haystack: &[u8],
        found: &mut Vec<Found>,
        most: usize,
        is_wanted: impl Fn(&Range<usize>) -> bool,
    ) {
        let room = found.len() + most;
        self.indexes.find(place, haystack, |index, span, value, entropy| {
            let is_searched =
                || entropy == Entropy::Enough || self.name_of(&self.indexes[index].values[value]).is_some();
            if found.len() <= room && is_wanted(&span) && is_searched() {
                found.push(Found { span, what: Match::Value { index, value } });
            }
        });
    }

    /// How many symbols in this coding are searched for at least, if any are.
    fn shortest_symbols(&self, coding: Coding) -> Option<usize> {
        self.indexes.iter().filter_map(|values| values.shortest_symbols(coding)).min()
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
    fn locate(&self, text: &[u8], of_text: &[Range<usize>], in_symbols: Vec<Found>, found: &mut Vec<Found>) {
        if in_symbols.is_empty() {
            return;
        }
        let positions = self.positions(text, of_text);
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
