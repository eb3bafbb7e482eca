//! The parts of a message that this transport reads.
//!
//! What must stay true: messages pass byte for byte. The one change: an error response without an id gets one, so
//! that the harness can match it to its request.

use std::borrow::Cow;
use std::ops::Range;

use relay_proto::envelope::{self, Envelope, IdValue, Kind, Outcome, Strictness};
use relay_proto::json;

/// A message and its envelope; the rest of it is not parsed.
pub(super) struct Outline<'a> {
    pub(super) message: &'a [u8],
    envelope: Envelope<'a>,
}

/// The id of a request that waits for its response.
#[derive(Clone, Debug)]
pub(super) struct AwaitedId {
    value: IdValue,
    /// The bytes of the id in the request: the response repeats them exactly.
    raw: Box<[u8]>,
}

/// A message from the server, as seen by the request that waits for a response.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Classified {
    /// The response, to be relayed as these bytes.
    Response(Vec<u8>),
    /// Another message: a notification, a request, the response to another request.
    Other(Vec<u8>),
    /// Not one JSON-RPC message.
    Unreadable,
}

impl<'a> Outline<'a> {
    pub(super) fn read(message: &'a [u8]) -> Option<Self> {
        let envelope = envelope::read(message, Strictness::Envelope).ok()?;
        Some(Self { message, envelope })
    }

    pub(super) fn awaited_id(&self) -> Option<AwaitedId> {
        match &self.envelope.kind {
            Kind::Request { id, .. } => Some(AwaitedId { value: id.value(), raw: id.raw.into() }),
            Kind::Notification { .. } | Kind::Response { .. } => None,
        }
    }

    /// The protocol version that a request of the stateless era names; older requests name none.
    pub(super) fn stateless_version(&self) -> Option<Cow<'a, str>> {
        self.text(&["_meta", "io.modelcontextprotocol/protocolVersion"])
    }

    /// The protocol version in the response to `initialize`; none in an error.
    pub(super) fn negotiated_version(&self) -> Option<Cow<'a, str>> {
        match self.envelope.kind {
            Kind::Response { outcome: Outcome::Result, .. } => self.text(&["protocolVersion"]),
            _ => None,
        }
    }

    /// The text at `path` in the parameters or the result.
    pub(super) fn text(&self, path: &[&str]) -> Option<Cow<'a, str>> {
        json::text(self.message, self.at(path)?)
    }

    /// The byte range of the value at `path` in the parameters or the result.
    pub(super) fn at(&self, path: &[&str]) -> Option<Range<usize>> {
        path.iter()
            .try_fold(self.envelope.body.clone()?, |object, key| json::member(self.message, object, key))
    }
}

/// Decides whether `message` is the response to the request with the id `awaited`.
pub(super) fn classify(message: Vec<u8>, awaited: &AwaitedId) -> Classified {
    let Some(outline) = Outline::read(&message) else { return Classified::Unreadable };
    match outline.envelope.kind {
        Kind::Response { id: Some(id), .. } if id.value() == awaited.value => Classified::Response(message),
        // The exchange carries one request only, so the error is about that one.
        Kind::Response { id: None, outcome: Outcome::Error } => {
            Classified::Response(with_id(&message, &awaited.raw))
        }
        Kind::Response { id: None, outcome: Outcome::Result } => Classified::Unreadable,
        Kind::Notification { .. } | Kind::Request { .. } | Kind::Response { .. } => {
            Classified::Other(message)
        }
    }
}

/// Puts `id` first in a message that has none, or in the place of its `null`.
fn with_id(message: &[u8], id: &[u8]) -> Vec<u8> {
    if let Some(null) = json::member(message, 0..message.len(), "id") {
        return [&message[..null.start], id, &message[null.end..]].concat();
    }
    let open = message.iter().position(|byte| *byte == b'{').map_or(0, |at| at + 1);
    [&message[..open], b"\"id\":", id, b",", &message[open..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(message: &str, id: &str) -> Classified {
        let request = format!(r#"{{"id":{id},"method":"m"}}"#);
        let awaited = Outline::read(request.as_bytes()).unwrap().awaited_id().unwrap();
        classify(message.as_bytes().to_vec(), &awaited)
    }

    fn response(message: &str) -> Classified {
        Classified::Response(message.as_bytes().to_vec())
    }

    #[test]
    fn a_response_is_recognised_by_its_id() {
        let mine = r#"{ "jsonrpc":"2.0", "id":"\u0061", "result":{"x":1.0} }"#;
        assert_eq!(classified(mine, r#""a""#), response(mine));
        assert_eq!(classified(mine, "1"), Classified::Other(mine.into()));
        let number = r#"{"jsonrpc":"2.0","id":12345678901234567890123,"result":{}}"#;
        assert_eq!(classified(number, "12345678901234567890123"), response(number));
        assert_eq!(classified(number, r#""12345678901234567890123""#), Classified::Other(number.into()));
        let request = r#"{"id":1,"method":"ping"}"#;
        assert_eq!(classified(request, "1"), Classified::Other(request.into()));
        for unreadable in
            ["[]", "[{}]", "{}", "no", r#"{"id":1}"#, r#"{"result":{}}"#, r#"{"id":1,"id":1,"result":0}"#]
        {
            assert_eq!(classified(unreadable, "1"), Classified::Unreadable, "{unreadable}");
        }
    }

    #[test]
    fn an_error_without_an_id_gets_the_id_of_the_request() {
        assert_eq!(
            classified(r#"{"error":{"code":-32000,"data":{"id":null}}, "id" : null }"#, r#""q""#),
            response(r#"{"error":{"code":-32000,"data":{"id":null}}, "id" : "q" }"#)
        );
        assert_eq!(
            classified(r#" {"error":{"code":-32000}}"#, "7"),
            response(r#" {"id":7,"error":{"code":-32000}}"#)
        );
    }

    #[test]
    fn versions_are_read_where_each_era_puts_them() {
        let stateless = br#"{"id":1,"method":"x","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        assert_eq!(Outline::read(stateless).unwrap().stateless_version().as_deref(), Some("2026-07-28"));
        let legacy = br#"{"id":1,"result":{"protocolVersion":"2025-06-18"}}"#;
        let outline = Outline::read(legacy).unwrap();
        assert_eq!(outline.negotiated_version().as_deref(), Some("2025-06-18"));
        assert_eq!(outline.stateless_version(), None);
    }
}
