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

use super::budget::{Budget, OverBudget};
use super::classes::Classes;
use super::origins::{NoOrigins, Origins, RecordOrigins};
use super::units::{self, Kind, Marks, Unit};

/// The normal form of `text`; `None` if that is the text itself.
pub(super) fn normal_form(
    text: &[u8],
    classes: &Classes,
    budget: &mut Budget,
) -> Result<Option<Vec<u8>>, OverBudget> {
    decoded(text, classes, Lines::Joined, budget)
}

/// Text with its escapes decoded as in a normal form, and with its line ends and indents; `None` if that is the text
/// itself.
pub(super) fn without_escapes(
    text: &[u8],
    classes: &Classes,
    budget: &mut Budget,
) -> Result<Option<Vec<u8>>, OverBudget> {
    decoded(text, classes, Lines::Kept, budget)
}

fn decoded(
    text: &[u8],
    classes: &Classes,
    lines: Lines,
    budget: &mut Budget,
) -> Result<Option<Vec<u8>>, OverBudget> {
    if !classes.has_marks() {
        return Ok(None);
    }
    let mut builder = Builder::new(NoOrigins, lines, text);
    builder.add(text, &Marks::new(text, classes), budget)?;
    builder.bytes.truncate(builder.length);
    Ok(Some(builder.bytes))
}

/// The normal form of a value.
pub(super) fn normal_form_of(value: &[u8]) -> Vec<u8> {
    let normal = normal_form(value, &Classes::new(value), &mut Budget::unlimited());
    normal.ok().flatten().unwrap_or_else(|| value.to_vec())
}

/// A value without escapes; `None` if that is the value itself.
pub(super) fn value_without_escapes(value: &[u8]) -> Option<Vec<u8>> {
    without_escapes(value, &Classes::new(value), &mut Budget::unlimited()).ok().flatten()
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

/// Where the bytes of the normal form of `text` come from.
pub(super) fn origins_of(text: &[u8], classes: &Classes, lines: Lines) -> Origins {
    let mut builder = Builder::new(Origins::with_capacity(text.len()), lines, text);
    // The work for the normal form itself was within the limit.
    let _ = builder.add(text, &Marks::new(text, classes), &mut Budget::unlimited());
    builder.origins.push(text.len());
    builder.origins
}

struct Builder<R> {
    /// The first `length` bytes are the normal form so far.
    bytes: Vec<u8>,
    length: usize,
    origins: R,
    lines: Lines,
    /// An escape that has begun can only be completed while `length` is less than this.
    deadline: usize,
    /// The length when a line ended. At this length, blanks are left out: the indent of the next line.
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

/// The bytes that are copied at once.
const COPIED: usize = 32;

impl<R: RecordOrigins> Builder<R> {
    fn new(origins: R, lines: Lines, text: &[u8]) -> Self {
        Self {
            bytes: vec![0; text.len() + COPIED],
            length: 0,
            origins,
            lines,
            deadline: 0,
            joined_at: usize::MAX,
            last: [Recent::default(); 16],
        }
    }

    fn add(&mut self, text: &[u8], marks: &Marks<'_>, budget: &mut Budget) -> Result<(), OverBudget> {
        let mut at = 0;
        while at < text.len() {
            let mark = marks.next(at);
            self.copy(text, at..mark);
            at = match self.join_lines(text, mark) {
                Some(next) => next,
                None => self.add_marked(text, mark, budget)?,
            };
        }
        Ok(())
    }

    /// Adds text without marks.
    #[inline]
    fn copy(&mut self, text: &[u8], part: Range<usize>) {
        let length = self.length;
        for start in part.clone().step_by(COPIED) {
            let target = length + (start - part.start);
            match (text[start..].first_chunk::<COPIED>(), self.bytes[target..].first_chunk_mut::<COPIED>()) {
                (Some(source), Some(target)) => *target = *source,
                _ => {
                    let end = part.end.min(start + COPIED);
                    self.bytes[target..target + (end - start)].copy_from_slice(&text[start..end]);
                }
            }
        }
        self.length += part.len();
        self.origins.extend(part);
    }

    /// Leaves out the line end at `mark` if that is all there is to do: the same as [`Self::end_simple_line`] for a line
    /// end without blanks or backslashes around it. Returns where the next line begins. No escape may have begun.
    #[inline]
    fn join_lines(&mut self, text: &[u8], mark: usize) -> Option<usize> {
        let next = match text.get(mark..)? {
            [b'\\', b'n', ..] => mark + 2,
            [b'\n', ..] => mark + 1,
            _ => return None,
        };
        let is_simple = |byte: &u8| units::kind(*byte) != Kind::Mark && !is_left_out(*byte);
        let is_alone = self.lines == Lines::Joined
            && text.get(next).is_some_and(is_simple)
            && self.bytes[..self.length].last().is_some_and(is_simple);
        is_alone.then(|| {
            self.origins.gap(mark);
            self.deadline = 0;
            next
        })
    }

    /// Adds text from a mark on, until no escape has begun and the next byte is no mark. Returns where that is.
    #[inline]
    fn add_marked(&mut self, text: &[u8], mark: usize, budget: &mut Budget) -> Result<usize, OverBudget> {
        let mut at = mark;
        while let Some(byte) = text.get(at) {
            if self.length >= self.deadline && self.joined_at != self.length {
                if units::kind(*byte) != Kind::Mark {
                    break;
                }
                if let Some(next) = self.add_simple(text, at) {
                    at = next;
                    continue;
                }
            }
            budget.take_slow_step()?;
            at += self.add_at(text, at);
        }
        Ok(at)
    }

    /// Adds what a usual mark begins; returns where that ends. The same as adding it byte by byte.
    #[inline]
    fn add_simple(&mut self, text: &[u8], at: usize) -> Option<usize> {
        if let Some((byte, length)) = units::simple(&text[at..]) {
            if byte != 0 {
                self.put(byte, at);
            }
            return Some(at + length);
        }
        match text[at] {
            b'\n' => self.end_simple_line(text, at, at + 1),
            b'\\' => {
                let backslashes = count(&text[at..], b'\\');
                match *text.get(at + backslashes)? {
                    b'n' => self.end_simple_line(text, at, at + backslashes + 1),
                    // Each backslash is taken as the first half of an escape.
                    last @ (b'"' | b'\'' | b'/') => {
                        self.put(last, at);
                        Some(at + backslashes + 1)
                    }
                    _ => None,
                }
            }
            mark @ (b'%' | b'&') => {
                // Of marks in a row, only the last can be completed before the others.
                let marks = count(&text[at..], mark);
                (marks > self.last.len()).then(|| {
                    let copied = marks - self.last.len();
                    self.copy(text, at..at + copied);
                    at + copied
                })
            }
            _ => None,
        }
        .or_else(|| {
            let unit = units::usual(&text[at..])?;
            for byte in &unit.decoded[..unit.count] {
                self.put(*byte, at);
            }
            Some(at + unit.length)
        })
    }

    #[inline]
    fn put(&mut self, byte: u8, origin: usize) {
        self.bytes[self.length] = byte;
        self.length += 1;
        self.origins.push(origin);
    }

    /// Leaves out a line end with the blanks before it and the blanks and line ends after it. It begins at `at` and ends
    /// before `next`.
    #[inline]
    fn end_simple_line(&mut self, text: &[u8], at: usize, next: usize) -> Option<usize> {
        if self.lines == Lines::Kept || self.bytes[..self.length].last() == Some(&b'\\') {
            return None;
        }
        self.end_line(at);
        let mut next = next;
        while let Some(byte) = text.get(next) {
            next += match byte {
                b'\\' => {
                    let backslashes = count(&text[next..], b'\\');
                    match text.get(next + backslashes) {
                        Some(b'n') => backslashes + 1,
                        Some(b't' | b'r') if backslashes == 1 => 2,
                        _ => break,
                    }
                }
                byte if is_left_out(*byte) => 1,
                _ => break,
            };
        }
        if text.get(next).is_some_and(|byte| units::kind(*byte) != Kind::Mark) {
            self.joined_at = usize::MAX;
        }
        Some(next)
    }

    /// Adds the byte, the escape or the backslashes at `at`; returns how many bytes of text that were.
    #[inline]
    fn add_at(&mut self, text: &[u8], at: usize) -> usize {
        let byte = text[at];
        let follows_backslash = byte == b'\\' && self.bytes[..self.length].last() == Some(&b'\\');
        if byte == b'\\' && !follows_backslash && text.get(at + 1) == Some(&b'\\') {
            let backslashes = count(&text[at..], b'\\');
            self.add_backslashes(backslashes, at);
            self.shorten_deadline(b'\\', &text[at + backslashes..]);
            return backslashes;
        }
        // The same as adding its bytes one by one.
        if !(follows_backslash && self.escaped_backslash(0).is_some())
            && let Some(unit) = units::at_start(&text[at..])
        {
            for byte in &unit.decoded[..unit.count] {
                self.push(Added { byte: *byte, origin: at, layer: 1 });
            }
            if unit.count == 1 && units::kind(unit.decoded[0]) == Kind::Mark {
                self.shorten_deadline(unit.decoded[0], &text[at + unit.length..]);
            }
            return unit.length;
        }
        self.push(Added { byte, origin: at, layer: 0 });
        self.shorten_deadline(byte, &text[at + 1..]);
        1
    }

    /// After this mark was added: if the rest of the text cannot continue an escape, none has begun with it.
    #[inline]
    fn shorten_deadline(&mut self, mark: u8, rest: &[u8]) {
        if self.bytes[..self.length].last() == Some(&mark) && !units::may_continue(mark, rest) {
            self.deadline = self.last[(self.length - 1) % 16].deadline;
        }
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
        let length = self.length;
        let kind = units::kind(byte);
        if self.joined_at == length {
            if is_left_out(byte) {
                return;
            }
        } else if length >= self.deadline && kind != Kind::Mark {
            // No escape has begun.
            return self.put(byte, added.origin);
        }
        let before = &self.bytes[..length];
        let unit = match kind {
            _ if length >= self.deadline => None,
            Kind::Plain => None,
            Kind::Digit => units::numeric(before, byte),
            Kind::Mark if byte == b'\\' => self.escaped_backslash(added.layer),
            Kind::Letter => units::short(before, byte),
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
        let length = self.length;
        self.last[length % 16] = Recent { layer: added.layer, deadline: self.deadline };
        if kind == Kind::Mark {
            self.deadline = self.deadline.max(length + 1 + units::pending_after(added.byte));
        }
        self.put(added.byte, added.origin);
    }

    /// Leaves out a line end, and the blanks before it.
    #[inline]
    fn end_line(&mut self, origin: usize) {
        let without = |is_blank: fn(u8) -> bool| {
            self.length - self.bytes[..self.length].iter().rev().take_while(|byte| is_blank(**byte)).count()
        };
        let kept = match without(|byte| matches!(byte, b' ' | b'\t' | b'\r')) {
            // A backslash directly before a line end continues the line.
            all if all == self.length => without(|byte| byte == b'\\'),
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
        let last = self.length.checked_sub(1)?;
        (self.bytes[last] == b'\\' && self.last[last % 16].layer == layer).then(|| Unit::byte(2, b'\\'))
    }

    /// Puts what an escape decodes to in its place. Its last byte, of this layer, has not been added.
    fn replace(&mut self, unit: &Unit, layer: u8) {
        let start = self.length + 1 - unit.length;
        let layers = (start..self.length).map(|position| self.last[position % 16].layer);
        let layer = layers.fold(layer, u8::max).saturating_add(1);
        let origin = self.origins.at(start).unwrap_or_default();
        self.truncate(start);
        for byte in &unit.decoded[..unit.count] {
            self.push(Added { byte: *byte, origin, layer });
        }
    }

    fn truncate(&mut self, length: usize) {
        if length < self.length {
            self.deadline = self.last[length % 16].deadline;
            self.length = length;
            self.origins.truncate(length);
        }
    }
}

/// Whether the byte is left out at the beginning of a line: blanks, quotation marks and NUL bytes.
#[inline]
fn is_left_out(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b'>' | b'|' | b'#' | b'*' | 0)
}

/// How often the text begins with this byte.
#[inline]
fn count(text: &[u8], byte: u8) -> usize {
    text.iter().take_while(|next| **next == byte).count()
}

#[cfg(test)]
mod tests;
