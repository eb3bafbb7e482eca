//! The envelope of an MCP message: its kind, id, method and parameters, found without changing a byte.
//!
//! What must stay true: **no message may mean one thing to us and another to a laxer parser.** Parsers differ in which
//! of two equal keys they use, in whether `Name` equals `name`, and in where a message ends; a message that is read
//! differently because of this is refused. `keys` checks keys, `reader` walks the message, `input_requests` finds requests
//! inside it.

mod input_requests;
mod keys;
mod reader;
mod short_text;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use crate::json::{self, JsonError};
use crate::limits::MAX_ID;

pub use input_requests::{InputRequest, input_requests};
pub use reader::{read, read_within};
pub use short_text::ShortText;

/// How strictly a message is checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Strictness {
    /// Towards a harness: the envelope must be readable, the rest is not checked.
    Envelope,
    /// Towards a server: no message may mean one thing to us and another to a laxer parser.
    Whole,
}

/// One MCP message, read but not copied.
#[derive(Clone, Debug)]
pub struct Envelope<'a> {
    pub kind: Kind<'a>,
    /// The span of `params`, `result` or `error`.
    pub body: Option<Range<usize>>,
    /// What a `tools/call` calls; only looked for in [`Strictness::Whole`].
    pub call: Option<ToolCall<'a>>,
}

/// The parameters of a `tools/call` that decide what it does.
#[derive(Clone, Debug)]
pub struct ToolCall<'a> {
    /// `None` if the name is missing or not a string.
    pub tool: Option<Cow<'a, str>>,
    /// The span of `arguments`.
    pub arguments: Option<Range<usize>>,
}

#[derive(Clone, Debug)]
pub enum Kind<'a> {
    Notification {
        method: Cow<'a, str>,
    },
    Request {
        id: Id<'a>,
        method: Cow<'a, str>,
    },
    /// `id` is `None` in the error response to a request that could not be read (`"id":null`).
    Response {
        id: Option<Id<'a>>,
        outcome: Outcome,
    },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    Error,
    Result,
}

/// An id as raw JSON, and its span in the message.
#[derive(Clone, Debug)]
pub struct Id<'a> {
    pub raw: &'a [u8],
    pub span: Range<usize>,
}

/// An id by value: `1` and `"1"` differ, `"a"` and `"\u0061"` do not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum IdValue {
    /// Canonical digits, so that any size of integer is compared exactly.
    Integer(ShortText),
    Text(ShortText),
}

/// Why a message is not relayed, and the id for the error response, if exactly one could be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Malformed {
    /// Raw JSON: a string or an integer.
    pub id: Option<Box<[u8]>>,
    pub reason: MalformedReason,
}

/// The message names the correction where it is not obvious.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum MalformedReason {
    #[error("it is a batch; MCP has no batches, send each message on its own line")]
    Batch,
    #[error("the keys {first:?} and {second:?} are the same key to some parsers; keep one of them")]
    ConfusableKeys { first: Box<str>, second: Box<str> },
    #[error("the key {key:?} appears twice in one object; keep one of them")]
    DuplicateKey { key: Box<str> },
    #[error("its `id` is that of a request still in flight; give every request an id of its own")]
    IdInUse,
    #[error("its `id` is longer than {limit} bytes; use a shorter one")]
    IdTooLong { limit: usize },
    #[error("`inputRequests` must be an object of requests, each an object with a `method`")]
    InputRequestsNotRequests,
    #[error("`id` must be a string or an integer, written without fraction or exponent")]
    InvalidId,
    #[error("it is not valid JSON: {0}")]
    Json(#[from] JsonError),
    #[error("`method` must be a string")]
    MethodNotText,
    #[error("its `method` is longer than {limit} bytes; no method of MCP is that long")]
    MethodTooLong { limit: usize },
    #[error("it has `method` beside `result` or `error`; a message is either a request or a response")]
    MethodWithOutcome,
    #[error("the key {key:?} is `{known}` to some parsers; spell it `{known}`")]
    MisspelledKey { key: Box<str>, known: &'static str },
    #[error("a response needs the `id` of its request")]
    MissingId,
    #[error("it has neither `method` nor `result` nor `error`")]
    NoKind,
    #[error("it is not a JSON object; a message is one object on one line")]
    NotAnObject,
    #[error("the `id` of a request must not be null; leave `id` out to send a notification")]
    NullId,
    #[error("`params` must be an object")]
    ParamsNotObject,
    #[error("it has both `result` and `error`; a response has one of them")]
    ResultWithError,
    #[error("it is nested more than {limit} levels deep; send flatter data")]
    TooDeep { limit: usize },
    #[error("it has more than {limit} `inputRequests`; ask for less at a time")]
    TooManyInputRequests { limit: usize },
    #[error("the name of its tool is longer than {limit} bytes; use a shorter one")]
    ToolNameTooLong { limit: usize },
    #[error("`jsonrpc` must be present and must be \"2.0\"")]
    WrongVersion,
}

impl Id<'_> {
    pub fn value(&self) -> IdValue {
        let json_text = self.as_json();
        if !json_text.starts_with('"') {
            return IdValue::Integer(json_text.into());
        }
        match json_text.get(1..json_text.len() - 1).filter(|_| !self.raw.contains(&b'\\')) {
            Some(plain) => IdValue::Text(plain.into()),
            None => match json::text(self.raw, 0..self.raw.len()) {
                Some(text) => IdValue::Text(text.into()),
                None => IdValue::Integer(json_text.into()),
            },
        }
    }

    /// The raw JSON text.
    pub fn as_json(&self) -> Cow<'_, str> {
        match str::from_utf8(self.raw) {
            Ok(json_text) => Cow::Borrowed(json_text),
            Err(_) => String::from_utf8_lossy(self.raw),
        }
    }
}

/// The value of an id that is elsewhere in a message, such as `requestId`; `None` if it is not a valid id.
pub fn id_value(raw: &[u8]) -> Option<IdValue> {
    let integer = raw.strip_prefix(b"-").unwrap_or(raw);
    let is_integer = !integer.is_empty() && integer.iter().all(u8::is_ascii_digit);
    let is_text = raw.starts_with(b"\"");
    (raw.len() <= MAX_ID && (is_integer || is_text)).then(|| Id { raw, span: 0..raw.len() }.value())
}

/// The request that a `notifications/cancelled` cancels; `params` is the span of its parameters.
pub fn cancelled_request(message: &[u8], params: Option<Range<usize>>) -> Option<IdValue> {
    id_value(&message[json::member(message, params?, "requestId")?])
}

/// Writes the text and a final byte that depends on the variant: one write less than with a discriminant.
impl Hash for IdValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (text, end) = match self {
            Self::Integer(digits) => (digits, 0xfe),
            Self::Text(text) => (text, 0xff),
        };
        state.write(text.as_bytes());
        state.write_u8(end);
    }
}

/// As JSON, which distinguishes a string from an integer.
impl fmt::Display for IdValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(digits) => formatter.write_str(digits),
            Self::Text(text) => formatter.write_str(&serde_json::Value::from(&**text).to_string()),
        }
    }
}
