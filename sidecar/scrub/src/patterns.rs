//! What is searched for to find a value: its bytes, and the symbols that stand for them in base64, base32 and hexadecimal.
//!
//! | pattern | searched for in |
//! |---|---|
//! | the value; its normal form; its lines, if it has several; with `+` for spaces, as in forms | text as it is, and in its normal form |
//! | its text without escapes, if its normal form is too short | text without escapes |
//! | its normal form after a backslash or percent sign that takes its first bytes | the same |
//! | a value that is not UTF-8: each byte as a character, and with U+FFFD for what is invalid | the same |
//! | a value with other characters than ASCII: in UTF-16, without NUL bytes | the same |
//! | its symbols, at each alignment, unless it is found in the text that they encode | symbols |

use std::collections::HashSet;

use zeroize::Zeroizing;

use super::decoded::{SHORTEST, is_text};
use super::entropy::Entropy;
use super::normal::{normal_form_of, value_without_escapes};
use super::symbols::Coding;

/// Shorter lines and encoded forms would also match by chance.
const MIN_LENGTH: usize = 8;

/// The same for a value that contains an escape itself, such as `%a0`, which is decoded with those of the text.
const MIN_WITHOUT_ESCAPES: usize = 6;

/// A value in one form.
pub(super) struct Pattern {
    pub(super) place: Place,
    pub(super) bytes: Zeroizing<Vec<u8>>,
    pub(super) reach: Reach,
}

/// Where a pattern is searched for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    Symbols(Coding),
    Text,
    /// Text without escapes, whose lines are not joined.
    TextInLines,
}

/// How many symbols before and after a match also contain bits of the value.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Reach {
    pub(super) before: usize,
    pub(super) after: usize,
}

/// What of a value could be found by guessing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Guessable {
    Value,
    /// A line of it, or what is left of it when its escapes are decoded.
    Part,
}

impl Guessable {
    /// `None` if this value is searched for in what every server sends.
    pub fn of(value: &[u8]) -> Option<Self> {
        match Entropy::of(value) {
            Entropy::Low => Some(Self::Value),
            Entropy::Enough => {
                let patterns = patterns_of(value);
                patterns.iter().any(|pattern| pattern.entropy() == Entropy::Low).then_some(Self::Part)
            }
        }
    }
}

impl Pattern {
    /// Whether the text that is searched for could be found by guessing. Symbols stand for a whole value.
    pub(super) fn entropy(&self) -> Entropy {
        match self.place {
            Place::Text | Place::TextInLines => Entropy::of(&self.bytes),
            Place::Symbols(_) => Entropy::Enough,
        }
    }
}

/// The patterns of `value` without white space around it: text that contains the value also contains the trimmed value.
pub(super) fn patterns_of(value: &[u8]) -> Vec<Pattern> {
    let value = value.trim_ascii();
    if value.is_empty() {
        return Vec::new();
    }
    let mut texts: Vec<Zeroizing<Vec<u8>>> = Vec::new();
    let mut add = |bytes: Vec<u8>| texts.push(Zeroizing::new(bytes));
    let normal = Zeroizing::new(normal_form_of(value));
    add(normal.to_vec());
    after_a_mark(&normal).into_iter().flatten().for_each(&mut add);
    // A backslash at its end may belong to what follows.
    add(normal[..normal.iter().rposition(|byte| *byte != b'\\').map_or(0, |last| last + 1)].to_vec());
    // Each backslash may be taken for the first half of an escape that follows it.
    for text in [&normal[..], value] {
        add(text.iter().copied().filter(|byte| *byte != b'\\').collect());
    }
    // At the beginning of a line, a quotation mark that the value begins with is left out.
    add(normal_form_of(&Zeroizing::new([b"\n", &normal[..]].concat())));
    if normal.len() < MIN_LENGTH {
        json_escaped(value).into_iter().for_each(&mut add);
    }
    if value.contains(&b' ') {
        add(value.iter().map(|byte| if *byte == b' ' { b'+' } else { *byte }).collect());
    }
    for line in lines(value) {
        add(line.to_vec());
        add(normal_form_of(line));
    }
    match std::str::from_utf8(value) {
        Err(_) => {
            add(value.iter().map(|byte| char::from(*byte)).collect::<String>().into_bytes());
            add(String::from_utf8_lossy(value).into_owned().into_bytes());
        }
        Ok(text) if !text.is_ascii() => {
            let without_nul = |units: Vec<[u8; 2]>| {
                let bytes = Zeroizing::new(units.concat());
                bytes.iter().copied().filter(|byte| *byte != 0).collect::<Vec<u8>>()
            };
            add(without_nul(text.encode_utf16().map(u16::to_le_bytes).collect()));
            add(without_nul(text.encode_utf16().map(u16::to_be_bytes).collect()));
        }
        Ok(_) => {}
    }
    texts.retain(|bytes| bytes.len() >= MIN_LENGTH);
    texts.insert(0, Zeroizing::new(value.to_vec()));
    let mut seen = HashSet::new();
    let first: Vec<bool> = texts.iter().map(|bytes| seen.insert(bytes.as_slice())).collect();
    let mut first = first.into_iter();
    texts.retain(|_| first.next().unwrap_or(true));
    let text = |bytes| Pattern { place: Place::Text, bytes, reach: Reach::default() };
    let encoded = Coding::ALL.into_iter().flat_map(|coding| encoded(value, coding));
    let in_lines = |bytes| Pattern { place: Place::TextInLines, bytes, reach: Reach::default() };
    let is_short = normal.len() < MIN_LENGTH;
    let lines = Some(Zeroizing::new(value_without_escapes(value).unwrap_or_default()))
        .filter(|bytes| is_short && bytes.len() >= MIN_WITHOUT_ESCAPES);
    texts.into_iter().map(text).chain(lines.map(in_lines)).chain(encoded).collect()
}

/// Whether removing the lines of a value one by one leaves fewer than [`MIN_LENGTH`] bytes of it. True for a single
/// line.
pub(super) fn is_found_by_its_lines(value: &[u8]) -> bool {
    let short = value.split(|byte| *byte == b'\n').filter(|line| !is_pem_boundary(line) && !is_long(line));
    !value.contains(&b'\n') || short.map(|line| line.len() + 1).sum::<usize>() < MIN_LENGTH
}

/// Whether the texts that are decoded contain this value wherever it is encoded: it is ASCII and long enough.
pub(super) fn is_found_decoded(value: &[u8]) -> bool {
    value.len() >= SHORTEST && value.iter().all(|byte| byte.is_ascii() && is_text(*byte))
}

/// The symbols that depend on `value` alone, for each number of bytes before it that makes a difference.
fn encoded(value: &[u8], coding: Coding) -> impl Iterator<Item = Pattern> {
    let bits = coding.bits();
    let alignments = match coding {
        Coding::Base32 => 5,
        Coding::Base64 => 3,
        Coding::Hexadecimal => 1,
    };
    let pattern = move |before: usize| {
        let (start, end) = (before * 8, (before + value.len()) * 8);
        let number = |symbol: usize| {
            let bit = symbol * bits - start;
            let next = value.get(bit / 8 + 1).copied().unwrap_or_default();
            let pair = u16::from_be_bytes([value[bit / 8], next]);
            (pair << (bit % 8) >> (16 - bits)) as u8
        };
        let bytes = Zeroizing::new((start.div_ceil(bits)..end / bits).map(number).collect());
        let shared = |bit: usize| usize::from(!bit.is_multiple_of(bits));
        let reach = Reach { before: shared(start), after: shared(end) };
        Pattern { place: Place::Symbols(coding), bytes, reach }
    };
    (0..alignments).map(pattern).filter(|pattern| pattern.bytes.len() >= MIN_LENGTH)
}

/// The value as it is in the normal form of text in which a backslash or a percent sign stands before it.
fn after_a_mark(value: &[u8]) -> [Option<Vec<u8>>; 2] {
    let after = |mark: &str, decoded: usize| {
        let text = Zeroizing::new([mark.as_bytes(), value].concat());
        // What decodes to a line end or NUL byte is left out. The rest alone would also be found elsewhere.
        Some(normal_form_of(&text)).filter(|normal| normal.len() + decoded == value.len())
    };
    [after("\\", 0), after("%", 1)]
}

/// A value whose normal form would match by chance, as it is in JSON, in JSON in JSON, and so on.
fn json_escaped(value: &[u8]) -> Vec<Vec<u8>> {
    let Ok(value) = std::str::from_utf8(value) else { return Vec::new() };
    let escape = |text: &String| {
        let string = serde_json::Value::from(text.as_str()).to_string();
        Some(string[1..string.len() - 1].to_owned())
    };
    std::iter::successors(Some(value.to_owned()), escape).skip(1).take(3).map(String::into_bytes).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Needle, Scrubber};

    fn needle(value: &[u8]) -> Needle {
        Needle { label: "a.b".into(), value: Zeroizing::new(value.to_vec()) }
    }

    #[test]
    fn a_value_is_as_guessable_as_its_lines_and_its_decoded_text() {
        for (value, guessable) in [
            ("73519824", Some(Guessable::Value)),
            ("73519824\n46028135\n90817263\n", Some(Guessable::Part)),
            ("ghp_0123456789abcdef\n46028135", Some(Guessable::Part)),
            ("%39%30%38%31%37%32%36%34", Some(Guessable::Part)),
            ("7351982436\n4602813598\n", None),
            (
                "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG\n9w0BAQ==\n-----END PRIVATE KEY-----\n",
                None,
            ),
            ("ghp_0123456789abcdef", None),
            ("p\"ss\\w%rd & <co> 12", None),
        ] {
            assert_eq!(Guessable::of(value.as_bytes()), guessable, "{value}");
        }
    }
    #[test]
    fn a_value_of_line_ends_is_found_as_json_escapes_it() {
        let scrubber = Scrubber::new(vec![needle(b"a\n\n\nb")]);
        for text in [&b"x a\n\n\nb"[..], br"x a\n\n\nb", br"x a\\n\\n\\nb", br"x a\\\\n\\\\n\\\\nb"] {
            assert_eq!(&*scrubber.text(text).bytes, b"x [redacted:a.b]", "{}", text.escape_ascii());
        }
    }

    #[test]
    fn what_is_left_of_a_value_without_its_escapes_is_searched_for_if_it_is_long_enough() {
        for (value, text, redactions) in [
            ("%61%62%63", "%61bc", 0),
            ("%61%62%63%64%65", "%61bcde", 0),
            ("%61%62%63%64%65%66", "%61bcdef", 1),
        ] {
            let scrubber = Scrubber::new(vec![needle(value.as_bytes())]);
            assert_eq!(scrubber.text(format!("in {text} out").as_bytes()).redactions, redactions, "{value}");
        }
    }

    #[test]
    fn a_value_is_found_after_a_mark_that_takes_its_first_bytes() {
        for (value, text) in [("41abcdefgh", "%41abcd%65fgh"), ("tabcdefgh", r"\tabcd%65fgh")] {
            let scrubber = Scrubber::new(vec![needle(value.as_bytes())]);
            assert_eq!(scrubber.text(text.as_bytes()).redactions, 1, "{text}");
        }
    }

    #[test]
    fn short_lines_may_leave_seven_bytes_of_a_value() {
        assert!(is_found_by_its_lines(b"line-one\nabc\nde"));
        assert!(!is_found_by_its_lines(b"line-one\nabc\ndef"));
    }

    #[test]
    fn a_value_with_other_characters_than_ascii_is_found_in_utf16() {
        let value = "пароль-1234";
        let scrubber = Scrubber::new(vec![needle(value.as_bytes())]);
        for bytes_of in [u16::to_le_bytes, u16::to_be_bytes] {
            let text: Vec<u8> = value.encode_utf16().flat_map(bytes_of).collect();
            assert_eq!(scrubber.text(&text).redactions, 1, "{}", text.escape_ascii());
        }
    }
}
