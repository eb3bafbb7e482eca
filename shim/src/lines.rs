//! Splits bytes into lines: those of the harness, and in the client those of the relay.
//!
//! A line ends at `\n`; `\r\n`, empty lines and a last line without an end are tolerated. A line over the limit is
//! discarded as it arrives, while its id is searched for. Without a partial line, [`Lines`] holds at most
//! [`MAX_IDLE_BUFFER`] bytes.

use relay_proto::limits::MAX_IDLE_BUFFER;

use relay_proto::oversize::{IdSearch, MessageKind};

/// A buffer of received bytes, and where its next line begins.
#[derive(Debug)]
pub(crate) struct Lines {
    /// All bytes are initialised; only `start..end` were received.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// There is no line end in `start..scanned`.
    scanned: usize,
    /// The limit for a line, in bytes.
    max_line: usize,
    /// Searches for the id in a line over the limit, while that is discarded.
    discarding: Option<IdSearch>,
}

#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Line<'a> {
    /// A line longer than the limit, with the id of the request, if exactly one could be read.
    TooLarge {
        id: Option<Box<[u8]>>,
    },
    Whole(&'a [u8]),
}

impl Lines {
    pub(crate) fn new(max_line: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, end: 0, scanned: 0, max_line, discarding: None }
    }

    /// A buffer to read into; report what was read with [`Self::filled`].
    pub(crate) fn spare(&mut self) -> &mut [u8] {
        if self.buffer.len() - self.end < MIN_SPARE {
            self.buffer.copy_within(self.start..self.end, 0);
            self.scanned -= self.start;
            (self.start, self.end) = (0, self.end - self.start);
            if self.buffer.len() - self.end < MIN_SPARE {
                // Doubling keeps the total copying linear; the limit for a line bounds the buffer.
                let wanted = (self.end * 2)
                    .clamp(self.end + MIN_SPARE, (self.max_line + MIN_SPARE).max(self.end + MIN_SPARE));
                self.buffer.resize(wanted, 0);
            }
        }
        &mut self.buffer[self.end..]
    }

    pub(crate) fn filled(&mut self, count: usize) {
        self.end += count;
    }

    /// The next line without its end; `None` means "read more".
    pub(crate) fn next(&mut self) -> Option<Line<'_>> {
        loop {
            let Some(length) = memchr::memchr(b'\n', &self.buffer[self.scanned..self.end]) else {
                self.scanned = self.end;
                self.trim_buffer();
                return None;
            };
            let line = self.start..self.scanned + length;
            self.start = line.end + 1;
            self.scanned = self.start;
            if let Some(mut scanner) = self.discarding.take() {
                scanner.feed(&self.buffer[line]);
                return Some(Line::TooLarge { id: scanner.finish(MessageKind::Request) });
            }
            let bytes = self.buffer[line.clone()].trim_ascii_end();
            if bytes.len() > self.max_line {
                let mut scanner = IdSearch::default();
                scanner.feed(bytes);
                return Some(Line::TooLarge { id: scanner.finish(MessageKind::Request) });
            }
            if !bytes.is_empty() {
                return Some(Line::Whole(self.buffer[line].trim_ascii_end()));
            }
        }
    }

    /// Returns the last line at the end of input, if it has no line end.
    pub(crate) fn last(&mut self) -> Option<Line<'_>> {
        if self.start == self.end && self.discarding.is_none() {
            return None;
        }
        self.spare()[0] = b'\n';
        self.filled(1);
        self.next()
    }

    /// Called when no complete line is buffered: discards a line over the limit, frees memory that is not needed.
    fn trim_buffer(&mut self) {
        if self.end - self.start > self.max_line || self.discarding.is_some() {
            self.discarding.get_or_insert_default().feed(&self.buffer[self.start..self.end]);
            self.start = self.end;
        }
        if self.start == self.end {
            (self.start, self.end, self.scanned) = (0, 0, 0);
            if self.buffer.len() > MAX_IDLE_BUFFER {
                self.buffer = Vec::new();
            }
        }
    }
}

/// The least number of bytes that [`Lines::spare`] returns.
const MIN_SPARE: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// All lines when the bytes arrive in pieces of `piece`.
    fn split(bytes: &[u8], max: usize, piece: usize) -> Vec<Result<String, Option<String>>> {
        let to_owned = |line: Line<'_>| match line {
            Line::TooLarge { id } => Err(id.map(|id| String::from_utf8(id.into()).unwrap())),
            Line::Whole(line) => Ok(String::from_utf8(line.to_vec()).unwrap()),
        };
        let (mut lines, mut found) = (Lines::new(max), Vec::new());
        for piece in bytes.chunks(piece) {
            lines.spare()[..piece.len()].copy_from_slice(piece);
            lines.filled(piece.len());
            while let Some(line) = lines.next() {
                found.push(to_owned(line));
            }
        }
        found.extend(lines.last().map(to_owned));
        assert_eq!(lines.last(), None);
        assert_eq!(lines.start, lines.end);
        found
    }

    #[test]
    fn any_split_of_the_bytes_gives_the_same_lines() {
        let long = format!(r#"{{"method":"m","x":"{}","id":5}}"#, "y".repeat(200));
        let text = format!("one\n\r\ntwo\r\n\n  \n{long}\n{long}\r\nthree\n{long}");
        let too_long = || Err(Some("5".to_owned()));
        let expected =
            [Ok("one".into()), Ok("two".into()), too_long(), too_long(), Ok("three".into()), too_long()];
        for piece in [1, 2, 3, 7, 64, 100, 1000, 16 * 1024] {
            assert_eq!(split(text.as_bytes(), 100, piece), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_last_line_needs_no_end() {
        assert_eq!(split(b"a\nb", 10, 100), [Ok("a".into()), Ok("b".into())]);
        assert_eq!(split(b"", 10, 100), []);
    }

    #[test]
    fn a_line_at_the_limit_passes_and_memory_is_freed() {
        let line = vec![b'x'; 300_000];
        let mut lines = Lines::new(line.len());
        for piece in line.chunks(10_000) {
            lines.spare()[..piece.len()].copy_from_slice(piece);
            lines.filled(piece.len());
            assert_eq!(lines.next(), None);
        }
        lines.spare()[0] = b'\n';
        lines.filled(1);
        assert_eq!(lines.next(), Some(Line::Whole(&line)));
        assert_eq!(lines.next(), None);
        assert_eq!(lines.buffer.capacity(), 0);
    }

    #[test]
    fn a_line_over_the_limit_is_not_buffered() {
        let mut lines = Lines::new(100_000);
        for _ in 0..1000 {
            lines.spare()[..10_000].fill(b'x');
            lines.filled(10_000);
            assert_eq!(lines.next(), None);
            assert!(lines.buffer.len() <= 100_000 + 2 * MIN_SPARE, "{}", lines.buffer.len());
        }
    }
}
