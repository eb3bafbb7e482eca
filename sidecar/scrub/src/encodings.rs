//! The byte patterns that are searched for to find a value: the value in each of these encodings.
//!
//! Plain; base64 and base64url at each of the three alignments, also when wrapped into lines; hexadecimal in any case;
//! with `+` for spaces, as in forms; and the lines of a value that has several. JSON escapes and percent-encoding are
//! not listed, since there are too many ways to use them: they are decoded before the search (see `views`).

use cofferdam_base::text::hex_digits;
use zeroize::Zeroizing;

/// Shorter lines and encoded forms would also match by chance.
const MIN_LENGTH: usize = 8;

/// A value in one encoding.
pub(super) struct Pattern {
    pub(super) bytes: Zeroizing<Vec<u8>>,
    pub(super) case: Case,
    pub(super) reach: Reach,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum Case {
    /// Hexadecimal digits mean the same in upper and lower case.
    Any,
    Exact,
}

/// Which bytes around a match are removed too.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reach {
    /// Adjacent base64 letters, which contain some bits of the value and some of the bytes next to it.
    Letters {
        before: usize,
        after: usize,
    },
    Nothing,
    /// All adjacent base64 letters, across line ends, up to the length of a line.
    WrappedLine,
}

/// The patterns of `value` without white space around it: text that contains the value also contains the trimmed value.
pub(super) fn patterns_of(value: &[u8]) -> Vec<Pattern> {
    let value = value.trim_ascii();
    if value.is_empty() {
        return Vec::new();
    }
    let exact =
        |bytes: Vec<u8>| Pattern { bytes: Zeroizing::new(bytes), case: Case::Exact, reach: Reach::Nothing };
    let mut patterns = vec![exact(value.to_vec())];
    if value.contains(&b' ') {
        patterns.push(exact(value.iter().map(|byte| if *byte == b' ' { b'+' } else { *byte }).collect()));
    }
    patterns.extend(lines(value).map(|line| exact(line.to_vec())));
    let hexadecimal = Zeroizing::new(value.iter().flat_map(|byte| hex_digits(*byte)).collect());
    patterns.push(Pattern { bytes: hexadecimal, case: Case::Any, reach: Reach::Nothing });
    for alphabet in [STANDARD, URL_SAFE] {
        for before in 0..3 {
            add_base64(value, before, alphabet, &mut patterns);
        }
    }
    let plain = patterns.swap_remove(0);
    patterns.retain(|pattern| pattern.bytes.len() >= MIN_LENGTH);
    patterns.insert(0, plain);
    patterns
}

/// Whether removing the lines of a value one by one leaves fewer than [`MIN_LENGTH`] bytes of it. True for a single
/// line.
pub(super) fn is_found_by_its_lines(value: &[u8]) -> bool {
    let short = value.split(|byte| *byte == b'\n').filter(|line| !is_pem_boundary(line) && !is_long(line));
    !value.contains(&b'\n') || short.map(|line| line.len() + 1).sum::<usize>() < MIN_LENGTH
}

/// The lines of a value that has several.
fn lines(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let several = value.contains(&b'\n');
    value
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(move |line| several && is_long(line) && !is_pem_boundary(line))
}

fn is_long(line: &[u8]) -> bool {
    line.trim_ascii().len() >= MIN_LENGTH
}

/// `-----BEGIN PRIVATE KEY-----` is no secret, and occurs in many texts without one.
fn is_pem_boundary(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    line.starts_with(b"-----") && line.ends_with(b"-----")
}

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL_SAFE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Adds the base64 letters that depend on `value` alone when `before` other bytes (modulo three) precede it.
fn add_base64(value: &[u8], before: usize, alphabet: &[u8; 64], patterns: &mut Vec<Pattern>) {
    /// Each line of a wrapped text, 64 or 76 letters long, contains a whole block of this size.
    const BLOCK: usize = 32;
    let (start, end) = (before * 8, (before + value.len()) * 8);
    let letters: Zeroizing<Vec<u8>> = Zeroizing::new(
        (start.div_ceil(6)..end / 6)
            .map(|letter| {
                let bit = letter * 6 - start;
                let next = value.get(bit / 8 + 1).copied().unwrap_or_default();
                let pair = u16::from_be_bytes([value[bit / 8], next]);
                alphabet[usize::from(pair >> (10 - bit % 8) & 63)]
            })
            .collect(),
    );
    if letters.len() > 2 * BLOCK {
        for block in letters.chunks_exact(BLOCK) {
            let bytes = Zeroizing::new(block.to_vec());
            patterns.push(Pattern { bytes, case: Case::Exact, reach: Reach::WrappedLine });
        }
    }
    let shared = |bit: usize| usize::from(!bit.is_multiple_of(6));
    let reach = Reach::Letters { before: shared(start), after: shared(end) };
    patterns.push(Pattern { bytes: letters, case: Case::Exact, reach });
}
