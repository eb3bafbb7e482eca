//! The Gemini API, as Gemini CLI uses it.

use serde_json::{Value, json};

use super::Turn;
use crate::http::Reply;

pub(super) fn reply(path: &str, body: &Value, script: &[Turn]) -> Reply {
    if path.ends_with(":streamGenerateContent") {
        // The stream's events have no names.
        Reply::Events(vec![(String::new(), content(body, script))])
    } else if path.ends_with(":generateContent") {
        Reply::Json(content(body, script))
    } else {
        Reply::Status(404)
    }
}

fn content(body: &Value, script: &[Turn]) -> Value {
    let part = match script.get(results_so_far(body)) {
        Some(Turn::Call { server, tool, arguments }) => {
            json!({"functionCall": {"name": format!("mcp_{server}_{tool}"), "args": arguments}})
        }
        Some(Turn::Shell(command)) => {
            json!({"functionCall": {"name": "run_shell_command", "args": {"command": command}}})
        }
        Some(Turn::Say(words)) => json!({"text": words}),
        None => json!({"text": "nothing more to say"}),
    };
    json!({
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
    })
}

fn results_so_far(body: &Value) -> usize {
    let contents = body["contents"].as_array().into_iter().flatten();
    let parts = contents.filter_map(|content| content["parts"].as_array()).flatten();
    parts.filter(|part| part.get("functionResponse").is_some()).count()
}
