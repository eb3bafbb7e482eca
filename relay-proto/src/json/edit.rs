//! Changes to a message that leave every other byte as it was.

use std::borrow::Cow;
use std::ops::Range;

use super::elements;

/// `message` with the bytes at `span` replaced.
pub fn replace(message: &[u8], span: Range<usize>, replacement: &[u8]) -> Vec<u8> {
    [&message[..span.start], replacement, &message[span.end..]].concat()
}

/// `message` without the elements of the array at `array` that `keep` rejects.
///
/// Each remaining element but the first is copied with the comma and white space before it.
pub fn remove_elements(
    message: &[u8],
    array: Range<usize>,
    mut keep: impl FnMut(Range<usize>) -> bool,
) -> Cow<'_, [u8]> {
    let spans = elements(message, array);
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else { return Cow::Borrowed(message) };
    let kept: Vec<bool> = spans.iter().map(|element| keep(element.clone())).collect();
    if kept.iter().all(|kept| *kept) {
        return Cow::Borrowed(message);
    }
    let mut edited = Vec::with_capacity(message.len());
    edited.extend_from_slice(&message[..first.start]);
    let remaining = spans.iter().enumerate().filter(|(index, _)| kept[*index]);
    for (written, (index, element)) in remaining.enumerate() {
        let start = if written == 0 { element.start } else { spans[index - 1].end };
        edited.extend_from_slice(&message[start..element.end]);
    }
    edited.extend_from_slice(&message[last.end..]);
    Cow::Owned(edited)
}

/// Returns a valid message as exactly one line for every language runtime that may read it.
///
/// Language runtimes differ in where lines end: besides LF some split at CR, U+0085, U+2028 and U+2029. Raw CR and LF
/// can only be white space between tokens and become spaces; the others can only be inside strings and become escapes.
/// Other line ends of some runtimes (U+000B, U+000C, U+001C to U+001E) are control characters, which valid JSON cannot
/// contain raw.
pub fn line_safe(message: &[u8]) -> Cow<'_, [u8]> {
    let Some((mut at, mut line_end)) = next_line_end(message, 0) else { return Cow::Borrowed(message) };
    let mut line = Vec::with_capacity(message.len() + 64);
    let mut copied = 0;
    loop {
        line.extend_from_slice(&message[copied..at]);
        line.extend_from_slice(line_end.replacement);
        copied = at + line_end.length;
        match next_line_end(message, copied) {
            Some(next) => (at, line_end) = next,
            None => break,
        }
    }
    line.extend_from_slice(&message[copied..]);
    Cow::Owned(line)
}

/// A character that some runtime treats as a line end: its length in bytes, and its replacement.
struct LineEnd {
    length: usize,
    replacement: &'static [u8],
}

fn next_line_end(message: &[u8], mut at: usize) -> Option<(usize, LineEnd)> {
    loop {
        at = next_candidate(message, at)?;
        let found = match message[at..] {
            [b'\n' | b'\r', ..] => Some(LineEnd { length: 1, replacement: b" " }),
            [0xC2, 0x85, ..] => Some(LineEnd { length: 2, replacement: b"\\u0085" }),
            [0xE2, 0x80, 0xA8, ..] => Some(LineEnd { length: 3, replacement: b"\\u2028" }),
            [0xE2, 0x80, 0xA9, ..] => Some(LineEnd { length: 3, replacement: b"\\u2029" }),
            _ => None,
        };
        match found {
            Some(line_end) => return Some((at, line_end)),
            None => at += 1,
        }
    }
}

/// The position of the next byte that can begin a line end.
fn next_candidate(message: &[u8], at: usize) -> Option<usize> {
    let at = at + clean_prefix_len::<64>(&message[at..]);
    let at = at + clean_prefix_len::<16>(&message[at..]);
    let rest = &message[at..];
    // Usually nothing is found. A rest of less than 16 bytes is tested together with the bytes before it, as one chunk.
    if rest.len() < 16 && message.last_chunk::<16>().is_some_and(is_clean) {
        return None;
    }
    rest.iter().position(|byte| may_begin_line_end(*byte) != 0).map(|found| at + found)
}

/// The length of the prefix, in whole chunks, in which no byte can begin a line end.
fn clean_prefix_len<const CHUNK: usize>(message: &[u8]) -> usize {
    let (chunks, _) = message.as_chunks::<CHUNK>();
    CHUNK * chunks.iter().take_while(|chunk| is_clean(chunk)).count()
}

/// Whether no byte can begin a line end. There is no early exit, so the compiler vectorises the loop.
fn is_clean<const CHUNK: usize>(chunk: &[u8; CHUNK]) -> bool {
    chunk.iter().fold(0, |found, byte| found | may_begin_line_end(*byte)) == 0
}

/// 1 if the byte can be the first of a line end, otherwise 0.
fn may_begin_line_end(byte: u8) -> u8 {
    u8::from(byte == b'\n') | u8::from(byte == b'\r') | u8::from(byte == 0xC2) | u8::from(byte == 0xE2)
}
