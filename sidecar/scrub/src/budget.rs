//! How much work the search of a message may be.
//!
//! Decoded texts can hold others, and escapes can be escaped by others. Both are searched however they are nested, but what
//! takes much longer than plain text is not searched to its end: such a text is removed whole. So is a text with so many
//! matches that the list of them would take more memory than the text.

/// The remaining work of a search.
pub(super) struct Budget {
    /// How many bytes may be decoded from base64, base32 and hexadecimal, at all levels together.
    pub(super) decoded: usize,
    /// How many bytes may be read that are parts of escapes which are not decoded at once: usually escapes of which a
    /// byte is escaped in another way.
    slow_steps: usize,
    /// How many bytes the search may use at a time, and how many it uses.
    most_memory: usize,
    memory: usize,
    /// How many matches may be found at all levels together. What is found in a text and again in its normal form counts
    /// twice.
    pub(super) matches: usize,
    /// What the text has too much of, once the budget is used up.
    pub(super) exceeded: Exceeded,
}

/// Why a text is removed whole.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) enum Exceeded {
    Work,
    Matches,
}

/// The budget is used up.
#[derive(Debug)]
pub(super) struct OverBudget;

/// What every text may use, however short it is.
pub(super) const FREE_BYTES: usize = 4096;

/// The memory that a search uses at a time is at most this many times that of the text, and what the last step added. Text
/// in runs of letters that are base64, base32 and hexadecimal at once would need twice as much.
const MEMORY_OF_TEXT: usize = 5;

/// The matches in one text, such as a string of a message.
pub(super) const MAX_MATCHES: usize = 4096;

impl Budget {
    /// For a text of this length. Base64 of base64 decodes to 1.3 times its length.
    pub(super) fn new(length: usize) -> Self {
        Self {
            decoded: length + length / 2 + FREE_BYTES,
            slow_steps: length / 20 + FREE_BYTES,
            most_memory: MEMORY_OF_TEXT * length + 16 * FREE_BYTES,
            memory: 0,
            matches: MAX_MATCHES,
            exceeded: Exceeded::Work,
        }
    }

    /// For values, which are limited when they are read.
    pub(super) fn unlimited() -> Self {
        Self {
            decoded: usize::MAX,
            slow_steps: usize::MAX,
            most_memory: usize::MAX,
            memory: 0,
            matches: usize::MAX,
            exceeded: Exceeded::Work,
        }
    }

    pub(super) fn take_decoded(&mut self, bytes: usize) {
        self.decoded = self.decoded.saturating_sub(bytes);
    }

    /// How many bytes the search uses.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// The search uses this much more memory.
    pub(super) fn use_memory(&mut self, bytes: usize) -> Result<(), OverBudget> {
        self.memory += bytes;
        match self.memory > self.most_memory {
            true => Err(OverBudget),
            false => Ok(()),
        }
    }

    /// The search uses as much memory as it did before.
    pub(super) fn free_memory_to(&mut self, before: usize) {
        self.memory = before;
    }

    pub(super) fn take_matches(&mut self, count: usize) -> Result<(), OverBudget> {
        match self.matches.checked_sub(count) {
            Some(left) => {
                self.matches = left;
                Ok(())
            }
            None => {
                self.exceeded = Exceeded::Matches;
                Err(OverBudget)
            }
        }
    }

    /// For the next string of a message of which this much is left.
    pub(super) fn begin_string(&mut self, matches_left: usize) {
        self.memory = 0;
        self.matches = matches_left.min(MAX_MATCHES);
        self.exceeded = Exceeded::Work;
    }

    #[inline]
    pub(super) fn take_slow_step(&mut self) -> Result<(), OverBudget> {
        self.slow_steps = self.slow_steps.checked_sub(1).ok_or(OverBudget)?;
        Ok(())
    }
}
