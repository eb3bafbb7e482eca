//! Requests of a server to the harness inside other messages: in the stateless era of MCP, a result asks for sampling,
//! elicitation or roots with its member `inputRequests`, and the notification of a task can.
//!
//! Each of these requests is decided and recorded like a message of its own. Its outcome is that of the call: the harness
//! answers it with another call.
//!
//! What must stay true: such a message reaches the harness only when all of its requests are allowed and recorded, and
//! they are read in the bytes that the harness gets.

use std::collections::HashMap;
use std::ops::Range;

use cofferdam_base::PacedLines;
use cofferdam_servers::ServerSet;
use memchr::{memchr2_iter, memmem};
use relay_proto::code::Code;
use relay_proto::envelope::{self, IdValue, InputRequest, MalformedReason, Outcome, Strictness};
use tokio::time::Instant;

use super::admit::Incoming;
use super::decide::Ruling;
use super::decode::Request;
use super::in_flight::Call;
use super::record::{NotWritten, RecordStatus, call_result};
use super::replies::ScrubbedLine;
use super::to_harness::explain_refusal;
use super::{CallerContext, ChunkExecution, Pipeline};

/// Messages with requests that are not decided yet, by the number of the first of these requests.
#[derive(Default)]
pub(crate) struct AskingMessages(HashMap<u64, AskingMessage>);

struct AskingMessage {
    content: Content,
    undecided: usize,
    /// Why the message is not relayed, once one of its requests was refused.
    refusal: Option<(Code, String)>,
}

enum Content {
    /// As the server sent it.
    Notification(Vec<u8>),
    Response(Box<AskingResponse>),
}

/// A response that asks for input.
struct AskingResponse {
    id: Option<IdValue>,
    /// None once the harness has cancelled it.
    call: Option<Call>,
    outcome: Outcome,
    /// The size of the response as the server sent it.
    bytes: usize,
    line: ScrubbedLine<'static>,
}

/// How many requests one message may have: each is a record in the audit.
const MAX_REQUESTS: usize = 64;

/// A server can cause these lines as fast as it sends messages.
static DROPPED_LINES: PacedLines = PacedLines::new("a notification that asks for input was dropped");

impl AskingMessages {
    /// Whether the response to this request waits here.
    pub(super) fn holds(&self, id: &IdValue) -> bool {
        self.responses().any(|response| response.id.as_ref() == Some(id))
    }

    /// Requests of the harness that wait for a response.
    pub(super) fn requests(&self) -> usize {
        self.responses().filter(|response| response.call.is_some()).count()
    }

    pub(super) fn bytes(&self) -> usize {
        let bytes = self.0.values().map(|message| match &message.content {
            Content::Notification(message) => message.len(),
            Content::Response(response) => response.line.len(),
        });
        bytes.sum()
    }

    /// Takes out the call that the harness cancelled; its response is then dropped.
    pub(super) fn cancel(&mut self, id: &IdValue) -> Option<Call> {
        let mut responses = self.responses_mut();
        responses.find(|response| response.id.as_ref() == Some(id))?.call.take()
    }

    /// The link ends: takes out the calls whose responses are dropped.
    pub(super) fn end(&mut self) -> Vec<Call> {
        self.responses_mut().filter_map(|response| response.call.take()).collect()
    }

    /// Stores the decision about one request; returns its message when that was the last one.
    fn settle(&mut self, message: u64, refusal: Option<(Code, String)>) -> Option<AskingMessage> {
        let asking = self.0.get_mut(&message)?;
        asking.undecided -= 1;
        asking.refusal = asking.refusal.take().or(refusal);
        match asking.undecided {
            0 => self.0.remove(&message),
            _ => None,
        }
    }

    fn responses(&self) -> impl Iterator<Item = &AskingResponse> {
        self.0.values().filter_map(|message| match &message.content {
            Content::Notification(_) => None,
            Content::Response(response) => Some(&**response),
        })
    }

    fn responses_mut(&mut self) -> impl Iterator<Item = &mut AskingResponse> {
        self.0.values_mut().filter_map(|message| match &mut message.content {
            Content::Notification(_) => None,
            Content::Response(response) => Some(&mut **response),
        })
    }
}

/// Queues a scrubbed response for the harness, and stores the outcome of its call. If it asks for input, its requests
/// are decided first.
pub(super) fn relay_response(
    pipeline: &mut Pipeline,
    servers: &mut ServerSet,
    call: Call,
    outcome: Outcome,
    bytes: usize,
    line: ScrubbedLine<'_>,
    now: Instant,
) {
    match requests_in(&line) {
        Ok(requests) if requests.is_empty() => relay_decided(pipeline, call, outcome, bytes, &line, now),
        Ok(requests) => {
            let queued = queue_requests(pipeline, &line, &requests);
            let id = envelope::id_value(call.id.as_bytes());
            let line = line.into_owned();
            let response = AskingResponse { id, call: Some(call), outcome, bytes, line };
            pipeline
                .server_requests
                .asking
                .0
                .insert(queued.message, queued.holding(Content::Response(Box::new(response))));
        }
        Err(reason) => {
            let why = format!(
                "the call ran, but its response asks for input in a way that cannot be decided, and is not relayed: {reason}"
            );
            pipeline.fail(servers, call, Code::MessageMalformed, &why, now);
        }
    }
}

/// Queues a notification of a server for the harness. If it asks for input, its requests are decided first.
pub(super) fn relay_notification(pipeline: &mut Pipeline, message: &[u8], params: Option<Range<usize>>) {
    match params.map_or(Ok(Vec::new()), |params| requests_in_body(message, params)) {
        Ok(requests) if requests.is_empty() => pipeline.reply(message),
        Ok(requests) => {
            let queued = queue_requests(pipeline, message, &requests);
            let content = Content::Notification(message.to_vec());
            pipeline.server_requests.asking.0.insert(queued.message, queued.holding(content));
        }
        Err(reason) => drop_notification(&pipeline.caller, &reason.to_string()),
    }
}

fn relay_decided(
    pipeline: &mut Pipeline,
    call: Call,
    outcome: Outcome,
    bytes: usize,
    line: &ScrubbedLine<'_>,
    now: Instant,
) {
    pipeline.recorder.counters.redactions += u64::from(line.redactions);
    pipeline.replies.push(line);
    pipeline.recorder.store_relayed(call, call_result(outcome), bytes, line.redactions, now);
}

fn queue_requests(pipeline: &mut Pipeline, message: &[u8], requests: &[InputRequest<'_>]) -> QueuedRequests {
    let mut first = None;
    for request in requests {
        let number = pipeline.server_requests.next_number();
        let message_number = *first.get_or_insert(number);
        pipeline.incoming.push_back(Incoming::inside(number, message_number, message, request));
    }
    QueuedRequests { message: first.unwrap_or_default(), count: requests.len() }
}

/// All requests of a message are decided.
fn release_asking(pipeline: &mut Pipeline, servers: &mut ServerSet, message: AskingMessage, now: Instant) {
    match (message.content, message.refusal) {
        (Content::Notification(message), None) => pipeline.reply(&message),
        (Content::Notification(_), Some((_, why))) => {
            pipeline.recorder.counters.refused += 1;
            drop_notification(&pipeline.caller, &why);
        }
        (Content::Response(response), refusal) => {
            let AskingResponse { call, outcome, bytes, line, .. } = *response;
            match (call, refusal) {
                // The harness cancelled it.
                (None, _) => {}
                (Some(call), None) => relay_decided(pipeline, call, outcome, bytes, &line, now),
                (Some(call), Some((code, why))) => {
                    let why = format!("the call ran and asks the client for input: {why}");
                    pipeline.fail(servers, call, code, &why, now);
                }
            }
        }
    }
}

/// The requests of one message that were queued to be decided.
struct QueuedRequests {
    /// The number of the message.
    message: u64,
    count: usize,
}

impl QueuedRequests {
    fn holding(&self, content: Content) -> AskingMessage {
        AskingMessage { content, undecided: self.count, refusal: None }
    }
}

impl ChunkExecution<'_> {
    /// One request inside a message was decided: the message is relayed or refused after its last one.
    pub(super) fn settle_input_request(
        &mut self,
        request: &Request<'_>,
        message: u64,
        ruling: Option<&Ruling>,
        recorded: RecordStatus,
    ) {
        let allowed = ruling.is_some_and(Ruling::allows);
        let unrecorded = |why: NotWritten| {
            let why =
                format!("the decision about `{}` could not be recorded: {}", request.method, why.sentence());
            Some((Code::OutcomeUnknown, why))
        };
        let refusal = match recorded {
            RecordStatus::Written if allowed => None,
            RecordStatus::Written => Some(explain_refusal(request, ruling)),
            RecordStatus::WrittenNotSynced => unrecorded(NotWritten::Disk),
            RecordStatus::NotWritten(why) => unrecorded(why),
        };
        if let Some(message) = self.pipeline.server_requests.asking.settle(message, refusal) {
            release_asking(self.pipeline, self.servers, message, self.now);
        }
    }
}

/// The requests in a response, as the harness gets it.
fn requests_in(line: &[u8]) -> Result<Vec<InputRequest<'_>>, MalformedReason> {
    if !may_ask_for_input(line) {
        return Ok(Vec::new());
    }
    let envelope = envelope::read(line, Strictness::Envelope).map_err(|malformed| malformed.reason)?;
    envelope.body.map_or(Ok(Vec::new()), |body| requests_in_body(line, body))
}

/// The requests in a result, or in the parameters of a notification.
fn requests_in_body(message: &[u8], body: Range<usize>) -> Result<Vec<InputRequest<'_>>, MalformedReason> {
    if !may_ask_for_input(message) {
        return Ok(Vec::new());
    }
    let requests = envelope::input_requests(message, body)?;
    match requests.len() > MAX_REQUESTS {
        true => Err(MalformedReason::TooManyInputRequests { limit: MAX_REQUESTS }),
        false => Ok(requests),
    }
}

/// Whether a message can have a key that some parser takes for `inputRequests`: a search for bytes that each of these keys
/// has, so that other messages need not be read once more. They are `treque`, in any case and with any separators, for
/// whose letters no other characters stand, or an escape of an ASCII letter or separator.
fn may_ask_for_input(message: &[u8]) -> bool {
    let is_escape = |at: usize| matches!(message.get(at + 4), Some(b'2' | b'4'..=b'7'));
    memchr2_iter(b'q', b'Q', message).any(|q| {
        let is_separator = |byte: &&u8| !matches!(byte, b'_' | b'-');
        let after = message[q + 1..].iter().filter(is_separator).take(2);
        let before = message[..q].iter().rev().filter(is_separator).take(3);
        let is = |expected: &[u8], found: &mut dyn Iterator<Item = &u8>| {
            expected.iter().all(|byte| found.next().is_some_and(|found| found.eq_ignore_ascii_case(byte)))
        };
        is(b"ue", &mut { after }) && is(b"ert", &mut { before })
    }) || memmem::find_iter(message, b"\\u00").any(is_escape)
}

fn drop_notification(caller: &CallerContext, why: &str) {
    let CallerContext { server, link, .. } = caller;
    if let Some(left_out) = DROPPED_LINES.admit() {
        tracing::warn!(%server, %link, left_out, why, "a notification of the server that asks for input was dropped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(key: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"{key}":{{"a":{{"method":"roots/list"}}}}}}}}"#)
    }

    /// Every spelling that is decided or refused is noticed by the quick search.
    #[test]
    fn every_spelling_of_the_key_is_noticed() {
        let escaped = |at: usize, digits: fn(u32) -> String| -> String {
            let spelled = "inputRequests".char_indices().map(|(index, character)| match index == at {
                true => format!("\\u{}", digits(u32::from(character))),
                false => character.to_string(),
            });
            spelled.collect()
        };
        let mut spellings: Vec<String> = (0..13)
            .flat_map(|at| {
                [escaped(at, |code| format!("{code:04x}")), escaped(at, |code| format!("{code:04X}"))]
            })
            .collect();
        spellings.extend(
            [
                "inputRequests",
                "inputrequests",
                "INPUTREQUESTS",
                "input_requests",
                "input\\u005frequests",
                "input-_-requests",
                "input_re_quests",
                "i_n_p_u_t_r_e_q_u_e_s_t_s",
                "ınputRequeſts",
                "inputReque\\u017fts",
                "inputRequeﬆs",
            ]
            .map(str::to_owned),
        );
        for key in &spellings {
            let message = message(key);
            match requests_in(message.as_bytes()) {
                Ok(requests) => assert_eq!(requests.len(), 1, "{key}"),
                Err(reason) => assert!(matches!(reason, MalformedReason::MisspelledKey { .. }), "{key}"),
            }
        }
    }

    #[test]
    fn other_messages_are_not_read_once_more() {
        for text in ["", "q", "Request", "an input request", "\\u00e9 \\u0131", "input_re", "req", "\\u00"] {
            assert!(!may_ask_for_input(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn a_message_with_too_many_requests_is_refused() {
        let requests = |count: usize| -> String {
            let requests: Vec<String> =
                (0..count).map(|number| format!(r#""{number}":{{"method":"m"}}"#)).collect();
            format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"inputRequests":{{{}}}}}}}"#, requests.join(","))
        };
        assert_eq!(requests_in(requests(MAX_REQUESTS).as_bytes()).unwrap().len(), MAX_REQUESTS);
        let reason = requests_in(requests(MAX_REQUESTS + 1).as_bytes()).unwrap_err();
        assert_eq!(reason, MalformedReason::TooManyInputRequests { limit: MAX_REQUESTS });
    }
}
