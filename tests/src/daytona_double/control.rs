//! The control API: one sandbox of one account.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::gateway::Gateway;
use super::wire::{Request, Response};
use super::{API_KEY, Lifecycle, OTHER_API_KEY, Platform, SshAccounts, random};
use crate::port::free_address;

pub(super) fn handle(platform: &Platform, request: &Request) -> Response {
    let bearer = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let Some(key) = bearer.filter(|key| [API_KEY, OTHER_API_KEY].contains(key)) else {
        return Response::error(401, "Unauthorized");
    };
    let segments = request.segments();
    let (Some("sandbox"), Some(id)) = (segments.get(1).copied(), segments.get(2).copied()) else {
        return Response::error(404, "Not Found");
    };
    // Daytona finds a sandbox by its id or its name.
    let is_sandbox = [&platform.sandbox_id, &platform.sandbox_name()].map(String::as_str).contains(&id);
    let is_known = is_sandbox && platform.lock().lifecycle != Lifecycle::Deleted;
    if key != API_KEY || !is_known {
        return Response::error(404, &format!("Sandbox with ID or name {id} not found"));
    }
    match (request.method.as_str(), &segments[3..]) {
        ("GET", []) => {
            let found = sandbox(platform);
            platform.count_state_query();
            Response::json(200, &found)
        }
        ("POST", ["start"]) => {
            platform.start_sandbox();
            Response::json(200, &sandbox(platform))
        }
        ("POST", ["stop"]) => {
            platform.stop_sandbox(Lifecycle::Stopped);
            Response::json(200, &sandbox(platform))
        }
        ("POST", ["archive"]) => {
            let is_started = platform.lock().lifecycle == Lifecycle::Started;
            if is_started {
                return Response::error(400, "Sandbox is not stopped");
            }
            platform.stop_sandbox(Lifecycle::Archived);
            Response::json(200, &sandbox(platform))
        }
        ("POST", ["last-activity"]) => {
            platform.activity.fetch_add(1, Ordering::Relaxed);
            Response::status(201)
        }
        ("GET", ["ports", port, "preview-url"]) => Response::json(
            200,
            &json!({
                "sandboxId": id,
                "url": format!("https://{port}-{id}.proxy.daytona.test"),
                "token": platform.lock().preview_token,
            }),
        ),
        ("POST", ["ssh-access"]) => ssh_access(platform, id),
        _ => Response::error(404, "Not Found"),
    }
}

fn ssh_access(platform: &Platform, id: &str) -> Response {
    let token = random("ssh");
    let account = match platform.lock().ssh_accounts {
        SshAccounts::Tokens => token.clone(),
        SshAccounts::Others => random("other"),
    };
    let address = platform.lock().ssh_address;
    if address.is_some() {
        // The previous gateway uses the same address.
        platform.lock().gateways.clear();
    }
    let address = address.unwrap_or_else(free_address);
    let Some(gateway) = Gateway::start(&platform.bubblewrap, platform.root.path(), &account, address) else {
        return Response::error(503, "no SSH gateway here");
    };
    let port = gateway.port();
    let host = gateway.host();
    let mut state = platform.lock();
    state.gateways.push(gateway);
    state.ssh_tokens.push(token.clone());
    Response::json(
        200,
        &json!({
            "id": "ssh-access-1",
            "sandboxId": id,
            "expiresAt": "2027-01-01T00:00:00.000Z",
            "createdAt": "2026-01-01T00:00:00.000Z",
            "updatedAt": "2026-01-01T00:00:00.000Z",
            "sshCommand": format!("ssh -p {port} {token}@{host}"),
            "token": token,
        }),
    )
}

fn sandbox(platform: &Platform) -> Value {
    let (state, desired) = match platform.lock().lifecycle {
        Lifecycle::Started => ("started", "started"),
        Lifecycle::Stopped => ("stopped", "stopped"),
        Lifecycle::Archived => ("archived", "archived"),
        Lifecycle::Restoring(_) => ("restoring", "started"),
        Lifecycle::Deleted => ("destroyed", "destroyed"),
    };
    json!({
        "id": platform.sandbox_id,
        "organizationId": "organisation-1",
        "name": platform.sandbox_name(),
        "user": "daytona",
        "env": {},
        "labels": {},
        "public": false,
        "networkBlockAll": false,
        "kvm": false,
        "target": "us",
        "cpu": 1,
        "gpu": 0,
        "memory": 1,
        "disk": 3,
        "state": state,
        "desiredState": desired,
        "autoStopInterval": 15,
        "sandboxClass": "small",
        "toolboxProxyUrl": format!("http://{}/toolbox", platform.address),
    })
}
