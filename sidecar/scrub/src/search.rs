//! Finds values through several layers of encoding: JSON in a JSON string, a percent-encoded URL in that, and so on.

use std::ops::Range;

use super::Scrubber;
use super::finder::Found;
use super::views::{Coding, whole_units};

/// How many nested encodings are decoded. More do not occur in practice, and each may cost another pass.
pub(super) const MAX_LAYERS: usize = 4;

/// The replacement of a span of text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Edit {
    pub(super) span: Range<usize>,
    pub(super) with: String,
}

impl Scrubber {
    /// The spans of values in `text`: disjoint and in order, cutting neither a character nor an escape.
    pub(super) fn search(&self, text: &[u8], layer: usize) -> Vec<Found> {
        if !self.finder.might_match(text) {
            return Vec::new();
        }
        let mut matches = self.finder.find(text);
        if layer < MAX_LAYERS {
            for coding in [Coding::JsonEscapes, Coding::Percent] {
                let Some(decoded) = coding.decode(text) else { continue };
                let inside = self.search(&decoded, layer + 1);
                if inside.is_empty() {
                    continue;
                }
                let source_map = coding.source_map(text);
                matches.extend(
                    inside.into_iter().map(|found| Found { span: source_map.span(found.span), ..found }),
                );
            }
        }
        for found in &mut matches {
            found.span = whole_units(text, found.span.clone());
        }
        merge(matches)
    }

    pub(super) fn edits_of(&self, matches: Vec<Found>) -> Vec<Edit> {
        let edit = |found: Found| Edit { span: found.span, with: self.markers[found.needle].clone().into() };
        matches.into_iter().map(edit).collect()
    }
}

/// Merges overlapping matches; the result has the needle of the longest one.
pub(super) fn merge(mut matches: Vec<Found>) -> Vec<Found> {
    matches.sort_by_key(|found| (found.span.start, usize::MAX - found.span.len(), found.needle));
    let mut merged: Vec<(Found, usize)> = Vec::with_capacity(matches.len());
    for next in matches {
        let length = next.span.len();
        match merged.last_mut() {
            Some((last, longest)) if next.span.start < last.span.end => {
                last.span.end = last.span.end.max(next.span.end);
                if length > *longest {
                    (last.needle, *longest) = (next.needle, length);
                }
            }
            _ => merged.push((next, length)),
        }
    }
    merged.into_iter().map(|(found, _)| found).collect()
}
