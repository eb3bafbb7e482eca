//! Carries out a recorded decision: the message is sent to the server, or the harness gets a refusal that says why.
//!
//! What must stay true: a request is registered as in flight before it is sent. Sending only queues; the bytes are
//! written in one write per process, after the whole chunk was carried out.

use std::time::Duration;

use bytes::Bytes;
use cofferdam_audit::SentBy;
use cofferdam_base::metrics::RequestOutcome;
use cofferdam_policy::Verdict;
use cofferdam_servers::{
    Outbound, OutboundCow, ProcessId, Recipients, SendResult, ServerSet, SlotKey, Target, WhenNotReady,
};
use relay_proto::code::{self, Code};
use relay_proto::envelope::{self, Id, IdValue, Outcome};
use relay_proto::json;
use relay_proto::mcp::{self, Audience, Method, MethodKind};
use tokio::time::Instant;

use super::catalogue::ToolCatalogue;
use super::decide::{Decided, DecisionReason, Ruling};
use super::decode::{Inbound, Request};
use super::in_flight::{Attempt, Call, ReplyHandling};
use super::parked::Unsent;
use super::record::{NotWritten, RecordStatus, call_result};
use super::used_secrets::HeldSecrets;
use super::{Cancelled, ChunkExecution, Pipeline, RecordedWhen};

/// A call that is ready to be registered and sent once its decision is written.
pub(crate) struct Prepared {
    pub(super) call: Call,
    slot: SlotKey,
    /// None for open-ended requests.
    timeout: Option<Duration>,
}

/// The response to a request that was not made because the decision about it is not in the audit.
fn unrecorded(why: NotWritten) -> String {
    format!("it did not run, because the decision about it could not be recorded: {}", why.sentence())
}

fn unrecorded_repeat(why: NotWritten) -> String {
    let why = why.sentence();
    format!(
        "it may or may not have run before, and was not repeated because the decision about that could not be recorded: {why}"
    )
}

/// Prepares the call of an allowed request; `None` for any other message.
pub(super) fn prepare(
    catalogue: &ToolCatalogue,
    message: &Decided<'_>,
    servers: &mut ServerSet,
    now: Instant,
) -> Option<Prepared> {
    let (Inbound::Request { request, id, .. }, Some(ruling)) = (&message.inbound, &message.ruling) else {
        return None;
    };
    let server = ruling.server.as_ref().filter(|_| ruling.allows())?;
    let attempt = match ruling.reason {
        DecisionReason::Repeated => Attempt::Second,
        _ => Attempt::First,
    };
    let slot = servers.slot(server, ruling.scope.as_ref());
    let handling = ReplyHandling::of(request.known);
    // A listener is reopened whenever its server exits; the server's restart backoff limits how often.
    let may_retry = attempt == Attempt::First || handling == ReplyHandling::Listen;
    let keep_copy = may_retry && catalogue.may_be_repeated(server.retry, request);
    let call = Call {
        id: id.as_json().into(),
        process: ProcessId::NONE,
        sent_by: SentBy::Harness,
        seq: request.received.seq,
        handling,
        method: match request.known {
            Some(method) => method.name.into(),
            None => request.method.clone().into_owned().into(),
        },
        tool: request.tool.as_deref().map(Into::into),
        task: request.task(),
        began: now,
        deadline: ruling.deadline,
        attempt,
        retry_copy: keep_copy.then(|| Bytes::copy_from_slice(&request.received.bytes)),
        sent_with: None,
    };
    let is_open_ended = request.known.is_some_and(|method| method.open_ended);
    Some(Prepared { call, slot, timeout: (!is_open_ended).then_some(server.call_timeout) })
}

impl ChunkExecution<'_> {
    /// Carries out the decisions of a chunk in order. `held` has the secrets of each message by its position.
    pub(super) fn carry_out_all<'a>(
        mut self,
        decided: impl Iterator<Item = (Decided<'a>, Option<Prepared>)>,
        recorded: Vec<RecordStatus>,
        held: &HeldSecrets,
    ) {
        for (index, ((mut message, prepared), recorded)) in decided.zip(recorded).enumerate() {
            if let Some(ruling) = &mut message.ruling {
                ruling.held = Some(held.of(index));
            }
            self.carry_out(message, prepared, recorded);
        }
        self.servers.flush();
    }

    /// Carries out one decision.
    fn carry_out(&mut self, message: Decided<'_>, prepared: Option<Prepared>, recorded: RecordStatus) {
        let Decided { received, inbound, ruling } = message;
        match (inbound, ruling) {
            (Inbound::Request { request, id, value }, Some(ruling)) => match prepared {
                Some(mut prepared) => {
                    prepared.start_timeout(self.now);
                    match recorded {
                        RecordStatus::Written => self.forward(&request, &id, value, &ruling, prepared),
                        _ => self.refuse_unrecorded(prepared.call, recorded),
                    }
                }
                None => self.refuse_decided(&request, &id, &ruling, recorded),
            },
            (Inbound::Notification(request), Some(ruling))
                if ruling.allows() && recorded == RecordStatus::Written =>
            {
                self.notify(&request);
            }
            // A notification has no response that could carry the refusal.
            (Inbound::Notification(_), _) => self.pipeline.recorder.counters.refused += 1,
            (Inbound::Response { id, outcome }, _) => self.respond(&received.bytes, id.as_ref(), outcome),
            (Inbound::FromServer { request, id, process }, ruling) => {
                self.relay_to_harness(&request, &id, process, ruling.as_ref(), recorded);
            }
            (Inbound::InsideMessage { request, message }, ruling) => {
                self.settle_input_request(&request, message, ruling.as_ref(), recorded);
            }
            (Inbound::Malformed(malformed), _) => {
                self.pipeline.recorder.count(RequestOutcome::Malformed);
                let sentence = format!("the message was not relayed: {malformed}");
                let response =
                    code::error_response(malformed.id.as_deref(), Code::MessageMalformed, &sentence);
                self.pipeline.recorder.counters.refused += 1;
                self.pipeline.reply(&response);
            }
            (Inbound::Request { id, .. }, None) => {
                self.pipeline.refuse(id.raw, Code::ServerUnavailable, &unrecorded(NotWritten::Disk))
            }
        }
    }

    /// Registers a call and sends it.
    fn forward(
        &mut self,
        request: &Request<'_>,
        id: &Id<'_>,
        value: IdValue,
        ruling: &Ruling,
        prepared: Prepared,
    ) {
        let ChunkExecution { pipeline, servers, config, now, recorded_when } = self;
        let Prepared { call, slot, .. } = prepared;
        let Some(server) = &ruling.server else { return };
        let bytes = &request.received.bytes;
        servers.replay_mut().record_request(bytes, id, &request.method, request.params.clone());
        if call.handling == ReplyHandling::Setting {
            for (slot, message) in servers.copy_setting_to_others(bytes, id, &request.method) {
                pipeline.sending(servers, *now).park(slot, Unsent { call: None, message });
            }
        }
        pipeline.recorder.counters.calls += 1;
        let make_owned = || {
            let request = Outbound::request(bytes.clone(), id.value(), &request.method, request.mcp_name());
            request.in_scope(ruling.scope.clone()).with_decision_reads(ruling.decision_reads())
        };
        let owner = call.task.as_deref().and_then(|task| pipeline.tasks.process_of(task));
        let Pipeline { caller, in_flight, .. } = &mut **pipeline;
        let call = in_flight.insert(value, call);
        let launcher = || caller.launcher_for(config, server);
        // A request about a task goes to the process that runs the task, which may be draining.
        let to_owner = match owner.filter(|owner| servers.current(slot) != Some(*owner)) {
            Some(owner) => {
                servers.send(Target::Process(owner), OutboundCow::Owned(make_owned()), WhenNotReady::Return)
            }
            None => SendResult::NoProcess,
        };
        let sent = match to_owner {
            SendResult::NoProcess => {
                let message = match recorded_when {
                    RecordedWhen::AtOnce => OutboundCow::Request { bytes, make_owned: &make_owned },
                    // The secrets of the process are compared with those that the decision names.
                    RecordedWhen::Later => OutboundCow::Owned(make_owned()),
                };
                servers.send(Target::Slot(slot), message, WhenNotReady::Start(&launcher))
            }
            sent => sent,
        };
        match sent {
            SendResult::Sent { on, reads_after_decision } => {
                (call.process, call.sent_with) = (on, reads_after_decision)
            }
            sent => pipeline.sending(servers, *now).not_sent(slot, id.value(), sent),
        }
    }

    /// Refuses an allowed call whose decision is not durably in the audit.
    fn refuse_unrecorded(&mut self, call: Call, recorded: RecordStatus) {
        match (recorded, call.attempt) {
            // The decision record exists although the call is not made, so an outcome must say that it was refused.
            (RecordStatus::Written | RecordStatus::WrittenNotSynced, _) => {
                let why = unrecorded(NotWritten::Disk);
                self.pipeline.fail(self.servers, call, Code::ServerUnavailable, &why, self.now);
            }
            (RecordStatus::NotWritten(why), Attempt::First) => {
                self.pipeline.recorder.count(RequestOutcome::Unrecorded);
                self.pipeline.refuse(call.id.as_bytes(), Code::ServerUnavailable, &unrecorded(why));
            }
            (RecordStatus::NotWritten(why), Attempt::Second) => {
                self.pipeline.recorder.count(RequestOutcome::Unrecorded);
                self.pipeline.refuse(call.id.as_bytes(), Code::OutcomeUnknown, &unrecorded_repeat(why));
            }
        }
    }

    /// Answers a request that is not allowed.
    fn refuse_decided(
        &mut self,
        request: &Request<'_>,
        id: &Id<'_>,
        ruling: &Ruling,
        recorded: RecordStatus,
    ) {
        self.pipeline.recorder.count(match recorded {
            RecordStatus::NotWritten(_) => RequestOutcome::Unrecorded,
            RecordStatus::Written | RecordStatus::WrittenNotSynced => RequestOutcome::Denied,
        });
        // "It did not run" would be wrong for a request that may have run.
        if let RecordStatus::NotWritten(why) = recorded
            && ruling.reason != DecisionReason::MaybeRan
        {
            return self.pipeline.refuse(id.raw, Code::ServerUnavailable, &unrecorded(why));
        }
        match explain(self.pipeline, request, ruling) {
            Some((code, sentence)) => self.pipeline.refuse(id.raw, code, &sentence),
            None => {
                self.pipeline.recorder.counters.refused += 1;
                let tool = request.tool.as_deref().unwrap_or_default();
                self.pipeline.reply(&code::unknown_tool_response(id.raw, tool));
            }
        }
    }

    fn notify(&mut self, request: &Request<'_>) {
        let ChunkExecution { pipeline, servers, now, .. } = self;
        let bytes = &request.received.bytes;
        let message = Outbound::notification(bytes.clone(), &request.method);
        let audience = match request.known {
            Some(Method { kind: MethodKind::Notification, audience, .. }) => Some(*audience),
            // An unknown notification is sent to the current process of every slot.
            _ => request.method.starts_with(mcp::NOTIFICATION_PREFIX).then_some(Audience::Current),
        };
        let process = match audience {
            Some(Audience::CancelledRequest) => {
                let id = envelope::cancelled_request(bytes, request.params.clone());
                match id.map(|id| pipeline.cancel(servers, &id, *now)) {
                    // No process is working on the request, so no process needs the notification.
                    Some(Cancelled::NotRunning) => return,
                    Some(Cancelled::Running(process)) => Some(process),
                    Some(Cancelled::Unknown) | None => None,
                }
            }
            Some(Audience::ProgressToken) => {
                let token = request.param("progressToken").map(|span| &bytes[span]);
                token.and_then(|token| pipeline.server_requests.process_with_progress_token(token))
            }
            Some(Audience::All) => return self.notify_all(message, Recipients::Every),
            Some(Audience::Current) => {
                servers.replay_mut().record_notification(bytes, &request.method);
                return self.notify_all(message, Recipients::Current);
            }
            // Not an MCP notification: it goes to the server's own process, not to those of scopes.
            None => None,
        };
        let target = process.map_or(Target::Slot(SlotKey::BASE), Target::Process);
        let sent = servers.send(target, OutboundCow::Owned(message), WhenNotReady::Return);
        if let (SendResult::NotReady(message), Target::Slot(slot)) = (sent, target) {
            pipeline.sending(servers, *now).park(slot, Unsent { call: None, message });
        }
    }

    fn notify_all(&mut self, message: Outbound, recipients: Recipients) {
        for slot in self.servers.notify(&message, recipients) {
            let unsent = Unsent { call: None, message: message.clone() };
            self.pipeline.sending(self.servers, self.now).park(slot, unsent);
        }
    }

    /// Relays the harness's response to a request of the server.
    fn respond(&mut self, bytes: &[u8], id: Option<&Id<'_>>, outcome: Outcome) {
        let Some(id) = id else { return };
        let Some((call, original)) = self.pipeline.server_requests.take_answered(&id.value()) else {
            return;
        };
        let message = json::replace(bytes, id.span.clone(), &original);
        let message = OutboundCow::Owned(Outbound::response(message));
        self.servers.send(Target::Process(call.process), message, WhenNotReady::Return);
        self.pipeline.recorder.store_relayed(call, call_result(outcome), bytes.len(), 0, self.now);
    }
}

/// A refusal in words that a model can act on; none where the tool must look as if it did not exist.
fn explain(pipeline: &Pipeline, request: &Request<'_>, ruling: &Ruling) -> Option<(Code, String)> {
    let server = &pipeline.caller.server;
    let refusal = match (ruling.reason, ruling.decision.verdict, request.tool.as_deref()) {
        (DecisionReason::MaybeRan, ..) => (
            Code::OutcomeUnknown,
            "the connection to the host was lost while this request was under way; it may or may not have run, so check before you repeat it".into(),
        ),
        (DecisionReason::NotGranted, ..) => (
            Code::ServerNotGranted,
            format!("this sandbox may not use server `{server}`; ask the user to add it to the grant"),
        ),
        (DecisionReason::TooManyInFlight, ..) => (
            Code::ServerUnavailable,
            "it did not run: too many requests are in flight; wait for some of their responses".into(),
        ),
        (DecisionReason::Repeated | DecisionReason::Rules, Verdict::Ask, Some(tool)) => (
            Code::ApprovalRequired,
            format!("tool `{tool}` of `{server}` needs a person's approval, which cannot be asked for yet; use another tool, or ask the user to change the rule"),
        ),
        (DecisionReason::Repeated | DecisionReason::Rules, _, Some(tool)) => {
            if !pipeline.catalogue.shown.contains(tool) {
                return None;
            }
            (
                Code::ToolDenied,
                format!("the rules of the host do not allow tool `{tool}` any more; list the tools again"),
            )
        }
        (DecisionReason::Repeated | DecisionReason::Rules, _, None) => (
            Code::ToolDenied,
            format!("the rules of the host do not allow method `{}` on server `{server}`", request.method),
        ),
    };
    Some(refusal)
}

impl Prepared {
    /// The call's timeout starts when its decision is written.
    fn start_timeout(&mut self, now: Instant) {
        self.call.began = now;
        self.call.deadline = self.call.deadline.or(self.timeout.map(|timeout| now + timeout));
    }
}
