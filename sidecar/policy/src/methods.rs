//! The MCP methods that this version knows, of both eras.
//!
//! Must stay true: `tools/call` is not among them (a call is decided by its tool), and nothing here makes a
//! server run a tool.

/// Requests and notifications that may cross without a rule, sorted. Up to 2025-11-25 and 2026-07-28 together.
const KNOWN: &[&str] = &[
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
];

pub(super) fn is_known(method: &str) -> bool {
    known(method).is_some()
}

/// A word of the protocol's own, which needs neither a copy nor a scrubber.
pub(super) fn named(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" => Some("tools/call"),
        method => known(method),
    }
}

fn known(method: &str) -> Option<&'static str> {
    KNOWN.binary_search(&method).ok().map(|place| KNOWN[place])
}

/// Whether a server that trims, folds case or skips what cannot be seen would take this method for `tools/call`.
/// The name itself counts too: a call that comes without its tool's name cannot be decided.
pub(super) fn reads_like_tool_call(method: &str) -> bool {
    let visible = method.chars().filter(|character| !is_ignorable(*character));
    // Through upper case and back, so that characters such as `ſ` meet the letter they stand for.
    let folded = visible.flat_map(char::to_uppercase).flat_map(char::to_lowercase);
    folded.eq("tools/call".chars())
}

fn is_ignorable(character: char) -> bool {
    character.is_whitespace()
        || character.is_control()
        || matches!(character, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_can_be_searched() {
        assert!(KNOWN.is_sorted());
        assert!(!is_known("tools/call"));
        assert_eq!(named("tools/call"), Some("tools/call"));
        assert_eq!(named("ping"), Some("ping"));
        assert_eq!(named("pings"), None);
    }

    #[test]
    fn disguises_of_a_tool_call() {
        for disguise in
            ["tools/call", "Tools/Call", " tools/call", "tools/call\n", "toolſ/call", "tools\u{200b}/call"]
        {
            assert!(reads_like_tool_call(disguise), "{disguise:?}");
        }
        for other in ["tools/list", "tools/calls", "x/tools/call", ""] {
            assert!(!reads_like_tool_call(other), "{other:?}");
        }
    }
}
