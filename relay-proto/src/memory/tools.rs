//! Whether a server still has the tools that the harness was shown.
//!
//! Only the first page is looked at: one question per new process, however many tools it has. The digest says
//! "different", to harnesses that then look for themselves; it is no defence against a server that wants to hide a
//! change, which could as well keep quiet about it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use super::Kept;
use crate::json;

/// A first page that was asked for and answered.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) request: Kept,
    digest: u64,
}

impl Listed {
    pub(super) fn new(request: Kept, answer: &[u8], result: Option<Range<usize>>) -> Option<Self> {
        Some(Self { request, digest: digest(answer, result?)? })
    }

    /// Takes a newer answer; says whether it differs from the one before.
    pub(super) fn renew(&mut self, answer: &[u8], result: Option<Range<usize>>) -> bool {
        let Some(digest) = result.and_then(|result| digest(answer, result)) else { return false };
        std::mem::replace(&mut self.digest, digest) != digest
    }
}

/// Whether this `tools/list` asks for the beginning of the list.
pub(super) fn is_first_page(message: &[u8], params: Option<Range<usize>>) -> bool {
    params.and_then(|params| json::member(message, params, "cursor")).is_none()
}

/// Whether this `subscriptions/listen` wants to hear that tools changed.
pub(super) fn are_listened_for(message: &[u8], params: Option<Range<usize>>) -> bool {
    let wanted = params
        .and_then(|params| json::member(message, params, "notifications"))
        .and_then(|filter| json::member(message, filter, "toolsListChanged"));
    wanted.is_some_and(|span| &message[span] == b"true")
}

/// Of the tools in any order, and whether there are more; none where there is no list.
fn digest(message: &[u8], result: Range<usize>) -> Option<u64> {
    let list = json::member(message, result.clone(), "tools")?;
    let of = |bytes: &[u8]| {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        hasher.finish()
    };
    let mut tools: Vec<u64> =
        json::elements(message, list).into_iter().map(|tool| of(&message[tool])).collect();
    tools.sort_unstable();
    let more = json::member(message, result, "nextCursor").is_some();
    let mut hasher = DefaultHasher::new();
    (tools, more).hash(&mut hasher);
    Some(hasher.finish())
}
