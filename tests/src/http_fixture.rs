//! An MCP server over streamable HTTP whose tool returns the request's headers, and which records every request.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::http::{Reply, Request, listen};

/// A server of the legacy era; only [`Behaviour::KeepsNewestSession`] opens sessions.
#[derive(Debug)]
pub struct HttpFixture {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

/// How the server responds to a POST.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// Responds with one JSON body to requests with this `authorization`, and with 401 to others.
    Accepts(Arc<Mutex<String>>),
    /// Responds with one JSON body.
    Json,
    /// Responds with a stream of events.
    Events,
    /// Opens MCP sessions and accepts only the newest: 404 to calls in others, 401 to an `initialize` without the
    /// right `authorization`.
    KeepsNewestSession(Arc<Mutex<Sessions>>),
    /// Redirects to this URL.
    RedirectsTo(String),
    /// Responds with this status.
    Fails(u16),
}

/// The `authorization` that opens a session, and the number of the newest session.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    pub accepted: String,
    pub number: u32,
}

impl HttpFixture {
    pub fn start(behaviour: Behaviour) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&requests);
        let address = listen(move |request| {
            if let Ok(mut record) = record.lock() {
                record.push(request.clone());
            }
            if request.method != "POST" { Reply::Status(405) } else { reply(&behaviour, &request) }
        });
        Self { address, requests }
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// The `authorization` of every call, including refused ones.
    pub fn authorizations(&self) -> Vec<String> {
        let calls = self.requests().into_iter().filter(|request| request.body["method"] == "tools/call");
        calls.filter_map(|request| request.headers.get("authorization").cloned()).collect()
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().map(|requests| requests.clone()).unwrap_or_default()
    }
}

/// The result of the stateless era with which a tool asks the client for input.
pub fn input_required(requests: &Value) -> Value {
    json!({"resultType": "input_required", "inputRequests": requests, "requestState": "state"})
}

fn reply(behaviour: &Behaviour, request: &Request) -> Reply {
    let Some(id) = request.body.get("id") else { return Reply::Status(202) };
    let response = json!({"jsonrpc": "2.0", "id": id, "result": result(request)});
    match behaviour {
        Behaviour::Accepts(only) => {
            let is_accepted =
                only.lock().is_ok_and(|only| request.headers.get("authorization") == Some(&*only));
            if is_accepted { Reply::Json(response) } else { Reply::Status(401) }
        }
        Behaviour::Json => Reply::Json(response),
        Behaviour::Events => Reply::Events(vec![("message".to_owned(), response)]),
        Behaviour::KeepsNewestSession(sessions) => {
            let Ok(mut sessions) = sessions.lock() else { return Reply::Cut };
            let header = |name: &str| request.headers.get(name).cloned().unwrap_or_default();
            match request.body["method"] == "initialize" {
                true if header("authorization") != sessions.accepted => Reply::Status(401),
                true => {
                    sessions.number += 1;
                    Reply::Opens(sessions.number.to_string(), response)
                }
                false if header("mcp-session-id") != sessions.number.to_string() => Reply::Status(404),
                false => Reply::Json(response),
            }
        }
        Behaviour::RedirectsTo(url) => Reply::Redirect(url.clone()),
        Behaviour::Fails(status) => Reply::Status(*status),
    }
}

fn result(request: &Request) -> Value {
    match request.body["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": request.body["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "http-fixture", "version": "1"},
        }),
        Some("tools/list") => json!({"tools": [
            {"name": "headers", "description": "What was sent", "inputSchema": {"type": "object"}},
            {"name": "delete_everything", "description": "No", "inputSchema": {"type": "object"}},
        ]}),
        Some("tools/call") if request.body["params"].get("task").is_some() => {
            json!({"task": {"taskId": "task-1", "status": "working", "ttl": 60_000}})
        }
        Some("tools/call") if request.body["params"]["name"] == "ask_for_input" => {
            match request.body["params"].get("inputResponses") {
                Some(responses) => json!({"content": [{"type": "text", "text": responses.to_string()}]}),
                None => input_required(&request.body["params"]["arguments"]["requests"]),
            }
        }
        Some("tools/call") => {
            let headers: Vec<String> =
                request.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            json!({"content": [{"type": "text", "text": headers.join("\n")}]})
        }
        _ => json!({}),
    }
}
