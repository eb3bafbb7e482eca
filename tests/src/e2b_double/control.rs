//! The control API of the double.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::API_KEY;
use super::body::{Cut, HandlerResult, empty, error, json_body};
use super::sandbox::{Sandbox, SandboxUser};
use super::server::{Shared, new_id};

const ENVD_VERSION: &str = "0.6.13";

pub(super) async fn handle(shared: &Arc<Shared>, request: Request<Incoming>) -> HandlerResult {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if head.headers.get("x-api-key").is_none_or(|key| key.as_bytes() != API_KEY.as_bytes()) {
        return Ok(error(
            401,
            "Invalid API key, please visit https://e2b.dev/docs/api-key to get your API key.",
        ));
    }
    let path = head.uri.path().trim_matches('/');
    let path = path.strip_prefix("v2/").unwrap_or(path);
    let segments: Vec<&str> = path.split('/').collect();
    let method = head.method.as_str();
    if let ("POST", ["sandboxes"]) = (method, segments.as_slice()) {
        let sandbox = shared.create(SandboxUser::Usual);
        return Ok(json_body(201, &brief(&sandbox)));
    }
    let ["sandboxes", id, rest @ ..] = segments.as_slice() else { return Ok(error(404, "no such path")) };
    let Some(sandbox) = shared.sandbox(id) else {
        return Ok(error(404, &format!("Sandbox \"{id}\" doesn't exist or you don't have access to it")));
    };
    Ok(match (method, rest) {
        ("GET", []) => json_body(200, &detail(&sandbox)),
        ("DELETE", []) => {
            sandbox.end();
            empty(204)
        }
        ("POST", ["pause"]) if sandbox.is_paused() => error(409, "the sandbox is paused already"),
        ("POST", ["pause"]) => {
            sandbox.pause();
            empty(204)
        }
        ("POST", ["connect" | "resume"]) => {
            let status = if sandbox.is_paused() { 201 } else { 200 };
            if sandbox.is_paused() {
                sandbox.resume();
            }
            json_body(status, &brief(&sandbox))
        }
        ("POST", ["fork"]) => {
            let count = body["count"].as_u64().unwrap_or(1);
            let fork = |_| {
                let (origin, shared) = (Arc::clone(&sandbox), Arc::clone(shared));
                async move {
                    // Copying files would block the runtime.
                    let fork =
                        tokio::task::spawn_blocking(move || shared.insert(origin.fork(new_id()))).await;
                    fork.map(|fork| json!({"sandbox": brief(&fork)})).unwrap_or_default()
                }
            };
            let mut forks = Vec::new();
            for fork in (0..count).map(fork) {
                forks.push(fork.await);
            }
            json_body(201, &Value::Array(forks))
        }
        ("POST", ["timeout"]) => empty(204),
        _ => error(404, "no such path"),
    })
}

fn brief(sandbox: &Sandbox) -> Value {
    json!({
        "templateID": "base",
        "sandboxID": sandbox.id,
        "clientID": "client",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": sandbox.token(),
        "domain": null,
    })
}

fn detail(sandbox: &Sandbox) -> Value {
    let mut detail = brief(sandbox);
    for (name, value) in [
        ("startedAt", json!("2026-11-18T07:00:00Z")),
        ("endAt", json!("2026-11-18T08:00:00Z")),
        ("cpuCount", json!(2)),
        ("memoryMB", json!(512)),
        ("diskSizeMB", json!(1024)),
        ("state", json!(if sandbox.is_paused() { "paused" } else { "running" })),
    ] {
        detail[name] = value;
    }
    detail
}
