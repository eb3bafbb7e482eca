//! The Messages API, as Claude Code uses it.

use serde_json::{Value, json};

use super::Turn;
use crate::http::Reply;

const CALL_PREFIX: &str = "toolu_scripted_";

pub(super) fn reply(path: &str, body: &Value, script: &[Turn]) -> Reply {
    match path {
        "/v1/messages" => {
            let message = message(body, script);
            if body["stream"] == true { Reply::Events(events(&message)) } else { Reply::Json(message) }
        }
        "/v1/messages/count_tokens" => Reply::Json(json!({"input_tokens": 1})),
        _ => Reply::Status(404),
    }
}

fn message(body: &Value, script: &[Turn]) -> Value {
    // Other requests (for titles, summaries) have no tools and must not get a scripted tool call.
    let has_tools = body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    let turn = calls_so_far(body);
    let call = |name: &str, input: &Value| {
        let id = format!("{CALL_PREFIX}{turn}");
        (json!({"type": "tool_use", "id": id, "name": name, "input": input}), "tool_use")
    };
    let (block, stop) = match script.get(turn) {
        Some(Turn::Call { server, tool, arguments }) if has_tools => {
            call(&format!("mcp__{server}__{tool}"), arguments)
        }
        Some(Turn::Shell(command)) if has_tools => {
            call("Bash", &json!({"command": command, "description": "runs the script's command"}))
        }
        Some(Turn::Say(words)) => (json!({"type": "text", "text": words}), "end_turn"),
        _ => (json!({"type": "text", "text": "nothing more to say"}), "end_turn"),
    };
    json!({
        "id": format!("msg_scripted_{turn}"),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [block],
        "stop_reason": stop,
        "stop_sequence": null,
        "usage": {"input_tokens": 1, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0},
    })
}

fn calls_so_far(body: &Value) -> usize {
    let blocks =
        body["messages"].as_array().into_iter().flatten().filter_map(|message| message["content"].as_array());
    let is_scripted_call =
        |block: &&Value| block["type"] == "tool_use" && starts_with(&block["id"], CALL_PREFIX);
    blocks.flatten().filter(is_scripted_call).count()
}

fn starts_with(value: &Value, prefix: &str) -> bool {
    value.as_str().is_some_and(|text| text.starts_with(prefix))
}

/// The message as a stream of events.
fn events(message: &Value) -> Vec<(String, Value)> {
    let block = &message["content"][0];
    let (opening, delta) = match block["type"].as_str() {
        Some("tool_use") => {
            let mut opening = block.clone();
            opening["input"] = json!({});
            (opening, json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}))
        }
        _ => (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": block["text"]})),
    };
    let mut begun = message.clone();
    begun["content"] = json!([]);
    begun["stop_reason"] = Value::Null;
    let ending = json!({"stop_reason": message["stop_reason"], "stop_sequence": null});
    let event = |name: &str, mut data: Value| {
        data["type"] = json!(name);
        (name.to_owned(), data)
    };
    vec![
        event("message_start", json!({"message": begun})),
        event("content_block_start", json!({"index": 0, "content_block": opening})),
        event("content_block_delta", json!({"index": 0, "delta": delta})),
        event("content_block_stop", json!({"index": 0})),
        event("message_delta", json!({"delta": ending, "usage": {"output_tokens": 1}})),
        event("message_stop", json!({})),
    ]
}
