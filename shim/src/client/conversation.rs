//! One MCP client's conversation with a server: a request at a time, over two pipes to the relay.
//!
//! What must stay true: the client always reads while it writes, so that client and relay cannot wait for each other; a
//! response is used only if its id is that of the request; requests of the server are refused, and go without a response
//! only if [`MAX_UNSENT`] bytes wait to be written.

use std::future::poll_fn;

use relay_proto::envelope::{self, Id, Kind, Outcome, Strictness};
use relay_proto::json;
use relay_proto::mcp::{DISCOVER, INITIALIZE, TOOLS_CALL, TOOLS_LIST};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::arguments::Arguments;
use super::messages::{CallParams, ClientEra, INITIALIZED_LINE, InitializeParams, Meta, PageParams, Request};
use crate::failure::{Failure, SERVER_ERROR};
use crate::lines::{Line, Lines};
use crate::stderr_log::StderrLog;
use crate::stdio::Stdio;

/// An open conversation. Dropping it ends the relay's input, and with it the link.
pub(super) struct Conversation {
    to_relay: Stdio,
    from_relay: Stdio,
    lines: Lines,
    /// Lines to write; the first `sent` bytes of them are written.
    unsent: Vec<u8>,
    sent: usize,
    last_id: u64,
    era: ClientEra,
    log: StderrLog,
}

/// The longest line in bytes: twice the limit of a message, because the relay escapes some characters.
const MAX_LINE: usize = 2 * relay_proto::limits::MAX_MESSAGE;
/// The limits of a list of tools: without them, a server could name a next page forever.
const MAX_PAGES: usize = 100;
const MAX_LIST_BYTES: usize = 10 * 1024 * 1024;
/// If this many bytes wait to be written, requests of the server get no response: it does not read them anyway.
const MAX_UNSENT: usize = 1024 * 1024;

/// One page of `tools/list`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    tools: Vec<Box<RawValue>>,
    #[serde(default)]
    next_cursor: Option<Box<RawValue>>,
}

/// The parameters of `notifications/progress`, as far as they are shown.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    progress_token: u64,
    progress: serde_json::Number,
    #[serde(default)]
    total: Option<serde_json::Number>,
    #[serde(default)]
    message: Option<String>,
}

#[derive(Deserialize)]
struct RpcError {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
    #[serde(default)]
    data: Option<RpcErrorData>,
}

/// Servers may put anything here; only the relay's own codes matter.
#[derive(Deserialize)]
#[serde(untagged)]
enum RpcErrorData {
    Coded { code: String },
    Other(serde::de::IgnoredAny),
}

impl Conversation {
    pub(super) fn new(to_relay: Stdio, from_relay: Stdio) -> Self {
        Self {
            to_relay,
            from_relay,
            lines: Lines::new(MAX_LINE),
            unsent: Vec::new(),
            sent: 0,
            last_id: 0,
            era: ClientEra::Legacy,
            log: StderrLog::new(),
        }
    }

    /// Does the handshake. If the server does not accept `initialize`, tries the stateless era's `server/discover`.
    pub(super) async fn open(&mut self) -> Result<(), Failure> {
        let refused = match self.request(INITIALIZE, InitializeParams::new()).await {
            Ok(_) => {
                self.push(INITIALIZED_LINE);
                return Ok(());
            }
            Err(failure) if failure.code == SERVER_ERROR => failure,
            Err(failure) => return Err(failure.without_effect("the handshake")),
        };
        self.era = ClientEra::Stateless;
        let params = PageParams { cursor: None, meta: Meta::new(self.era, None) };
        match self.request(DISCOVER, params).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.code == SERVER_ERROR => Err(refused.without_effect("the handshake")),
            Err(failure) => Err(failure.without_effect("the handshake")),
        }
    }

    /// Calls a tool and returns its result as the server wrote it. The progress of the call goes to stderr.
    pub(super) async fn call(&mut self, tool: &str, arguments: &Arguments) -> Result<Vec<u8>, Failure> {
        let meta = Meta::new(self.era, Some(self.last_id + 1));
        let result = self.request(TOOLS_CALL, CallParams::new(tool, arguments, meta)).await?;
        // In the stateless era, a tool requests further input with this type of result.
        match json::member(&result, 0..result.len(), "resultType") {
            Some(span) if result.get(span.clone()) == Some(br#""input_required""#.as_slice()) => {
                Err(Failure::unusable_response(
                    "the tool asks for more input, which a command cannot give; call it from an MCP client",
                ))
            }
            _ => Ok(result),
        }
    }

    /// Lists the server's tools, all pages of them. Each tool is as the server wrote it.
    pub(super) async fn list_tools(&mut self) -> Result<Vec<Box<RawValue>>, Failure> {
        let (mut tools, mut cursor, mut bytes) = (Vec::new(), None::<Box<RawValue>>, 0);
        for _ in 0..MAX_PAGES {
            let params = PageParams { cursor: cursor.as_deref(), meta: Meta::new(self.era, None) };
            let result = self.request(TOOLS_LIST, params).await;
            let result = result.map_err(|failure| failure.without_effect("`tools/list`"))?;
            bytes += result.len();
            if bytes > MAX_LIST_BYTES {
                return Err(Failure::unusable_response(&format!(
                    "the list of tools has more than {MAX_LIST_BYTES} bytes"
                )));
            }
            let page: Page = serde_json::from_slice(&result).map_err(|error| {
                Failure::unusable_response(&format!("the list of tools cannot be read: {error}"))
            })?;
            tools.extend(page.tools);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(tools);
            }
        }
        Err(Failure::unusable_response(&format!("the list of tools has more than {MAX_PAGES} pages")))
    }

    /// Sends a request and waits for its response; the relay and the sidecar bound the wait.
    async fn request(&mut self, method: &str, params: impl Serialize) -> Result<Vec<u8>, Failure> {
        self.last_id += 1;
        let id = self.last_id;
        self.push(&Request::encode(id, method, params));
        loop {
            while let Some(line) = self.lines.next() {
                let line = match line {
                    Line::TooLarge { .. } => {
                        return Err(Failure::unusable_response("a message of the server is too long"));
                    }
                    Line::Whole(line) => line.to_vec(),
                };
                if let Some(response) = self.handle_line(id, &line) {
                    return response;
                }
            }
            self.exchange_bytes().await?;
        }
    }

    /// Waits until bytes were written to the relay or read from it.
    async fn exchange_bytes(&mut self) -> Result<(), Failure> {
        let Self { to_relay, from_relay, lines, unsent, sent, .. } = self;
        let ended = |_| Failure::unavailable("the relay ended");
        tokio::select! {
            written = to_relay.write(&unsent[*sent..]), if *sent < unsent.len() => {
                *sent += written.map_err(ended)?;
                if *sent == unsent.len() {
                    unsent.clear();
                    *sent = 0;
                }
            }
            count = poll_fn(|context| from_relay.poll_read(context, lines.spare())) => match count.map_err(ended)? {
                0 => return Err(Failure::unavailable("the relay ended")),
                count => lines.filled(count),
            },
        }
        Ok(())
    }

    /// Handles one line from the relay. Returns the response if the line is one to the request `id`.
    fn handle_line(&mut self, id: u64, line: &[u8]) -> Option<Result<Vec<u8>, Failure>> {
        let envelope = envelope::read(line, Strictness::Envelope).ok()?;
        match envelope.kind {
            Kind::Response { id: Some(response_id), outcome }
                if response_id.raw == id.to_string().as_bytes() =>
            {
                let body = envelope.body.map(|span| &line[span]).unwrap_or_default();
                Some(match outcome {
                    Outcome::Error => Err(failure_of(body)),
                    Outcome::Result => Ok(body.to_vec()),
                })
            }
            Kind::Notification { method } if method == "notifications/progress" => {
                let params = envelope.body.map(|span| &line[span]).unwrap_or_default();
                self.show_progress(id, params);
                None
            }
            Kind::Request { id: server_request, method } => {
                self.respond_to_server(&server_request, &method);
                None
            }
            Kind::Notification { .. } | Kind::Response { .. } => None,
        }
    }

    fn show_progress(&mut self, id: u64, params: &[u8]) {
        let Ok(Progress { progress_token, progress, total, message }) = serde_json::from_slice(params) else {
            return;
        };
        if progress_token != id {
            return;
        }
        let total = total.map(|total| format!("/{total}")).unwrap_or_default();
        let message = message.map(|message| format!(" {message}")).unwrap_or_default();
        self.log.note(&format!("progress {progress}{total}{message}"));
    }

    /// The client has announced no capabilities, so the only request that a server may send is a ping.
    fn respond_to_server(&mut self, id: &Id<'_>, method: &str) {
        let body = match method {
            "ping" => r#""result":{}"#,
            _ => r#""error":{"code":-32601,"message":"Method not found: this client is a command"}"#,
        };
        if self.unsent.len() < MAX_UNSENT {
            self.push(format!(r#"{{"jsonrpc":"2.0","id":{},{body}}}"#, id.as_json()).as_bytes());
        }
    }

    fn push(&mut self, line: &[u8]) {
        self.unsent.extend_from_slice(line);
        self.unsent.push(b'\n');
    }
}

/// The relay's own errors carry a code; any other error comes from the server.
fn failure_of(error: &[u8]) -> Failure {
    let Ok(RpcError { code, message, data }) = serde_json::from_slice(error) else {
        return Failure::unusable_response("the server's error response cannot be read");
    };
    match data {
        Some(RpcErrorData::Coded { code: name }) if name.parse::<relay_proto::code::Code>().is_ok() => {
            let sentence = message.strip_prefix(&format!("{name}: ")).unwrap_or(&message);
            Failure::new(&name, sentence)
        }
        _ => Failure { code: SERVER_ERROR.into(), message, number: Some(code) },
    }
}

/// Whether a result of `tools/call` says that the tool failed.
pub(super) fn is_error(result: &[u8]) -> bool {
    json::member(result, 0..result.len(), "isError").is_some_and(|span| &result[span] == b"true")
}
