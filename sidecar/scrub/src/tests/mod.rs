//! Every encoding in every place of a message, in plain text and in streams.

use cofferdam_base::text::hex;
use proptest::prelude::*;

use super::*;

mod binary;
mod generations;
mod limits;
mod spellings;

const SECRET: &str = "ghp_s3cr\"et/T0ken+\\é~42";

fn scrubber(values: &[(&str, &[u8])]) -> Arc<Scrubber> {
    let needle =
        |(label, value): &(&str, &[u8])| Needle { label: (*label).into(), value: value.to_vec().into() };
    Arc::new(Scrubber::new(values.iter().map(needle).collect()))
}

fn scrubber_for(value: &[u8]) -> Arc<Scrubber> {
    scrubber(&[("github.token", value)])
}

/// Base64, written differently from the code under test: three bytes at a time, with padding.
fn base64(bytes: &[u8], last_two: &[u8; 2]) -> String {
    let letter = |index: u32| match index {
        0..26 => char::from(b'A' + index as u8),
        26..52 => char::from(b'a' + index as u8 - 26),
        52..62 => char::from(b'0' + index as u8 - 52),
        other => char::from(last_two[other as usize - 62]),
    };
    let group = |chunk: &[u8]| -> String {
        let number =
            (0..3).fold(0, |number, at| number << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        (0..4).map(|at| if at <= chunk.len() { letter(number >> (18 - 6 * at) & 63) } else { '=' }).collect()
    };
    bytes.chunks(3).map(group).collect()
}

/// Percent-encodes the bytes that `encode` selects, with upper-case and lower-case digits.
fn percent(bytes: &[u8], encode: impl Fn(usize, u8) -> bool) -> Vec<u8> {
    let encoded = |(at, byte): (usize, &u8)| match encode(at, *byte) {
        true if at % 2 == 0 => format!("%{byte:02X}").into_bytes(),
        true => format!("%{byte:02x}").into_bytes(),
        false => vec![*byte],
    };
    bytes.iter().enumerate().flat_map(encoded).collect()
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The value in every encoding that must be found, with other bytes around it in base64.
fn encodings(value: &[u8]) -> Vec<Vec<u8>> {
    let mut all = vec![value.to_vec(), hex(value).into_bytes(), hex(value).to_uppercase().into_bytes()];
    let lower = hex(value);
    let mixed =
        lower.char_indices().map(|(at, digit)| if at % 3 == 0 { digit.to_ascii_uppercase() } else { digit });
    all.push(mixed.collect::<String>().into_bytes());
    for last_two in [b"+/", b"-_"] {
        for before in 0..3 {
            for after in 0..3 {
                let around = [&b"xyz"[..before], value, &b"uvw"[..after]].concat();
                all.push(base64(&around, last_two).into_bytes());
                all.push(base64(&around, last_two).trim_end_matches('=').into());
            }
        }
    }
    all.push(percent(value, |_, byte| !byte.is_ascii_alphanumeric()));
    all.push(percent(value, |_, _| true));
    all.push(percent(value, |at, byte| at % 3 == 0 || !byte.is_ascii()));
    all.push(percent(base64(value, b"+/").as_bytes(), |_, byte| !byte.is_ascii_alphanumeric()));
    all
}

/// Each key, string and other scalar in a JSON value, and in JSON inside its strings.
fn leaves(value: &serde_json::Value, into: &mut Vec<String>) {
    match value {
        serde_json::Value::Array(elements) => elements.iter().for_each(|element| leaves(element, into)),
        serde_json::Value::Object(members) => members.iter().for_each(|(key, value)| {
            into.push(key.clone());
            leaves(value, into);
        }),
        serde_json::Value::String(text) => {
            into.push(text.clone());
            if let Ok(inner @ (serde_json::Value::Array(_) | serde_json::Value::Object(_))) =
                serde_json::from_str(text)
            {
                leaves(&inner, into);
            }
        }
        other => into.push(other.to_string()),
    }
}

fn assert_gone(output: &[u8], value: &[u8]) {
    let parsed: serde_json::Value = serde_json::from_slice(output).expect("the output is not JSON any more");
    let mut texts = Vec::new();
    leaves(&parsed, &mut texts);
    for text in texts {
        for encoded in [value.to_vec(), hex(value).into_bytes()] {
            let lower = text.to_lowercase();
            let found =
                lower.as_bytes().windows(encoded.len()).any(|window| window.eq_ignore_ascii_case(&encoded));
            assert!(!found, "{text}");
        }
    }
}

#[test]
fn every_encoding_is_removed_in_every_place() {
    let scrubber = scrubber_for(SECRET.as_bytes());
    let places: [fn(&str) -> String; 9] = [
        |text| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{{"type":"text","text":{}}}]}}}}"#,
                quoted(text)
            )
        },
        |text| format!(r#"{{"a":{}}}"#, quoted(&format!("before {text}"))),
        |text| format!(r#"{{"a":{}}}"#, quoted(&format!("{text} after\n\t\u{1f600}"))),
        |text| format!(r#"{{"a":{}}}"#, quoted(&format!("é\\\n{text}\\n\u{1}"))),
        |text| format!(r#"{{{}:1}}"#, quoted(text)),
        |text| format!(r#"{{"a":{}}}"#, quoted(&format!(r#"{{"b":[1,{}]}}"#, quoted(text)))),
        |text| format!(r#"{{"a":{}}}"#, quoted(&quoted(&format!("[{}]", quoted(text))))),
        |text| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-1,"message":{}}}}}"#,
                quoted(&format!("no: {text}"))
            )
        },
        |text| format!(r#"{{"result":{{"tools":[{{"name":{},"description":""}}]}}}}"#, quoted(text)),
    ];
    for encoded in encodings(SECRET.as_bytes()) {
        let encoded = String::from_utf8(encoded).unwrap();
        for place in places {
            let message = place(&encoded);
            let scrubbed = scrubber.message(message.as_bytes());
            let output = String::from_utf8(scrubbed.bytes.into_owned()).unwrap();
            assert_eq!(scrubbed.redactions, 1, "{message} became {output}");
            assert!(output.contains("[redacted:github.token]"), "{message} became {output}");
            assert_gone(output.as_bytes(), SECRET.as_bytes());
            assert_eq!(scrubber.message(output.as_bytes()).redactions, 0, "{output}");
        }
        let line = format!("error: {encoded} was wrong");
        let output = String::from_utf8(scrubber.text(line.as_bytes()).bytes.into_owned()).unwrap();
        assert!(output.starts_with("error: ") && output.contains("[redacted:github.token]"), "{output}");
        assert!(output.ends_with(" was wrong") && output.len() < 50, "{output}");
    }
}

#[test]
fn every_way_to_escape_is_decoded() {
    let scrubber = scrubber_for(SECRET.as_bytes());
    let all: String = SECRET.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    let solidus = quoted(SECRET).replace('/', "\\/");
    let middle = quoted(SECRET).replace('T', "\\u0054");
    for string in [format!("\"x{all}y\""), solidus, middle] {
        for message in [
            format!("[{string}]"),
            format!("[{}]", quoted(&string)),
            format!("[{}]", quoted(&quoted(&string))),
        ] {
            let output = String::from_utf8(scrubber.message(message.as_bytes()).bytes.into_owned()).unwrap();
            assert!(output.contains("[redacted:github.token]"), "{message} became {output}");
            assert!(output.len() < 60, "{message} became {output}");
            serde_json::from_str::<serde_json::Value>(&output).unwrap();
        }
        let line = format!("log {string}");
        assert!(
            String::from_utf8_lossy(&scrubber.text(line.as_bytes()).bytes)
                .contains("[redacted:github.token]")
        );
    }
}

#[test]
fn values_of_digits_are_found_as_json_numbers() {
    let scrubber = scrubber_for(b"73519824");
    let output = scrubber.message(br#"{"id":1,"pin": 73519824 ,"text":"{\"pin\":73519824}"}"#);
    assert_eq!(
        std::str::from_utf8(&output.bytes).unwrap(),
        r#"{"id":1,"pin": "[redacted:github.token]" ,"text":"{\"pin\":\"[redacted:github.token]\"}"}"#
    );
    assert_eq!(output.redactions, 2);
}

#[test]
fn a_value_that_is_json_is_found_as_json() {
    let value = br#"{"type":"service","key":"MIIEvQIBADANBg"}"#;
    let scrubber = scrubber_for(value);
    let inside = std::str::from_utf8(value).unwrap();
    let message = format!(r#"{{"id":1,"result":{{"a":[1,{inside}],"b":{inside},"c":{}}}}}"#, quoted(inside));
    let expected = br#"{"id":1,"result":{"a":[1,"[redacted:github.token]"],"b":"[redacted:github.token]","c":"\"[redacted:github.token]\""}}"#;
    assert_eq!(
        std::str::from_utf8(&scrubber.message(message.as_bytes()).bytes),
        std::str::from_utf8(expected)
    );
    let part = scrubber_for(br#"x","key":"MIIEvQIBADANBg"#);
    let output = part.message(br#"{"id":1,"result":{"a":["x"],"b":{"c":"xx","key":"MIIEvQIBADANBgkq"}}}"#);
    assert_eq!(&*output.bytes, br#"{"id":1,"result":{"a":["x"],"b":"[redacted:github.token]"}}"#);
}

#[test]
fn base64_letters_with_some_bits_of_the_value_are_removed() {
    // Letters that contain only bits of the bytes before and after the value stay.
    for (before, after) in (0..3).flat_map(|before| (0..3).map(move |after| (before, after))) {
        let encoded = base64(&[&b"xyz"[..before], b"correct-horse-b", &b"uvw"[..after]].concat(), b"+/");
        let output =
            String::from_utf8(scrubber_for(b"correct-horse-b").text(encoded.as_bytes()).bytes.into_owned())
                .unwrap();
        let left = output.find('[').unwrap();
        let right = output.trim_end_matches('=').len() - output.find(']').unwrap() - 1;
        assert_eq!(left, before * 8 / 6, "{encoded} became {output}");
        let bits = (before + 15) * 8;
        let whole = encoded.trim_end_matches('=').len();
        assert_eq!(right, whole - bits.div_ceil(6), "{encoded} became {output}");
    }
}

#[test]
fn all_other_bytes_stay_unchanged() {
    let scrubber = scrubber_for(b"correct-horse");
    let message = br#" { "a" : "\u0041\/ \ud800 correct-horse\n\u00e9" , "b":1.50e+1 } "#;
    let expected = br#" { "a" : "\u0041\/ \ud800 [redacted:github.token]\n\u00e9" , "b":1.50e+1 } "#;
    assert_eq!(&*scrubber.message(message).bytes, expected);
    let clean = br#" { "a" : "\u0041\/ 50%20 \ud800" } "#;
    assert!(matches!(scrubber.message(clean).bytes, Cow::Borrowed(_)));
    assert!(matches!(scrubber.text(clean).bytes, Cow::Borrowed(_)));
}

#[test]
fn no_escape_is_cut() {
    // The value begins with letters that also end an escape.
    for (value, message) in [
        ("nabcdefgh", r#"["{\"a\":\"x\\nabcdefgh\"}"]"#),
        ("41abcdefgh", r#"["{\"a\":\"x\\u0041abcdefgh\"}"]"#),
        ("abcdefgh\\", r#"["{\"a\":\"xabcdefgh\\n\"}"]"#),
    ] {
        let output = scrubber_for(value.as_bytes()).message(message.as_bytes()).bytes.into_owned();
        let outer: Vec<String> = serde_json::from_slice(&output).unwrap();
        serde_json::from_str::<serde_json::Value>(&outer[0])
            .unwrap_or_else(|error| panic!("{}: {error}", outer[0]));
    }
    let text = scrubber_for(b"nabcdefgh").text(br"x \nabcdefgh y").bytes.into_owned();
    assert_eq!(text, b"x [redacted:github.token] y");
    let direct = scrubber_for(b"nabcdefgh").message(br#"["x\nabcdefgh"]"#).bytes.into_owned();
    assert_eq!(direct, br#"["x\nabcdefgh"]"#, "a value was found although `\\n` is an escape");
}

#[test]
fn values_of_several_lines_are_found_line_by_line() {
    let letter = |number: u32| char::from(b'A' + u8::try_from(number % 26).unwrap());
    let line = |seed: u32| -> String { (0..64).map(|at| letter(seed * 7 + at * at * 5 + at)).collect() };
    let key = format!("-----BEGIN KEY-----\n{}\n{}\nab==\n-----END KEY-----\n", line(1), line(2));
    let scrubber = scrubber_for(key.as_bytes());
    let message = format!(r#"["{}","-----BEGIN KEY-----"]"#, line(2));
    let output = scrubber.message(message.as_bytes());
    assert_eq!(&*output.bytes, br#"["[redacted:github.token]","-----BEGIN KEY-----"]"#);
    let whole = format!("[{}]", quoted(&key));
    assert_eq!(&*scrubber.message(whole.as_bytes()).bytes, br#"["[redacted:github.token]\n"]"#);
    let with_crlf = key.replace('\n', "\r\n");
    let output = String::from_utf8(scrubber.text(with_crlf.as_bytes()).bytes.into_owned()).unwrap();
    assert!(!output.contains(&line(1)) && !output.contains(&line(2)));
}

#[test]
fn wrapped_base64_is_found() {
    let value: Vec<u8> = (0..600_u32).map(|at| (at * at * 31 + at * 17) as u8).collect();
    let scrubber = scrubber_for(&value);
    for width in [64, 76] {
        for before in 0..3 {
            let encoded = base64(&[&b"::"[..before.min(2)], &value, b"::"].concat(), b"+/");
            let wrapped: Vec<&str> =
                encoded.as_bytes().chunks(width).map(|line| std::str::from_utf8(line).unwrap()).collect();
            let message = format!("[{}]", quoted(&wrapped.join("\n")));
            let output = String::from_utf8(scrubber.message(message.as_bytes()).bytes.into_owned()).unwrap();
            assert!(wrapped.iter().all(|line| !output.contains(&line[..line.len().min(16)])), "{output}");
        }
    }
}

#[test]
fn the_first_label_is_used_and_overlapping_matches_are_merged() {
    let all = scrubber(&[
        ("first.a", b"same-value-1"),
        ("second.b", b"same-value-1"),
        ("third.c", b"value-1-and-more"),
        ("fourth.d", b"value-1-else"),
    ]);
    assert_eq!(&*all.text(b"x same-value-1 y").bytes, b"x [redacted:first.a] y");
    let merged = all.text(b"x same-value-1-and-more y");
    assert_eq!((&*merged.bytes, merged.redactions), (&b"x [redacted:third.c] y"[..], 1));
    let equally_long = all.text(b"x same-value-1-else y");
    assert_eq!((&*equally_long.bytes, equally_long.redactions), (&b"x [redacted:first.a] y"[..], 1));
    let both = all.text(b"same-value-1value-1-and-more");
    assert_eq!((&*both.bytes, both.redactions), (&b"[redacted:first.a][redacted:third.c]"[..], 2));
}

#[test]
fn values_that_are_short_blank_or_need_escaping() {
    assert_eq!(
        &*scrubber_for(b"tok").text(b"a tok b").bytes,
        b"a [redacted] b",
        "the label contains the value, so it must not be shown"
    );
    assert_eq!(&*scrubber_for(b"red").text(b"a red b").bytes, b"a [***] b");
    assert_eq!(
        &*scrubber_for(b"\"\\\"\\\n\"\\\"").message(br#"["a\"\\\"\\\n\"\\\"b"]"#).bytes,
        b"[\"a[redacted:github.token]b\"]"
    );
    assert!(scrubber_for(b" \n").is_empty());
    assert!(scrubber(&[]).is_empty());
    assert!(matches!(scrubber(&[]).message(b"no json").bytes, Cow::Borrowed(_)));
    assert_eq!(
        &*scrubber_for(b"trailing-line-end\n").text(b"is trailing-line-end.").bytes,
        b"is [redacted:github.token]."
    );
    assert_eq!(
        &*scrubber_for(b"with some spaces").text(b"q=with+some+spaces&x").bytes,
        b"q=[redacted:github.token]&x"
    );
}

#[test]
fn a_name_is_returned_as_it_is_or_without_the_value() {
    let scrubber = scrubber_for(b"correct-horse");
    assert!(matches!(scrubber.name("get_issue"), Cow::Borrowed("get_issue")));
    assert_eq!(scrubber.name("get_correct-horse"), "get_[redacted:github.token]");
}

#[test]
fn no_debug_output_contains_a_value() {
    let scrubber = scrubber_for(b"correct-horse");
    let mut stream = scrubber.stream();
    stream.push(b"correct-horse");
    let needle = Needle { label: "a.b".into(), value: b"correct-horse".to_vec().into() };
    let printed = format!("{needle:?} {scrubber:?} {stream:?} {:?}", scrubber.indexes);
    assert!(!printed.contains("correct") && !printed.contains("99, 111"), "{printed}");
    for shown in ["a.b", "values: 1", "held: 13"] {
        assert!(printed.contains(shown), "{printed}");
    }
}

#[test]
fn whole_lines_of_a_stream_are_passed_on_at_once() {
    let mut stream = scrubber_for(b"correct-horse").stream();
    assert_eq!(&*stream.push(b"a line\nand corr").bytes, b"a line\n");
    assert_eq!(&*stream.push(b"ect-horse\nx").bytes, b"and [redacted:github.token]\n");
    assert_eq!(&*stream.finish().bytes, b"x");
}

#[test]
fn a_value_with_a_short_normal_form_is_found_whichever_bytes_are_escaped() {
    for value in [&b"a\n\na\n\n  AA"[..], b"%a0!aa!a"] {
        let scrubber = scrubber_for(value);
        let selections: [fn(usize, u8) -> bool; 3] =
            [|_, byte| !byte.is_ascii_alphanumeric(), |at, _| at.is_multiple_of(2), |_, _| true];
        for encode in selections {
            let encoded = String::from_utf8(percent(value, encode)).unwrap();
            let message = format!("[{}]", quoted(&format!("x {encoded} y")));
            assert_eq!(scrubber.message(message.as_bytes()).redactions, 1, "{message}");
        }
    }
}

#[test]
fn a_value_of_short_lines_is_found_across_reads() {
    let mut stream = scrubber_for(b"ab\ncd\nef").stream();
    let mut output = stream.push(b"x\nab\nc").bytes.into_owned();
    output.extend_from_slice(&stream.push(b"d\nef\n").bytes);
    output.extend_from_slice(&stream.finish().bytes);
    assert_eq!(output, b"x\n[redacted:github.token]\n");
}

#[test]
fn hexadecimal_after_a_percent_sign_or_backslash_is_found() {
    let value = b"!!!!!!!!!!!%";
    for before in ["%", "\\\\x", "\\\\", "%\\n", "100%"] {
        let message = format!(r#"["{before}{}"]"#, hex(value));
        let output = scrubber_for(value).message(message.as_bytes());
        assert_eq!(output.redactions, 1, "{message}");
    }
}

#[test]
fn a_value_in_wrapped_lines_is_found_across_reads() {
    let value = b"ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    let encoded =
        base64(&[b"some words, then ", &value[..], b" and more words until the end"].concat(), b"+/");
    for width in [20, 40, 64] {
        let lines: Vec<String> = encoded
            .as_bytes()
            .chunks(width)
            .map(|line| format!("{}\n", String::from_utf8_lossy(line)))
            .collect();
        let mut stream = scrubber_for(value).stream();
        let mut output: Vec<u8> =
            lines.iter().flat_map(|line| stream.push(line.as_bytes()).bytes.into_owned()).collect();
        output.extend_from_slice(&stream.finish().bytes);
        let output = String::from_utf8(output).unwrap();
        assert!(output.contains("[redacted:github.token]"), "width {width}: {output}");
        assert_eq!(scrubber_for(value).text(output.as_bytes()).redactions, 0, "{output}");
    }
}

fn surrounding() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[ -~\n]{0,12}", "[A-Za-z0-9+/%\\\\\"n]{0,6}"]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[A-Za-z0-9_-]{8,40}".prop_map(String::into_bytes),
        "[!-~]{8,24}".prop_map(String::into_bytes),
        "[!-~][ -~é\n]{8,24}[!-~]".prop_map(String::into_bytes),
        prop::collection::vec(33..=255_u8, 12..40),
        "[0-9]{9,12}".prop_map(String::into_bytes),
    ]
}

proptest! {
    #[test]
    fn a_message_stays_json_without_the_value(
        value in value(),
        which in any::<prop::sample::Index>(),
        (left, right) in (surrounding(), surrounding()),
        nested in 0..3_usize,
    ) {
        let scrubber = scrubber_for(&value);
        let encodings: Vec<String> = encodings(&value).into_iter().filter_map(|bytes| String::from_utf8(bytes).ok()).collect();
        let text = format!("{left} {} {right}", encodings[which.index(encodings.len())]);
        let string = (0..nested).fold(quoted(&text), |inner, _| quoted(&format!("[{inner}]")));
        let message = format!(r#"{{"id":1,"a":{string},{string}:[null]}}"#);
        let output = scrubber.message(message.as_bytes());
        prop_assert!(output.redactions >= 2, "{message}");
        assert_gone(&output.bytes, &value);
        prop_assert_eq!(scrubber.message(&output.bytes).redactions, 0, "{}", String::from_utf8_lossy(&output.bytes));
    }

    #[test]
    fn text_without_a_value_is_unchanged(text in any::<String>(), more in surrounding()) {
        let scrubber = scrubber_for(b"correct-horse-battery-staple");
        let message = format!("[{}]", quoted(&format!("{text}{more}")));
        let output = scrubber.message(message.as_bytes());
        prop_assert!(matches!(output.bytes, Cow::Borrowed(_)));
    }

    #[test]
    fn no_value_survives_any_split_of_a_stream(
        value in value(),
        (left, middle, right) in (surrounding(), surrounding(), surrounding()),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let scrubber = scrubber_for(&value);
        let text = [left.as_bytes(), &value, b"\n", middle.as_bytes(), hex(&value).as_bytes(), right.as_bytes()].concat();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len())).chain([0, text.len()]).collect();
        places.sort_unstable();
        let mut stream = scrubber.stream();
        let mut output: Vec<u8> = places.windows(2).flat_map(|pair| stream.push(&text[pair[0]..pair[1]]).bytes.into_owned()).collect();
        output.extend_from_slice(&stream.finish().bytes);
        prop_assert_eq!(scrubber.text(&output).redactions, 0, "{}", String::from_utf8_lossy(&output));
    }

    #[test]
    fn no_input_causes_a_panic(value in value(), bytes in prop::collection::vec(any::<u8>(), 0..64), text in "[\\\\u0-9%a-f\"{}:,]{0,40}") {
        let scrubber = scrubber(&[("a.b", &value), ("c.d", b"%4\\u")]);
        for input in [&bytes[..], text.as_bytes()] {
            let _ = (scrubber.message(input), scrubber.text(input));
            let mut stream = scrubber.stream();
            stream.push(input);
            stream.finish();
        }
    }
}
