//! Decoded escapes, joined lines, and where both come from.

use proptest::prelude::*;

use super::*;

fn normal(text: &str) -> String {
    String::from_utf8(normal_form_of(text.as_bytes())).unwrap()
}

#[test]
fn escapes_of_every_kind_and_depth_are_decoded() {
    for (text, expected) in [
        (r"\u0041\/\\\\\\\\u0042", r"A/B"),
        (r#"\\\\\\\"x\\\""#, "\"x\""),
        ("%41%2542%25255C%2575%30043", "ABC"),
        (r"\u005c\u006ex \u005c\u005c\u0041 \u005c\u00e9", "x \\A \\é"),
        ("&#65;&#x42;&#067;&amp;&amp;#68;&amp;amp;lt;", "ABC&D<"),
        (r"\x41%5Cx42&#92;u0043", "ABC"),
        (r"\u0025\u0034\u0031", "A"),
        ("&\\u0023\\u00365;", "A"),
        (r"\ud83d\ude00 \\ud83d\\ude00 \ud83dx", "\u{1f600} \u{1f600} \\ud83dx"),
        ("a\\u0000b\0c", "abc"),
        (r"100% &c; \q &#; %4g \u00", r"100% &c; \q &#; %4g \u00"),
    ] {
        assert_eq!(normal(text), expected, "{text}");
    }
}

#[test]
fn lines_are_joined() {
    for text in ["ab\ncd", "ab\\ncd", "ab  \r\n\t cd", "ab\\r\\n    cd", "ab\n> cd", "ab\n# cd", "ab\n\n\ncd"]
    {
        assert_eq!(normal(text), "abcd", "{text}");
    }
    assert_eq!(normal("the words\nof lines"), "the wordsof lines");
}

#[test]
fn spans_contain_whole_escapes() {
    let text = br"x%5Cu0041\n  yz";
    assert_eq!(normal_form_of(text), b"xAyz");
    let origins = origins_of(text, &Classes::new(text), Lines::Joined);
    assert_eq!(origins.span(0..1), 0..1);
    assert_eq!(origins.span(1..2), 1..9);
    assert_eq!(origins.span(2..4), 13..15);
    assert_eq!(origins.span(0..4), 0..15);
}

/// The normal form and the origins of its bytes, with no shortcut for lines that have no blanks around their ends.
fn without_join_lines(text: &[u8], lines: Lines) -> (Vec<u8>, Origins) {
    let classes = Classes::new(text);
    let marks = Marks::new(text, &classes);
    let mut builder = Builder::new(Origins::with_capacity(text.len()), lines, text);
    let mut at = 0;
    while at < text.len() {
        let mark = marks.next(at);
        builder.copy(text, at..mark);
        at = builder.add_marked(text, mark, &mut Budget::unlimited()).unwrap();
    }
    builder.origins.push(text.len());
    builder.bytes.truncate(builder.length);
    (builder.bytes, builder.origins)
}

proptest! {
    /// The origins are compared by the span of each byte.
    #[test]
    fn the_shortcut_for_lines_makes_no_difference(
        text in r"(\\{0,3}[nrtux]?|[abn014;] ?|\n|&(#|#x|amp;|lt)?|%(5C|25|4)?|[ \t>|#*]|u00|0a|\x00){0,24}",
        is_joined: bool,
    ) {
        let text = text.as_bytes();
        let lines = if is_joined { Lines::Joined } else { Lines::Kept };
        let classes = Classes::new(text);
        let quick = decoded(text, &classes, lines, &mut Budget::unlimited()).unwrap();
        let quick = quick.unwrap_or_else(|| text.to_vec());
        let (expected, expected_origins) = without_join_lines(text, lines);
        prop_assert_eq!(String::from_utf8_lossy(&quick), String::from_utf8_lossy(&expected));
        let origins = origins_of(text, &classes, lines);
        for at in 0..expected.len() {
            prop_assert_eq!(origins.span(at..at + 1), expected_origins.span(at..at + 1), "byte {}", at);
        }
    }
}
