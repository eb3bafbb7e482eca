//! Every spelling, and compositions of up to three, for values of 8 to 4,096 bytes.
//!
//! What must stay true of these tests: a value counts as removed only if everything of the text that depends on it is
//! gone, which is what differs from the text with another value; and only a long text may be removed whole.

use proptest::prelude::*;

use super::*;

/// A way to write bytes as text. Each function is written differently from the code under test.
#[derive(Clone, Copy, Debug)]
enum Spelling {
    Base32,
    Base32Lower,
    Base64,
    Base64Indented,
    Base64OfBothAlphabets,
    DecimalEntities,
    Hexadecimal,
    HexadecimalEntities,
    HexadecimalWithColons,
    HexadecimalWithPrefix,
    HexadecimalWithSpaces,
    JsonString,
    Percent,
    PlainHexDump,
    UnicodeEscapes,
    Utf16,
    Utf16BigEndian,
    XEscapes,
}

use Spelling::*;

const SPELLINGS: [Spelling; 18] = [
    Base32,
    Base32Lower,
    Base64,
    Base64Indented,
    Base64OfBothAlphabets,
    DecimalEntities,
    Hexadecimal,
    HexadecimalEntities,
    HexadecimalWithColons,
    HexadecimalWithPrefix,
    HexadecimalWithSpaces,
    JsonString,
    Percent,
    PlainHexDump,
    UnicodeEscapes,
    Utf16,
    Utf16BigEndian,
    XEscapes,
];

/// How encoded text is wrapped into lines.
#[derive(Clone, Copy, Debug)]
struct Wrapping {
    width: usize,
    ending: &'static str,
}

fn wrapped(text: &str, wrapping: Wrapping, indent: &str) -> String {
    let lines: Vec<&str> =
        text.as_bytes().chunks(wrapping.width).map(|line| std::str::from_utf8(line).unwrap()).collect();
    lines.join(&format!("{}{indent}", wrapping.ending))
}

pub(super) fn base32(bytes: &[u8]) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let group = |chunk: &[u8]| -> String {
        let number =
            (0..5).fold(0_u64, |number, at| number << 8 | u64::from(chunk.get(at).copied().unwrap_or(0)));
        let used = (chunk.len() * 8).div_ceil(5);
        let letter = |at: usize| char::from(letters[(number >> (35 - 5 * at) & 31) as usize]);
        (0..8).map(|at| if at < used { letter(at) } else { '=' }).collect()
    };
    bytes.chunks(5).map(group).collect()
}

fn each(bytes: &[u8], write: impl Fn(u8) -> String) -> String {
    bytes.iter().map(|byte| write(*byte)).collect()
}

fn each_character(bytes: &[u8], write: impl Fn(char) -> String) -> Vec<u8> {
    String::from_utf8_lossy(bytes).chars().map(write).collect::<String>().into_bytes()
}

impl Spelling {
    fn write(self, bytes: &[u8], wrapping: Wrapping) -> Vec<u8> {
        let joined = |separator: &str| {
            let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            pairs.join(separator)
        };
        match self {
            Base32 => wrapped(&base32(bytes), wrapping, "").into_bytes(),
            Base32Lower => base32(bytes).to_lowercase().into_bytes(),
            Base64 => wrapped(&base64(bytes, b"+/"), wrapping, "").into_bytes(),
            Base64Indented => wrapped(&base64(bytes, b"+/"), wrapping, "    ").into_bytes(),
            Base64OfBothAlphabets => base64(bytes, b"-_").into_bytes(),
            DecimalEntities => each_character(bytes, |character| format!("&#{:03};", u32::from(character))),
            Hexadecimal => hex(bytes).into_bytes(),
            HexadecimalEntities => {
                each_character(bytes, |character| format!("&#x{:X};", u32::from(character)))
            }
            HexadecimalWithColons => joined(":").to_uppercase().into_bytes(),
            HexadecimalWithPrefix => each(bytes, |byte| format!("0x{byte:02x}, ")).into_bytes(),
            HexadecimalWithSpaces => joined(" ").into_bytes(),
            JsonString => quoted(&String::from_utf8_lossy(bytes)).into_bytes(),
            Percent => each(bytes, |byte| format!("%{byte:02X}")).into_bytes(),
            PlainHexDump => wrapped(&hex(bytes), Wrapping { width: 60, ..wrapping }, "").into_bytes(),
            UnicodeEscapes => String::from_utf8_lossy(bytes)
                .encode_utf16()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect::<String>()
                .into_bytes(),
            Utf16 => String::from_utf8_lossy(bytes).encode_utf16().flat_map(u16::to_le_bytes).collect(),
            Utf16BigEndian => {
                String::from_utf8_lossy(bytes).encode_utf16().flat_map(u16::to_be_bytes).collect()
            }
            XEscapes => each(bytes, |byte| format!("\\x{byte:02x}")).into_bytes(),
        }
    }
}

/// What became of a value in a message.
#[derive(Debug, Eq, PartialEq)]
enum Removal {
    /// It was removed and nothing of it remains, nor was more of the text removed than begins and ends with it.
    Value,
    /// The text was removed whole, because searching it takes too long.
    WholeText,
    /// What the text became.
    Partial(String),
}

/// No shorter text takes too long to search.
const MIN_UNSEARCHABLE: usize = 1024;

/// Another value, whose letters and digits are all different and which is as long in every spelling.
fn different(value: &[u8]) -> Vec<u8> {
    let rotated = |letter: char| {
        let class = ["0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abc", "defghijklmnopqrstuvwxyz", "äöü"];
        let class: Option<Vec<char>> = class
            .iter()
            .map(|class| class.chars().collect())
            .find(|class: &Vec<char>| class.contains(&letter));
        class.map_or(letter, |class| {
            let at = class.iter().position(|other| *other == letter).unwrap();
            class[(at + class.len() / 2) % class.len()]
        })
    };
    String::from_utf8_lossy(value).chars().map(rotated).collect::<String>().into_bytes()
}

/// Scrubs a message with the value in these spellings, with other text around each.
fn removal(
    scrubber: &Scrubber,
    value: &[u8],
    spellings: &[Spelling],
    wrapping: Wrapping,
    around: (&[u8], &[u8]),
) -> Removal {
    let spelled = |value: &[u8]| {
        let layer = |text: Vec<u8>, spelling: &Spelling| {
            spelling.write(&[around.0, &text, around.1].concat(), wrapping)
        };
        String::from_utf8_lossy(&spellings.iter().fold(value.to_vec(), layer)).into_owned()
    };
    let (text, other) = (spelled(value), spelled(&different(value)));
    removal_from(scrubber, &text, &other)
}

/// Scrubs a message with this text; `other` is the same with another value in it.
fn removal_from(scrubber: &Scrubber, text: &str, other: &str) -> Removal {
    assert_eq!(text.len(), other.len(), "the other value is spelled differently");
    let differs = |pair: &(u8, u8)| pair.0 != pair.1;
    let same_before = text.bytes().zip(other.bytes()).take_while(|pair| !differs(pair)).count();
    let same_after = text.bytes().rev().zip(other.bytes().rev()).take_while(|pair| !differs(pair)).count();
    let message = format!("[{}]", quoted(text));
    let scrubbed = scrubber.message(message.as_bytes());
    let output: Vec<String> = serde_json::from_slice(&scrubbed.bytes)
        .unwrap_or_else(|error| panic!("not JSON any more, {error}: {message}"));
    let [output] = &output[..] else { panic!("another message: {output:?}") };
    if output == "[redacted: encoded too often to be searched]" && text.len() >= MIN_UNSEARCHABLE {
        return Removal::WholeText;
    }
    let marker = "[redacted:github.token]";
    let (Some(first), Some(last)) = (output.find(marker), output.rfind(marker)) else {
        return Removal::Partial(output.clone());
    };
    let (before, after) = (&output[..first], &output[last + marker.len()..]);
    let between = output[first..last].replace(marker, "");
    let is_whole = text.starts_with(before)
        && before.len() <= same_before
        && text.ends_with(after)
        && after.len() <= same_after
        && between.trim_ascii().is_empty()
        && scrubber.message(&scrubbed.bytes).redactions == 0;
    if is_whole { Removal::Value } else { Removal::Partial(output.clone()) }
}

/// Whether the value is found in a message and nothing of its last spelling remains.
fn is_removed(
    scrubber: &Scrubber,
    value: &[u8],
    spellings: &[Spelling],
    wrapping: Wrapping,
    around: (&[u8], &[u8]),
) -> bool {
    match removal(scrubber, value, spellings, wrapping, around) {
        Removal::Value => true,
        // Something was escaped in more than one way: by several spellings, or by the value itself.
        Removal::WholeText => spellings.len() > 1 || value.iter().any(|byte| b"\\%&".contains(byte)),
        Removal::Partial(output) => {
            println!("{} in {spellings:?}, {wrapping:?}: {output}", String::from_utf8_lossy(value));
            false
        }
    }
}

/// Values like those of common services.
fn tokens() -> impl Strategy<Value = String> {
    prop_oneof![
        "ghp_[A-Za-z0-9]{36}",
        "xoxb-[0-9]{11}-[A-Za-z0-9]{24}",
        "AKIA[A-Z2-7]{16}",
        "[A-Za-z0-9/+]{40}",
        "sk-[A-Za-z0-9]{20}",
        "[0-9a-f]{32}",
        "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}",
        "eyJhbGciOiJIUzI1NiJ9[.][A-Za-z0-9_-]{12}[.][A-Za-z0-9_-]{12}",
        "[!-~]{20,48}",
    ]
}

/// Values of every length that is searched for, most of them short.
fn any_value() -> impl Strategy<Value = String> {
    let of = |characters: &'static str| {
        let lengths =
            prop_oneof![6 => 8..=11_usize, 6 => 12..=64_usize, 2 => 65..=400_usize, 1 => 401..=4096_usize];
        lengths.prop_flat_map(move |length| {
            proptest::string::string_regex(&format!("{characters}{{{length}}}")).unwrap()
        })
    };
    prop_oneof![4 => tokens(), 3 => of("[!-~]"), 2 => of("[A-Za-z0-9]"), 1 => of("[!-~äöü€✓]")]
}

fn wrapping() -> impl Strategy<Value = Wrapping> {
    let endings = vec!["\n", "\r\n", "\n    ", "\n\t", "\r\n  ", "\n> ", "\n * ", "\r\n# ", "\n| "];
    let widths = prop_oneof![Just(60_usize), Just(64), Just(76), 1..=8_usize, 9..200_usize];
    (widths, prop::sample::select(endings)).prop_map(|(width, ending)| Wrapping { width, ending })
}

/// So many cases, or as many as `COFFERDAM_SCRUB_CASES` says, for runs that take longer than the suite's.
fn cases(usual: u32) -> ProptestConfig {
    let cases = std::env::var("COFFERDAM_SCRUB_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = cases.unwrap_or(usual);
    ProptestConfig {
        cases,
        max_shrink_iters: 500,
        max_global_rejects: cases.max(1024),
        ..ProptestConfig::default()
    }
}

#[test]
fn tokens_in_wrapped_base64_are_found_at_every_offset() {
    let value = b"ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    for length in [20, 24, 32, 40] {
        let value = &value[..length];
        let scrubber = scrubber_for(value);
        for offset in 0..120 {
            for (width, ending) in [(64, "\n"), (76, "\n"), (76, "\r\n"), (60, "\n"), (20, "\n")] {
                let around = (&b"-".repeat(offset)[..], &b"-- the end of the file"[..]);
                let wrapping = Wrapping { width, ending };
                assert!(
                    is_removed(&scrubber, value, &[Base64], wrapping, around),
                    "length {length}, offset {offset}, width {width}"
                );
            }
        }
    }
}

/// Base64, base32, and hexadecimal with what may be between its bytes.
#[test]
fn every_width_of_lines_is_found_with_every_line_end() {
    let value = b"ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    let scrubber = scrubber_for(value);
    let spelled = |value: &[u8]| {
        let around = [&b"some words, "[..], value, b" the end of it"].concat();
        let pairs: Vec<String> = around.iter().map(|byte| format!("{byte:02x}")).collect();
        let separated = [":", " ", ", ", "-", ", 0x"].map(|separator| pairs.join(separator));
        let letters = [base64(&around, b"+/"), base64(&around, b"-_"), base32(&around), hex(&around)];
        [&letters[..], &[base32(&around).to_lowercase()], &separated].concat()
    };
    let mut kept = Vec::new();
    for (text, other) in spelled(value).iter().zip(spelled(&different(value))) {
        for ending in ["\n", "\r\n", "\n    ", "\n\t", "\r\n  ", "\n> ", "\n * "] {
            for width in (1..=16).chain([47, 60, 64, 76]) {
                let wrapping = Wrapping { width, ending };
                let [text, other] = [text, &other].map(|text| wrapped(text, wrapping, ""));
                if removal_from(&scrubber, &text, &other) != Removal::Value {
                    kept.push((text, wrapping));
                }
            }
        }
    }
    assert!(kept.is_empty(), "{} of {kept:?}", kept.len());
}

#[test]
fn each_spelling_is_found() {
    let wrapping = Wrapping { width: 76, ending: "\n" };
    for value in
        ["ghp_16C7e42F292c6912E7710c838347Ae178B4a", "hunter22", "p\"ss\\w%rd & <co> 12", "pässwörd-ünd-möhr"]
    {
        let scrubber = scrubber_for(value.as_bytes());
        for spelling in SPELLINGS {
            // JSON cannot carry the bytes of other characters in UTF-16.
            if !value.is_ascii() && matches!(spelling, Utf16 | Utf16BigEndian) {
                continue;
            }
            assert!(
                is_removed(&scrubber, value.as_bytes(), &[spelling], wrapping, (b"", b"")),
                "{value} as {spelling:?}"
            );
            assert!(
                is_removed(&scrubber, value.as_bytes(), &[spelling], wrapping, (b"user:", b" x")),
                "{value} as {spelling:?} in other text"
            );
        }
    }
}

#[test]
fn every_composition_of_two_spellings_is_found() {
    let wrapping = Wrapping { width: 76, ending: "\n" };
    for value in ["ghp_16C7e42F292c6912E7710c838347Ae178B4a", "p\"ss\\w%rd & <co> 12"] {
        let scrubber = scrubber_for(value.as_bytes());
        let mut missed = Vec::new();
        for first in SPELLINGS {
            for second in SPELLINGS {
                if !is_removed(&scrubber, value.as_bytes(), &[first, second], wrapping, (b"a ", b" b")) {
                    missed.push((first, second));
                }
            }
        }
        assert!(missed.is_empty(), "{value}: {missed:?}");
    }
}

#[test]
fn a_backslash_before_an_escape_is_found() {
    let wrapping = Wrapping { width: 60, ending: "\n" };
    for value in [&b"\\a!aa0AA\\Aa0A0!a!!aAaa"[..], b"a!aaAaa0a\\f!0A!Aa000aAa!AA"] {
        let spellings = [Percent, Utf16, JsonString];
        assert!(is_removed(&scrubber_for(value), value, &spellings, wrapping, (b" ", b" ")));
    }
}

#[test]
fn json_in_json_is_found_at_any_depth() {
    let value = "p\"ss\\w\u{e9}rd/ of 20 b";
    let scrubber = scrubber_for(value.as_bytes());
    let mut text = value.to_owned();
    for depth in 1..12 {
        text = quoted(&text);
        let output = scrubber.message(text.as_bytes());
        assert_eq!(output.redactions, 1, "depth {depth}");
        assert!(String::from_utf8_lossy(&output.bytes).contains("[redacted:github.token]"), "depth {depth}");
    }
}

#[test]
fn bytes_that_are_not_utf8_are_found() {
    let value = b"\xff\xfe key \x80\x81 of some bytes";
    let scrubber = scrubber_for(value);
    let latin: String = value.iter().map(|byte| char::from(*byte)).collect();
    let lossy = String::from_utf8_lossy(value).into_owned();
    for text in [latin, lossy, base64(value, b"+/"), hex(value)] {
        let message = format!("[{}]", quoted(&format!("x {text} y")));
        assert_eq!(scrubber.message(message.as_bytes()).redactions, 1, "{message}");
    }
}

/// Two characters of such a value may stay, not its rest.
#[test]
fn a_value_between_escapes_of_line_ends_is_found() {
    let value = r"\nghp_16C7e42F292c6912E7710c838347Ae178B4a\r";
    let scrubber = scrubber_for(value.as_bytes());
    for text in [value.to_owned(), base64(value.as_bytes(), b"+/"), hex(value.as_bytes())] {
        let message = format!("[{}]", quoted(&format!("x {text} y")));
        let output = scrubber.message(message.as_bytes());
        assert_eq!(output.redactions, 1, "{message}");
        let left = output.bytes.len() - "[redacted:github.token]".len();
        assert!(left <= r#"["x \\n\\r y"]"#.len(), "{}", String::from_utf8_lossy(&output.bytes));
    }
}

proptest! {
    #![proptest_config(cases(384))]

    #[test]
    fn compositions_of_up_to_three_spellings_are_found(
        value in any_value(),
        spellings in prop::collection::vec(prop::sample::select(SPELLINGS.to_vec()), 1..=3),
        wrapping in wrapping(),
        (before, after) in ("[ -~]{0,40}", "[ -~]{0,20}"),
    ) {
        // JSON cannot carry the bytes of other characters in UTF-16.
        let is_utf16 = spellings.iter().any(|spelling| matches!(spelling, Utf16 | Utf16BigEndian));
        prop_assume!(value.is_ascii() || !is_utf16);
        // What a value begins or ends with, if it reads as the escape of a line end, stays.
        let is_line_end = |escape: &str| value.starts_with(escape) || value.ends_with(escape);
        prop_assume!(!is_line_end("\\n") && !is_line_end("\\r"));
        let around = (format!("{before} "), format!(" {after}"));
        let scrubber = scrubber_for(value.as_bytes());
        prop_assert!(is_removed(&scrubber, value.as_bytes(), &spellings, wrapping, (around.0.as_bytes(), around.1.as_bytes())));
    }
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn ordinary_text_is_not_changed(text in "([a-z]{1,12}[ ,.\n]){0,80}|([A-Za-z0-9+/]{76}\n){0,8}|([0-9a-f]{2}[ :]){0,80}") {
        let scrubber = scrubber_for(b"ghp_16C7e42F292c6912E7710c838347Ae178B4a");
        let message = format!("[{}]", quoted(&text));
        prop_assert!(matches!(scrubber.message(message.as_bytes()).bytes, Cow::Borrowed(_)));
    }
}
