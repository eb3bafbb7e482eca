//! Requests that may have run: their server exited before it responded, or the link on which they were sent ended.
//!
//! Most are answered with `outcome_unknown`. A request that may be repeated (see [`super::catalogue`]) is decided
//! again, recorded with a decision of its own, and sent once more. Where it is not known whether its tool may be
//! repeated, the request is parked while the server is asked for its list of tools.
//!
//! What must stay true: at most two attempts; open-ended listeners, which have no side effects, are always restarted.

use std::ops::Range;
use std::sync::Arc;

use cofferdam_audit::CallResult;
use cofferdam_servers::{NextPage, Outbound, ServerSet, SlotKey, ToolList};
use relay_proto::code::Code;
use relay_proto::delivery::Received;
use relay_proto::envelope::{self, IdValue, Outcome};
use relay_proto::frame::MaybeRan;
use relay_proto::replay::{OwnRequest, OwnResponse};
use relay_proto::{json, mcp};
use tokio::time::Instant;

use super::Pipeline;
use super::admit::{Incoming, Prior, PriorAttempts};
use super::catalogue::Coverage;
use super::in_flight::{Call, ReplyHandling};
use super::reply::ServerEventHandler;
use crate::config::Config;

/// `_meta` members that every request of the stateless protocol carries; other members belong to a single request.
const META: &str = "io.modelcontextprotocol/";
/// Longer metadata is not repeated.
const MAX_META: usize = 64 * 1024;

impl Pipeline {
    /// The server exited before it answered this call: the call is repeated, or its outcome is unknown.
    pub(super) fn retry_or_fail(
        &mut self,
        servers: &mut ServerSet,
        mut call: Call,
        sentence: &str,
        now: Instant,
    ) {
        let Some(copy) = call.retry_copy.take() else {
            return self.fail(servers, call, Code::OutcomeUnknown, sentence, now);
        };
        let received = Received { seq: call.seq, maybe_ran: MaybeRan::No, bytes: copy.into() };
        let prior = Prior::Known(PriorAttempts::One);
        let message = Incoming { prior, deadline: call.deadline, ..Incoming::new(received) };
        // Calls of one process keep their order, behind those of a process that exited earlier.
        self.incoming.push_back(message);
        forget_setting(servers, &call);
        self.recorder.store_outcome(call, CallResult::OutcomeUnknown, Some(Code::OutcomeUnknown), now);
    }

    /// Requests the list of tools from the server, if a parked request waits for it.
    pub(super) fn request_tool_list(&mut self, config: &Arc<Config>, servers: &mut ServerSet, now: Instant) {
        if self.tool_listing.is_some() {
            return;
        }
        let Some(first) = self.parked.first_awaiting_tools() else { return };
        let id = servers.replay_mut().next_id();
        let params = meta(first);
        let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list","params":{{{params}}}}}"#);
        let request = OwnRequest { id, method: mcp::TOOLS_LIST, message: message.into_bytes() };
        let (list, request) = ToolList::begin(request);
        request_tool_page(self, config, servers, list, request, now);
    }

    /// The list is complete or failed: the requests that waited for it are decided next.
    fn end_listing(&mut self) {
        self.tool_listing = None;
        let messages = self.parked.take_awaiting_tools();
        self.release(messages);
    }
}

impl ServerEventHandler<'_> {
    /// A process exited or did not start. If it is the one that lists the tools, the next process may have others.
    pub(super) fn invalidate_tool_list(&mut self) {
        if self.slot == SlotKey::BASE {
            self.pipeline.catalogue.coverage = Coverage::Partial;
            if self.pipeline.tool_listing.is_some() {
                self.pipeline.end_listing();
            }
        }
    }

    /// Handles a response to one of the sidecar's own requests.
    pub(super) fn own_response(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) {
        let Self { pipeline, servers, slot, now, .. } = self;
        let Some(mut list) = pipeline.tool_listing.take_if(|list| list.pending_id() == id) else {
            if servers.own_response(*slot, id, outcome, message, body) == OwnResponse::ToolsChanged {
                for line in servers.replay().tools_changed() {
                    pipeline.reply(&line);
                }
            }
            return;
        };
        let (Outcome::Result, Some(result)) = (outcome, body) else { return pipeline.end_listing() };
        pipeline.catalogue.record(message, result.clone());
        match list.next_page(message, result, || servers.replay_mut().next_id()) {
            NextPage::Complete => {
                pipeline.catalogue.complete();
                pipeline.end_listing();
            }
            NextPage::Ask(request) => {
                let config = pipeline.caller.session.context.config.load_full();
                request_tool_page(pipeline, &config, servers, list, request, *now);
            }
            NextPage::Abandoned => pipeline.end_listing(),
        }
    }

    /// Ends the listing of tools if the failed request was part of it.
    pub(super) fn own_request_failed(&mut self, id: &IdValue) {
        if self.pipeline.tool_listing.as_ref().is_some_and(|list| list.pending_id() == id) {
            self.pipeline.end_listing();
        }
    }
}

fn request_tool_page(
    pipeline: &mut Pipeline,
    config: &Arc<Config>,
    servers: &mut ServerSet,
    list: ToolList,
    request: Outbound,
    now: Instant,
) {
    match pipeline.sending(servers, now).send_own(config, request) {
        Ok(()) => pipeline.tool_listing = Some(list),
        Err(_) => pipeline.end_listing(),
    }
}

/// A setting that the server did not confirm is not replayed to later processes.
pub(super) fn forget_setting(servers: &mut ServerSet, call: &Call) {
    if call.handling != ReplyHandling::Other
        && let Some(id) = envelope::id_value(call.id.as_bytes())
    {
        servers.replay_mut().remove_pending(&id);
    }
}

/// `"_meta":{…}` with the members that every request of this harness carries; empty where there are none.
fn meta(message: &[u8]) -> String {
    let member =
        |object: Option<Range<usize>>, key: &str| object.and_then(|span| json::member(message, span, key));
    let meta = member(member(Some(0..message.len()), "params"), "_meta");
    let members = ["protocolVersion", "clientInfo", "clientCapabilities"].into_iter().filter_map(|name| {
        let key = format!("{META}{name}");
        let value = member(meta.clone(), &key)?;
        Some(format!(r#""{key}":{}"#, String::from_utf8_lossy(&message[value])))
    });
    let members = members.collect::<Vec<_>>().join(",");
    match members.is_empty() || members.len() > MAX_META {
        true => String::new(),
        false => format!(r#""_meta":{{{members}}}"#),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_meta_members_that_every_request_carries_are_copied() {
        let call = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":1,"io.modelcontextprotocol/clientCapabilities":{"a": 1},"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        assert_eq!(
            meta(call),
            r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"a": 1}}"#
        );
        assert_eq!(meta(br#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#), "");
    }
}
