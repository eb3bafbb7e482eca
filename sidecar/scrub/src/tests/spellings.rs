//! Every spelling, and compositions of up to three, for values of 8 to 4,096 bytes.

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

fn base32(bytes: &[u8]) -> String {
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
            DecimalEntities => each_character(bytes, |character| format!("&#{};", u32::from(character))),
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

/// Whether the value is found in a message and nothing of its last spelling remains.
fn is_removed(
    scrubber: &Scrubber,
    value: &[u8],
    spellings: &[Spelling],
    wrapping: Wrapping,
    around: (&[u8], &[u8]),
) -> bool {
    let mut text = value.to_vec();
    for spelling in spellings {
        text = spelling.write(&[around.0, &text, around.1].concat(), wrapping);
    }
    let message = format!("[{}]", quoted(&String::from_utf8_lossy(&text)));
    let scrubbed = scrubber.message(message.as_bytes());
    assert!(
        serde_json::from_slice::<serde_json::Value>(&scrubbed.bytes).is_ok(),
        "not JSON any more: {message}"
    );
    scrubbed.redactions > 0 && scrubber.message(&scrubbed.bytes).redactions == 0
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

fn any_value() -> impl Strategy<Value = String> {
    prop_oneof![4 => tokens(), 2 => "[!-~]{12,64}", 1 => "[A-Za-z0-9_-]{8,16}", 1 => "[!-~]{64,400}", 1 => "[A-Za-z0-9]{4000,4096}"]
}

fn wrapping() -> impl Strategy<Value = Wrapping> {
    (prop_oneof![Just(60_usize), Just(64), Just(76), 8..200_usize], prop::sample::select(vec!["\n", "\r\n"]))
        .prop_map(|(width, ending)| Wrapping { width, ending })
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn compositions_of_up_to_three_spellings_are_found(
        value in any_value(),
        spellings in prop::collection::vec(prop::sample::select(SPELLINGS.to_vec()), 1..=3),
        wrapping in wrapping(),
        (before, after) in ("[ -~]{0,40}", "[ -~]{0,20}"),
    ) {
        // Three layers of escapes of 4,096 bytes are a message of half a megabyte.
        let value = if spellings.len() > 2 { &value[..value.len().min(400)] } else { &value[..] };
        let around = (format!("{before} "), format!(" {after}"));
        let scrubber = scrubber_for(value.as_bytes());
        prop_assert!(is_removed(&scrubber, value.as_bytes(), &spellings, wrapping, (around.0.as_bytes(), around.1.as_bytes())));
    }

    #[test]
    fn ordinary_text_is_not_changed(text in "([a-z]{1,12}[ ,.\n]){0,80}|([A-Za-z0-9+/]{76}\n){0,8}|([0-9a-f]{2}[ :]){0,80}") {
        let scrubber = scrubber_for(b"ghp_16C7e42F292c6912E7710c838347Ae178B4a");
        let message = format!("[{}]", quoted(&text));
        prop_assert!(matches!(scrubber.message(message.as_bytes()).bytes, Cow::Borrowed(_)));
    }
}
