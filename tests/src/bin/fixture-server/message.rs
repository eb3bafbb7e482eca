//! Handles one message: its era, its method, its response.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};

use super::mode::Mode;
use super::output::{Output, process_id, process_number, record};
use super::tools;

/// Calls that wait for a response of the client, by the id of the server's request; open listeners; the progress of the
/// handshake.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    handshake: Arc<Mutex<Handshake>>,
    listeners: Arc<Mutex<Vec<Value>>>,
    /// The number of tasks so far.
    tasks: Arc<Mutex<u64>>,
    waiting: Arc<Mutex<HashMap<String, Waiting>>>,
}

/// The call to finish when the client has responded.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) request: Value,
    pub(crate) era: Era,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Handshake {
    #[default]
    None,
    /// `initialize` was answered.
    Started,
    Complete,
}

/// The era of MCP that a request belongs to, which decides the form of its result.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Era {
    Legacy,
    Stateless,
}

impl Pending {
    pub(crate) fn wait(&self, id: &Value, waiting: Waiting) {
        if let Ok(mut map) = self.waiting.lock() {
            map.insert(id.to_string(), waiting);
        }
    }

    /// The ids of the open `subscriptions/listen` requests.
    pub(crate) fn listeners(&self) -> Vec<Value> {
        self.listeners.lock().map(|listeners| listeners.clone()).unwrap_or_default()
    }

    /// Creates a task; returns its id.
    pub(crate) fn create_task(&self) -> String {
        let number = self.tasks.lock().map_or(0, |mut tasks| {
            *tasks += 1;
            *tasks
        });
        format!("task-{}-{number}", process_id())
    }

    /// All tasks of this process.
    fn tasks(&self) -> Vec<Value> {
        let count = self.tasks.lock().map_or(0, |tasks| *tasks);
        let task =
            |number| json!({"taskId": format!("task-{}-{number}", process_id()), "status": "completed"});
        (1..=count).map(task).collect()
    }

    fn listen(&self, id: &Value) {
        if let Ok(mut listeners) = self.listeners.lock() {
            listeners.push(id.clone());
        }
    }

    /// Whether the handshake is complete after this method.
    fn is_initialized_after(&self, method: &str) -> bool {
        let Ok(mut handshake) = self.handshake.lock() else { return false };
        *handshake = match (*handshake, method) {
            (_, "initialize") => Handshake::Started,
            (Handshake::Started, "notifications/initialized") => Handshake::Complete,
            (before, _) => before,
        };
        *handshake == Handshake::Complete
    }

    fn take(&self, id: &Value) -> Option<Waiting> {
        self.waiting.lock().ok()?.remove(&id.to_string())
    }
}

/// Ignores what is not JSON, and handles each message of a batch.
pub(crate) fn handle_line(mode: Mode, line: &[u8], output: &Output, pending: &Pending) {
    match serde_json::from_str(&String::from_utf8_lossy(line)) {
        Ok(Value::Array(batch)) => {
            for message in &batch {
                handle(mode, message, output, pending);
            }
        }
        Ok(message) => handle(mode, &message, output, pending),
        Err(_) => {}
    }
}

/// Answers one request.
pub(crate) fn answer(mode: Mode, request: &Value, era: Era, result: Value, output: &Output) {
    output.line(&answer_line(mode, request, era, result));
}

/// Answers one request with a text that repeats this part. Only one is made JSON: that takes longer than all else.
pub(crate) fn answer_repeating(call: &tools::Call<'_>, part: &str, count: usize, output: &Output) {
    const PLACE: &str = "the text is put here";
    let line = answer_line(call.mode, &call.request, call.era, tools::text(PLACE));
    let part = Value::from(part).to_string();
    output.line(&line.replacen(PLACE, &part[1..part.len() - 1].repeat(count), 1));
}

fn answer_line(mode: Mode, request: &Value, era: Era, mut result: Value) -> String {
    if era == Era::Stateless
        && let Some(result) = result.as_object_mut()
    {
        result.insert("resultType".to_owned(), json!("complete"));
    }
    let id = encoded_id(mode, request);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

pub(crate) fn refuse(mode: Mode, request: &Value, code: i64, text: &str, output: &Output) {
    let id = encoded_id(mode, request);
    let error = json!({"code": code, "message": text});
    output.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#));
}

/// The value of a key in any case; an unusual spelling wins over the proper one.
pub(crate) fn lax_lookup<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let odd = object.iter().find(|(name, _)| *name != key && folded(name) == key);
    odd.map(|(_, value)| value).or_else(|| object.get(key))
}

fn handle(mode: Mode, message: &Value, output: &Output, pending: &Pending) {
    let Some(object) = message.as_object() else { return };
    let id = lax_lookup(object, "id").cloned();
    let Some(method) = lax_lookup(object, "method").and_then(Value::as_str) else {
        if let Some(waiting) = id.and_then(|id| pending.take(&id)) {
            let text = message.to_string();
            answer(mode, &waiting.request, waiting.era, tools::text(&text), output);
        }
        return;
    };
    let empty = Map::new();
    let params = lax_lookup(object, "params").and_then(Value::as_object).unwrap_or(&empty);
    let call = tools::Call { mode, request: id.clone().unwrap_or(Value::Null), params, era: era_of(params) };
    record(
        "RECEIVED_FILE",
        &format!("{}\n", json!({"process": process_id(), "id": id, "method": method, "params": params})),
    );
    let is_initialized = pending.is_initialized_after(method);
    if id.is_none() && method != "tools/call" {
        if method == "notifications/tally" {
            tools::count(method, &Value::Object(params.clone()), &Value::Null);
        }
        return;
    }
    if mode == Mode::NeverAnswers {
        return;
    }
    if mode == Mode::DemandsHandshake && !is_initialized && method != "initialize" {
        return refuse(mode, &call.request, -32002, "Server not initialized", output);
    }
    let era = call.era;
    let reply = |result| answer(mode, &call.request, era, result, output);
    match method {
        "initialize" if mode != Mode::Stateless => reply(initialized(mode, params)),
        "server/discover" if mode != Mode::Legacy => {
            answer(mode, &call.request, Era::Stateless, discovered(), output)
        }
        "logging/setLevel" | "ping" | "resources/subscribe" | "resources/unsubscribe" => reply(json!({})),
        "subscriptions/listen" => {
            // Sends no response, which would end the subscription.
            pending.listen(&call.request);
            let meta = json!({"io.modelcontextprotocol/subscriptionId": call.request});
            let params = json!({"_meta": meta, "notifications": params.get("notifications")});
            output.message(&json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}));
        }
        "tools/list" if mode == Mode::HidesItsTools => {}
        "tools/list" => reply(tools::page(mode, params)),
        "tools/call" => tools::run(&call, output, pending),
        "tasks/cancel" | "tasks/get" | "tasks/result" => {
            let task = params.get("taskId").and_then(Value::as_str).unwrap_or_default();
            match (task.starts_with(&format!("task-{}-", process_id())), method) {
                (false, _) => refuse(mode, &call.request, -32602, "Task not found", output),
                (true, "tasks/cancel") => reply(json!({"taskId": task, "status": "cancelled"})),
                (true, "tasks/get") => reply(json!({"taskId": task, "status": "completed"})),
                (true, _) => reply(tools::text(&format!("done by {}", process_id()))),
            }
        }
        "tasks/list" => reply(json!({"tasks": pending.tasks()})),
        "resources/list" => reply(json!({"resources": [], "ttlMs": 0, "cacheScope": "private"})),
        "prompts/list" => reply(json!({"prompts": [], "ttlMs": 0, "cacheScope": "private"})),
        "x/echo" => reply(json!({"params": params})),
        unknown => refuse(mode, &call.request, -32601, &format!("Method not found: {unknown}"), output),
    }
}

fn era_of(params: &Map<String, Value>) -> Era {
    let version = params.get("_meta").and_then(|meta| meta.get("io.modelcontextprotocol/protocolVersion"));
    if version.is_some() { Era::Stateless } else { Era::Legacy }
}

fn initialized(mode: Mode, params: &Map<String, Value>) -> Value {
    let version = params.get("protocolVersion").cloned().unwrap_or_else(|| json!("2025-11-25"));
    let capabilities = match mode {
        Mode::ChangesItsCapabilities => json!({"tools": {}, "experimental": {"process": process_number()}}),
        _ => json!({"tools": {}}),
    };
    json!({
        "protocolVersion": version,
        "capabilities": capabilities,
        "serverInfo": {"name": "fixture-server", "version": "1"},
        "x-unknown-field": {"kept": [1, 1.0, 1e2]},
    })
}

fn discovered() -> Value {
    json!({
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "fixture-server", "version": "1"}},
    })
}

fn encoded_id(mode: Mode, request: &Value) -> String {
    match request {
        Value::String(text) if mode == Mode::EscapesIds => {
            format!("\"{}\"", cofferdam_tests::encodings::json_escaped(text))
        }
        id => id.to_string(),
    }
}

/// In lower case, including the two other characters that Unicode folds into ASCII letters.
fn folded(name: &str) -> String {
    name.to_lowercase().replace('\u{17f}', "s").replace('\u{212a}', "k")
}
