//! Model APIs on loopback that drive a real Claude Code, Codex or Gemini CLI, offline.
//!
//! A model here follows a script: in each turn it requests the script's next tool call, or sends the final text. It
//! records every request, so that a test can look for a tool's result in the request after the call. It is stateless:
//! which turn is next follows from the conversation in the request.

mod anthropic;
mod gemini;
mod openai;

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};

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
    /// Requests that the harness runs a command with its own shell tool.
    Shell(String),
}

/// Which API the model offers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Api {
    /// `POST /v1/messages`
    Anthropic,
    /// `POST /v1beta/models/MODEL:streamGenerateContent`
    Gemini,
    /// `POST /v1/responses`
    OpenAi,
}

/// A running model API.
#[derive(Debug)]
pub struct FakeModel {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    gate: Arc<Gate>,
}

/// Holds back every response of a model until it is opened.
#[derive(Debug)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl FakeModel {
    pub fn start(api: Api, script: Vec<Turn>) -> Self {
        let model = Self::start_held(api, script);
        model.release();
        model
    }

    /// The same, but no request is answered before [`FakeModel::release`].
    pub fn start_held(api: Api, script: Vec<Turn>) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let gate = Arc::new(Gate { is_open: Mutex::new(false), opened: Condvar::new() });
        let (script, record, held_by) = (Arc::new(script), Arc::clone(&requests), Arc::clone(&gate));
        let address = listen(move |request| {
            let reply = match api {
                Api::Anthropic => anthropic::reply(&request.path, &request.body, &script),
                Api::Gemini => gemini::reply(&request.path, &request.body, &script),
                Api::OpenAi => openai::reply(&request.path, &request.body, &script),
            };
            if let Ok(mut record) = record.lock() {
                record.push(request);
            }
            held_by.wait();
            reply
        });
        Self { address, requests, gate }
    }

    /// Lets all requests be answered.
    pub fn release(&self) {
        *self.gate.is_open.lock().expect("no holder of the lock panics") = true;
        self.gate.opened.notify_all();
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests for a turn of the model, in order; not those for token counts or model lists.
    pub fn requests(&self) -> Vec<Request> {
        let is_turn = |request: &&Request| {
            let ends = ["/messages", "/responses", ":generateContent", ":streamGenerateContent"];
            ends.iter().any(|end| request.path.ends_with(end))
        };
        self.all_requests().iter().filter(is_turn).cloned().collect()
    }

    pub fn all_requests(&self) -> Vec<Request> {
        self.requests.lock().map(|requests| requests.clone()).unwrap_or_default()
    }
}

impl Gate {
    fn wait(&self) {
        let is_open = self.is_open.lock().expect("no holder of the lock panics");
        drop(self.opened.wait_while(is_open, |is_open| !*is_open).expect("no holder of the lock panics"));
    }
}
