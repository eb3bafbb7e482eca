//! Replays a recorded use of a server: its requests, one after the other.

use std::time::Duration;

use relay_proto::mcp;
use serde_json::Value;
use tokio::time::Instant;

use super::{Conversation, Reply, TrialError, request, text_id};

/// A request of a recorded use.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRequest {
    pub method: String,
    pub params: Value,
}

/// What a server answered to a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Answer {
    Result,
    /// An error of the server, or of the tool that was called: of any length, and not scrubbed yet.
    Error(String),
}

/// The requests of a use, and how long the server may take for each. The default asks nothing.
#[derive(Clone, Debug, Default)]
pub struct RecordedUse {
    pub requests: Vec<RecordedRequest>,
    pub limit: Duration,
}

impl Conversation<'_> {
    pub(super) async fn replay(&mut self, recorded: &RecordedUse) -> Result<Vec<Answer>, TrialError> {
        self.limit = recorded.limit;
        let mut answers = Vec::with_capacity(recorded.requests.len());
        for (index, RecordedRequest { method, params }) in recorded.requests.iter().enumerate() {
            let id = text_id(&format!("use-{}", index + 1));
            self.upstream.send(request(&id, method, params.clone()));
            let what =
                if method == mcp::TOOLS_CALL { "a recorded call of a tool" } else { "a recorded request" };
            let (reply, _) = self.reply(&id, what, Instant::now() + recorded.limit).await?;
            answers.push(match reply {
                Reply::Error(message) => Answer::Error(message),
                Reply::Result(result) if result["isError"] == true => {
                    let text = result["content"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .find_map(|part| part["text"].as_str());
                    Answer::Error(text.unwrap_or("without a text").to_owned())
                }
                Reply::Result(_) => Answer::Result,
            });
        }
        Ok(answers)
    }
}
