//! The server of the model: the behaviour of each tool, and the check that the decision about a call is in the audit
//! before the call arrives.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_servers::scripted::{Reaction, ReceivedMessage, Script, default_response};

/// The secret that every process gets, and that no message to the harness may contain.
pub(super) const SECRET: &str = "correct-horse-battery-staple";
/// Tools of the server. Those whose names begin with `safe_` are annotated as read-only; `deny_` is denied by the
/// rules.
pub(super) const TOOLS: [&str; 13] = [
    "now",
    "now",
    "late",
    "never",
    "exit",
    "exit_late",
    "leak",
    "twice",
    "asks",
    "deny_all",
    "safe_exit",
    "safe_never",
    "large",
];
/// Tools that only fixed schedules call.
const OTHER_TOOLS: [&str; 2] = ["safe_exit_always", "safe_exit_then_never"];

/// The calls that the server received, shared with the test.
#[derive(Clone, Default)]
pub(super) struct ServerLog(Arc<Mutex<ServerLogEntries>>);

#[derive(Default)]
struct ServerLogEntries {
    /// How often each call ran, by its number.
    runs: BTreeMap<u64, u32>,
    /// How often each tool was called.
    calls: BTreeMap<String, usize>,
    /// Calls that arrived before their decision was in the audit.
    violations: Vec<String>,
}

impl ServerLog {
    pub(super) fn runs(&self, call: u64) -> u32 {
        self.entries().runs.get(&call).copied().unwrap_or_default()
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.entries().violations.clone()
    }

    /// Logs a call; returns how often this call has run by now.
    fn log_call(&self, tool: &str, call: u64, audit: &Path) -> u32 {
        let mut entries = self.entries();
        let calls = entries.calls.entry(tool.into()).or_default();
        *calls += 1;
        let (calls, decided) = (*calls, allowed_decisions(audit, tool));
        if decided < calls {
            entries.violations.push(format!("call {calls} of `{tool}` has {decided} decisions before it"));
        }
        let runs = entries.runs.entry(call).or_default();
        *runs += 1;
        *runs
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, ServerLogEntries> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// The script of the server; its processes write to `log`.
pub(super) fn script(log: ServerLog, audit: PathBuf) -> Script {
    Script::responding(move |received| respond(received, &log, &audit))
}

fn respond(received: &ReceivedMessage, log: &ServerLog, audit: &Path) -> Vec<Reaction> {
    match received.method.as_deref() {
        Some("tools/list") => return vec![Reaction::Write(list(received))],
        // The request stays open.
        Some("subscriptions/listen") => return Vec::new(),
        Some("initialize") if received.process > 0 && received.message.contains("exit_again") => {
            return vec![Reaction::Exit];
        }
        _ => {}
    }
    let message: serde_json::Value =
        serde_json::from_str(&received.message).expect("messages to the server are JSON");
    let call = message["params"]["arguments"]["call"].as_u64();
    let (Some(tool), Some(call)) = (message["params"]["name"].as_str(), call) else {
        return default_response(received).map(Reaction::Write).into_iter().collect();
    };
    let runs = log.log_call(tool, call, audit);
    let id = received.id.as_deref().expect("a call has an id");
    let result = |text: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"text":"{text}"}}}}"#);
    match tool {
        "late" => vec![Reaction::WriteAfter(Duration::from_secs(3), result("late"))],
        "never" => Vec::new(),
        "exit" | "safe_exit_always" => vec![Reaction::Exit],
        "exit_late" => vec![Reaction::ExitAfter(Duration::from_secs(1))],
        // So large that a worker thread scrubs it.
        "large" => vec![
            Reaction::Write(result(&format!("{}{SECRET}", "x".repeat(300 * 1024)))),
            Reaction::Write(r#"{"jsonrpc":"2.0","method":"notifications/after"}"#.into()),
        ],
        "leak" => vec![Reaction::Write(result(SECRET))],
        "twice" => {
            vec![
                Reaction::Write(result("once")),
                Reaction::WriteAfter(Duration::from_secs(1), result("again")),
            ]
        }
        "asks" => vec![
            Reaction::Write(format!(r#"{{"jsonrpc":"2.0","id":{call},"method":"roots/list"}}"#)),
            Reaction::Write(result("asked")),
        ],
        "task" => vec![Reaction::Write(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"task":{{"taskId":"t","status":"working"}}}}}}"#
        ))],
        "safe_exit_then_never" if runs == 1 => vec![Reaction::ExitAfter(Duration::from_secs(15))],
        "safe_exit_then_never" => Vec::new(),
        "safe_exit" if runs == 1 => vec![Reaction::Exit],
        "safe_never" if runs == 1 => vec![Reaction::ExitAfter(Duration::from_secs(5))],
        _ => vec![Reaction::Write(result("done"))],
    }
}

fn list(received: &ReceivedMessage) -> String {
    let id = received.id.as_deref().expect("a list has an id");
    let tools = TOOLS.into_iter().chain(OTHER_TOOLS).map(|name| {
        let is_safe = name.starts_with("safe_");
        format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"annotations":{{"readOnlyHint":{is_safe}}}}}"#)
    });
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":[{}]}}}}"#, tools.collect::<Vec<_>>().join(","))
}

/// Decisions in the audit that allow a call of this tool.
fn allowed_decisions(audit: &Path, tool: &str) -> usize {
    let tool = format!(r#""tool":"{tool}""#);
    let files = std::fs::read_dir(audit).expect("the audit has a directory").flatten();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let is_decision = |line: &&str| {
        line.contains(r#""kind":"decision""#) && line.contains(&tool) && line.contains(r#""verdict":"allow""#)
    };
    texts.map(|text| text.lines().filter(is_decision).count()).sum()
}
