//! What is decoded, compared with reading each run bit by bit.

use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::classes::Classes;
use crate::runs::{RunLength, Runs};
use crate::symbols::Symbols;

const LETTERS: [(Coding, &[u8]); 4] = [
    (Coding::Base32, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    (Coding::Base32, b"abcdefghijklmnopqrstuvwxyz234567"),
    (Coding::Base64, b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"),
    (Coding::Hexadecimal, b"0123456789abcdef"),
];

/// Bytes whose bits are the symbols of a coding, after so many symbols of other bits. What is left at the end is cut off.
fn symbols_of(coding: Coding, bytes: &[u8], before: &[u8]) -> Vec<u8> {
    let bit = |at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    let symbol = |first: usize| (first..first + coding.bits()).fold(0, |bits, at| bits << 1 | bit(at));
    let whole = bytes.len() * 8 / coding.bits();
    let symbols = (0..whole).map(|at| symbol(at * coding.bits()));
    before.iter().map(|number| number & ((1 << coding.bits()) - 1)).chain(symbols).collect()
}

/// The bit at this position of a run of symbols, and each byte that begins with a bit.
fn byte_at(coding: Coding, numbers: &[u8], first: usize) -> u8 {
    let bit = |at: usize| numbers[at / coding.bits()] >> (coding.bits() - 1 - at % coding.bits()) & 1;
    (first..first + 8).fold(0, |byte, at| byte << 1 | bit(at))
}

/// Text with a few NUL bytes and other characters than ASCII, or bytes of any kind.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        24 => b' '..=b'~',
        2 => Just(0_u8),
        1 => Just(b'\n'),
        1 => 128..=255_u8,
        1 => any::<u8>(),
    ];
    prop_oneof![
        4 => prop::collection::vec(byte, 0..120),
        1 => prop::collection::vec(any::<u8>(), 0..60),
        1 => (0..20_usize, 0..12_usize, "[ -~]{0,20}").prop_map(|(before, zeros, after)| {
            [&b"some words of text, "[..before], &vec![0; zeros], after.as_bytes()].concat()
        }),
        1 => "[ -~]{0,40}".prop_map(|text| text.encode_utf16().flat_map(u16::to_le_bytes).collect()),
    ]
}

/// Whether nine bytes are text of ASCII, in which at most each second one is NUL.
fn is_wanted(window: &[u8]) -> bool {
    let is_ascii_text = |byte: &u8| byte.is_ascii() && is_text(*byte);
    window[0] != 0 && window.iter().all(is_ascii_text) && !window.windows(2).any(|pair| pair == [0, 0])
}

fn check(text: &[u8], least: LeastAscii) -> Result<(), TestCaseError> {
    let runs = Runs::new(&Classes::new(text), RunLength::Long);
    let base32 = runs.base32(text);
    let digits = Symbols::new(Coding::Hexadecimal, text, &runs.digits, 0);
    let all = [
        (Coding::Base32, text, &base32[..]),
        (Coding::Base64, text, &runs.letters[..]),
        (Coding::Hexadecimal, &digits.numbers[..], &digits.runs[..]),
    ];
    for (coding, letters, runs) in all {
        let mut texts = DecodedTexts::default();
        prop_assert!(texts.add(coding, letters, runs, usize::MAX, least).is_ok());
        let number = |letter: &u8| match coding {
            Coding::Base32 => BASE32[*letter as usize],
            Coding::Base64 => BASE64[*letter as usize],
            Coding::Hexadecimal => *letter,
        };
        let numbers: Vec<u8> = letters.iter().map(number).collect();
        let mut decoded = vec![false; letters.len() * coding.bits()];
        let ends = texts.pieces[..].iter().skip(1).map(|piece| piece.start as usize);
        for (piece, end) in texts.pieces.iter().zip(ends.chain([texts.bytes.len()])) {
            let bytes = piece.start as usize..end - 1;
            prop_assert!(bytes.len() >= SHORTEST, "{:?}", bytes);
            for at in bytes {
                let (of, first) = texts.origin(at);
                prop_assert_eq!(of, coding);
                prop_assert_eq!(texts.bytes[at], byte_at(coding, &numbers, first), "byte {}", at);
                let letters = first / coding.bits()..(first + 7) / coding.bits() + 1;
                let is_in = |run: &Range<usize>| run.start <= letters.start && letters.end <= run.end;
                prop_assert!(runs.iter().any(is_in), "{:?} is in no run", letters);
                // Digits may be in a part with capital and in one with small letters.
                prop_assert!(coding == Coding::Base32 || !decoded[first], "bit {} is decoded again", first);
                decoded[first] = true;
            }
        }
        for run in runs {
            // Bytes begin with every bit of base32, with every second one of base64, with every fourth of hexadecimal.
            let step = match coding {
                Coding::Base32 => 1,
                Coding::Base64 => 2,
                Coding::Hexadecimal => 4,
            };
            let (start, end) = (run.start * coding.bits(), run.end * coding.bits());
            for first in (start..end).step_by(step).take_while(|first| first + 8 * SHORTEST <= end) {
                let starts = (0..SHORTEST).map(|at| first + 8 * at);
                let window: Vec<u8> = starts.clone().map(|first| byte_at(coding, &numbers, first)).collect();
                if is_wanted(&window) {
                    let missing: Vec<usize> = starts.filter(|first| !decoded[*first]).collect();
                    prop_assert!(missing.is_empty(), "{:?} of {:?} in {:?}", missing, window, run);
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn all_text_in_runs_is_decoded_and_nothing_else(
        parts in prop::collection::vec((0..4_usize, bytes(), prop::collection::vec(any::<u8>(), 0..9)), 1..5),
        separators in prop::collection::vec("[.! ]|A|a|4|[g-z]{0,3}|", 5),
        more in "([A-Za-z2-7]{0,40}[.])?([2-7]{15,30}[A-Za-z]{0,30})?([0-9a-f]{2}[ :]){0,20}",
    ) {
        let mut text = Vec::new();
        for ((which, bytes, before), separator) in parts.iter().zip(&separators) {
            let (coding, letters) = LETTERS[*which];
            text.extend(symbols_of(coding, bytes, before).iter().map(|number| letters[*number as usize]));
            text.extend_from_slice(separator.as_bytes());
        }
        text.extend_from_slice(more.as_bytes());
        check(&text, LeastAscii::Shortest)?;
        check(&text, LeastAscii::FewBytes)?;
    }
}
