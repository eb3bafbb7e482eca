//! From the server back to the harness: matched, scrubbed, recorded, sent.
//!
//! What must stay true: nothing is put into the outbox that was not scrubbed.

use std::borrow::Cow;
use std::ops::Range;

use relay_proto::code::{self, Code};
use relay_proto::envelope::{self, Id, Kind, Outcome, Strictness};
use relay_proto::frame::MaybeRan;
use relay_proto::{json, mcp, notice};

use super::calls::{Attempt, Call, Purpose};
use super::link::Link;
use crate::audit::CallResult;
use crate::servers::instance::{CancelledWhile, Event, Role};
use crate::servers::scoped::{Lane, Process};
use crate::servers::spec::Retry;
use crate::upstream::outbound::Outbound;

impl Link {
    pub(super) fn server_event(&mut self, from: Process, event: Event) {
        match event {
            Event::Message(message) => self.server_message(from, &message),
            Event::Oversize { id } => self.oversize(from, id.as_deref()),
            // At the end of this turn.
            Event::Due => {}
            Event::Failed { id, code, why } => match (self.calls.answered(from, &id), code) {
                (Some(call), Code::OutcomeUnknown) => self.leave_behind(call, &why),
                (Some(call), code) => self.fail(call, code, &why),
                (None, _) => self.own_request_failed(from.lane, &id),
            },
            Event::Forgotten => self.take_back_server_requests(from),
            Event::NotStarted { code, why } => {
                tracing::warn!(server = %self.server, link = %self.id, why, "server did not start");
                self.nobody_to_ask(from.lane);
                let why = format!("it did not run: the server `{}` did not start: {why}", self.server);
                for call in self.calls.drain(from) {
                    self.fail(call, code, &why);
                }
            }
            Event::Gone { why } => self.server_gone(from, &why),
            Event::SentWith { id, reads } => self.calls.sent_with(from, &id, reads),
        }
    }

    /// The time of a call is over: the harness hears so, and the server may stop working on it.
    pub(super) fn timed_out(&mut self, call: Call) {
        let cancelled =
            envelope::id_value(call.id.as_bytes()).map(|id| self.servers.cancel(call.on.lane, &id));
        if cancelled == Some(CancelledWhile::Queued) {
            let why = "it did not run: the server did not start in time";
            return self.fail(call, Code::ServerUnavailable, why);
        }
        let cancel = notice::cancelled(call.id.as_bytes(), "the call's time is over");
        self.servers.tell_to(call.on, Outbound::notification(cancel, mcp::CANCELLED));
        self.fail(
            call,
            Code::OutcomeUnknown,
            "the server did not answer in time; it may or may not have run, so check before you repeat it",
        );
    }

    /// Scrubs one message and puts it on its way to the harness. Returns how much was taken out.
    pub(super) fn answer(&mut self, message: &[u8]) -> u32 {
        let scrubber = self.session.credentials.scrubber();
        let scrubbed = scrubber.message(message);
        let mut bytes = scrubbed.bytes;
        if scrubbed.redactions > 0
            && let (Some(own), Some(shown)) = (response_id(message), response_id(&bytes))
        {
            // An id is the harness's own: it knows the answer by nothing else.
            bytes = Cow::Owned(json::replace(&bytes, shown, &message[own]));
        }
        let line = json::line_safe(&bytes);
        if line.len() > self.promised.message_bytes {
            tracing::warn!(server = %self.server, link = %self.id, "a message that is too large for the harness was dropped");
            return scrubbed.redactions;
        }
        self.counted.redactions += u64::from(scrubbed.redactions);
        self.outbox.push(&line, MaybeRan::No);
        scrubbed.redactions
    }

    fn server_message(&mut self, from: Process, message: &[u8]) {
        let envelope = match envelope::read(message, Strictness::Envelope) {
            Ok(envelope) => envelope,
            Err(malformed) => {
                let scrubber = self.session.credentials.scrubber();
                let reason = malformed.to_string();
                let reason = String::from_utf8_lossy(&scrubber.text(reason.as_bytes()).bytes).into_owned();
                tracing::debug!(server = %self.server, link = %self.id, reason, "a line of the server's is no MCP message");
                return;
            }
        };
        match envelope.kind {
            Kind::Response { id: Some(id), outcome } => {
                self.server_response(from, message, &id, outcome, envelope.body)
            }
            // An error for a request that the server could not read: nobody waits for it.
            Kind::Response { id: None, .. } => {}
            Kind::Request { id, .. } => self.server_request(from, message, &id, envelope.body),
            Kind::Notification { method } if method == mcp::CANCELLED => {
                self.server_cancelled(from, message, envelope.body);
            }
            Kind::Notification { method } => {
                if self.is_heard(from, &method) {
                    self.answer(message);
                }
            }
        }
    }

    fn server_request(&mut self, from: Process, message: &[u8], id: &Id<'_>, params: Option<Range<usize>>) {
        let member = |object: Range<usize>, key: &str| json::member(message, object, key);
        let progress = params.and_then(|params| member(member(params, "_meta")?, "progressToken"));
        let progress = progress.map(|span| &message[span]);
        match self.server_requests.rewrite(&self.id, id.raw, from, progress) {
            Some(shown) => {
                self.answer(&json::replace(message, id.span.clone(), &shown));
            }
            None => {
                let refusal = code::error_response(
                    Some(id.raw),
                    Code::RelayUnavailable,
                    "too many requests wait for the client",
                );
                self.servers.tell_to(from, Outbound::response(refusal));
            }
        }
    }

    fn server_response(
        &mut self,
        from: Process,
        message: &[u8],
        id: &Id<'_>,
        outcome: Outcome,
        body: Option<Range<usize>>,
    ) {
        let value = id.value();
        let Some(call) = self.calls.answered(from, &value) else {
            // Late answers are dropped.
            if self.servers.memory().is_own(&value) {
                self.own_answer(from.lane, &value, outcome, message, body);
            }
            return;
        };
        if call.purpose != Purpose::Other {
            self.servers.answered(from, &value, outcome, message, body.clone());
            if call.method == mcp::INITIALIZE && outcome == Outcome::Result {
                self.servers.give_up_scopes();
            }
        } else if let Some(task) = &call.task {
            self.tasks.heard(task, &call.method, outcome, message, body.clone());
        } else if let (Some(tool), Outcome::Result, Some(result)) = (&call.tool, outcome, &body) {
            self.tasks.learn(message, result.clone(), from, tool);
        }
        let mut answer = Cow::Borrowed(message);
        if call.purpose == Purpose::ListTools
            && outcome == Outcome::Result
            && let Some(result) = body
        {
            let config = self.session.context.config.load_full();
            match config.servers.get(&self.server) {
                Some(server) => {
                    if server.retry == Retry::WhereSafe {
                        self.repeats.hints.learn(message, result.clone());
                    }
                    answer = self.shown.filter(message, result, &server.rules);
                }
                None => {
                    return self.fail(call, Code::ServerNotGranted, "the server is not configured any more");
                }
            }
        }
        let scrubber = self.session.credentials.scrubber();
        let scrubbed = scrubber.message(&answer);
        let redactions = scrubbed.redactions;
        let mut answer = scrubbed.bytes;
        if id.raw != call.id.as_bytes() || redactions > 0 {
            // The harness gets its own spelling of its id back, whatever the server made of it.
            let Some(span) = response_id(&answer) else {
                return self.fail(
                    call,
                    Code::OutcomeUnknown,
                    "it ran, but nothing of its answer may leave the host",
                );
            };
            answer = Cow::Owned(json::replace(&answer, span, call.id.as_bytes()));
        }
        let line = json::line_safe(&answer);
        if line.len() > self.promised.message_bytes {
            return self.too_large(call);
        }
        self.counted.redactions += u64::from(redactions);
        self.outbox.push(&line, MaybeRan::No);
        let result = match outcome {
            Outcome::Error => CallResult::Error,
            Outcome::Result => CallResult::Result,
        };
        self.record_outcome(call, result, None, message.len(), redactions);
    }

    /// The server takes back a request of its own (legacy), or ends a subscription of the harness's (modern).
    fn server_cancelled(&mut self, from: Process, message: &[u8], params: Option<Range<usize>>) {
        let span = params.and_then(|params| json::member(message, params, "requestId"));
        let shown = span.clone().and_then(|span| self.server_requests.withdraw(&message[span], from));
        match (span, shown) {
            (Some(span), Some(shown)) => {
                self.answer(&json::replace(message, span, &shown));
            }
            // What listened there listens elsewhere by now.
            _ if self.servers.role(from) != Role::Current => {}
            _ => {
                self.answer(message);
            }
        }
    }

    fn oversize(&mut self, from: Process, id: Option<&[u8]>) {
        let call = id.and_then(envelope::id_value).and_then(|id| self.calls.answered(from, &id));
        match call {
            Some(call) => self.too_large(call),
            None => {
                tracing::warn!(server = %self.server, link = %self.id, "an oversize message of the server's was dropped")
            }
        }
    }

    fn too_large(&mut self, call: Call) {
        let limit = self.promised.message_bytes;
        let sentence = format!(
            "the call ran, but its answer is larger than {limit} bytes and is not relayed; ask for less at a time"
        );
        self.fail(call, Code::MessageTooLarge, &sentence);
    }

    pub(super) fn server_gone(&mut self, process: Process, why: &str) {
        tracing::warn!(server = %self.server, link = %self.id, why, "server gone");
        self.nobody_to_ask(process.lane);
        let sentence = format!(
            "{why} while this request was under way; it may or may not have run, so check before you repeat it"
        );
        for call in self.calls.drain(process) {
            self.leave_behind(call, &sentence);
        }
        self.tasks.forget_process(process);
        self.take_back_server_requests(process);
    }

    /// Ends servers that were given up and have finished what they had.
    pub(super) fn let_go(&mut self) {
        let done = |lane: &Lane| !self.calls.are_run_by(*lane) && !self.tasks.occupy_lane(*lane);
        let Some(lane) = self.servers.given_up().find(done) else { return };
        tracing::info!(server = %self.server, link = %self.id, "a process is ended that had other credentials than it should");
        self.nobody_to_ask(lane);
        // Nothing but listeners: they are simply asked again.
        for call in self.calls.drain_lane(lane) {
            self.leave_behind(call, "the server's process was given up");
        }
        let asked = self.server_requests.left_by_lane(lane);
        self.take_back(asked);
        self.servers.dismiss(lane);
    }

    /// Whoever asked these does not wait for their answers any more; late ones are dropped.
    pub(super) fn take_back_server_requests(&mut self, process: Process) {
        let asked = self.server_requests.left_by(process);
        self.take_back(asked);
    }

    fn take_back(&mut self, shown: Vec<Vec<u8>>) {
        for shown in shown {
            self.answer(&notice::cancelled(&shown, "the server that asked is gone"));
        }
    }

    /// Answers a call ourselves.
    pub(super) fn fail(&mut self, call: Call, code: Code, sentence: &str) {
        self.forget_setting(&call);
        let (code, sentence) = match (call.attempt, code) {
            (
                Attempt::Second,
                Code::CredentialUnavailable | Code::ServerNotGranted | Code::ServerUnavailable,
            ) => (
                Code::OutcomeUnknown,
                Cow::Owned(format!(
                    "it may or may not have run before, and could not be repeated: {sentence}"
                )),
            ),
            (_, code) => (code, Cow::Borrowed(sentence)),
        };
        let result = match code {
            Code::OutcomeUnknown => CallResult::OutcomeUnknown,
            _ => CallResult::Refused,
        };
        self.refuse(call.id.as_bytes(), code, &sentence);
        self.record_outcome(call, result, Some(code), 0, 0);
    }
}

/// Where the id of a response stands. A response whose id was taken for a credential has none that can be read.
fn response_id(message: &[u8]) -> Option<Range<usize>> {
    match envelope::read(message, Strictness::Envelope).ok()?.kind {
        Kind::Response { id: Some(id), .. } => Some(id.span),
        Kind::Notification { .. } | Kind::Request { .. } | Kind::Response { id: None, .. } => None,
    }
}
