//! The values of all generations (see `shared`), searched for together.
//!
//! What must stay true: a text is read once for the long values of all generations, so that many values cost little more
//! than one.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::entropy::Entropy;
use super::index::JointFilter;
use super::patterns::Place;
use super::value_index::ValueIndex;

pub(super) struct Generations {
    indexes: Box<[Arc<ValueIndex>]>,
    /// What finds the long values of all indexes in text, if several have some.
    long_texts: Option<JointFilter>,
}

impl Generations {
    pub(super) fn new(indexes: Box<[Arc<ValueIndex>]>) -> Self {
        let long_texts = JointFilter::of(indexes.iter().map(|values| &values.patterns(Place::Text).index));
        Self { indexes, long_texts }
    }

    /// Calls `found` with the number of an index, each match in a text or in symbols, the number of its value in that index,
    /// and whether that could be guessed by such matches.
    pub(super) fn find(
        &self,
        place: Place,
        haystack: &[u8],
        mut found: impl FnMut(usize, Range<usize>, usize, Entropy),
    ) {
        let mut found = |number: usize, start: usize, pattern: usize| {
            let (span, value, entropy) =
                self.indexes[number].patterns(place).matched(haystack, start, pattern);
            found(number, span, value, entropy);
        };
        let indexes = self.indexes.iter().map(|values| &values.patterns(place).index);
        let joint = self.long_texts.as_ref().filter(|_| place == Place::Text);
        if let Some(joint) = joint {
            joint.find(indexes.clone(), haystack, &mut found);
        }
        for (number, index) in indexes.enumerate() {
            let found = |start, pattern| found(number, start, pattern);
            match joint {
                Some(_) => index.find_short(haystack, found),
                None => index.find(haystack, found),
            }
        }
    }
}

impl Deref for Generations {
    type Target = [Arc<ValueIndex>];

    fn deref(&self) -> &Self::Target {
        &self.indexes
    }
}

impl fmt::Debug for Generations {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(&self.indexes).finish()
    }
}
