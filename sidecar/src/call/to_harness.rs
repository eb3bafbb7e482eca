//! Carries out a decision about a request of a server to the harness: the request is shown to the harness, or refused.
//!
//! What must stay true: a request that is shown to the harness has its decision in the audit, and gets an outcome there.

use cofferdam_audit::{CallResult, SentBy};
use cofferdam_servers::{Outbound, OutboundCow, ProcessId, Target, WhenNotReady};
use relay_proto::code::{self, Code};
use relay_proto::envelope::Id;
use relay_proto::json;

use super::ChunkExecution;
use super::decide::{DecisionReason, Ruling};
use super::decode::Request;
use super::in_flight::{Attempt, Call, ReplyHandling};
use super::record::RecordStatus;

impl ChunkExecution<'_> {
    /// Shows a request of a server to the harness under an id of the sidecar, or refuses it.
    pub(super) fn relay_to_harness(
        &mut self,
        request: &Request<'_>,
        id: &Id<'_>,
        process: ProcessId,
        ruling: Option<&Ruling>,
        recorded: RecordStatus,
    ) {
        let call = ruling.filter(|ruling| ruling.allows()).map(|_| self.call_of_server(request, process));
        let (code, why) = match (call, recorded) {
            (Some(call), RecordStatus::Written) if self.servers.role(process).is_none() => {
                return self.pipeline.recorder.store_outcome(call, CallResult::Cancelled, None, self.now);
            }
            (Some(call), RecordStatus::Written) => match self.show_to_harness(request, id, Box::new(call)) {
                Ok(()) => return,
                Err(call) => {
                    let code = Code::RelayUnavailable;
                    self.pipeline.recorder.store_outcome(*call, CallResult::Refused, Some(code), self.now);
                    (code, "too many requests are waiting for the client".to_owned())
                }
            },
            (call, RecordStatus::NotWritten(_) | RecordStatus::WrittenNotSynced) => {
                let code = Code::RelayUnavailable;
                if let Some(call) = call.filter(|_| recorded == RecordStatus::WrittenNotSynced) {
                    self.pipeline.recorder.store_outcome(call, CallResult::Refused, Some(code), self.now);
                }
                (code, "the decision about this request could not be recorded".to_owned())
            }
            (None, RecordStatus::Written) => explain_refusal(request, ruling),
        };
        let refusal = code::error_response(Some(id.raw), code, &why);
        let refusal = OutboundCow::Owned(Outbound::response(refusal));
        self.servers.send(Target::Process(process), refusal, WhenNotReady::Return);
    }

    /// Registers the request and queues it for the harness. Returns the call when too many are pending.
    fn show_to_harness(
        &mut self,
        request: &Request<'_>,
        id: &Id<'_>,
        call: Box<Call>,
    ) -> Result<(), Box<Call>> {
        let bytes = &request.received.bytes;
        let progress = request.param("_meta").and_then(|meta| json::member(bytes, meta, "progressToken"));
        let progress = progress.map(|span| &bytes[span]);
        let link = &self.pipeline.caller.link;
        let shown = self.pipeline.server_requests.register(link, call, id.raw, progress)?;
        self.pipeline.reply(&json::replace(bytes, id.span.clone(), &shown));
        Ok(())
    }

    fn call_of_server(&self, request: &Request<'_>, process: ProcessId) -> Call {
        Call {
            id: "".into(),
            process,
            sent_by: SentBy::Server,
            seq: request.received.seq,
            handling: ReplyHandling::Other,
            method: match request.known {
                Some(method) => method.name.into(),
                None => request.method.clone().into_owned().into(),
            },
            tool: None,
            task: None,
            began: self.now,
            deadline: None,
            attempt: Attempt::First,
            retry_copy: None,
            sent_with: None,
        }
    }
}

/// Why the rules refuse a request of a server.
pub(super) fn explain_refusal(request: &Request<'_>, ruling: Option<&Ruling>) -> (Code, String) {
    match ruling.map(|ruling| ruling.reason) {
        Some(DecisionReason::NotGranted) => {
            (Code::ServerNotGranted, "this server is not granted to the client any more".into())
        }
        _ => (
            Code::ToolDenied,
            format!(
                "the rules of the host do not allow requests of method `{}` to the client",
                request.method
            ),
        ),
    }
}
