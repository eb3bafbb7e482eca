//! Model APIs on loopback that drive a real Claude Code or Codex, offline.
//!
//! A model here follows a script: in each turn it requests the script's next tool call, or sends the final text. It
//! records every request, so that a test can look for a tool's result in the request after the call. It is stateless:
//! which turn is next follows from the conversation in the request.

mod anthropic;
mod openai;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::http::{Request, listen};

/// One turn of the model.
#[derive(Clone, Debug)]
pub enum Turn {
    /// Requests a call of a tool of the MCP server.
    Call {
        server: String,
        tool: String,
        arguments: Value,
    },
    Say(String),
}

/// Which API the model offers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Api {
    /// `POST /v1/messages`
    Anthropic,
    /// `POST /v1/responses`
    OpenAi,
}

/// A running model API.
#[derive(Debug)]
pub struct FakeModel {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl FakeModel {
    pub fn start(api: Api, script: Vec<Turn>) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (script, record) = (Arc::new(script), Arc::clone(&requests));
        let address = listen(move |request| {
            let reply = match api {
                Api::Anthropic => anthropic::reply(&request.path, &request.body, &script),
                Api::OpenAi => openai::reply(&request.path, &request.body, &script),
            };
            if let Ok(mut record) = record.lock() {
                record.push(request);
            }
            reply
        });
        Self { address, requests }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests for a turn of the model, in order; not those for token counts or model lists.
    pub fn requests(&self) -> Vec<Request> {
        let is_turn =
            |request: &&Request| request.path.ends_with("/messages") || request.path.ends_with("/responses");
        self.all_requests().iter().filter(is_turn).cloned().collect()
    }

    pub fn all_requests(&self) -> Vec<Request> {
        self.requests.lock().map(|requests| requests.clone()).unwrap_or_default()
    }
}
