//! Text in its normal form: all escapes decoded, however deeply nested and mixed, and lines joined.
//!
//! Decoded are the escapes of JSON (`\n`, `\u0041`), `\x41`, percent-encoding (`%41`) and entities (`&#65;`, `&#x41;`,
//! `&quot;`). A decoded byte may complete another escape, which is decoded in turn: `%255Cu0041` becomes `A`. So one pass
//! undoes any number of layers, and the normal form of an encoded value is that of the value itself. Line ends are left
//! out together with the indents and quotation marks (`>`, `|`, `#`, `*`) around them, so that wrapped text is in one
//! piece; NUL bytes are left out, so that UTF-16 is read as ASCII.
//!
//! The normal form is only searched, never shown. It is never longer than the text.

use std::ops::Range;

use super::classes::Classes;
use super::units::{self, Kind, Marks, Unit};

/// The normal form of `text`; `None` if that is the text itself.
pub(super) fn normal_form(text: &[u8], classes: &Classes) -> Option<Vec<u8>> {
    decoded(text, classes, Lines::Joined)
}

/// Text with its escapes decoded as in a normal form, and with its line ends and indents; `None` if that is the text
/// itself.
pub(super) fn without_escapes(text: &[u8], classes: &Classes) -> Option<Vec<u8>> {
    decoded(text, classes, Lines::Kept)
}

fn decoded(text: &[u8], classes: &Classes, lines: Lines) -> Option<Vec<u8>> {
    classes.has_marks().then(|| {
        let mut builder = Builder { lines, ..Builder::new(NoOrigins, text.len()) };
        builder.add(text, &Marks::new(text, classes));
        builder.bytes
    })
}

/// The normal form of a value; `None` if that is the value itself.
pub(super) fn normal_form_of(value: &[u8]) -> Option<Vec<u8>> {
    normal_form(value, &Classes::new(value))
}

/// Whether line ends are left out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Lines {
    Joined,
    Kept,
}

/// What is known of a text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Syntax {
    /// A JSON message, or the inside of one of its strings: an odd backslash begins an escape.
    Json,
    Unknown,
}

impl Syntax {
    /// Whether a backslash or percent sign before `at` may be text that begins no escape.
    pub(super) fn has_mark_before(self, text: &[u8], at: usize) -> bool {
        let before = &text[..at];
        match before.last() {
            Some(b'%') => true,
            Some(b'\\') => {
                let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
                self == Self::Unknown || backslashes.is_multiple_of(2)
            }
            _ => false,
        }
    }
}

/// Where the bytes of a normal form come from.
pub(super) struct Origins {
    /// For each byte, and for the end, where in the text it begins.
    starts: Vec<u32>,
    /// Where line ends begin that were left out.
    gaps: Vec<u32>,
}

impl Origins {
    pub(super) fn new(text: &[u8], classes: &Classes, lines: Lines) -> Self {
        let origins = Origins { starts: Vec::with_capacity(text.len() + 1), gaps: Vec::new() };
        let mut builder = Builder { lines, ..Builder::new(origins, text.len()) };
        builder.add(text, &Marks::new(text, classes));
        builder.origins.push(text.len());
        builder.origins
    }

    /// The part of the text that a part of the normal form comes from, every escape in full.
    pub(super) fn span(&self, part: Range<usize>) -> Range<usize> {
        let last = self.starts[part.end - 1];
        let next = self.starts[part.end..].iter().find(|start| **start > last).copied().unwrap_or(last + 1);
        let gap = self.gaps.get(self.gaps.partition_point(|gap| *gap <= last)).copied();
        self.starts[part.start] as usize..gap.map_or(next, |gap| gap.min(next)) as usize
    }
}

/// Where the bytes of a normal form come from, if that is of interest.
trait RecordOrigins {
    fn push(&mut self, _origin: usize) {}
    fn extend(&mut self, _origins: Range<usize>) {}
    fn truncate(&mut self, _length: usize) {}
    fn at(&self, _index: usize) -> Option<usize> {
        None
    }
    /// From here on, text is left out.
    fn gap(&mut self, _origin: usize) {}
}

struct NoOrigins;

impl RecordOrigins for NoOrigins {}

impl RecordOrigins for Origins {
    fn push(&mut self, origin: usize) {
        self.starts.push(narrow(origin));
    }

    fn extend(&mut self, origins: Range<usize>) {
        self.starts.extend(narrow(origins.start)..narrow(origins.end));
    }

    fn truncate(&mut self, length: usize) {
        self.starts.truncate(length);
    }

    fn at(&self, index: usize) -> Option<usize> {
        self.starts.get(index).map(|start| *start as usize)
    }

    fn gap(&mut self, origin: usize) {
        self.gaps.push(narrow(origin));
    }
}

/// Messages are far smaller than 4 GiB.
fn narrow(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

struct Builder<R> {
    bytes: Vec<u8>,
    origins: R,
    lines: Lines,
    /// An escape that has begun can only be completed while `bytes` is shorter than this.
    deadline: usize,
    /// The length of `bytes` when a line ended. At this length, blanks are left out: the indent of the next line.
    joined_at: usize,
    /// What is known of each of the last bytes, at its position modulo 16.
    last: [Recent; 16],
}

/// One of the last bytes of a normal form.
#[derive(Clone, Copy, Default)]
struct Recent {
    /// How many escapes were decoded to get it. `\\` is the escape of a backslash only if both have the same layer: in
    /// `\u005c\u006e` the first was decoded and the second was not.
    layer: u8,
    /// The deadline before it was added.
    deadline: usize,
}

/// A byte to be added.
#[derive(Clone, Copy)]
struct Added {
    byte: u8,
    origin: usize,
    layer: u8,
}

impl<R: RecordOrigins> Builder<R> {
    fn new(origins: R, capacity: usize) -> Self {
        let bytes = Vec::with_capacity(capacity);
        let last = [Recent::default(); 16];
        Self { bytes, origins, lines: Lines::Joined, deadline: 0, joined_at: usize::MAX, last }
    }

    fn add(&mut self, text: &[u8], marks: &Marks<'_>) {
        let mut at = 0;
        loop {
            let mark = marks.next(at);
            self.bytes.extend_from_slice(&text[at..mark]);
            self.origins.extend(at..mark);
            at = mark;
            if let Some(next) = self.end_simple_line(text, at) {
                at = next;
                continue;
            }
            while at < text.len() {
                at += self.skip_line_ends(&text[at..]);
                at += self.add_simple(text, at);
                if at >= text.len() {
                    break;
                }
                at += self.add_at(text, at);
                if self.bytes.len() >= self.deadline && self.joined_at != self.bytes.len() {
                    break;
                }
            }
            if at >= text.len() {
                return;
            }
        }
    }

    /// Leaves out the line end at `at`, as `\n` or as it is, if no blanks, escapes or other line ends are around it.
    /// Returns where the next line begins. The same as adding it by its bytes.
    #[inline]
    fn end_simple_line(&mut self, text: &[u8], at: usize) -> Option<usize> {
        let next = match text[at..] {
            [b'\\', b'n', ..] => at + 2,
            [b'\n', ..] => at + 1,
            _ => return None,
        };
        let is_simple = |byte: &u8| {
            units::kind(*byte) != Kind::Mark && !matches!(*byte, b' ' | b'\t' | b'\r' | b'>' | b'|' | b'#' | b'*')
        };
        let is_between = self.lines == Lines::Joined
            && self.bytes.len() >= self.deadline
            && self.bytes.last().is_some_and(is_simple)
            && text.get(next).is_some_and(is_simple);
        is_between.then(|| {
            self.origins.gap(at);
            next
        })
    }

    /// How many of these bytes are line ends, as `\n`, that are left out because a line has ended already.
    #[inline]
    fn skip_line_ends(&self, text: &[u8]) -> usize {
        if self.joined_at != self.bytes.len() || self.bytes.last() == Some(&b'\\') {
            return 0;
        }
        let (pairs, _) = text.as_chunks::<2>();
        2 * pairs.iter().take_while(|pair| **pair == *b"\\n").count()
    }

    /// Adds escapes from `at` on that stand for bytes which begin no other escape; returns how many bytes of text they
    /// were. The same as adding them one by one.
    #[inline]
    fn add_simple(&mut self, text: &[u8], start: usize) -> usize {
        let mut at = start;
        if self.bytes.len() < self.deadline || self.joined_at == self.bytes.len() {
            return 0;
        }
        while let Some((byte, length)) = units::simple(&text[at..]) {
            if byte != 0 {
                self.bytes.push(byte);
                self.origins.push(at);
            }
            at += length;
        }
        at - start
    }

    /// Adds the byte, the escape or the backslashes at `at`; returns how many bytes of text that were.
    #[inline]
    fn add_at(&mut self, text: &[u8], at: usize) -> usize {
        let byte = text[at];
        let follows_backslash = byte == b'\\' && self.bytes.last() == Some(&b'\\');
        if byte == b'\\' && !follows_backslash && text.get(at + 1) == Some(&b'\\') {
            let backslashes = text[at..].iter().take_while(|byte| **byte == b'\\').count();
            self.add_backslashes(backslashes, at);
            return backslashes;
        }
        // The same as adding its bytes one by one.
        if !(follows_backslash && self.escaped_backslash(0).is_some())
            && let Some(unit) = units::at_start(&text[at..])
        {
            for byte in &unit.decoded[..unit.count] {
                self.push(Added { byte: *byte, origin: at, layer: 1 });
            }
            return unit.length;
        }
        self.push(Added { byte, origin: at, layer: 0 });
        1
    }

    /// Adds a number of backslashes, of which each pair is the escape of one. What remains of them are backslashes of
    /// the layers that are the bits of the number.
    fn add_backslashes(&mut self, count: usize, origin: usize) {
        let bits = usize::BITS - count.leading_zeros();
        let mut added = 0;
        for layer in (0..bits).rev().filter(|layer| count >> layer & 1 == 1) {
            let layer_byte = u8::try_from(layer).unwrap_or(u8::MAX);
            self.append(Added { byte: b'\\', origin: origin + added, layer: layer_byte }, Kind::Mark);
            added += 1 << layer;
        }
    }

    #[inline]
    fn push(&mut self, added: Added) {
        let byte = added.byte;
        let length = self.bytes.len();
        let kind = units::kind(byte);
        if self.joined_at == length {
            if matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b'>' | b'|' | b'#' | b'*' | 0) {
                return;
            }
        } else if length >= self.deadline && kind != Kind::Mark {
            // No escape has begun.
            self.bytes.push(byte);
            self.origins.push(added.origin);
            return;
        }
        let unit = match kind {
            _ if length >= self.deadline => None,
            Kind::Plain => None,
            Kind::Digit => units::numeric(&self.bytes, byte),
            Kind::Mark if byte == b'\\' => self.escaped_backslash(added.layer),
            Kind::Letter => units::short(&self.bytes, byte),
            // Begins an escape, and ends none.
            Kind::Mark => None,
        };
        if let Some(unit) = unit {
            return self.replace(&unit, added.layer);
        }
        match byte {
            0 => {}
            b'\n' if self.lines == Lines::Joined => self.end_line(added.origin),
            _ => self.append(added, kind),
        }
    }

    #[inline]
    fn append(&mut self, added: Added, kind: Kind) {
        let length = self.bytes.len();
        self.last[length % 16] = Recent { layer: added.layer, deadline: self.deadline };
        if kind == Kind::Mark {
            self.deadline = self.deadline.max(length + 1 + units::pending_after(added.byte));
        }
        self.bytes.push(added.byte);
        self.origins.push(added.origin);
    }

    /// Leaves out a line end, and the blanks before it.
    fn end_line(&mut self, origin: usize) {
        let without = |is_blank: fn(u8) -> bool| {
            self.bytes.len() - self.bytes.iter().rev().take_while(|byte| is_blank(**byte)).count()
        };
        let kept = match without(|byte| matches!(byte, b' ' | b'\t' | b'\r')) {
            // A backslash directly before a line end continues the line.
            all if all == self.bytes.len() => without(|byte| byte == b'\\'),
            kept => kept,
        };
        self.origins.gap(self.origins.at(kept).unwrap_or(origin));
        self.truncate(kept);
        // No escape continues on the next line.
        self.deadline = 0;
        self.joined_at = kept;
    }

    /// The escape that another backslash of this layer completes.
    fn escaped_backslash(&self, layer: u8) -> Option<Unit> {
        let last = self.bytes.len().checked_sub(1)?;
        (self.bytes[last] == b'\\' && self.last[last % 16].layer == layer).then(|| Unit::byte(2, b'\\'))
    }

    /// Puts what an escape decodes to in its place. Its last byte, of this layer, has not been added.
    fn replace(&mut self, unit: &Unit, layer: u8) {
        let start = self.bytes.len() + 1 - unit.length;
        let layers = (start..self.bytes.len()).map(|position| self.last[position % 16].layer);
        let layer = layers.fold(layer, u8::max).saturating_add(1);
        let origin = self.origins.at(start).unwrap_or_default();
        self.truncate(start);
        for byte in &unit.decoded[..unit.count] {
            self.push(Added { byte: *byte, origin, layer });
        }
    }

    fn truncate(&mut self, length: usize) {
        if length < self.bytes.len() {
            self.deadline = self.last[length % 16].deadline;
            self.bytes.truncate(length);
            self.origins.truncate(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(text: &str) -> String {
        String::from_utf8(normal_form_of(text.as_bytes()).unwrap_or(text.into())).unwrap()
    }

    #[test]
    fn escapes_of_every_kind_and_depth_are_decoded() {
        for (text, expected) in [
            (r"\u0041\/\\\\\\\\u0042", r"A/B"),
            (r#"\\\\\\\"x\\\""#, "\"x\""),
            ("%41%2542%25255C%2575%30043", "ABC"),
            (r"\u005c\u006ex \u005c\u005c\u0041 \u005c\u00e9", "x \\A \\é"),
            ("&#65;&#x42;&#067;&amp;&amp;#68;&amp;amp;lt;", "ABC&D<"),
            (r"\x41%5Cx42&#92;u0043", "ABC"),
            (r"\u0025\u0034\u0031", "A"),
            ("&\\u0023\\u00365;", "A"),
            (r"\ud83d\ude00 \\ud83d\\ude00 \ud83dx", "\u{1f600} \u{1f600} \\ud83dx"),
            ("a\\u0000b\0c", "abc"),
            (r"100% &c; \q &#; %4g \u00", r"100% &c; \q &#; %4g \u00"),
        ] {
            assert_eq!(normal(text), expected, "{text}");
        }
    }

    #[test]
    fn lines_are_joined() {
        for text in
            ["ab\ncd", "ab\\ncd", "ab  \r\n\t cd", "ab\\r\\n    cd", "ab\n> cd", "ab\n# cd", "ab\n\n\ncd"]
        {
            assert_eq!(normal(text), "abcd", "{text}");
        }
        assert_eq!(normal("the words\nof lines"), "the wordsof lines");
    }

    #[test]
    fn spans_contain_whole_escapes() {
        let text = br"x%5Cu0041\n  yz";
        assert_eq!(normal_form_of(text).unwrap(), b"xAyz");
        let origins = Origins::new(text, &Classes::new(text), Lines::Joined);
        assert_eq!(origins.span(0..1), 0..1);
        assert_eq!(origins.span(1..2), 1..9);
        assert_eq!(origins.span(2..4), 13..15);
        assert_eq!(origins.span(0..4), 0..15);
    }
}
