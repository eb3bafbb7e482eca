//! The Responses API, as Codex uses it.

use serde_json::{Value, json};

use super::Turn;
use crate::http::Reply;

const CALL_PREFIX: &str = "call_scripted_";

pub(super) fn reply(path: &str, body: &Value, script: &[Turn]) -> Reply {
    if path.ends_with("/responses") {
        Reply::Events(events(body, script))
    } else if path.ends_with("/models") {
        Reply::Json(json!({"object": "list", "data": [{"id": "scripted", "object": "model"}], "models": []}))
    } else {
        Reply::Status(404)
    }
}

fn events(body: &Value, script: &[Turn]) -> Vec<(String, Value)> {
    let turn = calls_so_far(body);
    let item = item(turn, script.get(turn));
    let response = json!({
        "id": format!("resp_scripted_{turn}"),
        "object": "response",
        "created_at": 1,
        "model": body["model"],
        "status": "in_progress",
        "output": [],
    });
    let mut completed = response.clone();
    completed["status"] = json!("completed");
    completed["output"] = json!([item]);
    completed["usage"] = json!({
        "input_tokens": 1, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2,
    });
    let events = [
        ("response.created", json!({"response": response})),
        ("response.output_item.added", json!({"output_index": 0, "item": item})),
        ("response.output_item.done", json!({"output_index": 0, "item": item})),
        ("response.completed", json!({"response": completed})),
    ];
    let numbered = |(number, (name, mut data)): (usize, (&str, Value))| {
        data["type"] = json!(name);
        data["sequence_number"] = json!(number);
        (name.to_owned(), data)
    };
    events.into_iter().enumerate().map(numbered).collect()
}

/// Codex shows an MCP server's tools as a namespace, and requires calls to name it.
fn item(turn: usize, scripted: Option<&Turn>) -> Value {
    let words = match scripted {
        Some(Turn::Call { server, tool, arguments }) => {
            return json!({
                "type": "function_call",
                "id": format!("fc_scripted_{turn}"),
                "call_id": format!("{CALL_PREFIX}{turn}"),
                "namespace": format!("mcp__{server}"),
                "name": tool,
                "arguments": arguments.to_string(),
                "status": "completed",
            });
        }
        Some(Turn::Shell(command)) => {
            return json!({
                "type": "function_call",
                "id": format!("fc_scripted_{turn}"),
                "call_id": format!("{CALL_PREFIX}{turn}"),
                "name": "exec_command",
                "arguments": json!({"cmd": command}).to_string(),
                "status": "completed",
            });
        }
        Some(Turn::Say(words)) => words.as_str(),
        None => "nothing more to say",
    };
    let content = json!([{"type": "output_text", "text": words, "annotations": []}]);
    json!({"type": "message", "role": "assistant", "id": format!("msg_scripted_{turn}"), "content": content, "status": "completed"})
}

fn calls_so_far(body: &Value) -> usize {
    let is_scripted_call = |item: &&Value| {
        item["type"] == "function_call"
            && item["call_id"].as_str().is_some_and(|id| id.starts_with(CALL_PREFIX))
    };
    body["input"].as_array().into_iter().flatten().filter(is_scripted_call).count()
}
