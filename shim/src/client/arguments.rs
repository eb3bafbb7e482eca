//! The arguments of a call: read up to a size limit, and checked before anything is sent.

use std::io::Read;

use relay_proto::envelope::{self, Strictness};
use relay_proto::json::line_safe;
use relay_proto::limits::MAX_MESSAGE;
use serde_json::value::RawValue;

use super::messages;
use crate::client_command::ArgumentSource;
use crate::failure::Failure;

/// A JSON object in one line, which the sidecar will relay.
#[derive(Clone, Debug)]
pub(super) struct Arguments(Box<RawValue>);

impl Arguments {
    /// Fails if the arguments are not a JSON object, or are one that the sidecar would refuse.
    pub(super) fn read(tool: &str, source: ArgumentSource, stdin: impl Read) -> Result<Self, Failure> {
        let text = match source {
            ArgumentSource::Given(text) => text,
            ArgumentSource::None => "{}".into(),
            ArgumentSource::Stdin => read_bounded(stdin)?,
        };
        let not_json = |error: serde_json::Error| {
            Failure::arguments(format!(
                "invalid arguments: not JSON: {error}; give an object, {{\"name\": \"value\"}}"
            ))
        };
        serde_json::from_str::<&RawValue>(&text).map_err(not_json)?;
        let line = String::from_utf8(line_safe(text.trim().as_bytes()).into_owned())
            .map_err(|_| Failure::arguments("invalid arguments: not UTF-8"))?;
        let arguments = Self(RawValue::from_string(line).map_err(not_json)?);
        if !arguments.raw().get().starts_with('{') {
            return Err(Failure::arguments(
                "invalid arguments: they must be a JSON object, {\"name\": \"value\"}",
            ));
        }
        let message = messages::longest_call(tool, &arguments);
        if message.len() > MAX_MESSAGE {
            return Err(too_large());
        }
        match envelope::read(&message, Strictness::Whole) {
            Ok(_) => Ok(arguments),
            Err(malformed) => Err(Failure::arguments(format!("invalid arguments: {malformed}"))),
        }
    }

    pub(super) fn raw(&self) -> &RawValue {
        &self.0
    }
}

fn read_bounded(stdin: impl Read) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = stdin.take(MAX_MESSAGE as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::arguments(format!("cannot read the arguments from stdin: {error}")))?;
    if bytes.len() > MAX_MESSAGE {
        return Err(too_large());
    }
    String::from_utf8(bytes).map_err(|_| Failure::arguments("invalid arguments on stdin: not UTF-8"))
}

fn too_large() -> Failure {
    Failure::arguments(format!(
        "invalid arguments: a call has at most {MAX_MESSAGE} bytes; send less at a time"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: ArgumentSource, stdin: &[u8]) -> Result<String, String> {
        let read = Arguments::read("tool", source, stdin);
        read.map(|arguments| arguments.raw().get().to_owned()).map_err(|failure| {
            assert_eq!(failure.exit_code(), 64, "{failure:?}");
            failure.message
        })
    }

    fn given(text: &str) -> Result<String, String> {
        read(ArgumentSource::Given(text.into()), b"")
    }

    #[test]
    fn an_object_is_sent_as_it_was_written_in_one_line() {
        assert_eq!(read(ArgumentSource::None, b"unread"), Ok("{}".into()));
        assert_eq!(
            given(r#" {"b": 1.0, "a": 12345678901234567890} "#),
            Ok(r#"{"b": 1.0, "a": 12345678901234567890}"#.into())
        );
        assert_eq!(read(ArgumentSource::Stdin, b"{\r\n \"a\": 1\n}\n"), Ok("{   \"a\": 1 }".into()));
        assert_eq!(given("{\"a\": \"\u{2028}\"}"), Ok(r#"{"a": "\u2028"}"#.into()));
    }

    #[test]
    fn what_the_sidecar_would_refuse_is_not_sent() {
        for (text, why) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("{} {}", "not JSON"),
            ("[1]", "must be a JSON object"),
            ("\"{}\"", "must be a JSON object"),
            ("{\"a\":1,\"a\":2}", "twice"),
        ] {
            let error = given(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
        assert!(given(&deep).is_err());
        assert!(read(ArgumentSource::Stdin, b"\xff").unwrap_err().contains("not UTF-8"));
    }

    #[test]
    fn the_length_is_bounded_while_reading() {
        let endless = Arguments::read("tool", ArgumentSource::Stdin, std::io::repeat(b' '));
        assert!(endless.unwrap_err().message.contains("at most"));
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_MESSAGE - 20));
        assert!(
            given(&long).unwrap_err().contains("at most"),
            "the arguments fit, but the whole message is too long"
        );
    }
}
