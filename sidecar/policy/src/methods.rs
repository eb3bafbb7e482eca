//! Which methods pass without a rule that names them.
//!
//! What must stay true: `tools/call` is not among them (a call is decided by its tool), and none of them makes a server run
//! a tool.

use relay_proto::mcp::{self, Method, MethodKind, TOOLS_CALL};

use super::fold::fold;

pub(super) fn passes_without_rule(method: &str) -> bool {
    mcp::lookup(method).is_some_and(row_passes_without_rule)
}

/// The method's name in the table of MCP methods: not chosen by a sandbox, so it needs no scrubbing.
pub(super) fn static_name(method: &str) -> Option<&'static str> {
    mcp::lookup(method).map(|method| method.name)
}

/// A request that only servers send is harmless: a server rejects it as unknown. A notification that only servers send is
/// not expected from a harness.
fn row_passes_without_rule(method: &Method) -> bool {
    !method.is_tool_call() && (method.kind == MethodKind::Request || method.is_sent_to_servers())
}

/// Whether a server that skips spaces, folds case or width or skips invisible characters would read this method as `tools/call`. True for
/// `tools/call` itself too: a call without the name of its tool cannot be decided.
pub(super) fn reads_like_tool_call(method: &str) -> bool {
    let folded = fold(method);
    folded.chars().filter(|character| !character.is_whitespace()).eq(TOOLS_CALL.chars())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_that_pass_without_a_rule() {
        let passing: Vec<_> =
            mcp::METHODS.iter().filter(|row| row_passes_without_rule(row)).map(|row| row.name).collect();
        assert_eq!(
            passing,
            [
                "completion/complete",
                "elicitation/create",
                "initialize",
                "logging/setLevel",
                "notifications/cancelled",
                "notifications/initialized",
                "notifications/progress",
                "notifications/roots/list_changed",
                "notifications/tasks/status",
                "ping",
                "prompts/get",
                "prompts/list",
                "resources/list",
                "resources/read",
                "resources/subscribe",
                "resources/templates/list",
                "resources/unsubscribe",
                "roots/list",
                "sampling/createMessage",
                "server/discover",
                "subscriptions/listen",
                "tasks/cancel",
                "tasks/get",
                "tasks/list",
                "tasks/result",
                "tasks/update",
                "tools/list",
            ]
        );
        assert!(!passes_without_rule("tools/call"));
        assert!(!passes_without_rule("pings"));
        assert_eq!(static_name("tools/call"), Some("tools/call"));
        assert_eq!(static_name("ping"), Some("ping"));
        assert_eq!(static_name("pings"), None);
    }

    #[test]
    fn disguised_tool_calls_are_recognised() {
        for disguise in [
            "tools/call",
            "Tools/Call",
            " tools/call",
            "tools/call\n",
            "toolſ/call",
            "tools\u{200b}/call",
            "ｔools／call",
        ] {
            assert!(reads_like_tool_call(disguise), "{disguise:?}");
        }
        for other in ["tools/list", "tools/calls", "x/tools/call", ""] {
            assert!(!reads_like_tool_call(other), "{other:?}");
        }
    }
}
