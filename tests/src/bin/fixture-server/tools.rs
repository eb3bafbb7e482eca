//! The tools: a few useful ones, and many that misbehave.

use std::time::Duration;

use cofferdam_tests::chaos::conversation;
use cofferdam_tests::http_fixture::input_required;
use serde_json::{Map, Value, json};

use super::leak;
use super::message::{Era, Pending, Waiting, answer, answer_repeating, lax_lookup, refuse};
use super::mode::Mode;
use super::output::{Output, process_id, process_number, record};

/// One `tools/call`.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) mode: Mode,
    pub(crate) request: Value,
    pub(crate) params: &'a Map<String, Value>,
    pub(crate) era: Era,
}

impl Call<'_> {
    /// An argument; null where it is missing.
    pub(crate) fn argument(&self, name: &str) -> &Value {
        const NOTHING: &Value = &Value::Null;
        lax_lookup(self.params, "arguments").and_then(|arguments| arguments.get(name)).unwrap_or(NOTHING)
    }

    pub(crate) fn progress_token(&self) -> Option<&Value> {
        self.params.get("_meta")?.get("progressToken")
    }

    fn number(&self, name: &str) -> u64 {
        self.argument(name).as_u64().unwrap_or_default()
    }
}

pub(crate) fn list(mode: Mode) -> Vec<Value> {
    const NAMES: [&str; 25] = [
        "add",
        "ask_client",
        "ask_for_input",
        "big",
        "change_tools",
        "count",
        "crash",
        "delete_everything",
        "echo",
        "env",
        "unreliable_idempotent",
        "unreliable_read_only",
        "unreliable_unannotated",
        "flood",
        "flood_stderr",
        "garbage",
        "leak",
        "no_newline",
        "process",
        "raw",
        "read_file",
        "slow",
        "structured",
        "tally",
        "write_file",
    ];
    let schema = json!({"type": "object"});
    let annotations = |name: &str| match name {
        "unreliable_idempotent" => json!({"idempotentHint": true}),
        "unreliable_read_only" => json!({"readOnlyHint": true}),
        _ => json!({}),
    };
    let tool = |name: &str| {
        json!({
            "name": name,
            "description": format!("The tool {name}"),
            "inputSchema": schema,
            "annotations": annotations(name),
        })
    };
    let mut tools: Vec<Value> = NAMES.into_iter().map(tool).collect();
    if mode == Mode::LeaksInList {
        let secret = leak::secret();
        tools.push(json!({"name": format!("tool_{secret}"), "description": "named", "inputSchema": schema}));
        tools.push(
            json!({"name": "described", "description": format!("uses {secret}"), "inputSchema": schema}),
        );
    }
    if matches!(mode, Mode::GainsATool | Mode::GainsAToolInPages) && process_number() > 1 {
        tools.push(tool("gained"));
    }
    tools
}

/// The result of a `tools/list`.
pub(crate) fn page(mode: Mode, params: &Map<String, Value>) -> Value {
    let all = list(mode);
    let mut result = json!({"tools": all, "ttlMs": 0, "cacheScope": "private"});
    if matches!(mode, Mode::GainsAToolInPages | Mode::ListsInPages) {
        let index = params.get("cursor").and_then(Value::as_str).and_then(|text| text.parse().ok());
        let index: usize = index.unwrap_or_default();
        result["tools"] = json!(all.get(index).into_iter().collect::<Vec<_>>());
        if index + 1 < all.len() {
            result["nextCursor"] = json!((index + 1).to_string());
        }
    }
    result
}

pub(crate) fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

/// Records the call, then runs it.
pub(crate) fn run(call: &Call<'_>, output: &Output, pending: &Pending) {
    let name = lax_lookup(call.params, "name").and_then(Value::as_str).unwrap_or_default();
    let arguments = lax_lookup(call.params, "arguments").cloned().unwrap_or_else(|| json!({}));
    count(name, &arguments, &call.request);
    if call.params.contains_key("task") {
        let task = json!({"taskId": pending.create_task(), "status": "working", "ttl": 60_000});
        return answer(call.mode, &call.request, call.era, json!({"task": task}), output);
    }
    let reply = |result| answer(call.mode, &call.request, call.era, result, output);
    // Every tool can also be called with the prefix `rw_`, so that one of its two names can be in a scope.
    match name.strip_prefix("rw_").unwrap_or(name) {
        "add" => reply(text(&(call.number("a") + call.number("b")).to_string())),
        "ask_client" => ask_client(call, output, pending),
        "ask_for_input" => match call.params.get("inputResponses") {
            Some(responses) => reply(text(&responses.to_string())),
            None => {
                let result = input_required(call.argument("requests"));
                output.message(&json!({"jsonrpc": "2.0", "id": call.request, "result": result}));
            }
        },
        "big" => {
            let part = call.argument("part").as_str().unwrap_or("x");
            let bytes = usize::try_from(call.number("bytes")).unwrap_or_default();
            answer_repeating(call, part, bytes / part.len(), output);
        }
        "change_tools" => {
            for id in pending.listeners() {
                let meta = json!({"io.modelcontextprotocol/subscriptionId": id});
                output.message(&json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": meta}}));
            }
            reply(text("changed"));
        }
        "count" | "delete_everything" | "read_file" | "write_file" => reply(text(&format!("ran {name}"))),
        "crash" => std::process::exit(9),
        "process" => reply(text(&process_id().to_string())),
        "echo" => reply(text(call.argument("text").as_str().unwrap_or_default())),
        "env" => reply(text(&leak::environment())),
        "unreliable_idempotent" | "unreliable_read_only" | "unreliable_unannotated" => {
            be_unreliable(call, output)
        }
        "flood" => {
            let data = "f".repeat(usize::try_from(call.number("bytes")).unwrap_or_default());
            let params = json!({"level": "info", "data": data});
            let flood = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params});
            (0..call.number("messages")).for_each(|_| output.message(&flood));
            reply(text("flooded"));
        }
        "flood_stderr" => {
            for number in 0..call.number("lines") {
                eprintln!("line {number} of a flood {}", "~".repeat(200));
            }
            reply(text("flooded"));
        }
        "garbage" => {
            output.bytes(b"not json at all\n{\"jsonrpc\":\"2.0\",\"id\":\n\xff\xfe\x00\n[]\n\n\"text\"\n");
            reply(text("after the garbage"));
        }
        "leak" => leak::run(call, output),
        "no_newline" => {
            let chunk = [b'x'; 64 * 1024];
            for _ in 0..call.number("bytes").div_ceil(chunk.len() as u64) {
                output.bytes(&chunk);
            }
            output.bytes(b"\n");
            reply(text("after the long line"));
        }
        "raw" => {
            let id = call.request.to_string();
            for line in call.argument("lines").as_array().into_iter().flatten().filter_map(Value::as_str) {
                output.line(&line.replace("$id", &id));
            }
        }
        "slow" => answer_later(call, output),
        "structured" => {
            let mut result = text("structured");
            result["structuredContent"] = json!({"secret": leak::secret(), "kept": 1.0});
            reply(result);
        }
        "tally" => {
            let number = call.number("number");
            let params = json!({"level": "info", "data": {"number": number}});
            output.message(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}));
            let bytes = usize::try_from(call.number("answer")).unwrap_or_default();
            reply(text(&conversation::text(number, bytes)));
        }
        unknown => refuse(call.mode, &call.request, -32602, &format!("Unknown tool: {unknown}"), output),
    }
}

/// Records a call. Of a numbered text only the length and the checksum are recorded.
pub(crate) fn count(name: &str, arguments: &Value, id: &Value) {
    let numbered = arguments["number"].as_u64().zip(arguments["text"].as_str());
    let arguments = match numbered {
        Some((number, text)) => {
            json!({"number": number, "bytes": text.len(), "sum": conversation::sum(text)})
        }
        None => arguments.clone(),
    };
    record("COUNT_FILE", &format!("{}\n", json!({"tool": name, "arguments": arguments, "id": id})));
}

/// Answers on another thread, so that later calls can overtake. Sends progress in `steps` if the call has a progress
/// token.
fn answer_later(call: &Call<'_>, output: &Output) {
    let (mode, request, era, output) = (call.mode, call.request.clone(), call.era, output.clone());
    let (token, steps) = (call.progress_token().cloned(), call.number("steps").max(1));
    let pause = Duration::from_millis(call.number("ms") / steps);
    std::thread::spawn(move || {
        for step in 1..=steps {
            std::thread::sleep(pause);
            if let Some(token) = &token {
                let params = json!({"progressToken": token, "progress": step, "total": steps});
                output.message(
                    &json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}),
                );
            }
        }
        answer(mode, &request, era, text("late"), &output);
    });
}

/// The first process of this server (or the first `processes`) exits, or never responds if `how` is `hang`; later
/// processes respond.
fn be_unreliable(call: &Call<'_>, output: &Output) {
    let unreliable_processes = call.argument("processes").as_u64().unwrap_or(1);
    match (process_number() <= unreliable_processes, call.argument("how").as_str()) {
        (true, Some("hang")) => {}
        (true, _) => std::process::exit(9),
        (false, _) => {
            answer(call.mode, &call.request, call.era, text(&format!("ran on {}", process_number())), output);
        }
    }
}

/// Sends a request to the client; its response becomes the tool's result.
fn ask_client(call: &Call<'_>, output: &Output, pending: &Pending) {
    let method = call.argument("method").as_str().unwrap_or("roots/list");
    let id = match call.argument("id") {
        Value::Null => json!(format!("fixture-{}", process_id())),
        Value::String(same) if same == "same" => call.request.clone(),
        id => id.clone(),
    };
    pending.wait(&id, Waiting { request: call.request.clone(), era: call.era });
    output.message(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": call.argument("params")}));
}
