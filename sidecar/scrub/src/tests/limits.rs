//! What is removed because it takes too long to search, what is not, and how much of a stream is held back.

use super::*;

#[test]
fn the_bytes_held_back_without_a_line_end_are_bounded() {
    let mut stream = scrubber_for(b"correct-horse").stream();
    let mut passed = 0;
    for _ in 0..1000 {
        passed += stream.push(&[b'x'; 1000]).bytes.len();
        assert!(stream.held_back() < 80 * 1024);
    }
    assert!(passed > 900_000);
}

#[test]
fn a_value_in_two_encodings_is_found_across_the_parts_of_a_long_line() {
    let value = b"ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    let encoded: String = hex(value).bytes().map(|digit| format!("\\u{digit:04x}")).collect();
    // The line is passed on in parts from some 67,000 bytes on.
    for before in (65_000..69_000).step_by(83) {
        let line = format!("{} {encoded} {}", "x".repeat(before), "y".repeat(70_000));
        let mut stream = scrubber_for(value).stream();
        let mut output: Vec<u8> =
            line.as_bytes().chunks(1000).flat_map(|piece| stream.push(piece).bytes.into_owned()).collect();
        output.extend_from_slice(&stream.finish().bytes);
        let output = String::from_utf8(output).unwrap();
        assert!(output.contains("x [redacted:github.token] y"), "after {before} bytes");
        assert_eq!(
            output.len(),
            before + 70_000 + "[redacted:github.token]".len() + 2,
            "after {before} bytes"
        );
    }
}

#[test]
fn work_is_limited_for_all_strings_of_a_message_together() {
    // Each escape needs bytes that are escaped in another way. A single string of this length is searched.
    let part = "%5Cu0025&#52;&#x31;".repeat(40);
    let scrubber = scrubber_for(b"correct-horse-battery");
    assert_eq!(scrubber.message(format!(r#"{{"a":"{part}"}}"#).as_bytes()).redactions, 0);
    let message = format!(r#"["plain",{},"plain"]"#, vec![format!("\"{part}\""); 200].join(","));
    let output: Vec<String> = serde_json::from_slice(&scrubber.message(message.as_bytes()).bytes).unwrap();
    assert_eq!((output[0].as_str(), output[201].as_str()), ("plain", "plain"));
    let removed =
        output.iter().filter(|text| *text == "[redacted: encoded too often to be searched]").count();
    assert!((100..200).contains(&removed), "{removed} of 200 strings were removed");
}

#[test]
fn entities_and_paths_in_ordinary_text_are_not_removed() {
    let scrubber = scrubber_for(b"correct-horse-battery");
    for part in [
        r"\u0026lt;div class=\u0026quot;row\u0026quot;\u0026gt;",
        r"C:\\Users\\name\\unpacked\\file.txt ",
        "https://example.com/?q=a&lang=en&gclid=1&api=2&x=%20y ",
        r"\ud83d\ude00\ud83d\ude01",
        r"\u4e2d\u6587\\u4e2d\\u6587",
        "%E4%B8%AD%25E6%2596%2587",
        "&#20013;&amp;lt;p&amp;gt;&amp;amp;quot;",
        r"D:\\temp\\bin\\root\\x86\\form ",
        "100% of &amp; and &lt;b&gt; ",
    ] {
        let message = format!(r#"["{}"]"#, part.repeat(4000));
        assert!(matches!(scrubber.message(message.as_bytes()).bytes, Cow::Borrowed(_)), "{part}");
    }
}

#[test]
fn a_text_that_decodes_to_too_much_is_removed_whole() {
    // Letters that decode to printable text whichever of them is the first, and that again.
    let text = "VmxaV1ZsWldWbFpXVmxaV1ZsWldWbFpXVmxaV".repeat(1000);
    let message = format!(r#"{{"id":1,"result":{{"a":"{text}","b":"plain"}}}}"#);
    let output = scrubber_for(b"correct-horse-battery").message(message.as_bytes()).bytes.into_owned();
    let expected = r#"{"id":1,"result":{"a":"[redacted: encoded too often to be searched]","b":"plain"}}"#;
    assert_eq!(String::from_utf8(output).unwrap(), expected);
}

#[test]
fn what_is_decoded_is_limited_at_all_levels_together() {
    let scrubber = scrubber_for(b"correct-horse-battery");
    for (words, is_removed) in [(200, false), (4000, true)] {
        let text = base64_of_words(words, 3);
        assert_eq!(scrubber.text(text.as_bytes()).redactions, u32::from(is_removed), "{words} words");
    }
}

/// Runs of letters that are base64, base32 and hexadecimal at once take more memory to search than any other text; lists of
/// encoded values take half as much.
#[test]
fn a_text_that_takes_too_much_memory_is_removed_whole() {
    let scrubber = scrubber_for(b"correct-horse-battery");
    for (part, is_removed) in [
        (format!("{}%5C", "4".repeat(32)), true),
        (format!("{} ", "4".repeat(48)), false),
        ("VGhlIHF1aWNrIGJyb3du%20".to_owned(), false),
        ("VGhlIHF1aWNrIGJyb3duIGZveA==,".to_owned(), false),
        ("KRUGKIDROVUWG2ZAMJZG653O\\n".to_owned(), false),
        ("546865207175696 3b2062726f776e\\u0020".to_owned(), false),
    ] {
        let text = part.repeat(200_000 / part.len());
        assert_eq!(scrubber.text(text.as_bytes()).redactions, u32::from(is_removed), "{part}");
    }
}

/// Ordinary text in so many layers of base64.
fn base64_of_words(words: usize, layers: usize) -> String {
    (0..layers).fold("plain words ".repeat(words), |text, _| base64(text.as_bytes(), b"+/"))
}

#[test]
fn a_string_of_most_of_a_message_that_takes_too_long_is_removed_instead_of_others() {
    // Both together take too long.
    let (long, short) = (base64_of_words(1600, 3), base64_of_words(600, 2));
    let message = format!(r#"["{long}","{short}"]"#);
    let scrubber = scrubber_for(b"correct-horse-battery");
    let output: Vec<String> = serde_json::from_slice(&scrubber.message(message.as_bytes()).bytes).unwrap();
    assert_eq!(output, ["[redacted: encoded too often to be searched]", &short]);
}

#[test]
fn numbers_around_a_string_that_takes_too_long_are_replaced() {
    let message = format!(r#"[918273645018273,"{}",918273645018273]"#, base64_of_words(4000, 3));
    let output = scrubber_for(b"918273645018273").message(message.as_bytes()).bytes.into_owned();
    let expected = r#"["[redacted:github.token]","[redacted: encoded too often to be searched]","[redacted:github.token]"]"#;
    assert_eq!(String::from_utf8(output).unwrap(), expected);
}

#[test]
fn encodings_are_decoded_three_times() {
    let scrubber = scrubber_for(b"correct-horse-battery");
    for (layers, redactions) in [(1, 1), (3, 1), (4, 0)] {
        let text = (0..layers).fold("correct-horse-battery".to_owned(), |text, _| {
            base64(format!("({text})").as_bytes(), b"+/")
        });
        assert_eq!(scrubber.text(text.as_bytes()).redactions, redactions, "{layers} layers");
    }
}

#[test]
fn json_in_strings_stays_json_six_levels_deep() {
    let scrubber = scrubber_for(b"918273645018273");
    for (levels, innermost) in [(6, r#"["[redacted:github.token]"]"#), (7, "[[redacted:github.token]]")] {
        let message =
            (0..levels).fold("[918273645018273]".to_owned(), |json, _| format!("[{}]", quoted(&json)));
        let output = scrubber.message(message.as_bytes()).bytes.into_owned();
        let unpacked = (0..levels).fold(String::from_utf8(output).unwrap(), |json, _| {
            serde_json::from_str::<[String; 1]>(&json).unwrap().concat()
        });
        assert_eq!(unpacked, innermost, "{levels} levels");
    }
}

#[test]
fn a_string_with_too_many_values_is_replaced_whole() {
    let scrubber = scrubber_for(b"correct-horse");
    let text = |count| "correct-horse ".repeat(count);
    for (count, expected) in
        [(4096, "[redacted:github.token] ".repeat(4096)), (4097, "[redacted: too many secret values]".into())]
    {
        let message = format!(r#"{{"id":1,"result":{{"a":"{}","b":"plain correct-horse"}}}}"#, text(count));
        let output = String::from_utf8(scrubber.message(message.as_bytes()).bytes.into_owned()).unwrap();
        let whole =
            format!(r#"{{"id":1,"result":{{"a":"{expected}","b":"plain [redacted:github.token]"}}}}"#);
        assert_eq!(output, whole, "{count} values");
    }
    // A longer string without values stays, wherever the values are encoded.
    let encoded = base64(text(5000).as_bytes(), b"+/");
    let message = format!(r#"["{}","{encoded}"]"#, "plain ".repeat(20_000));
    let output: Vec<String> = serde_json::from_slice(&scrubber.message(message.as_bytes()).bytes).unwrap();
    assert_eq!(output, ["plain ".repeat(20_000), "[redacted: too many secret values]".into()]);
    let text = scrubber.text(text(4097).as_bytes()).bytes.into_owned();
    assert_eq!(String::from_utf8(text).unwrap(), "[redacted: too many secret values]");
}

#[test]
fn a_message_with_too_many_values_is_replaced_whole() {
    let scrubber = scrubber_for(b"correct-horse");
    let message = |count| format!("[[1],[{}]]", vec![r#""correct-horse""#; count].join(","));
    let clean = format!("[[1],[{}]]", vec![r#""[redacted:github.token]""#; 8192].join(","));
    assert_eq!(&*scrubber.message(message(8192).as_bytes()).bytes, clean.as_bytes());
    let flood = message(20_000);
    let output = scrubber.message(flood.as_bytes());
    assert_eq!(&*output.bytes, br#""[redacted: too many secret values]""#);
    // Each of these strings takes too long to search.
    let part = format!(r#""{}""#, "%5Cu0025&#52;&#x31;".repeat(4));
    let message = format!("[[1],[{}]]", vec![part; 40_000].join(","));
    let output = scrubber.message(message.as_bytes());
    assert_eq!(&*output.bytes, br#""[redacted: encoded too often to be searched]""#);
}

#[test]
fn the_bytes_held_back_of_text_that_cannot_be_searched_are_bounded() {
    let mut stream = scrubber_for(b"correct-horse-battery").stream();
    let piece = "VmxaV1ZsWldWbFpXVmxaV1ZsWldWbFpXVmxaV".repeat(200);
    for _ in 0..100 {
        stream.push(piece.as_bytes());
        assert!(stream.held_back() < 160 * 1024, "{} bytes are held back", stream.held_back());
    }
}
