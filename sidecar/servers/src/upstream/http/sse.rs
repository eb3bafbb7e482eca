//! Parses a stream of server-sent events.
//!
//! No I/O and no clock: bytes in, events out. What must stay true: any split of the bytes gives the same events, and no more
//! than the limit is ever kept.

use std::time::Duration;

/// A longer id is ignored: it is sent back to the server in a header.
const MAX_EVENT_ID: usize = 1024;
/// What is kept of a line that is too long: enough to identify its field.
const FIELD_NAME_BYTES: usize = 16;
/// Room beside the data, so that data of exactly the limit fits together with its field name and an id.
const LINE_SLACK: usize = FIELD_NAME_BYTES + MAX_EVENT_ID;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One reader per stream.
#[derive(Debug)]
pub struct SseReader {
    limit: usize,
    line: Vec<u8>,
    /// The line is longer than the bound; the rest of it is discarded.
    overlong: bool,
    after_carriage_return: bool,
    first_line: bool,
    data: Vec<u8>,
    data_lines: usize,
    oversize: bool,
    other_type: bool,
    id: Option<String>,
    last_id: Option<String>,
    retry: Option<Duration>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Item {
    /// The data of a `message` event, its lines joined by a line feed.
    Message(Vec<u8>),
    /// An event larger than the limit; its data is gone.
    Oversize,
}

impl SseReader {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            overlong: false,
            after_carriage_return: false,
            first_line: true,
            data: Vec::new(),
            data_lines: 0,
            oversize: false,
            other_type: false,
            id: None,
            last_id: None,
            retry: None,
        }
    }

    /// A reader for the stream that continues this one: it has the last id and the retry time, and no partial event.
    pub fn resumed(&self) -> Self {
        Self { last_id: self.last_id.clone(), retry: self.retry, ..Self::new(self.limit) }
    }

    /// Takes bytes from the front of `input` until an event is complete. `None` means that more bytes are needed.
    pub fn next(&mut self, input: &mut &[u8]) -> Option<Item> {
        while !input.is_empty() {
            if std::mem::take(&mut self.after_carriage_return) && input[0] == b'\n' {
                *input = &input[1..];
                continue;
            }
            let Some(end) = input.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
                self.keep(input);
                *input = &[];
                return None;
            };
            self.keep(&input[..end]);
            self.after_carriage_return = input[end] == b'\r';
            *input = &input[end + 1..];
            if let Some(item) = self.end_line() {
                return Some(item);
            }
        }
        None
    }

    /// Where to resume: the id of the last complete event that had one.
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// The `retry:` value: how long to wait before a reconnect.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Bytes held for an event that is not complete yet.
    pub fn buffered(&self) -> usize {
        self.line.len() + self.data.len()
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = (self.limit + LINE_SLACK).saturating_sub(self.buffered());
        if piece.len() <= room && !self.overlong {
            self.line.extend_from_slice(piece);
        } else if !self.overlong {
            self.overlong = true;
            self.line.extend_from_slice(&piece[..piece.len().min(FIELD_NAME_BYTES)]);
            self.line.truncate(FIELD_NAME_BYTES);
            self.line.shrink_to_fit();
        }
    }

    fn end_line(&mut self) -> Option<Item> {
        if std::mem::take(&mut self.first_line) && self.line.starts_with(BYTE_ORDER_MARK) {
            self.line.drain(..BYTE_ORDER_MARK.len());
        }
        let overlong = std::mem::take(&mut self.overlong);
        if self.line.is_empty() && !overlong {
            return self.end_event();
        }
        let (name_end, value_start) = match self.line.iter().position(|byte| *byte == b':') {
            Some(colon) if self.line.get(colon + 1) == Some(&b' ') => (colon, colon + 2),
            Some(colon) => (colon, colon + 1),
            None => (self.line.len(), self.line.len()),
        };
        match &self.line[..name_end] {
            b"data" => self.data_line(value_start, overlong),
            _ if overlong => {}
            b"event" => {
                let name = &self.line[value_start..];
                self.other_type = !name.is_empty() && name != b"message";
            }
            b"id" => self.id_line(value_start),
            b"retry" => {
                let digits = std::str::from_utf8(&self.line[value_start..]).ok();
                if let Some(digits) = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
                    && let Ok(milliseconds) = digits.parse()
                {
                    self.retry = Some(Duration::from_millis(milliseconds));
                }
            }
            _ => {}
        }
        self.line.clear();
        None
    }

    fn data_line(&mut self, value_start: usize, overlong: bool) {
        let length = self.line.len() - value_start;
        let separator = usize::from(self.data_lines > 0);
        if overlong || self.data.len() + separator + length > self.limit {
            self.oversize = true;
        }
        self.data_lines += 1;
        if self.oversize {
            self.data = Vec::new();
        } else if separator == 0 {
            // The usual event is one line: it is moved, not copied.
            self.line.drain(..value_start);
            std::mem::swap(&mut self.data, &mut self.line);
        } else {
            self.data.push(b'\n');
            self.data.extend_from_slice(&self.line[value_start..]);
        }
    }

    fn id_line(&mut self, value_start: usize) {
        let value = &self.line[value_start..];
        if value.len() <= MAX_EVENT_ID
            && !value.contains(&0)
            && let Ok(id) = std::str::from_utf8(value)
        {
            self.id = Some(id.to_owned());
        }
    }

    fn end_event(&mut self) -> Option<Item> {
        if let Some(id) = self.id.take() {
            // An empty id clears the last one.
            self.last_id = Some(id).filter(|id| !id.is_empty());
        }
        let data = std::mem::take(&mut self.data);
        let other_type = std::mem::take(&mut self.other_type);
        let oversize = std::mem::take(&mut self.oversize);
        self.data_lines = 0;
        if other_type {
            return None;
        }
        match oversize {
            true => Some(Item::Oversize),
            false => (!data.is_empty()).then_some(Item::Message(data)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(limit: usize, pieces: &[&[u8]]) -> (Vec<Item>, SseReader) {
        let mut reader = SseReader::new(limit);
        let mut items = Vec::new();
        for piece in pieces {
            let mut input = *piece;
            while let Some(item) = reader.next(&mut input) {
                items.push(item);
            }
            assert!(reader.buffered() <= limit + LINE_SLACK, "kept {}", reader.buffered());
        }
        (items, reader)
    }

    fn message(data: &str) -> Item {
        Item::Message(data.as_bytes().to_vec())
    }

    #[test]
    fn every_line_ending_and_a_byte_order_mark_are_accepted() {
        let (items, _) =
            read(100, &[b"\xef\xbb\xbfdata: a\n\ndata: b\r\rdata: c\r\n\r\n: note\ndata:d\ndata: e\n\n"]);
        assert_eq!(items, [message("a"), message("b"), message("c"), message("d\ne")]);
    }

    #[test]
    fn a_carriage_return_with_its_line_feed_ends_one_line() {
        let (items, _) = read(100, &[b"data: a\r\ndata: b\r\n\r\n", b"data: c\r", b"\ndata: d\n\n"]);
        assert_eq!(items, [message("a\nb"), message("c\nd")]);
    }

    #[test]
    fn an_id_takes_effect_at_the_end_of_its_event_and_retry_is_read() {
        let (items, mut reader) = read(100, &[b"id: one\nretry: 250\ndata:\n\nid: two\ndata: {}\n"]);
        assert_eq!(items, []);
        assert_eq!(reader.last_event_id(), Some("one"));
        assert_eq!(reader.retry(), Some(Duration::from_millis(250)));
        assert_eq!(reader.next(&mut &b"\n"[..]), Some(message("{}")));
        assert_eq!(reader.last_event_id(), Some("two"));
    }

    #[test]
    fn events_of_other_types_and_incomplete_events_yield_nothing() {
        let (items, reader) =
            read(100, &[b"event: ping\nid: 7\ndata: x\n\nevent: message\ndata: y\n\nretry: 1x\ndata: cut"]);
        assert_eq!(items, [message("y")]);
        assert_eq!(reader.last_event_id(), Some("7"));
        assert_eq!(reader.retry(), None);
    }

    #[test]
    fn an_event_over_the_limit_is_discarded_and_the_next_one_arrives() {
        let long = format!("data: {}\n\ndata: 0123456789\n\n", "x".repeat(11));
        let lines = "data: 01234\ndata: 56789\n\ndata: z\n\n";
        let endless = format!("data: {}", "x".repeat(5000));
        let comment = format!(": {}\ndata: z\n\n", "x".repeat(5000));
        assert_eq!(read(10, &[long.as_bytes()]).0, [Item::Oversize, message("0123456789")]);
        assert_eq!(read(10, &[lines.as_bytes()]).0, [Item::Oversize, message("z")]);
        assert_eq!(read(10, &[endless.as_bytes(), endless.as_bytes()]).0, []);
        assert_eq!(read(10, &[comment.as_bytes()]).0, [message("z")]);
    }

    const LONG: &str = concat!(
        "data: ",
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
    );

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "data: abc", "data", LONG, "data:0123456789012345678901234567890", ":", "id: 4", "event: other", "event:message", "retry: 5",
                    "\n", "\r", "\r\n", "\n\n", "\r\n\r\n", "\u{feff}", "ü", "x",
                ]),
                0..40,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let bytes = parts.concat().into_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let (whole, whole_reader) = read(32, &[&bytes]);
            let (split, split_reader) = read(32, &pieces);
            prop_assert_eq!(whole, split);
            prop_assert_eq!(whole_reader.last_event_id(), split_reader.last_event_id());
            prop_assert_eq!(whole_reader.retry(), split_reader.retry());
        }
    }
}
