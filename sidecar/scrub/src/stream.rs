//! Text that arrives in pieces, such as a server's standard error.
//!
//! Whole lines are passed on at once, because most patterns either lie within one line or are found line by line.
//! Enough is held back of an unfinished line, and of lines that a value with short lines could span, that no value is
//! cut in two. The bytes held back are bounded.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::{Scrubbed, Scrubber};

/// Bytes for one byte of a value: enough for an escape inside an escape. A value that is encoded more deeply can be cut
/// in two if it arrives in pieces.
const EXPANSION: usize = 8;
/// A longer unfinished line is passed on in parts: it is not readable anyway.
const MAX_LINE: usize = 64 * 1024;

/// Scrubs a stream; see [`Scrubber::stream`].
pub struct StreamScrubber {
    scrubber: Arc<Scrubber>,
    /// Bytes that are not passed on yet.
    held: Vec<u8>,
}

impl StreamScrubber {
    pub(super) fn new(scrubber: Arc<Scrubber>) -> Self {
        Self { scrubber, held: Vec::new() }
    }

    /// Adds the next piece and returns what can be passed on, scrubbed.
    pub fn push(&mut self, piece: &[u8]) -> Scrubbed<'static> {
        self.held.extend_from_slice(piece);
        let ready = self.ready();
        self.release(ready)
    }

    /// Returns what was held back, at the end of the stream.
    pub fn finish(mut self) -> Scrubbed<'static> {
        self.release(self.held.len())
    }

    #[cfg(test)]
    pub(super) fn held_back(&self) -> usize {
        self.held.len()
    }

    /// How many bytes can be passed on before the next piece arrives.
    fn ready(&self) -> usize {
        let finder = &self.scrubber.finder;
        if finder.is_empty() {
            return self.held.len();
        }
        let across_lines = self.held.len().saturating_sub(finder.longest_across_lines() * EXPANSION);
        let lines =
            self.held[..across_lines].iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let tail = finder.longest() * EXPANSION;
        if self.held.len() - lines <= MAX_LINE + tail { lines } else { self.held.len() - tail }
    }

    fn release(&mut self, ready: usize) -> Scrubbed<'static> {
        if ready == 0 {
            return Scrubbed { bytes: Cow::Owned(Vec::new()), redactions: 0 };
        }
        let found = self.scrubber.search(&self.held, 0);
        // A match that `ready` would cut in two is held back.
        let ready = found
            .iter()
            .find(|found| found.span.start < ready && ready < found.span.end)
            .map_or(ready, |found| found.span.start);
        let passed: Vec<_> = found.into_iter().filter(|found| found.span.end <= ready).collect();
        let scrubbed = Scrubbed::edited(&self.held[..ready], &self.scrubber.edits_of(passed));
        let scrubbed =
            Scrubbed { bytes: Cow::Owned(scrubbed.bytes.into_owned()), redactions: scrubbed.redactions };
        self.held.drain(..ready);
        scrubbed
    }
}

impl fmt::Debug for StreamScrubber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StreamScrubber").field("held", &self.held.len()).finish_non_exhaustive()
    }
}
