//! Whether one process of a server offers what another did: what was agreed on in the handshake, and its tools.
//!
//! Order, `_meta` and spelling are no difference. This is no defence against a server that wants to hide a difference: the
//! operator who configured it chose to trust it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use relay_proto::envelope::{IdValue, Outcome};
use relay_proto::json;
use relay_proto::memory::{Memory, Question};
use serde_json::Value;

use crate::upstream::outbound::Outbound;

/// What is known of a process's tools, in any order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Tools {
    /// Of the first page.
    first: u64,
    /// Of all, where all are known.
    whole: Option<u64>,
}

/// A process is being asked for all its tools, page by page.
#[derive(Debug)]
pub(super) struct Listing {
    asked: IdValue,
    page: usize,
    bytes: usize,
    first: Option<u64>,
    /// Of each tool.
    tools: Vec<u64>,
}

/// What follows from a page.
#[derive(Debug)]
pub(super) enum Turned {
    Done(Tools),
    More(Outbound),
}

/// Pages that are asked for; of longer lists only the first page is compared.
const MAX_PAGES: usize = 32;
/// Bytes of all pages together, likewise.
const MAX_LIST: usize = 4 * 1024 * 1024;
/// A cursor longer than this is not worth following.
const MAX_CURSOR: usize = 4096;
/// Longer texts are compared as they are spelled: a tree of them would take many times as much memory.
const MAX_PARSED: usize = 256 * 1024;

impl Tools {
    /// What a harness's own `tools/list` brings to light: all of them, where its first page is the only one.
    pub(super) fn listed(message: &[u8], result: Range<usize>) -> Option<Self> {
        let tools = digests(message, json::member(message, result.clone(), "tools")?);
        let first = in_any_order(tools);
        Some(Self { first, whole: cursor(message, result).is_none().then_some(first) })
    }

    /// Whether nothing is known by which they differ.
    pub(super) fn are_like(self, other: Self) -> bool {
        match (self.whole, other.whole) {
            (Some(one), Some(other)) => one == other,
            _ => self.first == other.first,
        }
    }

    pub(super) fn are_all_known(self) -> bool {
        self.whole.is_some()
    }
}

impl Listing {
    /// The first question; none where it is not known how this harness would ask.
    pub(super) fn begin(memory: &mut Memory) -> Option<(Self, Outbound)> {
        let Question { id, method, message } = memory.list_tools()?;
        let listing = Self { asked: id.clone(), page: 1, bytes: 0, first: None, tools: Vec::new() };
        Some((listing, Outbound::request(message, id, method, None)))
    }

    pub(super) fn asked(&self) -> &IdValue {
        &self.asked
    }

    /// The answer to [`Self::asked`].
    pub(super) fn hear(
        &mut self,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
        memory: &mut Memory,
    ) -> Turned {
        let list = body.clone().and_then(|result| json::member(message, result, "tools"));
        let (Outcome::Result, Some(result), Some(list)) = (outcome, body, list) else {
            // A server without tools has none in either process.
            let first = self.first.unwrap_or_else(|| in_any_order(Vec::new()));
            return Turned::Done(Tools { first, whole: (self.page == 1).then_some(first) });
        };
        let page = digests(message, list);
        let first = *self.first.get_or_insert_with(|| in_any_order(page.clone()));
        self.tools.extend(page);
        self.bytes += message.len();
        let Some(cursor) = cursor(message, result) else {
            let whole = in_any_order(std::mem::take(&mut self.tools));
            return Turned::Done(Tools { first, whole: Some(whole) });
        };
        let within = self.page < MAX_PAGES && self.bytes <= MAX_LIST && cursor.len() <= MAX_CURSOR;
        match memory.list_tools().filter(|_| within) {
            Some(Question { id, method, message }) => {
                self.asked = id.clone();
                self.page += 1;
                Turned::More(Outbound::request(with_cursor(&message, cursor), id, method, None))
            }
            None => Turned::Done(Tools { first, whole: None }),
        }
    }
}

/// What a handshake's answer promises: the protocol's version and what the server can do.
pub(super) fn agreement(message: &[u8], result: Option<Range<usize>>) -> Option<u64> {
    let result = result?;
    let parts = ["protocolVersion", "capabilities"]
        .map(|key| json::member(message, result.clone(), key).map(|span| digest(&message[span])));
    Some(hash(parts))
}

fn digests(message: &[u8], list: Range<usize>) -> Vec<u64> {
    json::elements(message, list).into_iter().map(|tool| digest(&message[tool])).collect()
}

/// Where there is a further page.
fn cursor(message: &[u8], result: Range<usize>) -> Option<&[u8]> {
    json::member(message, result, "nextCursor").map(|span| &message[span]).filter(|cursor| cursor != b"null")
}

/// The same request for a later page.
fn with_cursor(message: &[u8], cursor: &[u8]) -> Vec<u8> {
    let cursor = [br#""cursor":"#, cursor].concat();
    match json::member(message, 0..message.len(), "params") {
        Some(params) => {
            let inside = params.start + 1..params.end - 1;
            let is_empty = message[inside.clone()].iter().all(u8::is_ascii_whitespace);
            let comma: &[u8] = if is_empty { b"" } else { b"," };
            json::replace(message, inside.start..inside.start, &[&cursor, comma].concat())
        }
        None => {
            let end = message.iter().rposition(|byte| *byte == b'}').unwrap_or(message.len());
            json::replace(message, end..end, &[br#","params":{"#, &cursor[..], b"}"].concat())
        }
    }
}

fn digest(text: &[u8]) -> u64 {
    let parsed = match text.len() <= MAX_PARSED {
        true => serde_json::from_slice::<Value>(text).ok(),
        false => None,
    };
    let Some(value) = parsed else { return hash(text) };
    let mut hasher = DefaultHasher::new();
    feed(&value, &mut hasher);
    hasher.finish()
}

fn feed(value: &Value, hasher: &mut DefaultHasher) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().filter(|(key, _)| *key != "_meta").collect();
            members.sort_by_key(|(key, _)| *key);
            (0_u8, members.len()).hash(hasher);
            for (key, value) in members {
                key.hash(hasher);
                feed(value, hasher);
            }
        }
        Value::Array(elements) => {
            (1_u8, elements.len()).hash(hasher);
            elements.iter().for_each(|element| feed(element, hasher));
        }
        Value::String(text) => (2_u8, text).hash(hasher),
        scalar => (3_u8, scalar.to_string()).hash(hasher),
    }
}

fn in_any_order(mut digests: Vec<u64>) -> u64 {
    digests.sort_unstable();
    hash(digests)
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Tools {
        Tools::listed(text.as_bytes(), 0..text.len()).unwrap()
    }

    #[test]
    fn order_spelling_and_meta_are_no_difference_and_everything_else_is() {
        let one = listed(r#"{"tools":[{"name":"a","inputSchema":{"x":1,"y":[1,2]}},{"name":"b"}]}"#);
        let same = listed(
            r#"{"tools":[ {"name":"\u0062","_meta":{"t":9}} ,{"inputSchema":{"y":[1, 2],"x":1},"name":"a"}]}"#,
        );
        assert!(one.are_like(same) && one.are_all_known());
        for other in [
            r#"{"tools":[{"name":"a","inputSchema":{"x":1,"y":[2,1]}},{"name":"b"}]}"#,
            r#"{"tools":[{"name":"a","inputSchema":{"x":1,"y":[1,2]}}]}"#,
            r#"{"tools":[]}"#,
        ] {
            assert!(!one.are_like(listed(other)), "{other}");
        }
        let agreed = |text: &str| agreement(text.as_bytes(), Some(0..text.len()));
        let ours =
            agreed(r#"{"protocolVersion":"1","capabilities":{"a":{},"b":1},"serverInfo":{"version":"1"}}"#);
        assert_eq!(
            ours,
            agreed(r#"{"serverInfo":{"version":"2"},"capabilities":{"b":1,"a":{}},"protocolVersion":"1"}"#)
        );
        assert_ne!(ours, agreed(r#"{"protocolVersion":"2","capabilities":{"a":{},"b":1}}"#));
        assert_ne!(ours, agreed(r#"{"protocolVersion":"1","capabilities":{"a":{}}}"#));
    }

    #[test]
    fn pages_are_followed_and_bounded_and_the_first_is_compared_where_more_is_not_known() {
        let mut memory = greeted();
        let page = |tools: &str, next: &str| format!(r#"{{"tools":[{tools}]{next}}}"#);
        let hear = |listing: &mut Listing, memory: &mut Memory, text: &str| {
            listing.hear(Outcome::Result, text.as_bytes(), Some(0..text.len()), memory)
        };
        let (mut listing, _) = Listing::begin(&mut memory).unwrap();
        let more = hear(&mut listing, &mut memory, &page(r#"{"name":"a"}"#, r#","nextCursor":"c 1""#));
        let Turned::More(question) = more else { panic!("{more:?}") };
        let question = String::from_utf8(question.bytes.to_vec()).unwrap();
        assert!(question.ends_with(r#""method":"tools/list","params":{"cursor":"c 1"}}"#), "{question}");
        let done = hear(&mut listing, &mut memory, &page(r#"{"name":"b"}"#, ""));
        let Turned::Done(both) = done else { panic!("{done:?}") };
        assert!(both.are_like(listed(&page(r#"{"name":"b"},{"name":"a"}"#, ""))));
        let first_alone = listed(&page(r#"{"name":"a"}"#, r#","nextCursor":"c""#));
        assert!(!first_alone.are_all_known() && both.are_like(first_alone));
        let (mut endless, _) = Listing::begin(&mut memory).unwrap();
        for number in 1..=MAX_PAGES {
            let turned = hear(&mut endless, &mut memory, &page("", r#","nextCursor":"c""#));
            assert_eq!(matches!(turned, Turned::Done(_)), number == MAX_PAGES, "{number}");
        }
    }

    #[test]
    fn a_cursor_joins_what_the_harness_says_of_itself() {
        let put = |message: &str| String::from_utf8(with_cursor(message.as_bytes(), b"\"c\"")).unwrap();
        assert_eq!(
            put(r#"{"id":1,"params":{"_meta":{}}}"#),
            r#"{"id":1,"params":{"cursor":"c","_meta":{}}}"#
        );
        assert_eq!(put(r#"{"id":1,"params":{ }}"#), r#"{"id":1,"params":{"cursor":"c" }}"#);
        assert_eq!(put(r#"{"id":1}"#), r#"{"id":1,"params":{"cursor":"c"}}"#);
    }

    fn greeted() -> Memory {
        use relay_proto::envelope::{Kind, Strictness, read};
        let mut memory = Memory::new("own:");
        let bytes = br#"{"jsonrpc":"2.0","id":0,"method":"initialize"}"#;
        let Ok(Kind::Request { id, method }) =
            read(bytes, Strictness::Envelope).map(|envelope| envelope.kind)
        else {
            panic!("a request")
        };
        memory.request(bytes, &id, &method, None);
        memory.answered(&id.value(), Outcome::Result, b"", None);
        memory
    }
}
