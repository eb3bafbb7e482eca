//! `tools/list` requests of the sidecar itself, page by page.
//!
//! Used to compare the tools of two processes ([`crate::tool_fingerprint`]) and by the pipeline to find out which tools
//! may be retried.

use std::ops::Range;

use relay_proto::envelope::IdValue;
use relay_proto::replay::OwnRequest;
use relay_proto::{json, mcp};

use crate::outbound::Outbound;

/// A list that is being fetched.
#[derive(Debug)]
pub struct ToolList {
    /// The id of the request for the latest page.
    pending_id: IdValue,
    /// The request for the first page.
    request: Vec<u8>,
    page: usize,
    /// Of all pages so far.
    bytes: usize,
}

/// What to do after a page.
#[derive(Debug)]
pub enum NextPage {
    /// The list exceeds the bounds below, and the rest of it is not fetched.
    Abandoned,
    Ask(Outbound),
    /// That was the last one.
    Complete,
}

/// The most pages that are requested.
const MAX_PAGES: usize = 32;
/// Bytes of all pages together.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// A longer cursor is not followed.
const MAX_CURSOR: usize = 4096;

impl ToolList {
    /// Starts a listing and returns the request for its first page.
    pub fn begin(request: OwnRequest) -> (Self, Outbound) {
        let OwnRequest { id, method, message } = request;
        let list = Self { pending_id: id.clone(), request: message.clone(), page: 1, bytes: 0 };
        (list, Outbound::request(message, id, method, None))
    }

    /// The id of the request that waits for a response.
    pub fn pending_id(&self) -> &IdValue {
        &self.pending_id
    }

    pub(crate) fn is_at_first_page(&self) -> bool {
        self.page == 1
    }

    /// Handles a page: `result` in `message`, the response to [`Self::pending_id`]. The next page is requested under
    /// `id`.
    pub fn next_page(
        &mut self,
        message: &[u8],
        result: Range<usize>,
        id: impl FnOnce() -> IdValue,
    ) -> NextPage {
        self.bytes += message.len();
        let Some(cursor) = cursor(message, result) else { return NextPage::Complete };
        if self.page >= MAX_PAGES || self.bytes > MAX_BYTES || cursor.len() > MAX_CURSOR {
            return NextPage::Abandoned;
        }
        let id = id();
        let request = match json::member(&self.request, 0..self.request.len(), "id") {
            Some(span) => json::replace(&self.request, span, id.to_string().as_bytes()),
            None => return NextPage::Abandoned,
        };
        self.pending_id = id.clone();
        self.page += 1;
        NextPage::Ask(Outbound::request(with_cursor(&request, cursor), id, mcp::TOOLS_LIST, None))
    }
}

/// The cursor of the next page, if there is one.
pub(crate) fn cursor(message: &[u8], result: Range<usize>) -> Option<&[u8]> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn first(params: &str) -> OwnRequest {
        let id = IdValue::Text("own-1".into());
        let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"{params}}}"#);
        OwnRequest { id, method: mcp::TOOLS_LIST, message: message.into_bytes() }
    }

    fn after(list: &mut ToolList, page: &str) -> NextPage {
        let id = || IdValue::Text(format!("own-{}", 9).into());
        list.next_page(page.as_bytes(), 0..page.len(), id)
    }

    #[test]
    fn the_next_page_is_requested_like_the_first_with_a_new_id() {
        for (params, expected) in [
            ("", r#","params":{"cursor":"c 1"}"#),
            (r#","params":{}"#, r#","params":{"cursor":"c 1"}"#),
            (r#","params":{"_meta":{"a":1}}"#, r#","params":{"cursor":"c 1","_meta":{"a":1}}"#),
        ] {
            let (mut list, _) = ToolList::begin(first(params));
            let next = after(&mut list, r#"{"tools":[],"nextCursor":"c 1"}"#);
            let NextPage::Ask(next) = next else { panic!("{next:?}") };
            let expected = format!(r#"{{"jsonrpc":"2.0","id":"own-9","method":"tools/list"{expected}}}"#);
            assert_eq!(String::from_utf8_lossy(&next.bytes), expected);
            assert_eq!(next.request_id(), Some(list.pending_id()));
        }
    }

    #[test]
    fn listing_stops_at_the_last_page_and_at_each_limit() {
        for last in [r#"{"tools":[]}"#, r#"{"tools":[],"nextCursor":null}"#] {
            let (mut list, _) = ToolList::begin(first(""));
            assert!(matches!(after(&mut list, last), NextPage::Complete), "{last}");
        }
        let (mut list, _) = ToolList::begin(first(""));
        let pages = (1..=100)
            .find(|_| matches!(after(&mut list, r#"{"tools":[],"nextCursor":"more"}"#), NextPage::Abandoned));
        assert_eq!(pages, Some(MAX_PAGES));
        let long = format!(r#"{{"nextCursor":"{}"}}"#, "c".repeat(MAX_CURSOR));
        let (mut list, _) = ToolList::begin(first(""));
        assert!(matches!(after(&mut list, &long), NextPage::Abandoned));
        let large = format!(r#"{{"nextCursor":"c","x":"{}"}}"#, "x".repeat(MAX_BYTES));
        let (mut list, _) = ToolList::begin(first(""));
        assert!(matches!(after(&mut list, &large), NextPage::Abandoned));
    }
}
