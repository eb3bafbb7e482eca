//! A trial of one server: its process is started or its URL called, it answers the handshake and lists its tools, and it ends.
//!
//! What must stay true: a trial sends nothing else but a recorded use that it is given, so by itself it calls no tool; it ends within its limits, and the process with all its descendants has ended
//! before the result is returned.

mod replay;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::BytesMut;
use relay_proto::envelope::{self, IdValue, Kind, Outcome, Strictness};
use relay_proto::replay::OwnRequest;
use relay_proto::{json, mcp};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

pub use self::replay::{Answer, RecordedRequest, RecordedUse};
use crate::event::Event;
use crate::launcher::Launcher;
use crate::outbound::Outbound;
use crate::tool_list::{NextPage, ToolList};
use crate::upstream::Upstream;

/// What a server did in a trial.
#[derive(Debug)]
pub struct Trial {
    /// Name and version, as the server gives them: of any length, and not scrubbed yet, like the names of its tools.
    pub software: String,
    /// From the start to the response to the handshake.
    pub handshake: Duration,
    /// From the start to the last page of the list.
    pub listed: Duration,
    pub tools: ToolNames,
    /// To the recorded use, in its order.
    pub answers: Vec<Answer>,
    /// The first line on stdout that is not MCP, not scrubbed yet.
    pub stray_output: Option<Vec<u8>>,
}

/// The tools that a server offers, before any rule.
#[derive(Debug, Eq, PartialEq)]
pub enum ToolNames {
    All(BTreeSet<String>),
    /// The list is longer than is read.
    Some(BTreeSet<String>),
    /// The server has no tools: it did not announce them.
    None,
}

#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// Nothing was started.
    #[error("{0}")]
    NotStarted(String),
    /// A secret of the server could not be had, so nothing was started.
    #[error("{0}")]
    NoCredential(String),
    #[error("{why}")]
    Ended { why: String, stray_output: Option<Vec<u8>> },
    /// It runs, and did not answer.
    #[error("it did not answer {} within {} s", .request, .limit.as_secs())]
    NoAnswer { request: &'static str, limit: Duration, stray_output: Option<Vec<u8>> },
    /// It answered with an error, whose message may have any length.
    #[error("it answered {request} with an error: {message}")]
    Refused { request: &'static str, message: String },
}

/// For the list of tools, after the handshake.
const LIST_TIMEOUT: Duration = Duration::from_secs(15);
/// More lines that are not MCP than a server may print before its handshake counts as unanswered.
const MAX_STRAY_LINES: usize = 10_000;
/// The revision that is offered; a server answers with one of its own.
const REVISION: &str = "2025-11-25";
/// How a request without a handshake names its revision.
const STATELESS_REVISION: &str = "2026-07-28";

/// Starts the server and talks to it as a harness does: the handshake, the list of its tools, then the recorded use.
pub async fn try_server(launcher: Launcher, recorded: &RecordedUse) -> Result<Trial, TrialError> {
    let began = Instant::now();
    let (limit, grace) = (launcher.limits.start_timeout, launcher.limits.stop_grace);
    // The limit applies to secrets and start too: a program that reads a secret may hang.
    let mut upstream = match timeout_at(began + limit, launcher.start()).await {
        Ok(Ok(upstream)) => upstream,
        Ok(Err(error)) if error.code() == relay_proto::code::Code::CredentialUnavailable => {
            return Err(TrialError::NoCredential(error.explain()));
        }
        Ok(Err(error)) => return Err(TrialError::NotStarted(error.explain())),
        Err(_) => {
            return Err(TrialError::NotStarted(format!("it did not start within {} s", limit.as_secs())));
        }
    };
    let mut conversation = Conversation { upstream: &mut upstream, began, limit, stray_output: None };
    let result = conversation.run(recorded).await;
    // Descendants that are still dying belong to the keeper, which kills them.
    let _ = upstream.end(grace).await;
    result
}

struct Conversation<'a> {
    upstream: &'a mut Upstream,
    began: Instant,
    /// For the handshake.
    limit: Duration,
    stray_output: Option<Vec<u8>>,
}

/// A response to one of our requests.
enum Reply {
    Result(Value),
    Error(String),
}

impl Conversation<'_> {
    async fn run(&mut self, recorded: &RecordedUse) -> Result<Trial, TrialError> {
        let mut trial = self.list_tools().await?;
        trial.answers = self.replay(recorded).await?;
        trial.stray_output = self.stray_output.take();
        Ok(trial)
    }

    /// The handshake, and the list of tools.
    async fn list_tools(&mut self) -> Result<Trial, TrialError> {
        let id = text_id("1");
        let initialize = request(
            &id,
            mcp::INITIALIZE,
            json!({
                "protocolVersion": REVISION,
                "capabilities": {},
                "clientInfo": {"name": "cofferdam-doctor", "version": env!("CARGO_PKG_VERSION")},
            }),
        );
        self.upstream.send(initialize);
        let deadline = self.began + self.limit;
        let (software, has_tools, params) = match self.reply(&id, mcp::INITIALIZE, deadline).await? {
            (Reply::Result(result), _) => {
                let initialized = json!({"jsonrpc": "2.0", "method": mcp::INITIALIZED}).to_string();
                self.upstream.send(Outbound::notification(initialized, mcp::INITIALIZED));
                let has_tools = result["capabilities"].get("tools").is_some();
                (describe(&result["serverInfo"]), has_tools, json!({}))
            }
            // A server that knows only the revisions without a handshake may still list its tools.
            (Reply::Error(message), _) => {
                let meta = json!({"_meta": {
                    "io.modelcontextprotocol/protocolVersion": STATELESS_REVISION,
                    "io.modelcontextprotocol/clientCapabilities": {},
                }});
                let handshake = self.began.elapsed();
                return match self.list(meta).await {
                    Ok(tools) => Ok(self.trial("without a handshake".into(), handshake, tools)),
                    Err(TrialError::Refused { .. }) => {
                        Err(TrialError::Refused { request: mcp::INITIALIZE, message })
                    }
                    Err(error) => Err(error),
                };
            }
        };
        let handshake = self.began.elapsed();
        let tools = if has_tools { self.list(params).await? } else { ToolNames::None };
        Ok(self.trial(software, handshake, tools))
    }

    fn trial(&self, software: String, handshake: Duration, tools: ToolNames) -> Trial {
        let listed = self.began.elapsed();
        Trial { software, handshake, listed, tools, answers: Vec::new(), stray_output: None }
    }

    async fn list(&mut self, params: Value) -> Result<ToolNames, TrialError> {
        let deadline = Instant::now() + LIST_TIMEOUT;
        let id = text_id("list-1");
        let message = message(&id, mcp::TOOLS_LIST, params).into_bytes();
        let (mut list, first) = ToolList::begin(OwnRequest { id, method: mcp::TOOLS_LIST, message });
        self.upstream.send(first);
        let (mut names, mut page) = (BTreeSet::new(), 1);
        loop {
            let pending = list.pending_id().clone();
            let (reply, bytes) = self.reply(&pending, mcp::TOOLS_LIST, deadline).await?;
            let result = match reply {
                Reply::Result(result) => result,
                Reply::Error(message) => {
                    return Err(TrialError::Refused { request: mcp::TOOLS_LIST, message });
                }
            };
            let tools = result["tools"].as_array().into_iter().flatten();
            names.extend(tools.filter_map(|tool| Some(tool["name"].as_str()?.to_owned())));
            let span = json::member(&bytes, 0..bytes.len(), "result").unwrap_or(0..0);
            page += 1;
            match list.next_page(&bytes, span, || text_id(&format!("list-{page}"))) {
                NextPage::Complete => return Ok(ToolNames::All(names)),
                NextPage::Abandoned => return Ok(ToolNames::Some(names)),
                NextPage::Ask(next) => self.upstream.send(next),
            }
        }
    }

    /// Waits for the response to a request of this trial.
    async fn reply(
        &mut self,
        id: &IdValue,
        request: &'static str,
        deadline: Instant,
    ) -> Result<(Reply, BytesMut), TrialError> {
        let mut stray_lines = 0;
        loop {
            let Ok(event) = timeout_at(deadline, self.upstream.next()).await else {
                let limit = if request == mcp::TOOLS_LIST { LIST_TIMEOUT } else { self.limit };
                let stray_output = self.stray_output.take();
                return Err(TrialError::NoAnswer { request, limit, stray_output });
            };
            match event {
                Event::Message(bytes) => match self.on_message(&bytes, id) {
                    Read::Reply(reply) => return Ok((reply, bytes)),
                    Read::Other => {}
                    Read::Stray => stray_lines += 1,
                },
                Event::Failed { why, .. } => return Err(self.ended(why)),
                Event::Gone { why, .. } | Event::NotStarted { why, .. } => return Err(self.ended(why)),
                Event::SessionLost => return Err(self.ended("the server ended the MCP session".into())),
                Event::Oversize { .. } => {
                    return Err(
                        self.ended("it sent a message that is larger than `limits.message-bytes`".into())
                    );
                }
                Event::Ready
                | Event::ReplacementDue
                | Event::Returned(_)
                | Event::SentWith { .. }
                | Event::Started => {}
            }
            self.upstream.release_handled();
            if stray_lines > MAX_STRAY_LINES {
                return Err(
                    self.ended(format!("it printed more than {MAX_STRAY_LINES} lines that are not MCP"))
                );
            }
        }
    }

    fn ended(&mut self, why: String) -> TrialError {
        TrialError::Ended { why, stray_output: self.stray_output.take() }
    }

    fn on_message(&mut self, bytes: &[u8], id: &IdValue) -> Read {
        let Ok(envelope) = envelope::read(bytes, Strictness::Envelope) else {
            self.stray_output.get_or_insert_with(|| bytes.to_vec());
            return Read::Stray;
        };
        match envelope.kind {
            Kind::Response { id: Some(answered), outcome, .. } if answered.value() == *id => {
                let value: Value = serde_json::from_slice(bytes).unwrap_or_default();
                Read::Reply(match outcome {
                    Outcome::Result => Reply::Result(value["result"].clone()),
                    Outcome::Error => Reply::Error(describe_error(&value["error"])),
                })
            }
            // Nothing was announced that a server may request, except `ping`.
            Kind::Request { .. } => {
                let value: Value = serde_json::from_slice(bytes).unwrap_or_default();
                let answer = match value["method"].as_str() {
                    Some("ping") => json!({"jsonrpc": "2.0", "id": value["id"], "result": {}}),
                    _ => json!({
                        "jsonrpc": "2.0", "id": value["id"],
                        "error": {"code": -32601, "message": "this client only lists the tools"},
                    }),
                };
                self.upstream.send(Outbound::response(answer.to_string()));
                Read::Other
            }
            _ => Read::Other,
        }
    }
}

enum Read {
    Other,
    Reply(Reply),
    /// It is not MCP.
    Stray,
}

fn text_id(text: &str) -> IdValue {
    IdValue::Text(format!("cofferdam-doctor-{text}").into())
}

fn message(id: &IdValue, method: &str, params: Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

fn request(id: &IdValue, method: &str, params: Value) -> Outbound {
    Outbound::request(message(id, method, params), id.clone(), method, None)
}

/// Name and version.
fn describe(server: &Value) -> String {
    let part = |name: &str| server[name].as_str().unwrap_or("?").to_owned();
    format!("{} {}", part("name"), part("version"))
}

fn describe_error(error: &Value) -> String {
    let message = error["message"].as_str().unwrap_or("without a message");
    format!("{message} ({})", error["code"])
}

impl TrialError {
    /// The first line on stdout that is not MCP, not scrubbed yet.
    pub fn stray_output(&self) -> Option<&[u8]> {
        match self {
            Self::Ended { stray_output, .. } | Self::NoAnswer { stray_output, .. } => stray_output.as_deref(),
            Self::NoCredential(_) | Self::NotStarted(_) | Self::Refused { .. } => None,
        }
    }

    /// The same with its text changed, to scrub what the server said.
    #[must_use]
    pub fn map_text(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::NotStarted(why) => Self::NotStarted(change(why)),
            Self::NoCredential(why) => Self::NoCredential(change(why)),
            Self::Ended { why, stray_output } => Self::Ended { why: change(why), stray_output },
            Self::Refused { request, message } => Self::Refused { request, message: change(message) },
            error @ Self::NoAnswer { .. } => error,
        }
    }
}
