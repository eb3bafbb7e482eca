//! Changes to a message that leave every other byte as it was.

use std::borrow::Cow;
use std::ops::Range;

use super::elements;

/// `message` with the bytes at `span` replaced by `with`.
pub fn replace(message: &[u8], span: Range<usize>, with: &[u8]) -> Vec<u8> {
    [&message[..span.start], with, &message[span.end..]].concat()
}

/// `message` without the elements of the array at `array` that `keep` rejects.
///
/// A kept element keeps the bytes before it, so that an array without removed elements is unchanged.
pub fn remove_elements(
    message: &[u8],
    array: Range<usize>,
    mut keep: impl FnMut(Range<usize>) -> bool,
) -> Cow<'_, [u8]> {
    let all = elements(message, array);
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return Cow::Borrowed(message) };
    let kept: Vec<bool> = all.iter().map(|element| keep(element.clone())).collect();
    if kept.iter().all(|kept| *kept) {
        return Cow::Borrowed(message);
    }
    let mut edited = Vec::with_capacity(message.len());
    edited.extend_from_slice(&message[..first.start]);
    let staying = all.iter().enumerate().filter(|(index, _)| kept[*index]);
    for (written, (index, element)) in staying.enumerate() {
        let separator = if written == 0 { element.start } else { all[index - 1].end };
        edited.extend_from_slice(&message[separator..element.end]);
    }
    edited.extend_from_slice(&message[last.end..]);
    Cow::Owned(edited)
}

/// A valid message as exactly one line, for every runtime that may read it.
///
/// Runtimes differ in where lines end: besides LF some split at CR, U+0085, U+2028 and U+2029. Raw CR and LF can only
/// be white space between tokens and become spaces; the others can only be inside strings and become escapes. The
/// further candidates (U+000B, U+000C, U+001C to U+001E) are control characters, which valid JSON cannot contain raw.
pub fn line_safe(message: &[u8]) -> Cow<'_, [u8]> {
    let Some((mut at, mut unsafe_part)) = next_line_end(message, 0) else { return Cow::Borrowed(message) };
    let mut line = Vec::with_capacity(message.len() + 64);
    let mut copied = 0;
    loop {
        line.extend_from_slice(&message[copied..at]);
        line.extend_from_slice(unsafe_part.safe);
        copied = at + unsafe_part.length;
        match next_line_end(message, copied) {
            Some(next) => (at, unsafe_part) = next,
            None => break,
        }
    }
    line.extend_from_slice(&message[copied..]);
    Cow::Owned(line)
}

/// A character that some runtime takes for a line end, and its replacement.
struct LineEnd {
    length: usize,
    safe: &'static [u8],
}

fn next_line_end(message: &[u8], mut at: usize) -> Option<(usize, LineEnd)> {
    loop {
        at = candidate(message, at)?;
        let found = match message[at..] {
            [b'\n' | b'\r', ..] => Some(LineEnd { length: 1, safe: b" " }),
            [0xC2, 0x85, ..] => Some(LineEnd { length: 2, safe: b"\\u0085" }),
            [0xE2, 0x80, 0xA8, ..] => Some(LineEnd { length: 3, safe: b"\\u2028" }),
            [0xE2, 0x80, 0xA9, ..] => Some(LineEnd { length: 3, safe: b"\\u2029" }),
            _ => None,
        };
        match found {
            Some(line_end) => return Some((at, line_end)),
            None => at += 1,
        }
    }
}

/// The next byte that can begin a line end.
fn candidate(message: &[u8], at: usize) -> Option<usize> {
    let at = at + clear::<64>(&message[at..]);
    let at = at + clear::<16>(&message[at..]);
    let rest = &message[at..];
    // Almost no message has a candidate: fewer than 16 last bytes are tested in one chunk with the bytes before them.
    if rest.len() < 16 && message.last_chunk::<16>().is_some_and(is_clear) {
        return None;
    }
    rest.iter().position(|byte| begins_line_end(*byte) != 0).map(|found| at + found)
}

/// How many bytes at the beginning, in whole chunks, cannot begin a line end.
fn clear<const CHUNK: usize>(message: &[u8]) -> usize {
    let (chunks, _) = message.as_chunks::<CHUNK>();
    CHUNK * chunks.iter().take_while(|chunk| is_clear(chunk)).count()
}

/// Whether no byte can begin a line end. There is no early exit, so the compiler vectorises the loop.
fn is_clear<const CHUNK: usize>(chunk: &[u8; CHUNK]) -> bool {
    chunk.iter().fold(0, |found, byte| found | begins_line_end(*byte)) == 0
}

/// 1 for the first byte of a line end, otherwise 0.
fn begins_line_end(byte: u8) -> u8 {
    u8::from(byte == b'\n') | u8::from(byte == b'\r') | u8::from(byte == 0xC2) | u8::from(byte == 0xE2)
}
