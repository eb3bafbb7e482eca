//! The call pipeline: every message of the harness is decoded, admitted, decided, recorded, forwarded and answered, in
//! that order.
//!
//! The pipeline has no socket and no task of its own; [`Link`](crate::link::Link) drives it. Messages that arrive
//! together are processed together, so that one write records all their decisions and one write per process forwards
//! them.
//!
//! | stage | file | what it does |
//! |---|---|---|
//! | decode | [`decode`] | bytes → request, notification, response, malformed |
//! | admit | [`admit`] | id in use? must the audit be searched first? |
//! | decide | [`decide`] | rules, then limits and earlier attempts |
//! | record | [`record`] | decisions and outcomes into the audit |
//! | forward | [`forward`] | registered as in flight, then sent; or refused |
//! | reply | [`reply`] | the server's message matched, scrubbed, recorded, sent back |
//!
//! | helper | what it does |
//! |---|---|
//! | [`catalogue`] | what is known of the server's tools |
//! | [`in_flight`] | requests that wait for the server's response |
//! | [`input_requests`] | requests of the server inside its messages, decided before these are relayed |
//! | [`lookup`] | searches of the audit for earlier attempts |
//! | [`parked`] | messages that cannot be decided or sent yet |
//! | [`process_events`] | replacement of server processes |
//! | [`recording`] | decisions whose records wait for a slow disk; [`record`] writes them |
//! | [`replies`] | the queue of scrubbed lines to the harness, which [`reply`] fills |
//! | [`retry`] | repeats requests that may have run, or answers that their outcome is unknown |
//! | [`scrubbing`] | large messages, scrubbed by a worker thread |
//! | [`send`] | sending to a process, or parking until it is ready |
//! | [`server_requests`] | requests of the server that wait for the harness's response |
//! | [`shown_tools`] | tools that the harness was shown |
//! | [`stray_output`] | output of servers that is not MCP |
//! | [`to_harness`] | decided requests of the server, shown to the harness or refused |
//! | [`tasks`] | MCP tasks, and the processes that run them |
//! | [`used_secrets`] | which secrets a call is made with |
//!
//! What must stay true:
//! - nothing reaches a server before its decision is in the audit, and nothing is sent before it is registered;
//! - an admitted id has exactly one status: in flight, abandoned, parked, or queued to be decided again;
//! - nothing is sent to the harness that was not scrubbed (see [`replies`]).

mod admit;
mod catalogue;
mod decide;
mod decode;
mod forward;
mod in_flight;
mod input_requests;
mod lookup;
mod parked;
mod process_events;
mod record;
mod recording;
mod replies;
mod reply;
mod retry;
mod scrubbing;
mod send;
mod server_requests;
mod shown_tools;
mod stray_output;
mod tasks;
mod to_harness;
mod used_secrets;

use std::collections::VecDeque;
use std::sync::Arc;

use cofferdam_audit::{self as audit, CallResult, PendingRecords};
use cofferdam_base::RateLimiter;
use cofferdam_base::memory::MemoryAccount;
use cofferdam_scrub::Scrubber;
use cofferdam_servers::{ProcessId, ServerSet, SlotKey, ToolList};
use relay_proto::code::Code;
use relay_proto::delivery::Received;
use relay_proto::envelope::IdValue;
use relay_proto::name::Name;
use tokio::time::Instant;

use self::admit::{Admitted, DecisionFacts, Incoming, ParkingRoom, ToolListWait, admit};
use self::catalogue::ToolCatalogue;
use self::decide::{Decided, DecidedChunk, Resolution, decide};
use self::decode::decode_incoming;
use self::forward::{Prepared, prepare};
use self::in_flight::InFlight;
use self::lookup::Lookups;
use self::parked::{ParkReason, Parked, Work};
use self::record::Recording;
use self::recording::{Chunk, PendingDecision};
use self::server_requests::ServerRequests;
use self::stray_output::StrayOutputLog;
use self::tasks::TaskTable;
use self::used_secrets::{HeldSecrets, held_secrets};
use crate::config::Config;
use crate::session::Session;

pub(crate) use self::admit::has_room_for_server_requests;
pub(crate) use self::lookup::LookupResult;
pub(crate) use self::record::{LinkCounters, Recorder};
pub(crate) use self::recording::{RecordResult, RecordingChunk};
pub(crate) use self::replies::Replies;
pub(crate) use self::scrubbing::{LargeMessage, Scrubbed};

/// The messages of one link, from the harness to its server and back.
pub(crate) struct Pipeline {
    pub(crate) caller: CallerContext,
    /// Messages to be decided, of the harness and requests of its servers: what was parked comes before what is new.
    pub(crate) incoming: VecDeque<Incoming>,
    /// Admitted messages that cannot be decided or sent yet.
    pub(crate) parked: Parked,
    /// Requests that were registered and sent, without a response so far.
    in_flight: InFlight,
    server_requests: ServerRequests,
    tasks: TaskTable,
    catalogue: ToolCatalogue,
    /// The sidecar's own `tools/list`, while parked requests wait for its response.
    tool_listing: Option<ToolList>,
    pub(crate) lookups: Lookups,
    pub(crate) recorder: Recorder,
    /// Decided messages whose records wait for a slow disk.
    pub(crate) recording: RecordingChunk,
    /// The message of a server that a worker thread is scrubbing.
    pub(crate) large: LargeMessage,
    stray_output: StrayOutputLog,
    /// The pace of the log lines about starts and ends of this link's servers.
    failure_lines: RateLimiter,
    pub(crate) replies: Replies,
}

/// The session, link and server that the calls of a pipeline belong to.
pub(crate) struct CallerContext {
    pub(crate) session: Arc<Session>,
    pub(crate) link: Arc<str>,
    pub(crate) server: Name,
    /// The account of the link's memory.
    pub(crate) memory: Arc<MemoryAccount>,
    /// Session, link and server as the audit names them.
    pub(crate) audit: audit::Caller,
    /// The size of the largest message that the harness accepts.
    pub(crate) max_message_bytes: usize,
}

impl CallerContext {
    /// A reason for the harness and the log; see [`replies::shortened`].
    fn shortened(&self, why: &str) -> String {
        replies::shortened(&self.scrubber(), why)
    }

    /// A scrubber for the values of all sessions, which names only those of this link's server.
    pub(crate) fn scrubber(&self) -> Scrubber {
        let config = self.session.context.config.load_full();
        let server = self.server.clone();
        self.session.credentials.scrubber_for(move |secret| {
            let server = config.servers.get(&server);
            server.is_some_and(|server| server.every_secret().iter().any(|name| name.as_str() == secret))
        })
    }
}

/// The state of a request when the harness cancelled it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Cancelled {
    /// This process is working on the request.
    Running(ProcessId),
    /// No process is working on the request: it was not sent yet, or its response has arrived.
    NotRunning,
    /// No such request waits for a response.
    Unknown,
}

/// Carries out the decisions of one chunk, once they are recorded.
struct ChunkExecution<'a> {
    pipeline: &'a mut Pipeline,
    servers: &'a mut ServerSet,
    config: &'a Arc<Config>,
    now: Instant,
    recorded_when: RecordedWhen,
}

/// Whether the servers of a link may have changed since a chunk was decided.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RecordedWhen {
    /// They have not: the chunk is carried out in the same turn of the link's loop.
    AtOnce,
    /// The chunk waited for a slow disk; meanwhile another process, with other secrets, may have taken over.
    Later,
}

/// Messages that are decided together: enough to share a write, few enough that other events do not wait long.
const MAX_CHUNK: usize = 64;
/// Enough to see why servers of a link fail; the refusals name the link under which the log has the reason.
const FAILURE_LINES_PER_MINUTE: u32 = 30;

impl Pipeline {
    pub(crate) fn new(
        session: Arc<Session>,
        link: Arc<str>,
        server: Name,
        memory: Arc<MemoryAccount>,
        max_message_bytes: usize,
    ) -> Self {
        let config = session.context.config.load();
        // The sandbox chooses the name. Only configured names may become a metric's label.
        let is_configured = config.servers.contains_key(&server);
        let batch = session.context.audit.batch();
        let recorder = Recorder::new(if is_configured { server.as_str() } else { "" }, batch);
        let audit = session.context.audit.caller(&session.id, &link, Some(server.as_str()));
        drop(config);
        Self {
            caller: CallerContext { session, link, server, memory, audit, max_message_bytes },
            incoming: VecDeque::new(),
            parked: Parked::default(),
            in_flight: InFlight::default(),
            server_requests: ServerRequests::default(),
            tasks: TaskTable::default(),
            catalogue: ToolCatalogue::default(),
            tool_listing: None,
            lookups: Lookups::default(),
            recorder,
            recording: RecordingChunk::default(),
            large: LargeMessage::default(),
            stray_output: StrayOutputLog::default(),
            failure_lines: RateLimiter::per_minute(FAILURE_LINES_PER_MINUTE),
            replies: Replies::default(),
        }
    }

    pub(crate) fn receive(&mut self, batch: Vec<Received>) {
        self.incoming.extend(batch.into_iter().map(Incoming::new));
    }

    /// Processes all queued messages, until one of them has to wait for a slow disk.
    pub(crate) async fn run(&mut self, servers: &mut ServerSet) {
        while !self.incoming.is_empty() && !self.recording.is_waiting() {
            let config = self.caller.session.context.config.load_full();
            while !self.incoming.is_empty() && !self.recording.is_waiting() {
                self.run_chunk(&config, servers).await;
            }
            // After the queued messages, so that the harness's handshake reaches the server first.
            self.request_tool_list(&config, servers, Instant::now());
            self.look_up_parked();
        }
    }

    /// Decides, records and forwards some messages. A chunk ends after a cancellation, which frees an id
    /// and room for a request, and before a message that has to be parked.
    async fn run_chunk(&mut self, config: &Arc<Config>, servers: &mut ServerSet) {
        let now = Instant::now();
        let count = self.incoming.len().min(MAX_CHUNK);
        let mut chunk: Vec<Incoming> = self.incoming.drain(..count).collect();
        let mut decided = DecidedChunk::with_capacity(count);
        let mut to_park = None;
        for message in &chunk {
            match self.resolve(config, servers, message, &decided, now) {
                Resolution::Decided(message) => decided.push(message),
                Resolution::Park(id, reason) => {
                    to_park = Some((id, reason));
                    break;
                }
            }
            if decided.messages.last().is_some_and(Decided::is_cancellation) {
                break;
            }
        }
        let decided_count = decided.messages.len();
        let recorded = match decided_count {
            0 => None,
            _ => Some(self.record_and_carry_out(config, servers, decided.messages, now).await),
        };
        let rest = chunk.split_off(decided_count);
        if let Some(Err((records, decisions, held))) = recorded {
            let chunk = Chunk { messages: chunk, decisions, held, config: Arc::clone(config) };
            self.recording.wait(records, chunk, now);
        }
        let mut rest = rest.into_iter();
        if let Some((id, reason)) = to_park
            && let Some(message) = rest.next()
        {
            let call_timeout = config.servers.get(&self.caller.server).map(|server| server.call_timeout);
            let deadline = message.deadline.or(call_timeout.map(|timeout| now + timeout));
            self.parked.hold(id, reason, deadline, message, now);
        }
        for message in rest.rev() {
            self.incoming.push_front(message);
        }
    }

    /// Records the decisions and carries them out. If the disk is slow, returns them as `Err`, to be carried out
    /// later.
    async fn record_and_carry_out(
        &mut self,
        config: &Arc<Config>,
        servers: &mut ServerSet,
        decided: Vec<Decided<'_>>,
        now: Instant,
    ) -> Result<(), (PendingRecords, Vec<PendingDecision>, HeldSecrets)> {
        let held = held_secrets(&self.caller.session, servers, &decided);
        // Prepared before the audit's write, to keep the time between that write and sending short.
        let prepared = decided.iter().map(|message| prepare(&self.catalogue, message, servers, now));
        let prepared: Vec<Option<Prepared>> = prepared.collect();
        let recording = match self.recording.is_overdue() {
            true => Recording::Done(decided.iter().map(Decided::status_without_audit).collect()),
            false => self.recorder.record(&self.caller, config, &decided, &held).await,
        };
        let recorded = match recording {
            Recording::Done(recorded) => recorded,
            Recording::Pending(pending) => {
                let decisions = decided
                    .into_iter()
                    .zip(prepared)
                    .map(|(message, prepared)| PendingDecision::new(message, prepared));
                return Err((pending, decisions.collect(), held));
            }
        };
        let (now, recorded_when) = (Instant::now(), RecordedWhen::AtOnce);
        let execution = ChunkExecution { pipeline: self, servers, config, now, recorded_when };
        execution.carry_out_all(decided.into_iter().zip(prepared), recorded, &held);
        Ok(())
    }

    /// Decodes one message and decides about it, given the decisions about the messages `before` it in the chunk.
    fn resolve<'a>(
        &self,
        config: &Config,
        servers: &ServerSet,
        message: &'a Incoming,
        before: &DecidedChunk<'_>,
        now: Instant,
    ) -> Resolution<'a> {
        let Incoming { received, prior, deadline, tool_list_wait, .. } = message;
        let in_flight = self.in_flight.len() + self.parked.requests() + before.allowed_requests;
        let room = in_flight < config.limits.requests_in_flight;
        let parking = match room && self.parked.has_room_for(received.bytes.len()) {
            true => ParkingRoom::Free,
            false => ParkingRoom::Full,
        };
        let is_in_use = |id: &IdValue| {
            self.in_flight.is_in_use(id)
                || self.parked.holds(id)
                || self.large.holds(id)
                || self.server_requests.asking.holds(id)
                || servers.replay().is_own(id)
                || before.uses_id(id)
        };
        let inbound = decode_incoming(message, config.limits.message_depth);
        let (inbound, prior) = match admit(inbound, *prior, parking, is_in_use) {
            Admitted::Pass(inbound, prior) => (inbound, prior),
            Admitted::LookUp(id) => return Resolution::Park(id, ParkReason::AuditLookup(None)),
        };
        let tool_list_wait = match parking {
            ParkingRoom::Free => *tool_list_wait,
            ParkingRoom::Full => ToolListWait::Ended,
        };
        let facts = DecisionFacts { prior, room, deadline: *deadline, tool_list_wait, now };
        decide(config, &self.caller, &self.tasks, &self.catalogue, received, inbound, facts)
    }

    /// Queues parked requests to be decided next, before all messages that were received later.
    fn release(&mut self, messages: Vec<Incoming>) {
        for message in messages.into_iter().rev() {
            self.incoming.push_front(message);
        }
    }

    /// Starts one search for all parked requests that need one. Once the link has used up its searches, the requests
    /// are treated as having run.
    fn look_up_parked(&mut self) {
        let origins = self.parked.origins_to_look_up();
        if origins.is_empty() {
            return;
        }
        match self.lookups.start(&self.caller.session, origins) {
            Some(search) => self.parked.assign_search(search),
            None => {
                let messages = self.parked.take_looked_up(None, &[]);
                self.release(messages);
            }
        }
    }

    /// A search of the audit has finished: the requests that waited for it are decided next.
    pub(crate) fn on_lookup_result(&mut self, found: &LookupResult) {
        let messages = self.parked.take_looked_up(Some(found.search), &found.known);
        self.release(messages);
    }

    /// The harness cancelled a request: no response is sent for it.
    fn cancel(&mut self, servers: &mut ServerSet, id: &IdValue, now: Instant) -> Cancelled {
        let (call, cancelled) = match self.parked.cancel(id) {
            Some(Work::Undecided(_)) => return Cancelled::NotRunning,
            Some(Work::Recorded(unsent)) => (unsent.call.map(|(_, call)| call), Cancelled::NotRunning),
            None => match self.in_flight.abandon(id) {
                Some(call) => {
                    let process = call.process;
                    servers.cancel(process, id);
                    (Some(call), Cancelled::Running(process))
                }
                // The server has responded; the response is not relayed.
                None => match self.large.cancel(id).or_else(|| self.server_requests.asking.cancel(id)) {
                    Some(call) => (Some(call), Cancelled::NotRunning),
                    None => return Cancelled::Unknown,
                },
            },
        };
        servers.replay_mut().remove_pending(id);
        if let Some(call) = call {
            self.recorder.store_outcome(call, CallResult::Cancelled, None, now);
        }
        cancelled
    }

    /// When [`Self::expire`] or [`Recorder::write_due`] has something to do.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        let deadlines = [
            self.in_flight.next_deadline(),
            self.parked.next_deadline(),
            self.recorder.due(),
            self.recording.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Answers calls that have timed out, in flight or parked, and decides parked requests whose wait has expired.
    pub(crate) fn expire(&mut self, servers: &mut ServerSet, now: Instant) {
        while let Some(call) = self.in_flight.take_expired(now) {
            self.on_call_timeout(servers, call, now);
        }
        self.expire_recording(servers, now);
        let mut undecided = Vec::new();
        for work in self.parked.take_expired(now) {
            match work {
                Work::Undecided(message) => undecided.push(message),
                Work::Recorded(unsent) => {
                    if let Some((_, call)) = unsent.call {
                        let why = "it did not run: the server did not start in time";
                        self.fail(servers, call, Code::ServerUnavailable, why, now);
                    }
                }
            }
        }
        self.release(undecided);
        if !self.parked.awaits_tools()
            && let Some(list) = self.tool_listing.take()
        {
            self.parked.cancel_own(list.pending_id());
            if let Some(process) = servers.current(SlotKey::BASE) {
                servers.cancel(process, list.pending_id());
            }
        }
    }

    /// Requests that wait for a response.
    pub(crate) fn unanswered(&self) -> usize {
        let sent_or_parked = self.in_flight.len() + self.parked.requests();
        sent_or_parked
            + self.recording.requests()
            + self.large.requests()
            + self.server_requests.asking.requests()
    }

    /// The link has ended: records an outcome for every call. Returns the number of unanswered requests.
    pub(crate) fn end(&mut self, now: Instant) -> usize {
        let calls = self.in_flight.drain_all();
        let unanswered = calls.len() + self.unanswered();
        for call in calls {
            self.recorder.store_outcome(call, CallResult::OutcomeUnknown, Some(Code::SessionEnded), now);
        }
        for call in self.recording.end().into_iter().chain(self.parked.take_all_unsent()) {
            self.recorder.store_outcome(call, CallResult::Refused, Some(Code::SessionEnded), now);
        }
        for call in self.server_requests.take_all() {
            self.recorder.store_outcome(call, CallResult::OutcomeUnknown, Some(Code::SessionEnded), now);
        }
        for call in self.large.end().into_iter().chain(self.server_requests.asking.end()) {
            self.recorder.store_outcome(call, CallResult::OutcomeUnknown, Some(Code::SessionEnded), now);
        }
        self.recorder.write(&self.caller);
        unanswered
    }

    /// Checks that no id is in two of these at once: in flight, abandoned, parked.
    #[cfg(test)]
    pub(crate) fn assert_one_status(&self) {
        for id in self.parked.ids() {
            assert!(!self.in_flight.is_in_use(id), "{id:?} is parked and in flight");
        }
        self.in_flight.assert_one_status();
    }
}

/// The memory of messages that were received and not sent yet, and of copies for retries.
pub(crate) fn held_bytes(pipeline: &Pipeline) -> usize {
    let Pipeline { incoming, recording, parked, in_flight, server_requests, .. } = pipeline;
    let incoming: usize = incoming.iter().map(Incoming::bytes).sum();
    incoming + recording.bytes() + parked.bytes() + in_flight.retry_bytes() + server_requests.asking.bytes()
}
