//! Detects whether a server still has the tools that the harness received.
//!
//! Only the first page is compared: one request per replacement process, however many tools it has. A changed digest
//! makes the harness list the tools again; the digest does not protect from a server that hides a change.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use super::RecordedRequest;
use crate::json;

/// The request for a first page, and a digest of the response.
#[derive(Clone, Debug)]
pub(super) struct ToolPage {
    pub(super) request: RecordedRequest,
    digest: u64,
}

impl ToolPage {
    pub(super) fn new(
        request: RecordedRequest,
        response: &[u8],
        result: Option<Range<usize>>,
    ) -> Option<Self> {
        Some(Self { request, digest: digest(response, result?)? })
    }

    /// Stores the digest of a newer response and returns whether it differs from the one before.
    pub(super) fn update(&mut self, response: &[u8], result: Option<Range<usize>>) -> bool {
        let Some(digest) = result.and_then(|result| digest(response, result)) else { return false };
        std::mem::replace(&mut self.digest, digest) != digest
    }
}

/// Whether this `tools/list` requests the first page.
pub(super) fn is_first_page(message: &[u8], params: Option<Range<usize>>) -> bool {
    params.and_then(|params| json::member(message, params, "cursor")).is_none()
}

/// Whether this `subscriptions/listen` includes changes of the tools.
pub(super) fn includes_tool_changes(message: &[u8], params: Option<Range<usize>>) -> bool {
    let includes = params
        .and_then(|params| json::member(message, params, "notifications"))
        .and_then(|filter| json::member(message, filter, "toolsListChanged"));
    includes.is_some_and(|span| &message[span] == b"true")
}

/// A digest of the tools, independent of their order, and of whether there are more pages. `None` without a list.
fn digest(message: &[u8], result: Range<usize>) -> Option<u64> {
    let list = json::member(message, result.clone(), "tools")?;
    let hash_of = |bytes: &[u8]| {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        hasher.finish()
    };
    let mut tools: Vec<u64> =
        json::elements(message, list).into_iter().map(|tool| hash_of(&message[tool])).collect();
    tools.sort_unstable();
    let more = json::member(message, result, "nextCursor").is_some();
    let mut hasher = DefaultHasher::new();
    (tools, more).hash(&mut hasher);
    Some(hasher.finish())
}
