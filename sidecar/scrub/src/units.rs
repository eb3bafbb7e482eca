//! The escapes that text is freed of: what they look like and what they stand for.
//!
//! An escape is recognised at its last byte, by looking at the bytes before it.

use super::classes::{BLOCK, Classes};

/// What a byte may be in an escape.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Plain,
    /// A hexadecimal digit, which may end a numeric escape. (`b` and `f` may also end a short one.)
    Digit,
    /// May end a short escape, such as `\n`, or an entity.
    Letter,
    /// Begins an escape, or is a line end or NUL byte.
    Mark,
}

/// An escape: how many bytes of text it has, and the bytes that it stands for.
pub(super) struct Unit {
    pub(super) length: usize,
    pub(super) decoded: [u8; 4],
    pub(super) count: usize,
}

impl Unit {
    pub(super) fn byte(length: usize, byte: u8) -> Self {
        Self { length, decoded: [byte, 0, 0, 0], count: 1 }
    }

    fn character(length: usize, character: char) -> Self {
        let mut decoded = [0; 4];
        let count = character.encode_utf8(&mut decoded).len();
        Self { length, decoded, count }
    }
}

/// The longest entity, without its semicolon: `&#1114111`.
const LONGEST_ENTITY: usize = 9;

const KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Plain; 256];
    let mut byte = 0;
    while byte < 256 {
        kinds[byte] = match byte as u8 {
            b'\\' | b'%' | b'&' | b'\n' | 0 => Kind::Mark,
            b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F' => Kind::Digit,
            b'"' | b'\'' | b'/' | b'n' | b'r' | b't' | b';' => Kind::Letter,
            _ => Kind::Plain,
        };
        byte += 1;
    }
    kinds
};

#[inline]
pub(super) fn kind(byte: u8) -> Kind {
    KINDS[byte as usize]
}

/// The bytes of a text that begin an escape or are left out of a normal form.
pub(super) struct Marks<'a> {
    text: &'a [u8],
    blocks: &'a [u64],
}

impl<'a> Marks<'a> {
    pub(super) fn new(text: &'a [u8], classes: &'a Classes) -> Self {
        Self { text, blocks: classes.marks() }
    }

    /// The next one from `at` on; the end of the text if there is none.
    #[inline]
    pub(super) fn next(&self, at: usize) -> usize {
        let mut number = at / BLOCK;
        let Some(block) = self.blocks.get(number) else { return self.text.len() };
        let mut bits = block & u64::MAX << (at % BLOCK);
        while bits == 0 {
            number += 1;
            let Some(block) = self.blocks.get(number) else { return self.text.len() };
            bits = *block;
        }
        number * BLOCK + bits.trailing_zeros() as usize
    }
}

/// How many bytes may follow this mark until the end of the escape that it begins.
pub(super) fn pending_after(mark: u8) -> usize {
    match mark {
        b'\\' => 5,
        b'%' => 2,
        b'&' => LONGEST_ENTITY,
        _ => 0,
    }
}

/// Whether this mark may begin an escape that continues with this text, as far as its first two bytes tell. Another mark
/// in it may decode to anything.
#[inline]
pub(super) fn may_continue(mark: u8, text: &[u8]) -> bool {
    let is_mark = |byte: u8| kind(byte) == Kind::Mark;
    let is_hexadecimal = |byte: u8| byte.is_ascii_hexdigit() || is_mark(byte);
    let second =
        |is_possible: fn(u8) -> bool| text.get(1).is_none_or(|byte| is_possible(*byte) || is_mark(*byte));
    let Some(first) = text.first().copied() else { return true };
    if is_mark(first) {
        return true;
    }
    match mark {
        b'\\' => match first {
            b'u' | b'x' => text.get(1).is_none_or(|byte| is_hexadecimal(*byte)),
            b'b' | b'f' | b'n' | b'r' | b't' | b'"' | b'\'' | b'/' => true,
            _ => false,
        },
        b'%' => first.is_ascii_hexdigit() && text.get(1).is_none_or(|byte| is_hexadecimal(*byte)),
        b'&' => match first {
            b'#' => true,
            b'a' => second(|byte| matches!(byte, b'm' | b'p')),
            b'g' | b'l' => second(|byte| byte == b't'),
            b'q' => second(|byte| byte == b'u'),
            _ => false,
        },
        _ => true,
    }
}

/// The escape at the beginning of `text`, if it is a usual one that stands for a byte of ASCII which begins no escape and
/// is no line end: that byte and the length of the escape.
#[inline]
pub(super) fn simple(text: &[u8]) -> Option<(u8, usize)> {
    let (byte, length) = match text {
        // Percent signs that are encoded themselves: `%252541`.
        [b'%', b'2', b'5', rest @ ..] => {
            let (pairs, _) = rest.as_chunks::<2>();
            let signs = pairs.iter().take_while(|pair| *pair == b"25").count();
            let [high, low] = *pairs.get(signs)?;
            (byte_or_no_ascii(high, low), 5 + 2 * signs)
        }
        [b'%', high, low, ..] => (byte_or_no_ascii(*high, *low), 3),
        [b'\\', b'u', b'0', b'0', high, low, ..] => (byte_or_no_ascii(*high, *low), 6),
        [b'\\', b'x', high, low, ..] => (byte_or_no_ascii(*high, *low), 4),
        [b'\\', b'r', ..] => (b'\r', 2),
        [b'\\', b't', ..] => (b'\t', 2),
        [b'\\', last @ (b'"' | b'\'' | b'/'), ..] => (*last, 2),
        [b'&', b'#', first, second, b';', ..] if first.is_ascii_digit() && second.is_ascii_digit() => {
            ((first - b'0') * 10 + (second - b'0'), 5)
        }
        _ => return None,
    };
    (byte < 0x80 && (kind(byte) != Kind::Mark || byte == 0)).then_some((byte, length))
}

/// What the mark at the beginning of `text` and what follows it stand for, if that needs no more than a look at the next
/// bytes and begins no other escape: an escape of another character than ASCII, an entity, or a mark that begins none.
pub(super) fn usual(text: &[u8]) -> Option<Unit> {
    let begins_no_escape = |unit: &Unit| kind(unit.decoded[0]) != Kind::Mark;
    let (&mark, rest) = text.split_first()?;
    let unit = match mark {
        b'%' => {
            let (pairs, _) = rest.as_chunks::<2>();
            let signs = pairs.iter().take_while(|pair| *pair == b"25").count();
            let decoded = pairs.get(signs).and_then(|[high, low]| byte(*high, *low));
            decoded.map(|decoded| Unit::byte(3 + 2 * signs, decoded)).filter(begins_no_escape)
        }
        b'\\' => {
            let backslashes = 1 + rest.iter().take_while(|byte| **byte == b'\\').count();
            match &text[backslashes..] {
                [b'u', b'0', b'0', b'2', b'6', rest @ ..] if backslashes == 1 => {
                    ampersand(rest).map(|unit| Unit { length: unit.length + 5, ..unit })
                }
                // What remains of two or four backslashes is one.
                after if backslashes.is_power_of_two() => match after {
                    [b'u', ..] => character(after)
                        .map(|(character, length)| Unit::character(backslashes + length, character))
                        .filter(begins_no_escape),
                    [b'b' | b'f' | b'r' | b't' | b'x', ..] => at_start(&text[backslashes - 1..])
                        .map(|unit| Unit { length: backslashes - 1 + unit.length, ..unit })
                        .filter(begins_no_escape),
                    _ => (!may_continue(b'\\', after)).then(|| Unit::byte(backslashes, b'\\')),
                },
                _ => None,
            }
        }
        b'&' => ampersand(rest),
        _ => None,
    };
    unit.or_else(|| (!may_continue(mark, rest)).then(|| Unit::byte(1, mark)))
}

/// The entity that an ampersand before this text begins, however often that ampersand is escaped as one; or the ampersand,
/// if none of the next bytes may be part of an entity.
fn ampersand(text: &[u8]) -> Option<Unit> {
    let mut escaped = 0;
    while text[escaped..].starts_with(b"amp;") {
        escaped += 4;
    }
    let rest = &text[escaped..];
    let near = &rest[..rest.len().min(LONGEST_ENTITY)];
    if let Some(end) = near.iter().position(|byte| *byte == b';')
        && let Some(unit) = entity_named(&near[..end], 0)
    {
        let unit = Unit { length: 1 + escaped + end + 1, ..unit };
        return (kind(unit.decoded[0]) != Kind::Mark).then_some(unit);
    }
    // A mark may decode to the rest of an entity.
    let mark = near.iter().position(|byte| kind(*byte) == Kind::Mark);
    let may_continue = mark.is_some_and(|mark| may_begin_entity(&near[..mark]));
    (!may_continue).then(|| Unit::byte(1 + escaped, b'&'))
}

/// Whether the name or number of an entity may begin with these bytes.
fn may_begin_entity(bytes: &[u8]) -> bool {
    match bytes {
        [b'#', b'x' | b'X', digits @ ..] => digits.iter().all(u8::is_ascii_hexdigit),
        [b'#', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => [&b"amp"[..], b"apos", b"gt", b"lt", b"quot"].iter().any(|name| name.starts_with(bytes)),
    }
}

/// The character of `u0041` or of a surrogate pair at the beginning of this text, and its length.
fn character(text: &[u8]) -> Option<(char, usize)> {
    let [b'u', digits @ ..] = text else { return None };
    match code(*digits.first_chunk()?)? {
        first @ 0xD800..0xDC00 => {
            let [b'\\', b'u', digits @ ..] = digits.get(4..10)? else { return None };
            let second = code(*digits.first_chunk()?)?;
            let code = 0x1_0000 + ((first - 0xD800) << 10) + second.checked_sub(0xDC00)?;
            char::from_u32(code).filter(|_| second < 0xE000).map(|character| (character, 11))
        }
        code => char::from_u32(code).map(|character| (character, 5)),
    }
}

/// The escape at the beginning of `text`, if it is a usual one. The first half of a surrogate pair is none.
#[inline]
pub(super) fn at_start(text: &[u8]) -> Option<Unit> {
    match text {
        [b'%', high, low, ..] => Some(Unit::byte(3, byte(*high, *low)?)),
        [b'\\', b'u', digits @ ..] => {
            let code = code(*digits.first_chunk()?)?;
            char::from_u32(code).map(|character| Unit::character(6, character))
        }
        [b'\\', b'x', high, low, ..] => Some(Unit::byte(4, byte(*high, *low)?)),
        [b'\\', b'b', ..] => Some(Unit::byte(2, 8)),
        [b'\\', b'f', ..] => Some(Unit::byte(2, 12)),
        [b'\\', last, ..] => short(b"\\", *last),
        _ => None,
    }
}

/// The numeric escape, or `\b` or `\f`, that `before` followed by this digit is.
#[inline]
pub(super) fn numeric(before: &[u8], digit: u8) -> Option<Unit> {
    match before {
        [.., b'\\'] => match digit {
            b'b' => Some(Unit::byte(2, 8)),
            b'f' => Some(Unit::byte(2, 12)),
            _ => None,
        },
        [.., b'%', high] => Some(Unit::byte(3, byte(*high, digit)?)),
        [.., b'\\', b'x', high] => Some(Unit::byte(4, byte(*high, digit)?)),
        [.., b'\\', b'u', first, second, third] => match code([*first, *second, *third, digit])? {
            // The first half of a pair stays as it is until the second half has come.
            0xD800..0xDC00 => None,
            second @ 0xDC00..0xE000 => {
                let first = first_half(&before[..before.len() - 5])?;
                let code = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
                char::from_u32(code).map(|character| Unit::character(12, character))
            }
            code => char::from_u32(code).map(|character| Unit::character(6, character)),
        },
        _ => None,
    }
}

/// The escape of two bytes, except `\\`, or the entity, that `before` followed by this byte is.
#[inline]
pub(super) fn short(before: &[u8], last: u8) -> Option<Unit> {
    if last == b';' {
        return entity(before);
    }
    if before.last() != Some(&b'\\') {
        return None;
    }
    let decoded = match last {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'"' | b'\'' | b'/' => last,
        _ => return None,
    };
    Some(Unit::byte(2, decoded))
}

/// The first half of a surrogate pair that these bytes end with.
fn first_half(bytes: &[u8]) -> Option<u32> {
    let [b'\\', b'u', digits @ ..] = bytes.last_chunk::<6>()? else { return None };
    let code = code(*digits)?;
    (0xD800..0xDC00).contains(&code).then_some(code)
}

/// The entity that `before` followed by a semicolon is.
fn entity(before: &[u8]) -> Option<Unit> {
    let from = before.len().saturating_sub(LONGEST_ENTITY);
    let start = from + before[from..].iter().rposition(|byte| *byte == b'&')?;
    entity_named(&before[start + 1..], before.len() - start + 1)
}

/// The entity with this name or number, which has this length in the text.
fn entity_named(name: &[u8], length: usize) -> Option<Unit> {
    let number = |digits: &[u8], base: u32| {
        let next = |number: u32, digit: &u8| {
            number.checked_mul(base)?.checked_add(char::from(*digit).to_digit(base)?)
        };
        let code = (!digits.is_empty()).then(|| digits.iter().try_fold(0, next))??;
        char::from_u32(code).map(|character| Unit::character(length, character))
    };
    match name {
        [b'#', b'x' | b'X', digits @ ..] => number(digits, 16),
        [b'#', digits @ ..] => number(digits, 10),
        b"amp" => Some(Unit::byte(length, b'&')),
        b"apos" => Some(Unit::byte(length, b'\'')),
        b"gt" => Some(Unit::byte(length, b'>')),
        b"lt" => Some(Unit::byte(length, b'<')),
        b"quot" => Some(Unit::byte(length, b'"')),
        _ => None,
    }
}

fn byte(high: u8, low: u8) -> Option<u8> {
    u8::try_from(value(high)? << 4 | value(low)?).ok()
}

fn code(digits: [u8; 4]) -> Option<u32> {
    digits.iter().try_fold(0, |code, digit| Some(code << 4 | value(*digit)?))
}

/// The byte of two hexadecimal digits; over 127, which is no ASCII, if they are none.
#[inline]
fn byte_or_no_ascii(high: u8, low: u8) -> u8 {
    DIGITS[high as usize] << 4 | DIGITS[low as usize]
}

#[inline]
fn value(digit: u8) -> Option<u32> {
    match DIGITS[digit as usize] {
        0xFF => None,
        value => Some(u32::from(value)),
    }
}

/// The value of each hexadecimal digit.
const DIGITS: [u8; 256] = {
    let mut values = [0xFF; 256];
    let mut digit = 0;
    while digit < 16 {
        values[b"0123456789abcdef"[digit] as usize] = digit as u8;
        values[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
        digit += 1;
    }
    values
};
