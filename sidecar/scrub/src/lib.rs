//! Removes credentials from what the sidecar sends to sandboxes and writes to its log and audit.
//!
//! | module | what it holds |
//! |---|---|
//! | `encodings` | the byte patterns that are searched for to find a value |
//! | `filter` | a fast test for where in a text a pattern may be |
//! | `finder` | finds all patterns of all values in one pass |
//! | `views` | text with its escapes or percent-encoding decoded, and the map back to the source |
//! | `search` | finds values through several layers of encoding |
//! | `message` | JSON messages: strings, keys and numbers, edited one by one |
//! | `structure` | values that are JSON themselves and span several tokens of a message |
//! | [`log_scrubber`] | the scrubber of the sidecar's own log |
//! | `stream` | standard error, where a value may arrive in pieces |
//!
//! What must stay true: a valid message stays valid; only a credential is replaced, and what cannot be separated from
//! it; no escape or character is cut in two; the output contains no value in an encoding listed in `encodings`; no
//! `Debug` shows a value.
//!
//! **Memory.** Values, their patterns and the filter's table are wiped when dropped. The texts in which a server leaked
//! a value, which are read and decoded here, are not.
//!
//! **Not found**: a value that a server has transformed, for instance reversed, encrypted or spelled letter by letter.

#![forbid(unsafe_code)]

mod encodings;
mod filter;
mod finder;
pub mod log_scrubber;
mod message;
mod search;
mod stream;
mod structure;
#[cfg(test)]
mod tests;
mod views;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use finder::{Finder, Found};
use search::Edit;
pub use stream::StreamScrubber;

/// One value to search for, and the label that replaces it, such as `github.token`.
#[derive(Clone)]
pub struct Needle {
    pub label: Arc<str>,
    pub value: Zeroizing<Vec<u8>>,
}

/// Finds and replaces a fixed set of values.
pub struct Scrubber {
    finder: Finder,
    /// The text that replaces the value of each needle.
    markers: Vec<Box<str>>,
}

/// The scrubbed bytes, and the number of redactions.
#[derive(Debug)]
pub struct Scrubbed<'a> {
    pub bytes: Cow<'a, [u8]>,
    pub redactions: u32,
}

impl Scrubber {
    /// Scrubs a name that a sandbox or server sent, for the log or the audit.
    pub fn name<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match self.text(name.as_bytes()) {
            Scrubbed { redactions: 0, .. } => Cow::Borrowed(name),
            scrubbed => Cow::Owned(String::from_utf8_lossy(&scrubbed.bytes).into_owned()),
        }
    }

    /// If two needles have the same value, the first one's label is used.
    pub fn new(needles: Vec<Needle>) -> Self {
        let patterns = needles.iter().enumerate().flat_map(|(index, needle)| {
            encodings::patterns_of(&needle.value).into_iter().map(move |pattern| (pattern, index))
        });
        let finder = Finder::new(patterns);
        let markers = needles.iter().map(|needle| marker(&needle.label, &finder)).collect();
        Self { finder, markers }
    }

    pub fn is_empty(&self) -> bool {
        self.finder.is_empty()
    }

    /// Scrubs a JSON message: strings, keys and numbers are edited one by one, and it stays JSON.
    pub fn message<'a>(&self, message: &'a [u8]) -> Scrubbed<'a> {
        if !self.finder.might_match(message) {
            return Scrubbed::clean(message);
        }
        match self.edits_in_json(message, 0) {
            Ok(edits) => Scrubbed::edited(message, &edits),
            Err(_) => self.text(message),
        }
    }

    /// Scrubs plain text: log lines, error strings.
    pub fn text<'a>(&self, text: &'a [u8]) -> Scrubbed<'a> {
        if !self.finder.might_match(text) {
            return Scrubbed::clean(text);
        }
        Scrubbed::edited(text, &self.edits_of(self.search(text, 0)))
    }

    /// Scrubs plain text with the values of this scrubber and of `other`.
    pub fn text_with<'a>(&self, other: &Self, text: &'a [u8]) -> Scrubbed<'a> {
        // The needles of `other` are numbered after those of this scrubber.
        let offset = self.markers.len();
        let others =
            other.search(text, 0).into_iter().map(|found| Found { needle: offset + found.needle, ..found });
        let found = search::merge(self.search(text, 0).into_iter().chain(others).collect());
        let edit = |Found { span, needle }| {
            let marker = needle
                .checked_sub(offset)
                .map_or_else(|| &self.markers[needle], |needle| &other.markers[needle]);
            Edit { span, with: marker.clone().into() }
        };
        Scrubbed::edited(text, &found.into_iter().map(edit).collect::<Vec<_>>())
    }

    /// A scrubber for text that arrives in pieces.
    pub fn stream(self: &Arc<Self>) -> StreamScrubber {
        StreamScrubber::new(Arc::clone(self))
    }
}

impl<'a> Scrubbed<'a> {
    fn clean(bytes: &'a [u8]) -> Self {
        Self { bytes: Cow::Borrowed(bytes), redactions: 0 }
    }

    fn edited(bytes: &'a [u8], edits: &[Edit]) -> Self {
        if edits.is_empty() {
            return Self::clean(bytes);
        }
        let mut edited = Vec::with_capacity(bytes.len() + edits.len() * 32);
        let mut copied = 0;
        for edit in edits {
            edited.extend_from_slice(&bytes[copied..edit.span.start]);
            edited.extend_from_slice(edit.with.as_bytes());
            copied = edit.span.end;
        }
        edited.extend_from_slice(&bytes[copied..]);
        Self { bytes: Cow::Owned(edited), redactions: u32::try_from(edits.len()).unwrap_or(u32::MAX) }
    }
}

impl fmt::Debug for Needle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Needle").field("label", &self.label).finish_non_exhaustive()
    }
}

impl fmt::Debug for Scrubber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Scrubber").field("needles", &self.markers.len()).finish_non_exhaustive()
    }
}

/// The replacement for a value. A short value may occur in its label or in the word "redacted"; then a shorter or an
/// empty text is used.
fn marker(label: &str, finder: &Finder) -> Box<str> {
    let mut candidates = [format!("[redacted:{label}]"), "[redacted]".into(), "[***]".into()].into_iter();
    candidates.find(|candidate| finder.find(candidate.as_bytes()).is_empty()).unwrap_or_default().into()
}
