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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Needle;

    fn stream_of(values: &[&[u8]]) -> StreamScrubber {
        let needle = |value: &&[u8]| Needle { label: "a.b".into(), value: value.to_vec().into() };
        Arc::new(Scrubber::new(values.iter().map(needle).collect())).stream()
    }

    #[test]
    fn lines_that_may_be_wrapped_text_are_held_back() {
        for (lines, passed) in [
            ("", ""),
            ("plain words\n", "plain words\n"),
            ("ABCDEFG\n", "ABCDEFG\n"),
            ("ABCDEFGH\n", ""),
            ("  ABCDEFGH\r\n", ""),
            ("a+/-_=%\\&#;:\n", ""),
            ("words before ABCDEFGHIJKLMNO\n", "words before ABCDEFGHIJKLMNO\n"),
            ("words before ABCDEFGHIJKLMNOP\n", ""),
            ("de ad b\n", "de ad b\n"),
            ("de ad be\n", ""),
            ("0x41, 0X42:43-44\n", ""),
            ("words\nABCDEFGH\nABCDEFGH\n", "words\n"),
            ("words\nto ABCDEFGHIJKLMNOP\nABCDEFGH\n", "words\n"),
            ("ABCDEFGH\nABCD\n", "ABCDEFGH\nABCD\n"),
        ] {
            assert_eq!(start_of_wrapped_text(lines.as_bytes()), passed.len(), "{lines:?}");
        }
    }

    #[test]
    fn a_long_line_is_passed_on_except_for_what_may_be_the_beginning_of_a_value() {
        let long_value: Vec<u8> = (0..5000_u32).map(|at| b'a' + (at * at % 23) as u8).collect();
        for (value, tail) in [(&b"correct-horse"[..], 13 * 64), (&long_value, 256 * 1024)] {
            let mut stream = stream_of(&[value]);
            let full = 64 * 1024 + tail;
            assert_eq!(stream.push(" .".repeat(full / 2).as_bytes()).bytes.len(), 0);
            assert_eq!(stream.push(b" ").bytes.len(), 64 * 1024 + 1);
            assert_eq!(stream.held_back(), tail);
        }
    }

    #[test]
    fn many_whole_lines_are_passed_on_up_to_the_last_line_end() {
        let lines = "a line.\n".repeat(5000);
        let mut stream = stream_of(&[b"correct-horse"]);
        assert_eq!(stream.push(format!("{lines}unfinished").as_bytes()).bytes.len(), lines.len());
    }

    #[test]
    fn lines_are_held_back_that_a_value_of_short_lines_may_span() {
        let mut stream = stream_of(&[b"ab\ncd\nef"]);
        assert_eq!(stream.push("l\n".repeat(50).as_bytes()).bytes.len(), 100 - 8 * 8);
        let mut stream = stream_of(&[]);
        assert_eq!(stream.push(b"no value").bytes.len(), 8, "without values nothing is held back");
    }

    #[test]
    fn a_value_is_passed_on_whole_or_not_at_all() {
        for (ready, passed) in
            [(2, "x "), (3, "x "), (14, "x "), (15, "x [redacted:a.b]"), (16, "x [redacted:a.b] ")]
        {
            let mut stream = stream_of(&[b"correct-horse"]);
            stream.held.extend_from_slice(b"x correct-horse y");
            assert_eq!(stream.release(ready).bytes, passed.as_bytes(), "{ready}");
            let rest = stream.finish();
            assert_eq!([passed.as_bytes(), &rest.bytes].concat(), b"x [redacted:a.b] y", "{ready}");
        }
    }

    #[test]
    fn a_value_at_the_beginning_is_passed_on_once_there_is_no_more_room() {
        for (room, passed) in [(0, &b""[..]), (1, b"[redacted:a.b]")] {
            let mut stream = stream_of(&[b"correct-horse"]);
            stream.held.extend_from_slice(b"correct-horse");
            stream.held.resize(MAX_LINE + room, b'.');
            assert_eq!(stream.release(5).bytes, passed);
        }
    }

    #[test]
    fn new_values_are_searched_for_in_what_was_held_back() {
        let mut stream = stream_of(&[b"some-other-value"]);
        assert_eq!(stream.push(b"a correct-").bytes.len(), 0);
        stream.update(Arc::clone(&stream_of(&[b"correct-horse"]).scrubber));
        assert_eq!(&*stream.push(b"horse\n").bytes, b"a [redacted:a.b]\n");
    }
}
