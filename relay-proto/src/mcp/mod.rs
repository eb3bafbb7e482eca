//! The MCP methods, and how the shim and the sidecar treat each of them. MCP has two eras: revisions up to 2025-11-25 begin
//! with the handshake `initialize` (legacy); revisions from 2026-07-28 have none (stateless).
//!
//! Every list of methods is a column of [`METHODS`]: a new method is one new row. A method that is not in the table is
//! relayed with the defaults; see [`Method`] for what each column decides.
//!
//! What must stay true: the table is sorted by name, each name once; the policy decides a `tools/call` by its
//! tool, so it is the only method with [`Subject::Tool`]; nothing here is read from a message.

mod table;

pub use table::METHODS;

/// Names that code refers to, so that each is spelled once.
pub const CANCELLED: &str = "notifications/cancelled";
pub const DISCOVER: &str = "server/discover";
pub const INITIALIZE: &str = "initialize";
pub const INITIALIZED: &str = "notifications/initialized";
pub const LISTEN: &str = "subscriptions/listen";
pub const SET_LEVEL: &str = "logging/setLevel";
pub const SUBSCRIBE: &str = "resources/subscribe";
pub const TOOLS_CALL: &str = "tools/call";
pub const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
pub const TOOLS_LIST: &str = "tools/list";
pub const UNSUBSCRIBE: &str = "resources/unsubscribe";

/// The prefix of every notification's name in the specification, future ones included.
pub const NOTIFICATION_PREFIX: &str = "notifications/";

/// One method, and how the relay treats it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Method {
    pub name: &'static str,
    pub kind: MethodKind,
    /// Which side sends it, in any revision.
    pub direction: Direction,
    pub eras: Eras,
    /// An idempotent request: if the configuration has `retry`, it may be sent again although it may have run.
    pub repeatable: bool,
    /// Its response may take arbitrarily long: there is no call timeout.
    pub open_ended: bool,
    /// Its role in the replay to a replacement server process.
    pub replay: ReplayRole,
    /// Whether it is about a task that an earlier call created.
    pub task: TaskRole,
    /// The object of the request, which the HTTP transport of the stateless era repeats in the header `Mcp-Name`.
    pub subject: Subject,
    /// Every server responds to it soon, so a process that does not is broken. A tool call, in contrast, may take long.
    pub quick_response: bool,
    /// A notification about the server as a whole: when two processes of one server run, only that of the current
    /// process is forwarded.
    pub server_wide: bool,
    /// Which processes of a server receive it, for notifications of the harness.
    pub audience: Audience,
    /// How long the shim holds it while there is no connection to the sidecar.
    pub shim_wait: ShimWait,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MethodKind {
    Notification,
    Request,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    Both,
    ToHarness,
    ToServer,
}

/// The eras that have a method.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Eras {
    Both,
    Legacy,
    Stateless,
}

/// What an accepted request changes in a server process, so that it must be sent again to a replacement.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReplayRole {
    Handshake,
    /// The notification that completes the handshake.
    Initialized,
    /// An open stream of notifications.
    Listen,
    None,
    Setting(Setting),
    /// The list of tools, which may differ in the replacement.
    ToolList,
}

/// A setting of a server. It is sent to every process of the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Setting {
    LogLevel,
    Subscribe,
    Unsubscribe,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TaskRole {
    /// About a task: it is sent to the process that has the task.
    About,
    /// Like `About`; the task ends with the response.
    EndsOnReply,
    None,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Subject {
    None,
    /// The member of `params` with this key.
    Param(&'static str),
    /// The tool's name; the rules decide by it too.
    Tool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Audience {
    /// All processes, draining ones included.
    All,
    /// The process that runs the request that it cancels.
    CancelledRequest,
    /// Every process that accepts new calls.
    Current,
    /// The process whose request has this progress token.
    ProgressToken,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShimWait {
    Call,
    /// A shorter wait than for a call, because harnesses time out early during a handshake. The request is safe to repeat.
    Handshake,
    /// Stays open until the harness cancels it. It changes nothing in the server, so it is sent again to a new process.
    Listener,
}

/// The row of a method, if the table has one.
pub fn lookup(name: &str) -> Option<&'static Method> {
    // Almost every request is a `tools/call`, and each is looked up in several places, so its row is not searched.
    if name == TOOLS_CALL {
        return Some(&METHODS[TOOLS_CALL_ROW]);
    }
    METHODS.binary_search_by(|method| method.name.cmp(name)).ok().map(|row| &METHODS[row])
}

/// The one row with [`Subject::Tool`].
const TOOLS_CALL_ROW: usize = {
    let mut row = 0;
    while !matches!(METHODS[row].subject, Subject::Tool) {
        row += 1;
    }
    row
};

impl Method {
    /// Whether this is `tools/call`.
    pub fn is_tool_call(&self) -> bool {
        self.subject == Subject::Tool
    }

    pub fn is_sent_to_servers(&self) -> bool {
        self.direction != Direction::ToHarness
    }
}

impl Setting {
    /// Whether a draining process is sent the setting too. The log level is, because the process's log messages still reach
    /// the harness; subscriptions are not, because its replacement has them.
    pub fn reaches_draining_processes(self) -> bool {
        self == Self::LogLevel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_found_and_nothing_else_is() {
        assert!(METHODS.is_sorted_by(|one, next| one.name < next.name));
        for method in METHODS {
            assert_eq!(lookup(method.name), Some(method));
            assert_eq!(lookup(&format!("{} ", method.name)), None);
        }
        for other in ["", "Tools/call", "tools", "tools/", "x/custom", "\u{10ffff}"] {
            assert_eq!(lookup(other), None, "{other:?}");
        }
    }

    #[test]
    fn columns_apply_to_their_kind_of_message_only() {
        for method in METHODS {
            let is_notification = method.kind == MethodKind::Notification;
            assert_eq!(is_notification, method.name.starts_with(NOTIFICATION_PREFIX), "{method:?}");
            if is_notification {
                assert!(!method.repeatable && !method.open_ended && !method.quick_response, "{method:?}");
                assert_eq!((method.task, method.subject), (TaskRole::None, Subject::None), "{method:?}");
            } else {
                assert!(!method.server_wide, "{method:?}");
                assert_eq!(method.audience, Audience::Current, "{method:?}");
            }
            let changes_server = !matches!(method.replay, ReplayRole::None | ReplayRole::ToolList);
            assert!(!changes_server || method.direction == Direction::ToServer, "{method:?}");
        }
    }

    #[test]
    fn only_tools_call_has_a_tool_and_it_is_not_repeatable() {
        let calls: Vec<_> = METHODS.iter().filter(|method| method.is_tool_call()).collect();
        assert!(matches!(calls[..], [call] if call.name == TOOLS_CALL && !call.repeatable), "{calls:?}");
    }
}
