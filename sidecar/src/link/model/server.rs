//! The server of a modelled link: what each of its tools does, and what the audit had to hold before it was asked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_servers::scripted::{Reaction, Script, Taken, answer};

/// The secret that every process is given and that no message to the harness may hold.
pub(super) const SECRET: &str = "correct-horse-battery-staple";
/// Tools of the server. Those whose names begin with `safe_` say that they only read; `deny_` is denied by the rules.
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
/// Tools that only single schedules call.
const OTHER_TOOLS: [&str; 2] = ["safe_exit_always", "safe_exit_then_never"];

/// What the server saw, shared with the test.
#[derive(Clone, Default)]
pub(super) struct Seen(Arc<Mutex<SeenState>>);

#[derive(Default)]
struct SeenState {
    /// How often each call ran, by its number.
    runs: BTreeMap<u64, u32>,
    /// How often each tool was called.
    calls: BTreeMap<String, usize>,
    violations: Vec<String>,
}

impl Seen {
    pub(super) fn runs(&self, call: u64) -> u32 {
        self.state().runs.get(&call).copied().unwrap_or_default()
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// Takes note of a call; says how often this one has run by now.
    fn called(&self, tool: &str, call: u64, audit: &Path) -> u32 {
        let mut state = self.state();
        let calls = state.calls.entry(tool.into()).or_default();
        *calls += 1;
        let (calls, decided) = (*calls, allowed_decisions(audit, tool));
        if decided < calls {
            state.violations.push(format!("call {calls} of `{tool}` has {decided} decisions before it"));
        }
        let runs = state.runs.entry(call).or_default();
        *runs += 1;
        *runs
    }

    fn state(&self) -> std::sync::MutexGuard<'_, SeenState> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

/// The program: its processes report to `seen`.
pub(super) fn script(seen: Seen, audit: PathBuf) -> Script {
    Script::responding(move |taken| respond(taken, &seen, &audit))
}

fn respond(taken: &Taken, seen: &Seen, audit: &Path) -> Vec<Reaction> {
    match taken.method.as_deref() {
        Some("tools/list") => return vec![Reaction::Say(list(taken))],
        // It stays open.
        Some("subscriptions/listen") => return Vec::new(),
        Some("initialize") if taken.process > 0 && taken.message.contains("exit_again") => {
            return vec![Reaction::Exit];
        }
        _ => {}
    }
    let message: serde_json::Value = serde_json::from_str(&taken.message).expect("a server is sent JSON");
    let call = message["params"]["arguments"]["call"].as_u64();
    let (Some(tool), Some(call)) = (message["params"]["name"].as_str(), call) else {
        return answer(taken).map(Reaction::Say).into_iter().collect();
    };
    let runs = seen.called(tool, call, audit);
    let id = taken.id.as_deref().expect("a call has an id");
    let result = |text: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"text":"{text}"}}}}"#);
    match tool {
        "late" => vec![Reaction::SayAfter(Duration::from_secs(3), result("late"))],
        "never" => Vec::new(),
        "exit" | "safe_exit_always" => vec![Reaction::Exit],
        "exit_late" => vec![Reaction::ExitAfter(Duration::from_secs(1))],
        // So large that it is scrubbed by a worker.
        "large" => vec![
            Reaction::Say(result(&format!("{}{SECRET}", "x".repeat(300 * 1024)))),
            Reaction::Say(r#"{"jsonrpc":"2.0","method":"notifications/after"}"#.into()),
        ],
        "leak" => vec![Reaction::Say(result(SECRET))],
        "twice" => {
            vec![Reaction::Say(result("once")), Reaction::SayAfter(Duration::from_secs(1), result("again"))]
        }
        "asks" => vec![
            Reaction::Say(format!(r#"{{"jsonrpc":"2.0","id":{call},"method":"roots/list"}}"#)),
            Reaction::Say(result("asked")),
        ],
        "task" => vec![Reaction::Say(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"task":{{"taskId":"t","status":"working"}}}}}}"#
        ))],
        "safe_exit_then_never" if runs == 1 => vec![Reaction::ExitAfter(Duration::from_secs(15))],
        "safe_exit_then_never" => Vec::new(),
        "safe_exit" if runs == 1 => vec![Reaction::Exit],
        "safe_never" if runs == 1 => vec![Reaction::ExitAfter(Duration::from_secs(5))],
        _ => vec![Reaction::Say(result("done"))],
    }
}

fn list(taken: &Taken) -> String {
    let id = taken.id.as_deref().expect("a list has an id");
    let tools = TOOLS.into_iter().chain(OTHER_TOOLS).map(|name| {
        let is_safe = name.starts_with("safe_");
        format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"annotations":{{"readOnlyHint":{is_safe}}}}}"#)
    });
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":[{}]}}}}"#, tools.collect::<Vec<_>>().join(","))
}

/// Decisions in the audit that let a call of this tool through.
fn allowed_decisions(audit: &Path, tool: &str) -> usize {
    let tool = format!(r#""tool":"{tool}""#);
    let files = std::fs::read_dir(audit).expect("the audit has a directory").flatten();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let is_decision = |line: &&str| {
        line.contains(r#""kind":"decision""#) && line.contains(&tool) && line.contains(r#""verdict":"allow""#)
    };
    texts.map(|text| text.lines().filter(is_decision).count()).sum()
}
