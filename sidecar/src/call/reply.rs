//! Messages from the server back to the harness: matched, scrubbed, recorded, sent.
//!
//! What must stay true: nothing is sent that was not scrubbed, and a response is accepted only from the process that
//! the request was sent to.

use std::borrow::Cow;
use std::ops::Range;

use bytes::BytesMut;
use cofferdam_audit::CallResult;
use cofferdam_base::PacedLines;
use cofferdam_servers::spec::Retry;
use cofferdam_servers::{
    DID_NOT_RUN, Event, HandshakeStart, Outbound, OutboundCow, ProcessId, Role, ServerSet, SlotKey, Target,
    WhenNotReady,
};
use relay_proto::code::{self, Code};
use relay_proto::envelope::{self, Id, Kind, Outcome, Strictness};
use relay_proto::{json, mcp, notice};
use tokio::time::Instant;

use super::admit::{Incoming, ServerRequest};
use super::catalogue::Coverage;
use super::in_flight::{Attempt, Call, ReplyHandling};
use super::input_requests::{relay_notification, relay_response};
use super::parked::Unsent;
use super::process_events::should_forward_notification;
use super::replies::{ScrubbedLine, TooLarge, scrub_message, scrub_response};
use super::retry::forget_setting;
use super::scrubbing::PendingResponse;
use super::server_requests::Withdrawn;
use super::{CallerContext, Pipeline};

/// A server can cause these lines as fast as it sends messages.
static OVERSIZE_LINES: PacedLines = PacedLines::new("a message that is too large was dropped");
/// A harness can cause these lines as fast as it sends requests: while a secret is not available, each is refused at once.
static NOT_STARTED_LINES: PacedLines = PacedLines::new("the server did not start");
static GONE_LINES: PacedLines = PacedLines::new("the server is gone");

/// Handles one event of a server process.
pub(super) struct ServerEventHandler<'a> {
    pub(super) pipeline: &'a mut Pipeline,
    pub(super) servers: &'a mut ServerSet,
    pub(super) slot: SlotKey,
    pub(super) from: ProcessId,
    pub(super) now: Instant,
}

/// A response as the server sent it.
struct Response<'a> {
    message: &'a [u8],
    id: Id<'a>,
    outcome: Outcome,
    /// The range of its result or error.
    body: Option<Range<usize>>,
}

/// A response that is too large to be scrubbed on the link's own task, or for which there is no memory now.
struct LargeResponse {
    /// The response for the harness, where it differs from what the server sent.
    changed: Option<Vec<u8>>,
    /// The id as the server wrote it, in JSON.
    id: Vec<u8>,
    response: PendingResponse,
}

impl Pipeline {
    /// Handles one event of a server process.
    pub(crate) fn on_server_event(
        &mut self,
        servers: &mut ServerSet,
        slot: SlotKey,
        from: ProcessId,
        event: Event,
        now: Instant,
    ) {
        ServerEventHandler { pipeline: self, servers, slot, from, now }.on_event(event);
    }

    /// A call has timed out: the harness gets an error, and the server a cancellation.
    pub(super) fn on_call_timeout(&mut self, servers: &mut ServerSet, call: Call, now: Instant) {
        if let Some(id) = envelope::id_value(call.id.as_bytes()) {
            servers.cancel(call.process, &id);
        }
        let cancelled = notice::cancelled(call.id.as_bytes(), "the call timed out");
        let cancelled = Outbound::notification(cancelled, mcp::CANCELLED);
        servers.send(Target::Process(call.process), OutboundCow::Owned(cancelled), WhenNotReady::Return);
        let why =
            "the server did not answer in time; it may or may not have run, so check before you repeat it";
        self.fail(servers, call, Code::OutcomeUnknown, why, now);
    }

    /// Answers a call with an error of the sidecar, and stores its outcome.
    pub(super) fn fail(
        &mut self,
        servers: &mut ServerSet,
        call: Call,
        code: Code,
        sentence: &str,
        now: Instant,
    ) {
        forget_setting(servers, &call);
        let (code, sentence) = match (call.attempt, code) {
            (
                Attempt::Second,
                Code::CredentialUnavailable | Code::ServerNotGranted | Code::ServerUnavailable,
            ) => {
                let explanation =
                    format!("it may or may not have run before, and could not be repeated: {sentence}");
                (Code::OutcomeUnknown, Cow::Owned(explanation))
            }
            (_, code) => (code, Cow::Borrowed(sentence)),
        };
        let result = match code {
            Code::OutcomeUnknown => CallResult::OutcomeUnknown,
            _ => CallResult::Refused,
        };
        self.refuse(call.id.as_bytes(), code, &sentence);
        self.recorder.store_outcome(call, result, Some(code), now);
    }

    /// Answers a request with an error of the sidecar.
    pub(super) fn refuse(&mut self, id: &[u8], code: Code, sentence: &str) {
        self.recorder.counters.refused += 1;
        self.reply(&code::error_response(Some(id), code, sentence));
    }

    /// Scrubs one message and queues it for the harness.
    pub(super) fn reply(&mut self, message: &[u8]) {
        let charge = self.caller.try_charge_scrubbing(message.len());
        if charge.is_none() && !self.large.is_being_scrubbed() {
            return self.large.scrub_message(&self.caller, message.to_vec());
        }
        let _charge = charge.unwrap_or_else(|| self.caller.charge_scrubbing(message.len()));
        let scrubbed = scrub_message(&self.caller.scrubber(), message, self.caller.max_message_bytes);
        self.push_message(scrubbed);
    }

    /// Queues a scrubbed message for the harness.
    pub(super) fn push_message(&mut self, scrubbed: Result<ScrubbedLine<'_>, TooLarge>) {
        match scrubbed {
            Ok(line) => {
                self.recorder.counters.redactions += u64::from(line.redactions);
                self.replies.push(&line);
            }
            Err(TooLarge) => {
                let CallerContext { server, link, .. } = &self.caller;
                if let Some(left_out) = OVERSIZE_LINES.admit() {
                    tracing::warn!(%server, %link, left_out, "a message that is too large for the harness was dropped");
                }
            }
        }
    }

    /// Relays a scrubbed response to the harness, if it may leave the host and the harness accepts its size.
    pub(super) fn finish_response(
        &mut self,
        servers: &mut ServerSet,
        call: Call,
        outcome: Outcome,
        bytes: usize,
        scrubbed: Option<ScrubbedLine<'_>>,
        now: Instant,
    ) {
        let Some(scrubbed) = scrubbed else {
            let why = "it ran, but its response may not leave the host";
            return self.fail(servers, call, Code::OutcomeUnknown, why, now);
        };
        if scrubbed.len() > self.caller.max_message_bytes {
            let why = too_large(&self.caller);
            return self.fail(servers, call, Code::MessageTooLarge, &why, now);
        }
        relay_response(self, servers, call, outcome, bytes, scrubbed, now);
    }
}

impl ServerEventHandler<'_> {
    fn on_event(&mut self, event: Event) {
        match event {
            Event::Message(message) => self.on_message(message),
            Event::Oversize { id } => self.on_oversize(id.as_deref()),
            // The link advances replacements at the end of each pass of its loop.
            Event::ReplacementDue => {}
            Event::Failed { id, code, why } => {
                let why = self.pipeline.caller.shortened(&why);
                match (self.pipeline.in_flight.take_answered(self.from, &id), code) {
                    (Some(call), Code::OutcomeUnknown) => {
                        self.pipeline.retry_or_fail(self.servers, call, &why, self.now);
                    }
                    (Some(call), code) => self.fail(call, code, &why),
                    (None, _) => self.own_request_failed(&id),
                }
            }
            Event::Gone { was, code, why } => {
                let why = self.pipeline.caller.shortened(&why);
                self.on_gone(was, code, &why);
            }
            Event::NotStarted { code, why, detail } => {
                let why = self.pipeline.caller.shortened(&why);
                let CallerContext { server, link, .. } = &self.pipeline.caller;
                if let Some(left_out) = NOT_STARTED_LINES.admit_within(&mut self.pipeline.failure_lines) {
                    tracing::warn!(%server, %link, left_out, why = detail, "the server did not start");
                }
                let why = format!(
                    "{DID_NOT_RUN}the server `{server}` did not start: {why}; the host's log has the details under link={link}"
                );
                self.invalidate_tool_list();
                self.refuse_parked(code, &why);
            }
            Event::Ready => self.pipeline.sending(self.servers, self.now).send_parked(self.slot),
            Event::Returned(message) => self.on_returned(message),
            Event::SentWith { id, reads } => self.pipeline.in_flight.set_sent_with(self.from, &id, reads),
            Event::SessionLost => {
                // The requests of the server to the harness were lost with the session.
                if let HandshakeStart::Replaying(_) = self.begin_handshake() {
                    self.withdraw_requests();
                }
            }
            Event::Started => drop(self.begin_handshake()),
        }
    }

    /// Opens the MCP session of a process that was started, or reopens one that was lost.
    fn begin_handshake(&mut self) -> HandshakeStart {
        let first = self.pipeline.parked.first_method(self.slot);
        let opened = self.servers.begin_handshake(self.slot, first);
        match &opened {
            HandshakeStart::Failed { process, code, why } => {
                self.from = *process;
                self.on_gone(Role::Current, *code, why);
            }
            HandshakeStart::Ready => self.pipeline.sending(self.servers, self.now).send_parked(self.slot),
            HandshakeStart::NotNeeded | HandshakeStart::Replaying(_) => {}
        }
        opened
    }

    /// Parks a request that was returned without having run, until the session is open again.
    fn on_returned(&mut self, message: Outbound) {
        let Some(id) = message.request_id().cloned() else { return };
        let call = self.pipeline.in_flight.take_answered(self.from, &id);
        if call.is_none() && !self.servers.replay().is_own(&id) {
            return;
        }
        let unsent = Unsent { call: call.map(|call| (id, call)), message };
        self.pipeline.sending(self.servers, self.now).park(self.slot, unsent);
        if let HandshakeStart::NotNeeded = self.begin_handshake() {
            self.pipeline.sending(self.servers, self.now).send_parked(self.slot);
        }
    }

    fn on_message(&mut self, bytes: BytesMut) {
        let message = &bytes[..];
        let envelope = match envelope::read(message, Strictness::Envelope) {
            Ok(envelope) => envelope,
            Err(_) => {
                let excerpt = self.pipeline.stray_output.log(&self.pipeline.caller, message);
                return self.servers.keep_stray_output(self.from, excerpt);
            }
        };
        match envelope.kind {
            Kind::Response { id: Some(id), outcome } => {
                let response = Response { message, id, outcome, body: envelope.body };
                if let Some(large) = self.on_response(response) {
                    let LargeResponse { changed, id, response } = large;
                    let Pipeline { large, caller, .. } = &mut *self.pipeline;
                    large.scrub_response(caller, bytes, changed, id, response);
                }
            }
            // An error for a request whose id the server could not read: it matches no request in flight.
            Kind::Response { id: None, .. } => {}
            Kind::Request { id, method } => self.on_request(message, &id, &method, envelope.body),
            Kind::Notification { method } if method == mcp::CANCELLED => {
                self.on_cancelled(message, envelope.body);
            }
            Kind::Notification { method } => {
                if method == mcp::TOOLS_CHANGED {
                    self.pipeline.catalogue.coverage = Coverage::Partial;
                }
                if should_forward_notification(self.servers, self.from, &method) {
                    relay_notification(self.pipeline, message, envelope.body);
                }
            }
        }
    }

    /// Queues a request of the server to the harness, to be decided and recorded like those of the harness.
    fn on_request(&mut self, message: &[u8], id: &Id<'_>, method: &str, params: Option<Range<usize>>) {
        let request =
            ServerRequest { process: self.from, id: id.span.clone(), method: method.into(), params };
        let number = self.pipeline.server_requests.next_number();
        self.pipeline.incoming.push_back(Incoming::of_server(number, message, request));
    }

    /// Handles a response; returns a large one, to be scrubbed by a worker.
    fn on_response(&mut self, response: Response<'_>) -> Option<LargeResponse> {
        let value = response.id.value();
        let Some(call) = self.pipeline.in_flight.take_answered(self.from, &value) else {
            // Late responses are dropped.
            if self.servers.replay().is_own(&value) {
                let Response { message, outcome, body, .. } = response;
                self.own_response(&value, outcome, message, body);
            }
            return None;
        };
        self.store_effects(&call, &response);
        let Response { message, id, outcome, body } = response;
        let mut for_harness = Cow::Borrowed(message);
        if call.handling == ReplyHandling::ListTools
            && outcome == Outcome::Result
            && let Some(result) = body
        {
            let config = self.pipeline.caller.session.context.config.load_full();
            let Some(server) = config.servers.get(&self.pipeline.caller.server) else {
                self.fail(call, Code::ServerNotGranted, "the server is not configured any more");
                return None;
            };
            if server.retry == Retry::WhereSafe {
                self.pipeline.catalogue.record(message, result.clone());
            }
            for_harness = self.pipeline.catalogue.shown.filter(message, result, &server.rules);
        }
        let bytes = message.len();
        let Some(_charge) = self.pipeline.caller.try_charge_scrubbing(for_harness.len()) else {
            let changed = match for_harness {
                Cow::Borrowed(_) => None,
                Cow::Owned(changed) => Some(changed),
            };
            let response = PendingResponse { id: value, call: Some(call), outcome, bytes };
            return Some(LargeResponse { changed, id: id.raw.to_vec(), response });
        };
        let scrubber = self.pipeline.caller.scrubber();
        let scrubbed = scrub_response(&scrubber, for_harness, id.raw, call.id.as_bytes());
        self.pipeline.finish_response(self.servers, call, outcome, bytes, scrubbed, self.now);
        None
    }

    /// Stores the parts of a response that later messages need: settings to be replayed to new processes, and tasks.
    fn store_effects(&mut self, call: &Call, response: &Response<'_>) {
        let Response { message, id, outcome, body } = response;
        if call.handling != ReplyHandling::Other {
            self.servers.record_response(self.from, &id.value(), *outcome, message, body.clone());
            if call.method == mcp::INITIALIZE && *outcome == Outcome::Result {
                self.servers.retire_scopes();
            }
        } else if let Some(task) = &call.task {
            self.pipeline.tasks.close_if_finished(task, &call.method, *outcome, message, body.clone());
        } else if let (Some(tool), Outcome::Result, Some(result)) = (&call.tool, outcome, body) {
            self.pipeline.tasks.record(message, result.clone(), self.from, tool);
        }
    }

    /// The server cancels a request of its own (MCP up to 2025-11-25), or ends a subscription of the harness
    /// (stateless MCP).
    fn on_cancelled(&mut self, message: &[u8], params: Option<Range<usize>>) {
        let span = params.and_then(|params| json::member(message, params, "requestId"));
        if let Some(id) = span.clone().map(|span| &message[span])
            && let Some(queued) =
                self.pipeline.incoming.iter().position(|queued| queued.is_server_request(self.from, id))
        {
            // The harness has not seen the request.
            self.pipeline.incoming.remove(queued);
            return;
        }
        let withdrawn =
            span.clone().and_then(|span| self.pipeline.server_requests.withdraw(&message[span], self.from));
        match (span, withdrawn) {
            (Some(span), Some(Withdrawn { call, shown })) => {
                self.pipeline.recorder.store_outcome(call, CallResult::Cancelled, None, self.now);
                self.pipeline.reply(&json::replace(message, span, &shown));
            }
            // The listeners of this process were moved to its replacement.
            _ if self.servers.role(self.from) != Some(Role::Current) => {}
            _ => self.pipeline.reply(message),
        }
    }

    fn on_oversize(&mut self, id: Option<&[u8]>) {
        let id = id.and_then(envelope::id_value);
        match id.and_then(|id| self.pipeline.in_flight.take_answered(self.from, &id)) {
            Some(call) => {
                let why = too_large(&self.pipeline.caller);
                self.fail(call, Code::MessageTooLarge, &why);
            }
            None => {
                let CallerContext { server, link, .. } = &self.pipeline.caller;
                if let Some(left_out) = OVERSIZE_LINES.admit() {
                    tracing::warn!(%server, %link, left_out, "a message of the server was dropped: it is too large");
                }
            }
        }
    }

    /// Refuses the requests that were parked for the slot: they did not run.
    fn refuse_parked(&mut self, code: Code, sentence: &str) {
        for Unsent { call, .. } in self.pipeline.parked.take_for(self.slot) {
            if let Some((_, call)) = call {
                self.fail(call, code, sentence);
            }
        }
    }

    fn on_gone(&mut self, was: Role, code: Code, why: &str) {
        if was == Role::Current {
            let why = format!("{DID_NOT_RUN}{why}");
            self.refuse_parked(code, &why);
        }
        self.on_exit(why);
    }

    /// The process is gone: its calls are retried or fail, and its tasks and requests end.
    pub(super) fn on_exit(&mut self, why: &str) {
        let CallerContext { server, link, .. } = &self.pipeline.caller;
        if let Some(left_out) = GONE_LINES.admit_within(&mut self.pipeline.failure_lines) {
            tracing::warn!(%server, %link, left_out, why, "the server is gone");
        }
        self.invalidate_tool_list();
        let sentence = format!(
            "{why} while this request was under way; it may or may not have run, so check before you repeat it"
        );
        for call in self.pipeline.in_flight.drain(self.from) {
            // A handshake changes nothing but the process, which is gone.
            match is_handshake(&call.method) && call.retry_copy.is_none() {
                true => self.fail(call, Code::ServerUnavailable, &format!("{DID_NOT_RUN}{why}")),
                false => self.pipeline.retry_or_fail(self.servers, call, &sentence, self.now),
            }
        }
        self.pipeline.tasks.forget_process(self.from);
        self.withdraw_requests();
    }

    /// Cancels the requests of the process at the harness; late responses to them are dropped.
    pub(super) fn withdraw_requests(&mut self) {
        let from = self.from;
        self.pipeline.incoming.retain(|message| message.sending_process() != Some(from));
        for Withdrawn { call, shown } in self.pipeline.server_requests.withdraw_all(from) {
            self.pipeline.recorder.store_outcome(call, CallResult::Cancelled, None, self.now);
            self.pipeline.reply(&notice::cancelled(&shown, "the server that asked is gone"));
        }
    }

    fn fail(&mut self, call: Call, code: Code, sentence: &str) {
        self.pipeline.fail(self.servers, call, code, sentence, self.now);
    }
}

fn is_handshake(method: &str) -> bool {
    matches!(method, mcp::INITIALIZE | mcp::DISCOVER)
}

fn too_large(caller: &CallerContext) -> String {
    let limit = caller.max_message_bytes;
    format!(
        "the call ran, but its response is larger than {limit} bytes and is not relayed; ask for less at a time"
    )
}
