//! Requests that may have run: their server exited with them, or the link on which they were sent ended.
//!
//! Most are answered `outcome_unknown`. One that may be repeated (see [`super::catalogue`]) is decided again, recorded as
//! a decision of its own, and sent once more. Where it is not known whether its tool may be repeated, the request is
//! parked while the server is asked for its tools.
//!
//! What must stay true: at most two attempts; open-ended listeners, which do nothing, are always restarted.

use std::ops::Range;
use std::sync::Arc;

use relay_proto::code::Code;
use relay_proto::delivery::Received;
use relay_proto::envelope::{self, IdValue, Outcome};
use relay_proto::frame::MaybeRan;
use relay_proto::memory::Heard;
use relay_proto::{json, mcp};
use tokio::time::Instant;

use super::admit::{Incoming, Prior, PriorAttempts, Waiting};
use super::catalogue::Coverage;
use super::in_flight::{Call, ReplyHandling};
use super::reply::ServerTurn;
use super::{CallerContext, Pipeline};
use crate::audit::CallResult;
use crate::config::Config;
use crate::servers::scoped::{Lane, Servers};
use crate::servers::start::Starter;
use crate::upstream::outbound::Outbound;

/// Our own `tools/list`, page after page.
#[derive(Debug)]
pub(crate) struct ToolLister {
    pub(super) lane: Lane,
    /// Of the page that was asked for last.
    pub(super) id: IdValue,
    page: usize,
    /// What a request of this harness carries in `_meta`, ready to be put into `params`.
    meta: String,
}

/// Pages that are asked for; tools on later ones are not repeated.
const MAX_PAGES: usize = 32;
/// A cursor longer than this is not followed.
const MAX_CURSOR: usize = 4096;
/// `_meta` members that every request of the stateless era carries; others belong to the one request.
const META: &str = "io.modelcontextprotocol/";
/// What is taken over of them.
const MAX_META: usize = 64 * 1024;

impl ToolLister {
    fn is(&self, lane: Lane, id: &IdValue) -> bool {
        self.lane == lane && self.id == *id
    }

    /// Asks for one page; none where it cannot be asked for.
    fn ask(
        servers: &mut Servers,
        caller: &CallerContext,
        config: &Arc<Config>,
        page: usize,
        meta: String,
        cursor: Option<&[u8]>,
    ) -> Option<Self> {
        let lane = servers.base();
        let id = servers.memory_mut().next_id();
        let cursor = cursor.map(|cursor| format!(r#""cursor":{}"#, String::from_utf8_lossy(cursor)));
        let members = [cursor.unwrap_or_default(), meta.clone()];
        let params = members.into_iter().filter(|member| !member.is_empty()).collect::<Vec<_>>().join(",");
        let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list","params":{{{params}}}}}"#);
        let message = Outbound::request(message.into_bytes(), id.clone(), mcp::TOOLS_LIST, None);
        let server = config.servers.get(&caller.server)?;
        let starter = || Starter::of(&caller.session, config, server, &caller.link);
        servers.send(lane, message, starter).ok()?;
        Some(Self { lane, id, page, meta })
    }
}

impl Pipeline {
    /// The server exited with this call: it is repeated, or its outcome is unknown.
    pub(super) fn retry_or_fail(
        &mut self,
        servers: &mut Servers,
        mut call: Call,
        sentence: &str,
        now: Instant,
    ) {
        let Some(kept) = call.kept.take() else {
            return self.fail(servers, call, Code::OutcomeUnknown, sentence, now);
        };
        let received = Received { seq: call.seq, maybe_ran: MaybeRan::No, bytes: kept.into() };
        let prior = Prior::Known(PriorAttempts::One);
        let message = Incoming { received, prior, deadline: call.deadline, waiting: Waiting::Allowed };
        // Those of one process come in their order, behind those of a process that exited earlier.
        self.incoming.push_back(message);
        forget_setting(servers, &call);
        self.recorder.outcome(call, CallResult::OutcomeUnknown, Some(Code::OutcomeUnknown), now);
    }

    /// Asks the server for its tools if a parked request waits for them.
    pub(super) fn ask_for_tools(&mut self, config: &Arc<Config>, servers: &mut Servers) {
        if self.lister.is_some() {
            return;
        }
        let Some(first) = self.parked.first_waiting_for_tools() else { return };
        self.lister = ToolLister::ask(servers, &self.caller, config, 1, meta(first), None);
        if self.lister.is_none() {
            self.end_listing();
        }
    }

    /// A process exited or did not start. Where it was the one that lists the tools, the next one may have others.
    pub(super) fn on_process_exit(&mut self, servers: &Servers, lane: Lane) {
        if lane == servers.base() {
            self.catalogue.coverage = Coverage::Partial;
        }
        if self.lister.as_ref().is_some_and(|lister| lister.lane == lane) {
            self.end_listing();
        }
    }

    /// The list is complete or will not be: what waited for it is decided next.
    fn end_listing(&mut self) {
        self.lister = None;
        let messages = self.parked.listed();
        self.release(messages);
    }
}

impl ServerTurn<'_> {
    /// A response to a request that the sidecar made itself.
    pub(super) fn own_response(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) {
        let Self { pipeline, servers, from, .. } = self;
        let lane = from.lane;
        let Some(lister) = pipeline.lister.take_if(|lister| lister.is(lane, id)) else {
            if servers.own_answer(lane, id, outcome, message, body) == Heard::ToolsChanged {
                for line in servers.memory().tools_changed() {
                    pipeline.reply(&line);
                }
            }
            return;
        };
        let (Outcome::Result, Some(result)) = (outcome, body) else { return pipeline.end_listing() };
        pipeline.catalogue.learn(message, result.clone());
        match json::member(message, result, "nextCursor").map(|span| &message[span]) {
            None | Some(b"null") => pipeline.catalogue.coverage = Coverage::Whole,
            Some(cursor) if lister.page < MAX_PAGES && cursor.len() <= MAX_CURSOR => {
                let config = pipeline.caller.session.context.config.load_full();
                let ToolLister { page, meta, .. } = lister;
                pipeline.lister =
                    ToolLister::ask(servers, &pipeline.caller, &config, page + 1, meta, Some(cursor));
            }
            Some(_) => {}
        }
        if pipeline.lister.is_none() {
            pipeline.end_listing();
        }
    }

    /// A request of the sidecar itself will have no response.
    pub(super) fn own_request_failed(&mut self, id: &IdValue) {
        if self.pipeline.lister.as_ref().is_some_and(|lister| lister.is(self.from.lane, id)) {
            self.pipeline.end_listing();
        }
    }
}

/// A call that the server did not answer leaves nothing to be replayed to a later process.
pub(super) fn forget_setting(servers: &mut Servers, call: &Call) {
    if call.handling != ReplyHandling::Other
        && let Some(id) = envelope::id_value(call.id.as_bytes())
    {
        servers.memory_mut().forget(&id);
    }
}

/// `"_meta":{…}` with what every request of this harness carries; empty where there is nothing.
fn meta(message: &[u8]) -> String {
    let member =
        |object: Option<Range<usize>>, key: &str| object.and_then(|span| json::member(message, span, key));
    let meta = member(member(Some(0..message.len()), "params"), "_meta");
    let said = ["protocolVersion", "clientInfo", "clientCapabilities"].into_iter().filter_map(|name| {
        let key = format!("{META}{name}");
        let value = member(meta.clone(), &key)?;
        Some(format!(r#""{key}":{}"#, String::from_utf8_lossy(&message[value])))
    });
    let said = said.collect::<Vec<_>>().join(",");
    match said.is_empty() || said.len() > MAX_META {
        true => String::new(),
        false => format!(r#""_meta":{{{said}}}"#),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_that_every_request_carries_is_taken_over_and_nothing_else() {
        let call = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":1,"io.modelcontextprotocol/clientCapabilities":{"a": 1},"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        assert_eq!(
            meta(call),
            r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"a": 1}}"#
        );
        assert_eq!(meta(br#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#), "");
    }
}
