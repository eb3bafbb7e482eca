//! The known tools of a server: which ones the harness was shown, and which may be repeated.
//!
//! Without `retry` in the server's configuration only `subscriptions/listen` is repeated. With `retry`, so are the methods
//! that can be repeated without harm, and calls of tools whose annotations allow it; `retry` has to be set because a server
//! may lie in its annotations.
//!
//! What must stay true: a tool without annotations is not repeated, and the most recent list wins.

use std::collections::HashMap;
use std::ops::Range;

use cofferdam_servers::spec::Retry;
use relay_proto::json;
use relay_proto::limits::MAX_TOOL_NAME;
use relay_proto::mcp::{Method, ReplayRole};

use super::decode::Request;
use super::shown_tools::ShownTools;

/// The tools of one server, as listed on one link.
#[derive(Debug, Default)]
pub(crate) struct ToolCatalogue {
    /// The tools that the harness was shown.
    pub(super) shown: ShownTools,
    /// For each tool the rule that allows calls of it to be repeated, if any.
    tools: HashMap<Box<str>, Option<&'static str>>,
    /// Whether `tools` holds every tool of the server.
    pub(super) coverage: Coverage,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Coverage {
    #[default]
    Partial,
    Whole,
}

/// Whether a request that may have run may run once more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Repeat {
    No,
    /// The server's list of tools must be requested first.
    Unknown,
    /// By this rule.
    Yes(&'static str),
}

/// Bounds the memory that a server can make a link use; calls of further tools are not repeated.
const MAX_TOOLS: usize = 4096;

// Each begins with [`cofferdam_audit::RETRY`]: the audit recognises repeated calls by it.
const LISTENS: &str = "retry: subscriptions/listen only listens";
const METHOD: &str = "retry: the method can be repeated";
const READ_ONLY: &str = "retry: annotations.readOnlyHint";
const IDEMPOTENT: &str = "retry: annotations.idempotentHint";

impl ToolCatalogue {
    /// Whether this request may be repeated on a server with this setting.
    pub(super) fn repeat(&self, retry: Retry, request: &Request<'_>) -> Repeat {
        match (request.known, retry, request.tool.as_deref()) {
            (Some(Method { replay: ReplayRole::Listen, .. }), ..) => Repeat::Yes(LISTENS),
            (_, Retry::Never, _) => Repeat::No,
            (_, Retry::WhereSafe, Some(tool)) => match (self.tools.get(tool), self.coverage) {
                (Some(Some(rule)), _) => Repeat::Yes(rule),
                (None, Coverage::Partial) => Repeat::Unknown,
                (Some(None), _) | (None, Coverage::Whole) => Repeat::No,
            },
            (Some(Method { repeatable: true, .. }), Retry::WhereSafe, None) => Repeat::Yes(METHOD),
            (_, Retry::WhereSafe, None) => Repeat::No,
        }
    }

    /// Whether to keep a copy of this request for a retry: it may be repeated, or that is not known yet.
    pub(super) fn may_be_repeated(&self, retry: Retry, request: &Request<'_>) -> bool {
        self.repeat(retry, request) != Repeat::No
    }

    /// Whether the server has listed this tool on this link.
    pub(super) fn lists(&self, tool: &str) -> bool {
        self.shown.contains(tool) || self.tools.contains_key(tool)
    }

    /// All pages of the list were recorded. If the server has more tools than are remembered, they are not all known.
    pub(super) fn complete(&mut self) {
        if self.tools.len() < MAX_TOOLS {
            self.coverage = Coverage::Whole;
        }
    }

    /// Stores the tools in the result of a `tools/list`.
    pub(super) fn record(&mut self, message: &[u8], result: Range<usize>) {
        let Some(list) = json::member(message, result, "tools") else { return };
        for tool in json::elements(message, list) {
            let name = json::member(message, tool.clone(), "name").and_then(|name| json::text(message, name));
            let Some(name) = name.filter(|name| name.len() <= MAX_TOOL_NAME) else { continue };
            let rule = repeat_rule(message, tool);
            if let Some(known) = self.tools.get_mut(&*name) {
                *known = rule;
            } else if self.tools.len() < MAX_TOOLS {
                self.tools.insert(name.into(), rule);
            }
        }
    }
}

/// The rule that allows calls of the tool at `tool` to be repeated, if its annotations do.
fn repeat_rule(message: &[u8], tool: Range<usize>) -> Option<&'static str> {
    let annotations = json::member(message, tool, "annotations")?;
    let is_true = |key: &str| {
        json::member(message, annotations.clone(), key).is_some_and(|span| &message[span] == b"true")
    };
    match (is_true("readOnlyHint"), is_true("idempotentHint")) {
        (true, _) => Some(READ_ONLY),
        (false, true) => Some(IDEMPOTENT),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use relay_proto::delivery::Received;
    use relay_proto::frame::MaybeRan;
    use relay_proto::mcp;

    use super::*;
    use crate::call::decode::{Inbound, decode};
    use cofferdam_audit::RETRY;

    fn repeat(catalogue: &ToolCatalogue, retry: Retry, method: &str, tool: &str) -> Repeat {
        let bytes = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"name":"{tool}"}}}}"#);
        let received = Received { seq: 1, maybe_ran: MaybeRan::No, bytes: bytes.into_bytes() };
        match decode(&received, 16) {
            Inbound::Request { request, .. } => catalogue.repeat(retry, &request),
            _ => panic!("not a request"),
        }
    }

    fn record(catalogue: &mut ToolCatalogue, tools: &str) {
        let message = format!(r#"{{"tools":[{tools}]}}"#);
        catalogue.record(message.as_bytes(), 0..message.len());
    }

    #[test]
    fn only_annotated_tools_are_repeated_and_only_where_retry_is_configured() {
        let mut catalogue = ToolCatalogue::default();
        record(
            &mut catalogue,
            r#"{"name":"reads","annotations":{"readOnlyHint":true}},
               {"name":"puts","annotations":{"idempotentHint": true ,"readOnlyHint":false}},
               {"name":"sends","annotations":{"idempotentHint":"true"}},{"name":"silent"}"#,
        );
        let call =
            |catalogue: &ToolCatalogue, tool: &str| repeat(catalogue, Retry::WhereSafe, "tools/call", tool);
        assert_eq!(call(&catalogue, "reads"), Repeat::Yes(READ_ONLY));
        assert_eq!(call(&catalogue, "puts"), Repeat::Yes(IDEMPOTENT));
        for tool in ["sends", "silent"] {
            assert_eq!(call(&catalogue, tool), Repeat::No, "{tool}");
        }
        assert_eq!(call(&catalogue, "unlisted"), Repeat::Unknown);
        catalogue.coverage = Coverage::Whole;
        assert_eq!(call(&catalogue, "unlisted"), Repeat::No);
        assert_eq!(repeat(&catalogue, Retry::Never, "tools/call", "reads"), Repeat::No);
        record(&mut catalogue, r#"{"name":"reads"}"#);
        assert_eq!(call(&catalogue, "reads"), Repeat::No, "the last list wins");
    }

    #[test]
    fn methods_that_can_be_repeated_without_harm_are_repeated_and_others_are_not() {
        let catalogue = ToolCatalogue::default();
        let repeatable: Vec<_> =
            mcp::METHODS.iter().filter(|row| row.repeatable).map(|row| row.name).collect();
        assert_eq!(
            repeatable,
            [
                "completion/complete",
                "initialize",
                "logging/setLevel",
                "ping",
                "prompts/get",
                "prompts/list",
                "resources/list",
                "resources/read",
                "resources/subscribe",
                "resources/templates/list",
                "resources/unsubscribe",
                "server/discover",
                "tasks/get",
                "tasks/list",
                "tasks/result",
                "tools/list",
            ]
        );
        for method in repeatable {
            assert_eq!(repeat(&catalogue, Retry::WhereSafe, method, "x"), Repeat::Yes(METHOD));
            assert_eq!(repeat(&catalogue, Retry::Never, method, "x"), Repeat::No);
        }
        for method in ["tasks/cancel", "tasks/update", "x/custom", "sampling/createMessage"] {
            assert_eq!(repeat(&catalogue, Retry::WhereSafe, method, "x"), Repeat::No, "{method}");
        }
        assert_eq!(repeat(&catalogue, Retry::Never, "subscriptions/listen", "x"), Repeat::Yes(LISTENS));
        assert!([LISTENS, METHOD, READ_ONLY, IDEMPOTENT].iter().all(|rule| rule.starts_with(RETRY)));
    }

    #[test]
    fn the_number_of_remembered_tools_is_bounded() {
        let mut catalogue = ToolCatalogue::default();
        for number in 0..MAX_TOOLS + 10 {
            record(&mut catalogue, &format!(r#"{{"name":"{number}"}}"#));
        }
        record(&mut catalogue, &format!(r#"{{"name":"{}"}}"#, "n".repeat(MAX_TOOL_NAME + 1)));
        assert_eq!(catalogue.tools.len(), MAX_TOOLS);
        catalogue.complete();
        assert_eq!(catalogue.coverage, Coverage::Partial, "further tools are not known");
    }
}
