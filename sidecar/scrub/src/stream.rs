//! Text that arrives in pieces, such as a server's standard error.
//!
//! Lines are passed on at once, unless a value may continue on the next line: held back are an unfinished line, lines
//! that may be the first of wrapped base64 or hexadecimal, and lines that a value with short lines could span. The bytes
//! held back are bounded.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::normal::Syntax;
use super::place::Placing;
use super::{Scrubbed, Scrubber};

/// How many bytes encodings may use for one byte of a value: two layers of any encoding use at most 49, three usually less
/// than 64.
const EXPANSION: usize = 64;
/// The same for a value of several short lines, which is searched for without decoding.
const EXPANSION_OF_LINES: usize = 8;
/// A longer unfinished line, and longer wrapped text, is passed on in parts.
const MAX_LINE: usize = 64 * 1024;
/// The most that is held back of a line that is passed on in parts.
const MAX_TAIL: usize = 256 * 1024;
/// A line that ends with a word of this length may be wrapped in the middle of it.
const LONG_WORD: usize = 16;

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

    /// Searches for the values of this scrubber from now on.
    pub fn update(&mut self, scrubber: Arc<Scrubber>) {
        self.scrubber = scrubber;
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
        if self.scrubber.is_empty() {
            return self.held.len();
        }
        let longest_across_lines = self.scrubber.longest_across_lines() * EXPANSION_OF_LINES;
        let searchable = &self.held[..self.held.len().saturating_sub(longest_across_lines)];
        let last_line_end = searchable.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let ready = start_of_wrapped_text(&self.held[..last_line_end]);
        let tail = (self.scrubber.longest() * EXPANSION).min(MAX_TAIL);
        if self.held.len() - ready <= MAX_LINE + tail { ready } else { self.held.len() - tail }
    }

    fn release(&mut self, ready: usize) -> Scrubbed<'static> {
        if ready == 0 {
            return Scrubbed { bytes: Cow::Owned(Vec::new()), redactions: 0 };
        }
        let edits = Placing::new(&self.scrubber)
            .edits_of(&self.held, self.scrubber.search_whole(&self.held, Syntax::Unknown));
        // A match that `ready` would cut in two is held back, unless nothing else is held and there is no more room.
        let cut = edits.iter().find(|edit| edit.span.start < ready && ready < edit.span.end);
        let ready = match cut {
            Some(edit) if edit.span.start == 0 && self.held.len() > MAX_LINE => edit.span.end,
            Some(edit) => edit.span.start,
            None => ready,
        };
        let passed: Vec<_> = edits.into_iter().filter(|edit| edit.span.end <= ready).collect();
        let scrubbed = Scrubbed::edited(&self.held[..ready], &passed);
        let scrubbed =
            Scrubbed { bytes: Cow::Owned(scrubbed.bytes.into_owned()), redactions: scrubbed.redactions };
        self.held.drain(..ready);
        scrubbed
    }
}

/// Where the last lines begin that may be an encoded value up to a line end. These are whole lines.
fn start_of_wrapped_text(lines: &[u8]) -> usize {
    let encodes = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_=%\\&#;:".contains(byte);
    let mut start = lines.len();
    while let Some(line) = lines[..start].strip_suffix(b"\n") {
        let line_start = line.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let line = line[line_start..].trim_ascii();
        let word = line.iter().rev().take_while(|byte| encodes(byte)).count();
        let is_dump = line.iter().all(|byte| byte.is_ascii_hexdigit() || b" :,-xX".contains(byte));
        if (word == line.len() && word >= MIN_WRAPPED) || (is_dump && line.len() >= MIN_WRAPPED) {
            start = line_start;
        } else if word >= LONG_WORD {
            return line_start;
        } else {
            return start;
        }
    }
    start
}

/// Lines of wrapped text are not shorter, except for the last one.
const MIN_WRAPPED: usize = 8;

impl fmt::Debug for StreamScrubber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StreamScrubber").field("held", &self.held.len()).finish_non_exhaustive()
    }
}
