use super::*;
use crate::json::Problem;
use crate::json::{Rules, Scanner, Surrogates};
use crate::limits;
use MalformedReason as Reason;

#[test]
fn valid_messages_are_read() {
    let message = br#" {"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x","arguments":{"Name":1,"name":2}},"future":{}} "#;
    let envelope = read(message, Strictness::Whole).unwrap();
    let Kind::Request { id, method } = envelope.kind else { panic!("{envelope:?}") };
    assert_eq!((id.raw, &*method), (&b"7"[..], "tools/call"));
    assert_eq!(&message[id.span], b"7");
    assert!(message[envelope.body.unwrap()].starts_with(b"{\"name\":\"x\""));

    let envelope =
        read(br#"{"jsonrpc":"2.0","method":"notifications\/initialized"}"#, Strictness::Whole).unwrap();
    assert!(matches!(&envelope.kind, Kind::Notification { method } if method == "notifications/initialized"));
    assert_eq!(envelope.body, None);

    for strictness in [Strictness::Whole, Strictness::Envelope] {
        let envelope = read(br#"{"jsonrpc":"2.0","id":"a","result":{}}"#, strictness).unwrap();
        assert!(
            matches!(&envelope.kind, Kind::Response { id: Some(id), outcome: Outcome::Result } if id.raw == b"\"a\"")
        );
        let envelope = read(br#"{"jsonrpc":"2.0","id":-3,"error":{"code":1}}"#, strictness).unwrap();
        assert!(matches!(&envelope.kind, Kind::Response { id: Some(_), outcome: Outcome::Error }));
    }
}

/// Invalid messages and those that a laxer parser could read differently, with the reason for the refusal and the id of
/// the error response.
#[test]
fn invalid_and_ambiguous_messages_are_refused() {
    let duplicate = |key: &str| Reason::DuplicateKey { key: key.into() };
    let confusable =
        |first: &str, second: &str| Reason::ConfusableKeys { first: first.into(), second: second.into() };
    let misspelled = |key: &str, known| Reason::MisspelledKey { key: key.into(), known };
    let json = |offset, problem| Reason::Json(JsonError { offset, problem });
    let table: &[(&str, Reason, Option<&str>)] = &[
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, Reason::Batch, None),
        (r#""ping""#, Reason::NotAnObject, None),
        ("", json(0, Problem::UnexpectedEnd), None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}{"x":1}"#, json(40, Problem::TrailingData), None),
        (r#"{"id":1,"id":2,"jsonrpc":"2.0","method":"ping"}"#, duplicate("id"), None),
        (r#"{"jsonrpc":"2.0","id":1,"\u0069d":1,"method":"ping"}"#, duplicate("id"), None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#, duplicate("method"), Some("1")),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":{"x":[{"k":1,"k":2}]}}}"#,
            duplicate("k"),
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":{"x":{"k":1,"k":2}}}}"#,
            duplicate("k"),
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":{"x":1,"\u0078":2}}}"#,
            duplicate("x"),
            Some("1"),
        ),
        (r#"{"jsonrpc":"2.0","id":1,"result":{"a":{"b":1,"b":1}}}"#, duplicate("b"), Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","x":[{"b":1,"b":1}]}"#, duplicate("b"), Some("1")),
        (r#"{"result":{"b":1,"b":1}}"#, duplicate("b"), None),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"na\u006de":"x","name":"y"}}"#,
            duplicate("name"),
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"x","Name":"y"}}"#,
            misspelled("Name", "name"),
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"\u004eame":"y"}}"#,
            misspelled("Name", "name"),
            Some("1"),
        ),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":1,"X":2}}"#, confusable("x", "X"), Some("1")),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"k":1,"\u212a":2}}"#,
            confusable("k", "\u{212a}"),
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"requestID":2}}"#,
            misspelled("requestID", "requestId"),
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","paramſ":{"name":"x"}}"#,
            misspelled("paramſ", "params"),
            Some("1"),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","param\u017f":{},"params":{}}"#,
            misspelled("paramſ", "params"),
            Some("1"),
        ),
        (r#"{"jsonrpc":"2.0","ID":1,"method":"a"}"#, misspelled("ID", "id"), Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"ID":2,"method":"a"}"#, misspelled("ID", "id"), None),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","Zeta":1,"zeta":2}"#, confusable("Zeta", "zeta"), Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#, Reason::MethodWithOutcome, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","error":{}}"#, Reason::MethodWithOutcome, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#, Reason::ResultWithError, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1}"#, Reason::NoKind, Some("1")),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, Reason::NullId, None),
        (r#"{"jsonrpc":"2.0","id":1.0,"method":"ping"}"#, Reason::InvalidId, None),
        (r#"{"jsonrpc":"2.0","id":1e3,"method":"ping"}"#, Reason::InvalidId, None),
        (r#"{"jsonrpc":"2.0","id":-0,"method":"ping"}"#, Reason::InvalidId, None),
        (r#"{"jsonrpc":"2.0","id":01,"method":"ping"}"#, json(23, Problem::ExpectedCommaOrClose), None),
        (r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#, Reason::InvalidId, None),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, Reason::InvalidId, None),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#, Reason::InvalidId, None),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, Reason::MethodNotText, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":null}"#, Reason::MethodNotText, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":[1]}"#, Reason::ParamsNotObject, Some("1")),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":null}"#, Reason::ParamsNotObject, Some("1")),
        (r#"{"id":"q","method":"a"}"#, Reason::WrongVersion, Some("\"q\"")),
        (r#"{"jsonrpc":2.0,"id":"q","method":"a"}"#, Reason::WrongVersion, Some("\"q\"")),
        (r#"{"jsonrpc":"1.0","id":"q","method":"a"}"#, Reason::WrongVersion, Some("\"q\"")),
        (r#"{"jsonrpc":"2.0","result":{}}"#, Reason::MissingId, None),
        (r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, Reason::MissingId, None),
        (r#"{"jsonrpc":"2.0","id":"\ud800","method":"a"}"#, json(23, Problem::LoneSurrogate), None),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"\udc00":1}}"#,
            json(48, Problem::LoneSurrogate),
            Some("1"),
        ),
        ("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\"}", json(0, Problem::ExpectedValue), None),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\u{1c}\"}", json(35, Problem::ControlCharacter), None),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\r{\\\"hidden\\\":1}\"}",
            json(38, Problem::ControlCharacter),
            None,
        ),
    ];
    for (message, reason, id) in table {
        let refused = read(message.as_bytes(), Strictness::Whole).map(|_| message).unwrap_err();
        assert_eq!((&refused.reason, refused.id.as_deref()), (reason, id.map(str::as_bytes)), "{message}");
    }
}

#[test]
fn invalid_utf8_is_refused_everywhere() {
    for strictness in [Strictness::Whole, Strictness::Envelope] {
        let refused = read(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", strictness).unwrap_err();
        assert!(matches!(refused.reason, Reason::Json(JsonError { problem: Problem::InvalidUtf8, .. })));
    }
}

#[test]
fn many_keys_are_compared_too() {
    let members: String = (0..500).map(|index| format!("\"k{index}\":0,")).collect();
    let message =
        |last: &str| format!("{{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"params\":{{{members}\"{last}\":0}}}}");
    assert!(read(message("other").as_bytes(), Strictness::Whole).is_ok());
    let refused = read(message("k250").as_bytes(), Strictness::Whole).unwrap_err();
    assert_eq!(refused.reason, Reason::DuplicateKey { key: "k250".into() });
    let refused = read(message("K250").as_bytes(), Strictness::Whole).unwrap_err();
    assert_eq!(refused.reason, Reason::ConfusableKeys { first: "k250".into(), second: "K250".into() });
}

#[test]
fn a_deeply_nested_message_is_refused_with_its_id() {
    let message = |depth: usize| {
        let inner = "[".repeat(depth) + &"]".repeat(depth);
        format!(r#"{{"jsonrpc":"2.0","method":"a","params":{{"x":{inner}}},"id":9}}"#)
    };
    assert!(read(message(limits::MAX_DEPTH - 2).as_bytes(), Strictness::Whole).is_ok());
    let refused = read(message(limits::MAX_DEPTH - 1).as_bytes(), Strictness::Whole).unwrap_err();
    assert_eq!(refused.reason, Reason::TooDeep { limit: limits::MAX_DEPTH });
    assert_eq!(refused.id.as_deref(), Some(&b"9"[..]));
    assert!(read(message(1000).as_bytes(), Strictness::Envelope).is_ok());
    assert!(read(message(1_000_000).as_bytes(), Strictness::Envelope).is_err());
}

/// A string in the parameters of a `ping` holds a Unicode line separator and then the text of a call. The whole is one message,
/// and after `line_safe` it is one line for every server.
#[test]
fn a_hidden_call_stays_inside_its_line() {
    let hidden = r#"{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/call\"}"#;
    for end in ["\u{85}", "\u{2028}", "\u{2029}"] {
        let message =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"x":"{end}{hidden}{end}"}}}}"#);
        read(message.as_bytes(), Strictness::Whole).unwrap();
        let line = json::line_safe(message.as_bytes());
        assert!(!String::from_utf8_lossy(&line).contains(end));
        read(&line, Strictness::Whole).unwrap();
    }
    let message = b"{\"jsonrpc\":\"2.0\",\r\"id\":1,\n\"method\":\"ping\"}";
    assert_eq!(&*json::line_safe(message), b"{\"jsonrpc\":\"2.0\", \"id\":1, \"method\":\"ping\"}");
}

#[test]
fn towards_a_harness_only_the_envelope_is_checked() {
    let sloppy = [
        r#"{"id":1,"result":{"a":1,"a":2,"text":"\ud83d"}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{}}"#,
        r#"{"jsonrpc":"2.0","error":{}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"Name":1,"name":2},"x":1,"x":2}"#,
        r#"{"jsonrpc":"2.0","id":"s1","method":"roots/list","params":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":[]}"#,
    ];
    for message in sloppy {
        read(message.as_bytes(), Strictness::Envelope).unwrap_or_else(|error| panic!("{message}: {error}"));
    }
    let unreadable = [
        r#"{"id":1,"id":2,"result":{}}"#,
        r#"{"id":1,"result":{},"result":{}}"#,
        r#"{"id":1,"result":{},"Method":"sampling/createMessage"}"#,
        r#"{"id":1,"method":"a","method":"b"}"#,
        r#"{"id":1,"error":{},"error":{}}"#,
        r#"{"id":1,"result":{},"error":{}}"#,
        r#"{"id":1,"result":{},"method":"a"}"#,
        r#"{"id":"\ud800","result":{}}"#,
        r#"{"id":null,"result":{}}"#,
        r#"{"id":null,"method":"roots/list"}"#,
        r#"{"result":{}}"#,
        r#"[]"#,
        "plain talk",
        r#"{"id":1,"result":{}"#,
    ];
    for message in unreadable {
        assert!(read(message.as_bytes(), Strictness::Envelope).is_err(), "{message}");
    }
}

#[test]
fn ids_are_compared_by_value() {
    let value = |raw: &str| {
        let message = format!(r#"{{"jsonrpc":"2.0","id":{raw},"method":"a"}}"#);
        match read(message.as_bytes(), Strictness::Whole).unwrap().kind {
            Kind::Request { id, .. } => id.value(),
            other => panic!("{other:?}"),
        }
    };
    assert_ne!(value("1"), value("\"1\""));
    assert_eq!(value("\"a\""), value("\"\\u0061\""));
    assert_ne!(value("9007199254740993"), value("9007199254740992"));
    let huge = "9".repeat(limits::MAX_ID);
    assert_eq!(value(&huge), IdValue::Integer(huge.clone().into()));
    assert_eq!(value("-7").to_string(), "-7");
    assert_eq!(value("\"a\\n\"").to_string(), "\"a\\n\"");
}

#[test]
fn long_keys_are_truncated_in_the_reason() {
    let long = "é".repeat(5000);
    let message = format!(r#"{{"jsonrpc":"2.0","method":"a","params":{{"{long}":1,"{long}":2}}}}"#);
    assert!(read(message.as_bytes(), Strictness::Whole).unwrap_err().to_string().len() < 300);
}

#[test]
fn ids_methods_and_tool_names_have_a_maximum_length() {
    let read =
        |message: String, strictness| read(message.as_bytes(), strictness).map(|_| ()).map_err(|e| e.reason);
    let both = [Strictness::Whole, Strictness::Envelope];
    let id = |length| format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"a"}}"#, "x".repeat(length - 2));
    let response = |length| format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, "9".repeat(length));
    for strictness in both {
        assert_eq!(read(id(limits::MAX_ID), strictness), Ok(()));
        assert_eq!(read(id(limits::MAX_ID + 1), strictness), Err(Reason::IdTooLong { limit: 256 }));
        assert_eq!(read(response(limits::MAX_ID + 1), strictness), Err(Reason::IdTooLong { limit: 256 }));
    }
    assert_eq!(id_value(b"9".repeat(limits::MAX_ID + 1).as_slice()), None);

    let method = |length| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "m".repeat(length));
    assert_eq!(read(method(256), Strictness::Whole), Ok(()));
    assert_eq!(read(method(257), Strictness::Whole), Err(Reason::MethodTooLong { limit: 256 }));
    assert_eq!(read(method(257), Strictness::Envelope), Ok(()));

    let call = |method: &str, name_value: String| {
        let params = format!(
            r#"{{"arguments":{{"name":"{}"}},"name":{name_value},"x":"{}"}}"#,
            "y".repeat(5000),
            "z".repeat(5000)
        );
        format!(r#"{{"jsonrpc":"2.0","params":{params},"id":1,"method":"{method}"}}"#)
    };
    let named = |length, letter: &str| format!("\"{}\"", letter.repeat(length));
    let too_long = Err(Reason::ToolNameTooLong { limit: 1024 });
    assert_eq!(read(call("tools/call", named(1024, "t")), Strictness::Whole), Ok(()));
    assert_eq!(read(call("tools/call", named(1024, "\\u0074")), Strictness::Whole), Ok(()));
    assert_eq!(read(call("tools/call", named(1025, "t")), Strictness::Whole), too_long);
    assert_eq!(read(call("tools\\/call", named(1025, "t")), Strictness::Whole), too_long);
    assert_eq!(read(call("prompts/get", named(1025, "t")), Strictness::Whole), Ok(()));
    assert_eq!(read(call("tools/call", named(1025, "t")), Strictness::Envelope), Ok(()));
    assert_eq!(read(call("tools/call", format!("[{}]", named(1025, "t"))), Strictness::Whole), Ok(()));
}

/// Usual messages are read by the quick path, which must give the same results and errors.
#[test]
fn the_quick_path_and_the_careful_one_agree() {
    let usual = [
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"a\n\u00e4 \ud800"}}}"#,
        r#"{"jsonrpc": "2.0", "id": "x-1", "result": {"content": [{"type": "text", "text": ""}], "n": -1.5e3}} "#,
        r#"{"method":"notifications/initialized","jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"find","arguments":{"a":1,"b":[2,"c"],"d":{}},"_meta":{"progressToken":1}}}"#,
        r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params": {"_meta":{}, "arguments" :{"a" : null} ,"name":"t\n"}}"#,
        r#"{"jsonrpc":"2.0","id":10,"method":"resources/read","params":{"uri":"file:///a","name":1,"requestId":[{"a":1,"a":2}]}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no","data":[[],{},[{}],true,false,null]}}"#,
        r#"{"jsonrpc":"2.0","id":3,"result":"a long text that goes on for a while and then says \"end\""}"#,
    ];
    let damages: Vec<&[u8]> =
        [&b""[..], b"\"", b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"0", b"x", b"\n"]
            .into_iter()
            .chain([
                &br#","id":1"#[..],
                br#","ID":1"#,
                br#""_meta":{},"#,
                br#","a":1"#,
                br#","name":"x""#,
                b"\xff",
                b"\\u00",
                b"\\ud8",
            ])
            .collect();
    let mut readable = 0;
    for depth in [1, 2, 3, 4, 5, 64, 65, 66, 1024] {
        for message in usual {
            for at in 0..=message.len() {
                for (damage, removed) in damages.iter().flat_map(|damage| [(damage, 0), (damage, 1)]) {
                    let mut bytes = message.as_bytes().to_vec();
                    bytes.splice(at..(at + removed).min(message.len()), damage.iter().copied());
                    readable += usize::from(assert_paths_agree(&bytes, depth));
                }
            }
        }
        let nested =
            |levels: usize| format!(r#"{{"id":1,"result":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        for levels in depth.saturating_sub(3)..depth + 3 {
            readable += usize::from(assert_paths_agree(nested(levels).as_bytes(), depth));
        }
    }
    assert!(readable > 1000, "only {readable} messages could be read");
}

/// Panics if the quick path and the careful one differ; returns whether the message could be read.
fn assert_paths_agree(message: &[u8], depth: usize) -> bool {
    let modes = [(Strictness::Envelope, Surrogates::Any), (Strictness::Whole, Surrogates::Paired)];
    let readable = modes.map(|(strictness, surrogates)| {
        let rules = Rules { depth, surrogates };
        let Ok(scanner) = Scanner::new(message, rules) else { return false };
        let careful = reader::read_carefully(scanner, strictness, rules);
        let read = read_within(message, strictness, depth).map_err(|malformed| malformed.reason);
        assert_eq!(format!("{read:?}"), format!("{careful:?}"), "{}", String::from_utf8_lossy(message));
        careful.is_ok()
    });
    readable.contains(&true)
}

#[test]
fn an_id_elsewhere_in_a_message_is_read_by_value() {
    let longest = "7".repeat(MAX_ID);
    for (raw, expected) in [
        ("7", IdValue::Integer("7".into())),
        ("-7", IdValue::Integer("-7".into())),
        (r#""\u0061""#, IdValue::Text("a".into())),
        (&longest, IdValue::Integer(longest.as_str().into())),
    ] {
        assert_eq!(id_value(raw.as_bytes()), Some(expected), "{raw}");
    }
    for raw in ["", "-", "7.5", "1e3", "null", "true", "{}", &format!("{longest}7")] {
        assert_eq!(id_value(raw.as_bytes()), None, "{raw}");
    }
}

#[test]
fn a_cancellation_names_its_request() {
    let message = br#"{"method":"notifications/cancelled","params":{"reason":"x","requestId":7}}"#;
    let params = message.iter().rposition(|byte| *byte == b'{').unwrap()..message.len() - 1;
    assert_eq!(cancelled_request(message, Some(params)), Some(IdValue::Integer("7".into())));
    assert_eq!(cancelled_request(message, None), None);
    assert_eq!(cancelled_request(br#"{"requestId":null}"#, Some(0..18)), None);
}
