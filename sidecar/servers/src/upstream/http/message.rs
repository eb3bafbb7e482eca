//! The parts of a message that this transport reads.
//!
//! What must stay true: messages pass byte for byte. The one change is the id that an error response without one gets, so
//! that the request it belongs to gets its response.

use std::borrow::Cow;
use std::ops::Range;

use relay_proto::envelope::{self, Envelope, IdValue, Kind, Outcome, Strictness};
use relay_proto::json;

/// A message and its envelope; the rest of it is not parsed.
pub(super) struct Outline<'a> {
    pub(super) message: &'a [u8],
    envelope: Envelope<'a>,
}

/// The id of a request that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    value: IdValue,
    /// As the request spells it: ids go back byte for byte.
    spelled: Box<[u8]>,
}

/// What a message is to the request that waits.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Fit {
    /// The answer, to be relayed as these bytes.
    Answer(Vec<u8>),
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

    pub(super) fn asked(&self) -> Option<Asked> {
        match &self.envelope.kind {
            Kind::Request { id, .. } => Some(Asked { value: id.value(), spelled: id.raw.into() }),
            Kind::Notification { .. } | Kind::Response { .. } => None,
        }
    }

    /// The revision a request of the stateless era names; older requests name none.
    pub(super) fn stateless_version(&self) -> Option<Cow<'a, str>> {
        self.text(&["_meta", "io.modelcontextprotocol/protocolVersion"])
    }

    /// The revision that the answer to `initialize` settled on; an error settles nothing.
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

    /// Where the value at `path` in the parameters or the result stands.
    pub(super) fn at(&self, path: &[&str]) -> Option<Range<usize>> {
        path.iter()
            .try_fold(self.envelope.body.clone()?, |object, key| json::member(self.message, object, key))
    }
}

/// Decides whether `message` answers the request that `asked`.
pub(super) fn fit(message: Vec<u8>, asked: &Asked) -> Fit {
    let Some(outline) = Outline::read(&message) else { return Fit::Unreadable };
    match outline.envelope.kind {
        Kind::Response { id: Some(id), .. } if id.value() == asked.value => Fit::Answer(message),
        // An error about the only request there was on this exchange.
        Kind::Response { id: None, outcome: Outcome::Error } => {
            Fit::Answer(with_id(&message, &asked.spelled))
        }
        Kind::Response { id: None, outcome: Outcome::Result } => Fit::Unreadable,
        Kind::Notification { .. } | Kind::Request { .. } | Kind::Response { .. } => Fit::Other(message),
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

    fn fitted(message: &str, asked: &str) -> Fit {
        let request = format!(r#"{{"id":{asked},"method":"m"}}"#);
        let asked = Outline::read(request.as_bytes()).unwrap().asked().unwrap();
        fit(message.as_bytes().to_vec(), &asked)
    }

    fn answer(message: &str) -> Fit {
        Fit::Answer(message.as_bytes().to_vec())
    }

    #[test]
    fn an_answer_is_known_by_its_id() {
        let mine = r#"{ "jsonrpc":"2.0", "id":"\u0061", "result":{"x":1.0} }"#;
        assert_eq!(fitted(mine, r#""a""#), answer(mine));
        assert_eq!(fitted(mine, "1"), Fit::Other(mine.into()));
        let number = r#"{"jsonrpc":"2.0","id":12345678901234567890123,"result":{}}"#;
        assert_eq!(fitted(number, "12345678901234567890123"), answer(number));
        assert_eq!(fitted(number, r#""12345678901234567890123""#), Fit::Other(number.into()));
        let request = r#"{"id":1,"method":"ping"}"#;
        assert_eq!(fitted(request, "1"), Fit::Other(request.into()));
        for unreadable in
            ["[]", "[{}]", "{}", "no", r#"{"id":1}"#, r#"{"result":{}}"#, r#"{"id":1,"id":1,"result":0}"#]
        {
            assert_eq!(fitted(unreadable, "1"), Fit::Unreadable, "{unreadable}");
        }
    }

    #[test]
    fn an_error_without_an_id_gets_the_askers() {
        assert_eq!(
            fitted(r#"{"error":{"code":-32000,"data":{"id":null}}, "id" : null }"#, r#""q""#),
            answer(r#"{"error":{"code":-32000,"data":{"id":null}}, "id" : "q" }"#)
        );
        assert_eq!(
            fitted(r#" {"error":{"code":-32000}}"#, "7"),
            answer(r#" {"id":7,"error":{"code":-32000}}"#)
        );
    }

    #[test]
    fn versions_are_read_where_each_era_puts_them() {
        let modern = br#"{"id":1,"method":"x","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        assert_eq!(Outline::read(modern).unwrap().stateless_version().as_deref(), Some("2026-07-28"));
        let legacy = br#"{"id":1,"result":{"protocolVersion":"2025-06-18"}}"#;
        let outline = Outline::read(legacy).unwrap();
        assert_eq!(outline.negotiated_version().as_deref(), Some("2025-06-18"));
        assert_eq!(outline.stateless_version(), None);
    }
}
