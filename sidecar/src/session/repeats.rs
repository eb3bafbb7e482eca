//! Requests that may have run: their server went away with them, or the link on which they were sent did.
//!
//! Most are answered `outcome_unknown`. One that may be repeated (see [`super::hints`]) is decided again, recorded as a
//! decision of its own, and sent once more. Where nobody knows whether its tool may be repeated, the request is held
//! while the server is asked for its tools.
//!
//! What must stay true: no request is repeated twice (but for listeners, which do nothing); one that is held is in flight to everybody else (its id is taken,
//! it can be cancelled) and has an answer within [`INQUIRY_TIME`] or goes its way; what is held is bounded.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use relay_proto::code::Code;
use relay_proto::delivery::Received;
use relay_proto::envelope::{IdValue, Outcome};
use relay_proto::frame::MaybeRan;
use relay_proto::memory::Heard;
use relay_proto::{json, mcp};
use tokio::time::Instant;

use super::calls::{Call, Purpose};
use super::hints::{Coverage, Hints, Repeat};
use super::link::Link;
use super::message::{Asked, Content, Ruling};
use crate::audit::CallResult;
use crate::config::Config;
use crate::servers::scoped::Lane;
use crate::upstream::outbound::{Outbound, QUEUE_BYTES};

/// A message of the harness's, and what is known of its past.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) received: Received,
    pub(super) past: Past,
    /// When the time of its first attempt is over.
    pub(super) deadline: Option<Instant>,
}

/// Whether a message may have run before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Past {
    /// It never left.
    None,
    Once,
    /// It was repeated before, or nobody knows: it is not repeated.
    Twice,
}

/// What a link has to repeat.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    pub(super) hints: Hints,
    inquiry: Option<Inquiry>,
    /// Requests that wait for the inquiry.
    held: Vec<(IdValue, Incoming)>,
    held_bytes: usize,
    /// Requests whose server went away.
    left_behind: Vec<Incoming>,
    /// Requests that waited for the inquiry, which is over.
    ripe: Vec<Incoming>,
}

/// The server is being asked for its tools.
#[derive(Debug)]
struct Inquiry {
    lane: Lane,
    id: IdValue,
    deadline: Instant,
    page: usize,
    /// What a request of this harness carries in `_meta`, ready to be put into `params`.
    meta: String,
}

/// How long the server may take to list its tools, start and all pages included; less where a call has less.
const INQUIRY_TIME: Duration = Duration::from_secs(30);
/// Pages that are asked for; tools on later ones are not repeated.
const MAX_PAGES: usize = 32;
/// A cursor longer than this is not worth following.
const MAX_CURSOR: usize = 4096;
/// `_meta` members that every request of the stateless era carries; others belong to the one request.
const META: &str = "io.modelcontextprotocol/";
/// What is taken over of them.
const MAX_META: usize = 64 * 1024;

impl Incoming {
    pub(super) fn new(received: Received, past: Past) -> Self {
        Self { received, past, deadline: None }
    }
}

impl Repeats {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn holds(&self, id: &IdValue) -> bool {
        self.held.iter().any(|(held, _)| held == id)
    }

    #[cfg(test)]
    pub(super) fn held_ids(&self) -> impl Iterator<Item = &IdValue> {
        self.held.iter().map(|(id, _)| id)
    }

    /// The harness does not want it any more.
    pub(super) fn withdraw(&mut self, id: &IdValue) {
        let held_bytes = &mut self.held_bytes;
        self.held.retain(|(held, incoming)| {
            let stays = held != id;
            if !stays {
                *held_bytes -= incoming.received.bytes.len();
            }
            stays
        });
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.inquiry.as_ref().map(|inquiry| inquiry.deadline)
    }

    /// The inquiry is over, whatever it brought.
    fn conclude(&mut self) {
        self.inquiry = None;
        self.held_bytes = 0;
        self.ripe.extend(self.held.drain(..).map(|(_, incoming)| incoming));
    }
}

impl Inquiry {
    fn is(&self, lane: Lane, id: &IdValue) -> bool {
        self.lane == lane && self.id == *id
    }
}

impl Link {
    /// Takes through what became due in this turn.
    pub(super) async fn repeat(&mut self) {
        while !self.repeats.ripe.is_empty() || !self.repeats.left_behind.is_empty() {
            let ripe = std::mem::take(&mut self.repeats.ripe);
            self.decide(ripe).await;
            let left_behind = std::mem::take(&mut self.repeats.left_behind);
            self.requests(left_behind).await;
        }
    }

    /// The server went away with this call: it is repeated, or its outcome is unknown.
    pub(super) fn leave_behind(&mut self, mut call: Call, sentence: &str) {
        let Some(kept) = call.kept.take() else {
            return self.fail(call, Code::OutcomeUnknown, sentence);
        };
        let received = Received { seq: call.seq, maybe_ran: MaybeRan::No, bytes: kept.into() };
        let deadline = call.deadline;
        self.repeats.left_behind.push(Incoming { received, past: Past::Once, deadline });
        self.forget_setting(&call);
        self.record_outcome(call, CallResult::OutcomeUnknown, Some(Code::OutcomeUnknown), 0, 0);
    }

    /// Takes out of a batch what must wait until it is known whether it may be repeated.
    pub(super) fn hold_back(&mut self, config: &Config, batch: Vec<Incoming>) -> Vec<Incoming> {
        let mut rest = Vec::with_capacity(batch.len());
        for incoming in batch {
            match self.must_wait(config, &incoming) {
                Some(id) => {
                    self.repeats.held_bytes += incoming.received.bytes.len();
                    self.repeats.held.push((id, incoming));
                }
                None => rest.push(incoming),
            }
        }
        rest
    }

    /// Asks the server for its tools if somebody waits for that. Called after what came along was sent, so that a
    /// handshake goes first.
    pub(super) fn inquire(&mut self, config: &Arc<Config>) {
        let Some((_, first)) = self.repeats.held.first() else { return };
        if self.repeats.inquiry.is_none() {
            let meta = meta(&first.received.bytes);
            let call_timeout = config.servers.get(&self.server).map(|server| server.call_timeout);
            let time = call_timeout.map_or(INQUIRY_TIME, |time| time.min(INQUIRY_TIME));
            self.ask_for_page(config, Instant::now() + time, 1, meta, None);
        }
    }

    /// An answer to a request that we made ourselves.
    pub(super) fn own_answer(
        &mut self,
        lane: Lane,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) {
        let Some(inquiry) = self.repeats.inquiry.take_if(|inquiry| inquiry.is(lane, id)) else {
            if self.servers.own_answer(lane, id, outcome, message, body) == Heard::ToolsChanged {
                for line in self.servers.memory().tools_changed() {
                    self.answer(&line);
                }
            }
            return;
        };
        let (Outcome::Result, Some(result)) = (outcome, body) else { return self.repeats.conclude() };
        self.repeats.hints.learn(message, result.clone());
        match json::member(message, result, "nextCursor").map(|span| &message[span]) {
            None | Some(b"null") => {
                self.repeats.hints.coverage = Coverage::Whole;
                self.repeats.conclude();
            }
            Some(cursor) if inquiry.page < MAX_PAGES && cursor.len() <= MAX_CURSOR => {
                let config = self.session.context.config.load_full();
                let Inquiry { deadline, page, meta, .. } = inquiry;
                self.ask_for_page(&config, deadline, page + 1, meta, Some(cursor));
            }
            Some(_) => self.repeats.conclude(),
        }
    }

    /// A request of ours will have no answer.
    pub(super) fn own_request_failed(&mut self, lane: Lane, id: &IdValue) {
        if self.repeats.inquiry.as_ref().is_some_and(|inquiry| inquiry.is(lane, id)) {
            self.repeats.conclude();
        }
    }

    /// Somebody is gone. Where it was who tells of the tools, a successor may have others.
    pub(super) fn nobody_to_ask(&mut self, lane: Lane) {
        if lane == self.servers.base() {
            self.repeats.hints.coverage = Coverage::Partial;
        }
        if self.repeats.inquiry.as_ref().is_some_and(|inquiry| inquiry.lane == lane) {
            self.repeats.conclude();
        }
    }

    /// Gives up on an inquiry that takes too long.
    pub(super) fn end_inquiry_by(&mut self, now: Instant) {
        if let Some(inquiry) = self.repeats.inquiry.take_if(|inquiry| inquiry.deadline <= now) {
            self.servers.cancel(inquiry.lane, &inquiry.id);
            self.repeats.conclude();
        }
    }

    /// A call that was not answered by the server leaves nothing behind in its memory.
    pub(super) fn forget_setting(&mut self, call: &Call) {
        if call.purpose != Purpose::Other
            && let Some(id) = relay_proto::envelope::id_value(call.id.as_bytes())
        {
            self.servers.memory_mut().forget(&id);
        }
    }

    /// The id of a request that cannot be decided yet.
    fn must_wait(&self, config: &Config, incoming: &Incoming) -> Option<IdValue> {
        let Repeats { hints, held, held_bytes, .. } = &self.repeats;
        let room = held.len() + self.calls.len() < config.limits.requests_in_flight
            && held_bytes + incoming.received.bytes.len() <= QUEUE_BYTES;
        if incoming.past != Past::Once || !room {
            return None;
        }
        let Content::Call { asked, value, .. } =
            Content::read(&incoming.received, config.limits.message_depth)
        else {
            return None;
        };
        let ruling = Ruling::of(config, &self.session.grant, &self.server, &asked);
        let server = ruling.server.as_ref().filter(|_| ruling.allows())?;
        let waits = hints.repeat(server.retry, &asked) == Repeat::Unknown && !self.is_in_flight(&value, &[]);
        waits.then_some(value)
    }

    fn ask_for_page(
        &mut self,
        config: &Arc<Config>,
        deadline: Instant,
        page: usize,
        meta: String,
        cursor: Option<&[u8]>,
    ) {
        let lane = self.servers.base();
        let id = self.servers.memory_mut().next_id();
        let cursor = cursor.map(|cursor| format!(r#""cursor":{}"#, String::from_utf8_lossy(cursor)));
        let members = [cursor.unwrap_or_default(), meta.clone()];
        let params = members.into_iter().filter(|member| !member.is_empty()).collect::<Vec<_>>().join(",");
        let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list","params":{{{params}}}}}"#);
        let message = Outbound::request(message.into_bytes(), id.clone(), mcp::TOOLS_LIST, None);
        let sent = match config.servers.get(&self.server) {
            Some(server) => self.deliver(lane, message, config, server).is_ok(),
            None => false,
        };
        match sent {
            true => self.repeats.inquiry = Some(Inquiry { lane, id, deadline, page, meta }),
            false => self.repeats.conclude(),
        }
    }
}

impl Asked<'_> {
    /// Whether its message is worth keeping, to be sent once more.
    pub(super) fn may_be_repeated(&self, hints: &Hints, retry: crate::servers::spec::Retry) -> bool {
        hints.repeat(retry, self) != Repeat::No
    }
}

/// `"_meta":{…}` with what every request of this harness says of itself; empty where it says nothing.
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
    fn what_every_request_says_is_taken_over_and_nothing_else() {
        let call = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":1,"io.modelcontextprotocol/clientCapabilities":{"a": 1},"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        assert_eq!(
            meta(call),
            r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"a": 1}}"#
        );
        assert_eq!(meta(br#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#), "");
    }
}
