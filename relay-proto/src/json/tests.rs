use proptest::prelude::*;

use super::*;

/// Characters that some language runtimes treat as line ends, besides CR and LF.
const LINE_ENDS: [char; 8] =
    ['\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];

fn accepts(bytes: &[u8]) -> bool {
    drain(bytes, Rules { depth: 127, surrogates: Surrogates::Paired }).is_ok()
}

fn drain(bytes: &[u8], rules: Rules) -> Result<Vec<Token>, JsonError> {
    let mut scanner = Scanner::new(bytes, rules)?;
    let mut tokens = Vec::new();
    while let Some(token) = scanner.next()? {
        tokens.push(token);
    }
    Ok(tokens)
}

/// Whether the scanner and serde_json agree. Numbers out of range are an error in serde_json only.
fn agrees(bytes: &[u8]) -> bool {
    match serde_json::from_slice::<serde_json::Value>(bytes) {
        Ok(_) => accepts(bytes),
        Err(error) => !accepts(bytes) || error.to_string().starts_with("number out of range"),
    }
}

/// Whether skipping a value gives the same result as reading it token by token.
fn skipping_agrees(bytes: &[u8]) -> bool {
    let at_most = |depth| Rules { depth, surrogates: Surrogates::Any };
    let all = [1, 2, 3, 63, 64, 65, usize::MAX].map(at_most);
    all.into_iter().chain([Rules { depth: 127, surrogates: Surrogates::Paired }]).all(|rules| {
        let Ok(mut whole) = Scanner::new(bytes, rules) else { return true };
        let mut tokens = whole.clone();
        let alike = whole.value() == tokens.value_with(|_| ());
        alike
            && (whole.position(), whole.depth()) == (tokens.position(), tokens.depth())
            && whole.next() == tokens.next()
    })
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<i32>().prop_map(|quarters| (f64::from(quarters) / 4.0).into()),
        any::<String>().prop_map(Into::into),
        "[\\x00-\\x7f]{0,20}".prop_map(Into::into),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Into::into),
            prop::collection::hash_map(any::<String>(), inner, 0..8)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn accepts_whatever_serde_json_writes(value in any_json()) {
        prop_assert!(accepts(value.to_string().as_bytes()));
        prop_assert!(accepts(serde_json::to_string_pretty(&value).unwrap().as_bytes()));
    }

    #[test]
    fn agrees_with_serde_json_on_damaged_messages(
        value in any_json(),
        at in any::<prop::sample::Index>(),
        with in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..3),
            "[\\[\\]{},:\"\\\\u0-9eE+.\\- dDfF\n\t-]{0,6}".prop_map(String::into_bytes),
        ],
        removed in 0..3_usize,
    ) {
        let mut bytes = value.to_string().into_bytes();
        let at = at.index(bytes.len());
        let end = (at + removed).min(bytes.len());
        bytes.splice(at..end, with);
        prop_assert!(agrees(&bytes), "{}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn agrees_with_serde_json_on_what_looks_like_json(text in "[\\[\\]{},:\"\\\\ubnDd018eE+.\\- \nat]{0,24}") {
        prop_assert!(agrees(text.as_bytes()));
    }

    #[test]
    fn agrees_with_serde_json_on_strings(text in "\"(\\\\u[dD][89a-fA-F][0-9a-f]{2}|\\\\[\"/bfnrtu]|[a-f0-9é\u{1}]|\\\\u00[0-9a-z]{2}){0,6}\"") {
        prop_assert!(agrees(text.as_bytes()));
        let ours = super::text(text.as_bytes(), 0..text.len());
        let theirs = serde_json::from_str::<String>(&text).ok();
        prop_assert_eq!(ours.as_deref(), theirs.as_deref());
    }

    #[test]
    fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(agrees(&bytes));
        let _ = member(&bytes, 0..bytes.len(), "a");
        let _ = elements(&bytes, 0..bytes.len());
        let _ = super::text(&bytes, 0..bytes.len());
        let _ = line_safe(&bytes);
    }

    #[test]
    fn a_safe_line_has_the_same_meaning(value in any_json(), gap in "[ \r\n\t]{0,3}", odd in "[a\u{85}\u{2028}\u{2029}\u{2019}é]{0,8}") {
        let message = format!("{gap}[{gap}{value}{gap},{gap}\"{odd}\"]{gap}");
        let safe = line_safe(message.as_bytes());
        let text = std::str::from_utf8(&safe).unwrap();
        let ends_a_line = text.contains(LINE_ENDS) || text.contains(['\r', '\n']);
        prop_assert!(!ends_a_line);
        let before: serde_json::Value = serde_json::from_str(&message).unwrap();
        prop_assert_eq!(before, serde_json::from_str::<serde_json::Value>(text).unwrap());
    }

    #[test]
    fn skipping_a_value_accepts_the_same_as_reading_its_tokens(
        value in any_json(),
        at in any::<prop::sample::Index>(),
        with in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..3),
            prop::sample::select(b"{}[]:,\"\\0-e. \n".as_slice()).prop_map(|byte| vec![byte]),
        ],
        cut in 0..2_usize,
    ) {
        let mut bytes = value.to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes.splice(at..(at + cut).min(bytes.len()), with);
        prop_assert!(skipping_agrees(&bytes));
    }

    #[test]
    fn looking_up_agrees_with_serde_json(value in any_json()) {
        let bytes = value.to_string().into_bytes();
        let read = |span: Range<usize>| serde_json::from_slice::<serde_json::Value>(&bytes[span]).unwrap();
        if let Some(object) = value.as_object() {
            for (key, expected) in object {
                prop_assert_eq!(&read(member(&bytes, 0..bytes.len(), key).unwrap()), expected);
            }
        }
        let found: Vec<_> = elements(&bytes, 0..bytes.len()).into_iter().map(read).collect();
        prop_assert_eq!(found, value.as_array().cloned().unwrap_or_default());
    }

    #[test]
    fn removing_elements_keeps_the_others(value in prop::collection::vec(any_json(), 0..8), kept in any::<u8>()) {
        let message = format!("{{\"a\": {} }}", serde_json::to_string_pretty(&value).unwrap()).into_bytes();
        let array = member(&message, 0..message.len(), "a").unwrap();
        let mut bits = (0..8).map(|bit| kept >> bit & 1 == 1);
        let edited = remove_elements(&message, array, |_| bits.next().unwrap());
        let expected: Vec<_> =
            value.iter().enumerate().filter(|(bit, _)| kept >> bit & 1 == 1).map(|(_, value)| value.clone()).collect();
        prop_assert_eq!(serde_json::from_slice::<serde_json::Value>(&edited).unwrap(), serde_json::json!({ "a": expected }));
    }
}

#[test]
fn depth_is_counted_exactly() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let rules = Rules { depth: 3, surrogates: Surrogates::Paired };
    assert!(drain(nested(3).as_bytes(), rules).is_ok());
    assert_eq!(drain(nested(4).as_bytes(), rules), Err(JsonError { offset: 3, problem: Problem::TooDeep }));
    assert!(drain(nested(100_000).as_bytes(), Rules::LENIENT).is_ok());
    assert!(drain("[{\"a\":".repeat(50_000).as_bytes(), Rules::LENIENT).is_err());
}

#[test]
fn deep_arrays_and_objects_are_distinguished() {
    for depth in [1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000] {
        let open: String = (0..depth).map(|level| if level % 3 == 0 { "[" } else { "{\"a\":" }).collect();
        let close: String = (0..depth).rev().map(|level| if level % 3 == 0 { "]" } else { "}" }).collect();
        let message = format!("{open}1{close}");
        assert!(drain(message.as_bytes(), Rules::LENIENT).is_ok(), "{depth}");
        assert!(skipping_agrees(message.as_bytes()));
        for at in 0..depth {
            let mut wrong = message.clone().into_bytes();
            let place = wrong.len() - depth + at;
            wrong[place] = if wrong[place] == b']' { b'}' } else { b']' };
            assert!(drain(&wrong, Rules::LENIENT).is_err(), "{depth}, {at}");
            assert!(skipping_agrees(&wrong));
        }
    }
}

#[test]
fn the_end_of_a_string_is_found_at_any_length() {
    for length in 0..300 {
        let plain: String = (0..length).map(|at| char::from(b' ' + (at % 90) as u8)).collect();
        let plain = plain.replace(['"', '\\'], "\u{7f}");
        let text = format!("\"{plain}\"");
        let padded = format!("{text}{}", " ".repeat(100));
        for message in [&text, &padded] {
            let mut scanner = Scanner::over(message, Rules::LENIENT);
            let token = scanner.next().unwrap();
            assert_eq!(
                token,
                Some(Token::String(Text { span: 0..text.len(), escapes: Escapes::None })),
                "{length}"
            );
        }
        for at in 1..=length {
            for bad in [0, b'\n', 0x1f] {
                let mut damaged = padded.clone().into_bytes();
                damaged[at] = bad;
                let expected = JsonError { offset: at, problem: Problem::ControlCharacter };
                assert_eq!(drain(&damaged, Rules::LENIENT), Err(expected), "{length}, {at}");
            }
        }
    }
}

#[test]
fn a_byte_order_mark_is_not_white_space() {
    assert!(!accepts("\u{feff}{}".as_bytes()));
}

#[test]
fn line_ends_of_some_runtimes_are_refused_between_tokens_and_control_characters_in_strings_too() {
    for character in LINE_ENDS {
        assert!(!accepts(format!("[1,{character}2]").as_bytes()), "{character:?} between tokens");
        assert_eq!(
            accepts(format!("[\"{character}\"]").as_bytes()),
            character > '\u{1f}',
            "{character:?} in a string"
        );
    }
    assert!(!accepts(b"[\"\r\"]") && !accepts(b"[\"\n\"]"));
}

#[test]
fn tokens_have_their_spans() {
    let message = br#" {"k\n": ["x", -1.5e3, null] } "#;
    let tokens = drain(message, Rules::LENIENT).unwrap();
    assert_eq!(
        tokens,
        [
            Token::ObjectStart,
            Token::Key(Text { span: 2..7, escapes: Escapes::Some }),
            Token::ArrayStart,
            Token::String(Text { span: 10..13, escapes: Escapes::None }),
            Token::Number(15..21),
            Token::Literal(23..27),
            Token::ArrayEnd,
            Token::ObjectEnd,
        ]
    );
}

#[test]
fn an_untouched_message_is_not_copied() {
    assert!(matches!(line_safe("{\"é\":\"\u{2019}\"}".as_bytes()), Cow::Borrowed(_)));
    assert!(matches!(remove_elements(b"[1, 2]", 0..6, |_| true), Cow::Borrowed(_)));
}
