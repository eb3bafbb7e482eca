//! Whether two processes of a server offer the same tools, and agreed on the same version and capabilities.
//!
//! Order, `_meta` and JSON formatting are ignored. This is no defence against a server that hides a difference on
//! purpose: the operator who configured it chose to trust it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use relay_proto::envelope::{IdValue, Outcome};
use relay_proto::json;
use relay_proto::replay::Replay;
use serde_json::Value;

use crate::outbound::Outbound;
use crate::tool_list::{self, NextPage, ToolList};

/// Hashes of what is known of a process's tools, independent of their order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ToolFingerprint {
    /// Of the first page.
    first_page: u64,
    /// Of all tools, where all are known.
    all: Option<u64>,
}

/// Lists all tools of a process, page by page, and hashes them.
#[derive(Debug)]
pub(crate) struct Fingerprinting {
    list: ToolList,
    first_page: Option<u64>,
    /// One hash for each tool.
    tools: Vec<u64>,
}

/// The result of adding one page.
#[derive(Debug)]
pub(crate) enum PageResult {
    Done(ToolFingerprint),
    More(Outbound),
}

/// In bytes. Longer texts are hashed as they are: parsed, they would need many times as much memory.
const MAX_PARSED: usize = 256 * 1024;

impl ToolFingerprint {
    /// Hashes the response to the harness's own `tools/list`. It covers all tools if the first page is the only one.
    pub(crate) fn of_first_page(message: &[u8], result: Range<usize>) -> Option<Self> {
        let tools = digests(message, json::member(message, result.clone(), "tools")?);
        let first_page = hash_unordered(tools);
        let is_only_page = tool_list::cursor(message, result).is_none();
        Some(Self { first_page, all: is_only_page.then_some(first_page) })
    }

    /// Whether no difference is known.
    pub(crate) fn matches(self, other: Self) -> bool {
        match (self.all, other.all) {
            (Some(one), Some(other)) => one == other,
            _ => self.first_page == other.first_page,
        }
    }

    pub(crate) fn is_complete(self) -> bool {
        self.all.is_some()
    }
}

impl Fingerprinting {
    /// Starts a listing and returns its first request; `None` if the tools cannot be listed, see
    /// [`Replay::list_tools`].
    pub(crate) fn begin(replay: &mut Replay) -> Option<(Self, Outbound)> {
        let (list, request) = ToolList::begin(replay.list_tools()?);
        Some((Self { list, first_page: None, tools: Vec::new() }, request))
    }

    /// The id of the request that waits for a response.
    pub(crate) fn pending_id(&self) -> &IdValue {
        self.list.pending_id()
    }

    /// Handles the response to [`Self::pending_id`].
    pub(crate) fn on_response(
        &mut self,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
        replay: &mut Replay,
    ) -> PageResult {
        let tools = body.clone().and_then(|result| json::member(message, result, "tools"));
        let (Outcome::Result, Some(result), Some(tools)) = (outcome, body, tools) else {
            // An error for the first page means that the server has no tools; a later error leaves the list
            // incomplete.
            let first_page = self.first_page.unwrap_or_else(|| hash_unordered(Vec::new()));
            let all = self.list.is_at_first_page().then_some(first_page);
            return PageResult::Done(ToolFingerprint { first_page, all });
        };
        let page = digests(message, tools);
        let first_page = *self.first_page.get_or_insert_with(|| hash_unordered(page.clone()));
        self.tools.extend(page);
        match self.list.next_page(message, result, || replay.next_id()) {
            NextPage::Ask(request) => PageResult::More(request),
            NextPage::Complete => {
                let all = hash_unordered(std::mem::take(&mut self.tools));
                PageResult::Done(ToolFingerprint { first_page, all: Some(all) })
            }
            NextPage::Abandoned => PageResult::Done(ToolFingerprint { first_page, all: None }),
        }
    }
}

/// A hash of what the response to a handshake promises: the protocol's version and the server's capabilities.
pub(crate) fn agreement(message: &[u8], result: Option<Range<usize>>) -> Option<u64> {
    let result = result?;
    let parts = ["protocolVersion", "capabilities"]
        .map(|key| json::member(message, result.clone(), key).map(|span| digest(&message[span])));
    Some(hash(parts))
}

fn digests(message: &[u8], list: Range<usize>) -> Vec<u64> {
    json::elements(message, list).into_iter().map(|tool| digest(&message[tool])).collect()
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

fn hash_unordered(mut digests: Vec<u64>) -> u64 {
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

    fn listed(text: &str) -> ToolFingerprint {
        ToolFingerprint::of_first_page(text.as_bytes(), 0..text.len()).unwrap()
    }

    #[test]
    fn order_formatting_and_meta_are_ignored_and_other_differences_are_found() {
        let one = listed(r#"{"tools":[{"name":"a","inputSchema":{"x":1,"y":[1,2]}},{"name":"b"}]}"#);
        let same = listed(
            r#"{"tools":[ {"name":"\u0062","_meta":{"t":9}} ,{"inputSchema":{"y":[1, 2],"x":1},"name":"a"}]}"#,
        );
        assert!(one.matches(same) && one.is_complete());
        for other in [
            r#"{"tools":[{"name":"a","inputSchema":{"x":1,"y":[2,1]}},{"name":"b"}]}"#,
            r#"{"tools":[{"name":"a","inputSchema":{"x":1,"y":[1,2]}}]}"#,
            r#"{"tools":[]}"#,
        ] {
            assert!(!one.matches(listed(other)), "{other}");
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
    fn pages_are_followed_within_a_bound_and_an_incomplete_list_is_compared_by_its_first_page() {
        let mut replay = replay_after_handshake();
        let page = |tools: &str, next: &str| format!(r#"{{"tools":[{tools}]{next}}}"#);
        let respond = |listing: &mut Fingerprinting, replay: &mut Replay, text: &str| {
            listing.on_response(Outcome::Result, text.as_bytes(), Some(0..text.len()), replay)
        };
        let (mut listing, _) = Fingerprinting::begin(&mut replay).unwrap();
        let more = respond(&mut listing, &mut replay, &page(r#"{"name":"a"}"#, r#","nextCursor":"c 1""#));
        let PageResult::More(request) = more else { panic!("{more:?}") };
        let request = String::from_utf8(request.bytes.to_vec()).unwrap();
        assert!(request.ends_with(r#""method":"tools/list","params":{"cursor":"c 1"}}"#), "{request}");
        let done = respond(&mut listing, &mut replay, &page(r#"{"name":"b"}"#, ""));
        let PageResult::Done(both) = done else { panic!("{done:?}") };
        assert!(both.matches(listed(&page(r#"{"name":"b"},{"name":"a"}"#, ""))));
        let first_alone = listed(&page(r#"{"name":"a"}"#, r#","nextCursor":"c""#));
        assert!(!first_alone.is_complete() && both.matches(first_alone));
        let (mut endless, _) = Fingerprinting::begin(&mut replay).unwrap();
        for number in 1..=32 {
            let result = respond(&mut endless, &mut replay, &page("", r#","nextCursor":"c""#));
            assert_eq!(matches!(result, PageResult::Done(_)), number == 32, "{number}");
        }
    }

    fn replay_after_handshake() -> Replay {
        use relay_proto::envelope::{Kind, Strictness, read};
        let mut replay = Replay::new("own:");
        let bytes = br#"{"jsonrpc":"2.0","id":0,"method":"initialize"}"#;
        let Ok(Kind::Request { id, method }) =
            read(bytes, Strictness::Envelope).map(|envelope| envelope.kind)
        else {
            panic!("not a request")
        };
        replay.record_request(bytes, &id, &method, None);
        replay.record_response(&id.value(), Outcome::Result, b"", None);
        replay
    }
}
