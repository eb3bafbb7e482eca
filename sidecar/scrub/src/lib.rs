//! Removes credentials from what the sidecar sends to sandboxes and writes to its log and audit.
//!
//! | module | what it holds |
//! |---|---|
//! | [`shared`] | the values of all sessions, which every link searches for |
//! | `own_credentials` | holds the sidecar's own credentials among them |
//! | `entropy` | whether a value can be found by guessing |
//! | `patterns` | what is searched for to find a value |
//! | `index`, `value_index` | finds all patterns of a set of values in one pass |
//! | `generations` | finds the values of several sets in one pass |
//! | `classes` | which bytes of a text are letters, digits or marks of escapes |
//! | `units`, `normal`, `origins` | text with its escapes decoded and its lines joined |
//! | `runs`, `symbols`, `decoded` | base64, base32 and hexadecimal, and the texts that they encode |
//! | `budget` | how much work a search may be |
//! | `search` | finds values through all layers of encoding |
//! | `place`, `json_string` | replaces what was found so that a message stays JSON |
//! | `stream` | standard error, where a value may arrive in pieces |
//!
//! What must stay true: a valid message stays valid; only a credential is replaced, and what cannot be separated from
//! it; no escape or character is cut in two; the output contains no value in an encoding listed in SPECIFICATION 1.2;
//! the time is linear in the length of the message, whatever it contains; no `Debug` shows a value.
//!
//! **Memory.** Values, their patterns and the tables of the index are wiped when dropped. The texts in which a server
//! leaked a value, which are read and decoded here, are not.
//!
//! **Not found**: a value that a server has transformed, for instance reversed, encrypted, compressed or spelled letter by
//! letter, or split over several strings.

#![forbid(unsafe_code)]

mod budget;
mod classes;
mod decoded;
mod entropy;
mod generations;
mod index;
mod json_string;
mod normal;
mod origins;
mod own_credentials;
mod patterns;
mod place;
mod runs;
mod search;
pub mod shared;
mod stream;
mod symbols;
#[cfg(test)]
mod tests;
mod units;
mod value_index;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

pub use entropy::Entropy;
use generations::Generations;
use normal::Syntax;
pub use own_credentials::{Holding, OwnCredentials};
pub use patterns::Guessable;
use place::{Edit, InStrings, Placing, UnsearchableStrings};
pub use stream::StreamScrubber;
use value_index::{IndexedValue, ValueIndex};

/// One value to search for, and the label that replaces it, such as `github.token`.
#[derive(Clone)]
pub struct Needle {
    pub label: Arc<str>,
    pub value: Zeroizing<Vec<u8>>,
}

/// Identifies a value among all that a [`shared::SharedValues`] has known.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ValueId(u64);

/// Finds and replaces a fixed set of values.
pub struct Scrubber {
    indexes: Arc<Generations>,
    naming: Naming,
}

/// Which values are replaced by their names.
#[derive(Clone)]
pub enum Naming {
    /// All, by the label that each was first learned with.
    All,
    /// The reader's own. Others are replaced without a name, and those not at all that could be found by guessing: whole
    /// values, or lines of them.
    Own(OwnNames),
}

pub type IsOwn = dyn Fn(&str) -> bool + Send + Sync;

/// The values of a session, and which of them belong to the server whose messages are scrubbed.
#[derive(Clone)]
pub struct OwnNames {
    pub labels: Arc<HashMap<ValueId, Arc<str>>>,
    /// Whether the value with this label belongs to the server.
    pub is_own: Arc<IsOwn>,
}

/// The scrubbed bytes, and the number of redactions.
#[derive(Debug)]
pub struct Scrubbed<'a> {
    pub bytes: Cow<'a, [u8]>,
    pub redactions: u32,
}

impl Scrubber {
    /// If two needles have the same value, the first one's label is used.
    pub fn new(needles: Vec<Needle>) -> Self {
        let needles: Vec<_> = (0..).map(ValueId).zip(needles).collect();
        let indexes = Box::new([Arc::new(ValueIndex::new(&needles))]);
        Self { indexes: Arc::new(Generations::new(indexes)), naming: Naming::All }
    }

    pub fn is_empty(&self) -> bool {
        self.indexes.iter().all(|values| values.is_empty())
    }

    /// Scrubs a JSON message: strings, keys and numbers are edited one by one, and it stays JSON.
    pub fn message<'a>(&self, message: &'a [u8]) -> Scrubbed<'a> {
        if self.is_empty() {
            return Scrubbed::clean(message);
        }
        let found = match self.search(message, Syntax::Json) {
            Ok(found) => found,
            Err(exceeded) => match self.search_strings(message, exceeded) {
                Ok(InStrings::Unsearchable(strings)) => {
                    return Scrubbed::edited(message, &Placing::new(self).edits_of_strings(strings));
                }
                Ok(InStrings::Matches(found)) => found,
                Err(UnsearchableStrings) => self.search_whole(message, Syntax::Json),
            },
        };
        if found.is_empty() {
            return Scrubbed::clean(message);
        }
        let mut placing = Placing::new(self);
        let edits = placing.edits_in_json(message, found.clone(), 0);
        Scrubbed::edited(message, &edits.unwrap_or_else(|_| placing.edits_of(message, found)))
    }

    /// Scrubs plain text: log lines, error strings.
    pub fn text<'a>(&self, text: &'a [u8]) -> Scrubbed<'a> {
        if self.is_empty() {
            return Scrubbed::clean(text);
        }
        match self.search_whole(text, Syntax::Unknown) {
            found if found.is_empty() => Scrubbed::clean(text),
            found => Scrubbed::edited(text, &Placing::new(self).edits_of(text, found)),
        }
    }

    /// Scrubs a name that a sandbox or server sent, for the log or the audit.
    pub fn name<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match self.text(name.as_bytes()) {
            Scrubbed { redactions: 0, .. } => Cow::Borrowed(name),
            scrubbed => Cow::Owned(String::from_utf8_lossy(&scrubbed.bytes).into_owned()),
        }
    }

    /// A scrubber for text that arrives in pieces.
    pub fn stream(self: &Arc<Self>) -> StreamScrubber {
        StreamScrubber::new(Arc::clone(self))
    }

    fn longest(&self) -> usize {
        self.indexes.iter().map(|values| values.longest).max().unwrap_or_default()
    }

    fn longest_across_lines(&self) -> usize {
        self.indexes.iter().map(|values| values.longest_across_lines).max().unwrap_or_default()
    }

    /// The name that the reader may learn. A value without one is not searched for if it could be found by guessing.
    fn name_of(&self, value: &IndexedValue) -> Option<Arc<str>> {
        let label = match &self.naming {
            Naming::All => Some(&value.label),
            Naming::Own(names) => names.labels.get(&value.id).filter(|label| (names.is_own)(label)),
        };
        label.map(Arc::clone)
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
        formatter.debug_struct("Scrubber").field("indexes", &self.indexes).finish_non_exhaustive()
    }
}
