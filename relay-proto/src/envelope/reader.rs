//! One walk through a message that finds its envelope and checks its keys.

use std::borrow::Cow;
use std::ops::Range;

use super::{Envelope, Id, Kind, Malformed, MalformedReason, Outcome, Strictness, ToolCall, keys};
use crate::json::{
    self, JsonError, Problem, Rules, Scanner, Shape, Surrogates, Text, Token, Value, ValueStart,
};
use crate::{limits, mcp};

/// Towards a harness deeper nesting is allowed: a deep result is not dangerous.
const MAX_DEPTH_TO_HARNESS: usize = 1024;

/// Reads the envelope of one message.
pub fn read(message: &[u8], strictness: Strictness) -> Result<Envelope<'_>, Malformed> {
    let depth = match strictness {
        Strictness::Envelope => MAX_DEPTH_TO_HARNESS,
        Strictness::Whole => limits::MAX_DEPTH,
    };
    read_within(message, strictness, depth)
}

/// Reads the envelope of one message, and refuses it if it is nested more than `depth` levels deep.
pub fn read_within(message: &[u8], strictness: Strictness, depth: usize) -> Result<Envelope<'_>, Malformed> {
    let surrogates = match strictness {
        Strictness::Envelope => Surrogates::Any,
        Strictness::Whole => Surrogates::Paired,
    };
    read_message(message, strictness, Rules { depth, surrogates })
        .map_err(|reason| Malformed { id: only_id(message), reason })
}

fn read_message(
    message: &[u8],
    strictness: Strictness,
    rules: Rules,
) -> Result<Envelope<'_>, MalformedReason> {
    let scanner = Scanner::new(message, rules)?;
    let mut members = Members::default();
    if members.read_quickly(scanner.source(), strictness, rules.depth) {
        return members.envelope(scanner.source(), strictness);
    }
    read_carefully(scanner, strictness, rules)
}

/// Reads any message, and reports what is wrong with it.
pub(super) fn read_carefully(
    mut scanner: Scanner<'_>,
    strictness: Strictness,
    rules: Rules,
) -> Result<Envelope<'_>, MalformedReason> {
    let describe = |error: JsonError| match error.problem {
        Problem::TooDeep => MalformedReason::TooDeep { limit: rules.depth },
        _ => MalformedReason::Json(error),
    };
    match scanner.next().map_err(describe)? {
        Some(Token::ObjectStart) => {}
        Some(Token::ArrayStart) => return Err(MalformedReason::Batch),
        _ => return Err(MalformedReason::NotAnObject),
    }
    let source = scanner.source();
    let mut members = Members::default();
    let mut key_check = KeyCheck::new(source);
    let mut other_keys = OtherKeys::Absent;
    while let Some(spelled) = scanner.key().map_err(describe)? {
        let key = spelled.decode(source).unwrap_or(Cow::Borrowed("\u{fffd}"));
        let value = match strictness {
            Strictness::Envelope => scanner.value().map_err(describe)?,
            Strictness::Whole => {
                key_check.begin(if key == "params" { &keys::OF_PARAMS } else { &[] });
                let value = scanner.value_with(|token| key_check.visit(token)).map_err(describe)?;
                std::mem::replace(&mut key_check.verdict, Ok(()))?;
                if key == "params" {
                    members.tool = key_check.name.take();
                }
                value
            }
        };
        match members.store(&key, value) {
            Stored::UnknownKey if strictness == Strictness::Envelope && !keys::is_like_known(&key) => {}
            Stored::RepeatedKey | Stored::UnknownKey => other_keys = OtherKeys::Present,
            Stored::Yes => {}
        }
    }
    scanner.next().map_err(describe)?;
    // The usual message has known keys only, each at most once: there is nothing to check.
    if other_keys == OtherKeys::Present {
        check_top_level_keys(source, strictness, rules)?;
    }
    members.envelope(source, strictness)
}

/// Checks the keys of a message that is known to be one object, in a second walk.
fn check_top_level_keys(source: &str, strictness: Strictness, rules: Rules) -> Result<(), MalformedReason> {
    let mut scanner = Scanner::over(source, rules);
    scanner.next()?;
    let mut names = Vec::new();
    while let Some(key) = scanner.key()? {
        let key = key.decode(source).unwrap_or(Cow::Borrowed("\u{fffd}"));
        scanner.value()?;
        if strictness == Strictness::Whole || keys::is_like_known(&key) {
            names.push(key);
        }
    }
    keys::check_unique(&names)?;
    keys::check_not_confusable(&names, &keys::OF_MESSAGE)
}

/// The id for the response to a refused message, if its JSON is complete and has exactly one.
fn only_id(message: &[u8]) -> Option<Box<[u8]>> {
    let mut scanner = Scanner::new(message, Rules::LENIENT).ok()?;
    if scanner.next().ok()?? != Token::ObjectStart {
        return None;
    }
    let mut ids = Vec::new();
    while let Some(key) = scanner.key().ok()? {
        let value = scanner.value().ok()?;
        if key.decode(scanner.source()).is_some_and(|key| keys::folds_to(&key, "id")) {
            ids.push(value);
        }
    }
    match (scanner.next(), ids.as_slice()) {
        (Ok(None), [only]) => read_id(scanner.source(), only).ok().map(|id| id.raw.into()),
        _ => None,
    }
}

/// The values of the top-level keys; of a repeated key the first. Repeated keys are refused afterwards.
#[derive(Default)]
struct Members {
    error: Option<Value>,
    id: Option<Value>,
    jsonrpc: Option<Value>,
    method: Option<Value>,
    params: Option<Value>,
    result: Option<Value>,
    /// The value of `name` in `params`; only looked for in [`Strictness::Whole`].
    tool: Option<Text>,
    /// The span of `arguments` in `params`; only the quick path sets it.
    arguments: Option<Range<usize>>,
}

/// Whether a message has keys that [`Members`] has no place for: unknown or repeated ones.
#[derive(Eq, PartialEq)]
enum OtherKeys {
    Absent,
    Present,
}

/// Whether a member was stored in [`Members`].
enum Stored {
    RepeatedKey,
    UnknownKey,
    Yes,
}

impl Members {
    /// Stores the members of a usual message; `false` if the message needs [`read_carefully`].
    fn read_quickly(&mut self, source: &str, strictness: Strictness, depth: usize) -> bool {
        // An unpaired surrogate can only be written with `\u`.
        if strictness == Strictness::Whole && source.contains('\\') && source.contains("\\u") {
            return false;
        }
        json::quick_message(source, depth, |key, start| {
            let value = match (strictness, key) {
                (Strictness::Envelope, _) => json::quick_value(source, start),
                (Strictness::Whole, "params") => self.skip_plain_params(source, start),
                (Strictness::Whole, _) => json::quick_value(source, start)
                    .filter(|value| !matches!(value.shape, Shape::Array | Shape::Object)),
            }?;
            let end = value.span.end;
            matches!(self.store(key, value), Stored::Yes).then_some(end)
        })
    }

    /// Skips `params` if it does not need [`read_carefully`]: it has known keys only, each once, with flat values.
    fn skip_plain_params(&mut self, source: &str, start: ValueStart) -> Option<Value> {
        let mut seen = [false; keys::OF_PARAMS.len()];
        json::quick_object(source, start, |key, start| {
            let index = keys::OF_PARAMS.iter().position(|known| *known == key)?;
            if std::mem::replace(&mut seen[index], true) {
                return None;
            }
            let value = skip_flat_value(source, start)?;
            let end = value.span.end;
            match key {
                "arguments" => self.arguments = Some(value.span),
                "name" => self.tool = value.as_text(),
                _ => {}
            }
            Some(end)
        })
    }

    fn store(&mut self, key: &str, value: Value) -> Stored {
        let member = match key {
            "error" => &mut self.error,
            "id" => &mut self.id,
            "jsonrpc" => &mut self.jsonrpc,
            "method" => &mut self.method,
            "params" => &mut self.params,
            "result" => &mut self.result,
            _ => return Stored::UnknownKey,
        };
        if member.is_some() {
            return Stored::RepeatedKey;
        }
        *member = Some(value);
        Stored::Yes
    }

    fn envelope<'a>(&self, source: &'a str, strictness: Strictness) -> Result<Envelope<'a>, MalformedReason> {
        if strictness == Strictness::Whole {
            self.check_whole(source)?;
        }
        let body = |value: &Option<Value>| value.as_ref().map(|value| value.span.clone());
        match (&self.method, &self.result, &self.error) {
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) => Err(MalformedReason::MethodWithOutcome),
            (None, Some(_), Some(_)) => Err(MalformedReason::ResultWithError),
            (None, None, None) => Err(MalformedReason::NoKind),
            (Some(method), None, None) => {
                let method = decode_text(source, method).ok_or(MalformedReason::MethodNotText)?;
                if strictness == Strictness::Whole {
                    check_lengths(source, &method, self.tool.as_ref())?;
                }
                let params = body(&self.params);
                let call = (strictness == Strictness::Whole && method == mcp::TOOLS_CALL).then(|| {
                    let member = || json::member(source.as_bytes(), params.clone()?, "arguments");
                    ToolCall {
                        tool: self.tool.as_ref().and_then(|tool| tool.decode(source)),
                        arguments: self.arguments.clone().or_else(member),
                    }
                });
                let kind = match &self.id {
                    Some(value) => Kind::Request { id: read_id(source, value)?, method },
                    None => Kind::Notification { method },
                };
                Ok(Envelope { kind, body: params, call })
            }
            (None, result @ Some(_), None) => {
                let id = read_id(source, self.id.as_ref().ok_or(MalformedReason::MissingId)?)?;
                Ok(Envelope {
                    kind: Kind::Response { id: Some(id), outcome: Outcome::Result },
                    body: body(result),
                    call: None,
                })
            }
            (None, None, error @ Some(_)) => {
                let id = match (&self.id, strictness) {
                    (Some(value), _) if &source[value.span.clone()] != "null" => {
                        Some(read_id(source, value)?)
                    }
                    (_, Strictness::Envelope) => None,
                    (_, Strictness::Whole) => return Err(MalformedReason::MissingId),
                };
                let kind = Kind::Response { id, outcome: Outcome::Error };
                Ok(Envelope { kind, body: body(error), call: None })
            }
        }
    }

    fn check_whole(&self, source: &str) -> Result<(), MalformedReason> {
        if self.jsonrpc.as_ref().and_then(|version| decode_text(source, version)).as_deref() != Some("2.0") {
            return Err(MalformedReason::WrongVersion);
        }
        match &self.params {
            Some(params) if params.shape != Shape::Object => Err(MalformedReason::ParamsNotObject),
            _ => Ok(()),
        }
    }
}

/// Skips a value that contains no objects, or an object with few keys, all different, whose values contain none.
fn skip_flat_value(source: &str, start: ValueStart) -> Option<Value> {
    const FEW: usize = 12;
    let mut keys = [""; FEW];
    let mut count = 0;
    let without_objects = |start| {
        json::quick_value(source, start)
            .filter(|value| value.shape != Shape::Object)
            .filter(|value| value.shape != Shape::Array || !source[value.span.clone()].contains('{'))
    };
    if !start.is_object(source) {
        return without_objects(start);
    }
    json::quick_object(source, start, |key, start| {
        if count == FEW || keys[..count].contains(&key) {
            return None;
        }
        keys[count] = key;
        count += 1;
        without_objects(start).map(|value| value.span.end)
    })
}

/// Checks the keys of all objects inside one member of the message.
struct KeyCheck<'a> {
    source: &'a str,
    /// The known keys of the member, which must not be misspelled; empty unless the member is `params`.
    known: &'static [&'static str],
    /// The keys of all open objects, outermost first.
    keys: Vec<Cow<'a, str>>,
    /// For each open container, where its keys begin.
    open: Vec<usize>,
    /// The value of the key `name` directly in the member.
    name: Option<Text>,
    /// Whether the last key was `name`, directly in the member.
    at_name: bool,
    verdict: Result<(), MalformedReason>,
}

impl<'a> KeyCheck<'a> {
    fn new(source: &'a str) -> Self {
        Self {
            source,
            known: &[],
            keys: Vec::new(),
            open: Vec::new(),
            name: None,
            at_name: false,
            verdict: Ok(()),
        }
    }

    /// Starts checking the next member of the message, whose known keys are `known`.
    fn begin(&mut self, known: &'static [&'static str]) {
        self.keys.clear();
        self.open.clear();
        (self.known, self.name, self.at_name) = (known, None, false);
    }

    fn visit(&mut self, token: &Token) {
        match token {
            Token::ArrayStart | Token::ObjectStart => self.open.push(self.keys.len()),
            Token::Key(text) => {
                self.keys.extend(text.decode(self.source));
                self.at_name = self.open.len() == 1 && self.keys.last().is_some_and(|key| key == "name");
            }
            Token::ArrayEnd | Token::ObjectEnd => {
                let from = self.open.pop().unwrap_or_default();
                if self.verdict.is_ok() {
                    self.verdict = self.check(from);
                }
                self.keys.truncate(from);
            }
            Token::String(text) if self.at_name && self.open.len() == 1 => self.name = Some(text.clone()),
            Token::Literal(_) | Token::Number(_) | Token::String(_) => {}
        }
    }

    /// Checks the object that has just ended, whose keys begin at `from`.
    fn check(&self, from: usize) -> Result<(), MalformedReason> {
        let keys = &self.keys[from..];
        keys::check_unique(keys)?;
        if self.open.is_empty() && !self.known.is_empty() {
            keys::check_not_confusable(keys, self.known)?;
        }
        Ok(())
    }
}

/// Methods and tool names are recorded, so their length is bounded.
fn check_lengths(source: &str, method: &str, tool: Option<&Text>) -> Result<(), MalformedReason> {
    if method.len() > limits::MAX_METHOD {
        return Err(MalformedReason::MethodTooLong { limit: limits::MAX_METHOD });
    }
    // A name with escapes is never shorter than the decoded one, so most names need no decoding.
    let is_too_long = |tool: &Text| {
        tool.inner().len() > limits::MAX_TOOL_NAME
            && tool.decode(source).is_none_or(|name| name.len() > limits::MAX_TOOL_NAME)
    };
    match tool.is_some_and(is_too_long) && method == mcp::TOOLS_CALL {
        true => Err(MalformedReason::ToolNameTooLong { limit: limits::MAX_TOOL_NAME }),
        false => Ok(()),
    }
}

/// Accepts only an id that every parser reads alike: a string, or an integer in canonical form.
fn read_id<'a>(source: &'a str, value: &Value) -> Result<Id<'a>, MalformedReason> {
    let raw = &source[value.span.clone()];
    if raw.len() > limits::MAX_ID {
        return Err(MalformedReason::IdTooLong { limit: limits::MAX_ID });
    }
    let valid = match &value.shape {
        Shape::Literal if raw == "null" => return Err(MalformedReason::NullId),
        Shape::Number => raw != "-0" && raw.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit()),
        Shape::String(_) => decode_text(source, value).is_some(),
        Shape::Array | Shape::Literal | Shape::Object => false,
    };
    let span: Range<usize> = value.span.clone();
    if valid { Ok(Id { raw: raw.as_bytes(), span }) } else { Err(MalformedReason::InvalidId) }
}

fn decode_text<'a>(source: &'a str, value: &Value) -> Option<Cow<'a, str>> {
    value.as_text()?.decode(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members_read_quickly(message: &str, strictness: Strictness) -> Option<Members> {
        let mut members = Members::default();
        members.read_quickly(message, strictness, limits::MAX_DEPTH).then_some(members)
    }

    /// A call whose arguments have so many members besides a text and a list.
    fn call(more: usize) -> String {
        let more: String = (0..more).map(|number| format!(r#","k{number}":null"#)).collect();
        let arguments = format!(r#"{{"text":"a\n{{}}","list":[1,"b"]{more}}}"#);
        let params = format!(r#"{{"name":"echo","arguments":{arguments},"_meta":{{"progressToken":1}}}}"#);
        format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#)
    }

    #[test]
    fn a_usual_call_is_read_quickly() {
        let call = call(0);
        let members = members_read_quickly(&call, Strictness::Whole).unwrap();
        assert_eq!(members.tool.unwrap().decode(&call).as_deref(), Some("echo"));
        assert_eq!(&call[members.arguments.unwrap()], r#"{"text":"a\n{}","list":[1,"b"]}"#);
    }

    #[test]
    fn arguments_with_many_members_are_read_carefully() {
        assert!(members_read_quickly(&call(10), Strictness::Whole).is_some());
        assert!(members_read_quickly(&call(11), Strictness::Whole).is_none());
    }

    #[test]
    fn a_usual_response_is_read_quickly_on_its_way_to_a_harness() {
        let response = r#"{"jsonrpc":"2.0","id":7,"result":{"a":[{"text":"\u00e9\n"}]}}"#;
        assert!(members_read_quickly(response, Strictness::Envelope).is_some());
        assert!(members_read_quickly(response, Strictness::Whole).is_none());
    }
}
