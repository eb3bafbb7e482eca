//! A fresh link has a new server process, which has not received what the harness sent to the old one.
//!
//! The shim replays these messages before the first request: the handshake, and after its response the settings. A server
//! that does not accept the handshake (because it does not start, for instance) gets none of the requests either; they are
//! answered with the reason, and the next request repeats the replay.

use std::ops::Range;

use relay_proto::code::Code;
use relay_proto::envelope::{IdValue, Outcome};
use relay_proto::frame::MaybeRan;
use relay_proto::json;
use relay_proto::replay::{OwnRequest, OwnResponse, ReplayMessage};

use super::backlog::Queued;
use super::{RelayState, ServerReplay};
use crate::shim_error::ShimError;

impl RelayState {
    /// Starts the replay if it is pending and there is a connection.
    pub(super) fn start_replay(&mut self) {
        if self.server_replay != ServerReplay::Pending || !self.sidecar.is_up() {
            return;
        }
        // The harness's own handshake is in the backlog, so none is replayed.
        if self.harness.replay.has_open_handshake() {
            self.server_replay = ServerReplay::Done;
            return;
        }
        let handshake = self.harness.replay.handshake();
        match handshake.filter(|request| request.message.len() <= self.max_message) {
            Some(request) => {
                self.sidecar.outbox.push(&request.message, MaybeRan::No);
                self.server_replay = ServerReplay::InProgress;
            }
            None => self.finish_replay(),
        }
    }

    /// Handles the response to a request that the shim made itself.
    pub(super) fn handle_own_response(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) {
        match self.harness.replay.handle_own_response(id, outcome, message, body.clone()) {
            OwnResponse::Handshake(Outcome::Result) => {
                self.finish_replay();
                self.send_backlog();
            }
            OwnResponse::Handshake(Outcome::Error) => self.replay_failed(&refusal_reason(message, body)),
            OwnResponse::Nothing => {}
            OwnResponse::ToolsChanged => {
                for line in self.harness.replay.tools_changed() {
                    self.harness.write_line(&line);
                }
            }
        }
    }

    /// Sends the settings.
    fn finish_replay(&mut self) {
        for message in self.harness.replay.after_handshake() {
            let (ReplayMessage::Notification { message, .. }
            | ReplayMessage::Request(OwnRequest { message, .. })) = message;
            if message.len() <= self.max_message {
                self.sidecar.outbox.push(&message, MaybeRan::No);
            }
        }
        self.server_replay = ServerReplay::Done;
    }

    /// Answers the requests that waited for the replay: they did not run, unless they may have on the previous link.
    fn replay_failed(&mut self, error: &ShimError) {
        self.server_replay = ServerReplay::Pending;
        let may_have_run = ShimError::outcome_unknown(&error.sentence);
        let mut backlog = std::mem::take(&mut self.harness.backlog);
        while let Some(queued) = backlog.pop() {
            if let Queued::Request { id, .. } = queued {
                self.harness.respond_with_error(&id, error, &may_have_run);
            }
        }
    }
}

/// The sidecar's reason, or the server's, for not accepting the handshake.
fn refusal_reason(message: &[u8], error: Option<Range<usize>>) -> ShimError {
    let member = |object: Option<Range<usize>>, key| object.and_then(|span| json::member(message, span, key));
    let text = |span: Option<Range<usize>>| span.and_then(|span| json::text(message, span));
    let code = text(member(member(error.clone(), "data"), "code")).and_then(|code| code.parse::<Code>().ok());
    let sentence = text(member(error, "message")).unwrap_or_default();
    match code {
        // The sentence of an error response begins with its code.
        Some(code) => {
            let prefix = format!("{}: ", code.as_str());
            let sentence = sentence.strip_prefix(&prefix).unwrap_or(&sentence).to_owned();
            ShimError { code: code_of_unsent_requests(code), sentence }
        }
        None => ShimError {
            code: Code::ServerUnavailable,
            sentence: format!(
                "the request did not run: the server refused the handshake that it accepted before: {sentence}"
            ),
        },
    }
}

/// The outcome of the handshake may be unknown, but the requests that waited for it were not sent.
fn code_of_unsent_requests(code: Code) -> Code {
    match code {
        Code::OutcomeUnknown => Code::ServerUnavailable,
        code => code,
    }
}
