//! The control API of the double.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::body::{Cut, HandlerResult, empty, error, json_body};
use super::sandbox::{Account, Sandbox, SandboxUser};
use super::server::{Shared, new_id};

const ENVD_VERSION: &str = "0.6.13";

pub(super) async fn handle(shared: &Arc<Shared>, request: Request<Incoming>) -> HandlerResult {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let Some(key) = head.headers.get("x-api-key") else {
        let message = "Invalid API key, please visit https://e2b.dev/docs/api-key for more information.";
        return Ok(error(401, message));
    };
    let Some(account) = Account::of_key(key.as_bytes()) else {
        return Ok(error(401, "Cannot get the team for the given API key"));
    };
    let path = head.uri.path().trim_matches('/');
    let path = path.strip_prefix("v2/").unwrap_or(path);
    let segments: Vec<&str> = path.split('/').collect();
    let method = head.method.as_str();
    if let ("POST", ["sandboxes"]) = (method, segments.as_slice()) {
        let sandbox = shared.create(account, SandboxUser::Usual);
        return Ok(json_body(201, &brief(&sandbox)));
    }
    let ["sandboxes", id, rest @ ..] = segments.as_slice() else { return Ok(error(404, "no such path")) };
    let Some(short_id) = short_id(id) else { return Ok(error(400, "Invalid sandbox ID")) };
    let Some(sandbox) = shared.sandbox(short_id).filter(|sandbox| sandbox.account == account) else {
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
            let fork_once = |_| {
                let (origin, shared) = (Arc::clone(&sandbox), Arc::clone(shared));
                async move {
                    // Copying files would block the runtime.
                    let forked =
                        tokio::task::spawn_blocking(move || shared.insert(origin.fork(new_id()))).await;
                    forked.map(|sandbox| json!({"sandbox": brief(&sandbox)})).unwrap_or_default()
                }
            };
            let mut forks = Vec::new();
            for forking in (0..count).map(fork_once) {
                forks.push(forking.await);
            }
            json_body(201, &Value::Array(forks))
        }
        ("POST", ["timeout"]) => empty(204),
        _ => error(404, "no such path"),
    })
}

/// The id without the client's id, which older SDKs append; `None` if the platform would not generate such an id.
fn short_id(id: &str) -> Option<&str> {
    let (short, client) = id.split_once('-').unwrap_or((id, ""));
    let is_generated = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (!client.contains('-') && !short.is_empty() && short.bytes().all(is_generated)).then_some(short)
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
