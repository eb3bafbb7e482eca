//! The one task that owns a link: its connection, its server processes, its timers.
//!
//! A link's state is owned by this task alone, so nothing needs a lock. The link outlives its connections; it ends with
//! the shim's goodbye, when its grace period or its session expires, or by a command. Its server processes are ended
//! before the task returns.
//!
//! | module | content |
//! |---|---|
//! | [`command`] | commands of the registry to a link |
//! | [`connection`] | frames over one byte stream |
//! | [`describe`] | a link and its credentials as `cofferdam sessions` shows them |
//! | [`not_revocable`] | credentials that outlive their session |
//! | [`memory`] | the link's memory, charged to its sandbox and to the sidecar |
//! | [`end`] | ending a link and its server processes |
//! | [`peer`] | the shim: its connection, delivery, goodbye |
//! | [`registry`] | all links, by id: opening, resuming and ending them |
//! | [`resume`] | rotating resume tokens |
//! | [`takeover`] | a shim that reconnects |
//! | [`timers`] | heartbeats, deadlines, flow control |
//! | [`turn`] | when a busy link lets other tasks run |
//!
//! Messages are handled in [`crate::call`].

pub(crate) mod command;
pub(crate) mod connection;
pub(crate) mod describe;
mod end;
pub(crate) mod memory;
#[cfg(test)]
mod model;
pub(crate) mod not_revocable;
mod peer;
pub(crate) mod registry;
mod resume;
mod takeover;
mod timers;
mod turn;

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;

use cofferdam_audit::EventReservation;
use cofferdam_servers::{self as servers, ProcessId, ServerSet, SlotKey};
use relay_proto::frame::Frame;
use relay_proto::name::Name;
use tokio::sync::{mpsc, oneshot};
use tokio::task::coop;
use tokio::time::{Instant, Sleep, sleep_until};

use self::command::{Command, EndReason, Ended};
use self::connection::{Connection, Lost};
use self::memory::LinkMemory;
use self::peer::{Credit, Peer};
use crate::call::{LookupResult, Pipeline, RecordResult, Scrubbed, has_room_for_server_requests, held_bytes};
use crate::session::Session;
use crate::session::principal::EpochOffer;

pub(crate) struct Link {
    peer: Peer,
    pipeline: Pipeline,
    servers: ServerSet,
    memory: LinkMemory,
    /// The space for the record of the link's end.
    end_record: EventReservation,
    commands: mpsc::Receiver<Command>,
    timer: Pin<Box<Sleep>>,
}

/// What was reserved for a link before it was opened.
pub(crate) struct LinkResources {
    pub(crate) memory: LinkMemory,
    pub(crate) end_record: EventReservation,
}

/// The first connection of a new link, and the epoch that is offered to its key.
pub(crate) struct FirstConnection {
    pub(crate) connection: Connection,
    pub(crate) offer: Option<EpochOffer>,
}

/// Why a link ends, and where to report how its end went.
type LinkEnd = (EndReason, Option<oneshot::Sender<Ended>>);

enum LinkEvent {
    Command(Option<Command>),
    Frame(Result<Frame, Lost>),
    /// No other event is ready.
    Idle,
    Lookup(LookupResult),
    Recorded(RecordResult),
    Scrubbed(Scrubbed),
    Server(SlotKey, ProcessId, servers::Event),
    Timer,
}

/// Frames, or messages of a server, handled in one turn: enough to share a write, few enough that other events do not
/// wait long.
const MAX_BATCH: usize = 64;

impl Link {
    /// A new link on an accepted connection; its `Welcome` is the first frame.
    pub(crate) fn new(
        session: Arc<Session>,
        id: Arc<str>,
        server: Name,
        first: FirstConnection,
        commands: mpsc::Receiver<Command>,
        resources: LinkResources,
    ) -> Self {
        let LinkResources { memory, end_record } = resources;
        let peer = Peer::new(Arc::clone(&session), Arc::clone(&id), server.clone(), first, memory.window());
        let account = Arc::clone(memory.account());
        Self {
            pipeline: Pipeline::new(session, id, server, account, peer.max_message_bytes()),
            peer,
            memory,
            end_record,
            servers: ServerSet::default(),
            commands,
            timer: Box::pin(sleep_until(Instant::now())),
        }
    }

    /// Runs until the link ends, and returns why.
    pub(crate) async fn run(mut self) -> EndReason {
        let mut now = Instant::now();
        let (reason, report_to) = loop {
            self.settle_memory();
            let credit = self.credit();
            self.peer.send(&mut self.pipeline.replies, credit);
            self.pipeline.recorder.write_due(&self.pipeline.caller, now);
            turn::next_turn().await;
            let event = coop::unconstrained(self.next_event()).await;
            now = Instant::now();
            let end = self.on_event(event, now);
            if end.is_none() {
                self.pipeline.advance_replacements(&mut self.servers, now);
            }
            // Messages that arrived before the end are still handled.
            self.pipeline.run(&mut self.servers).await;
            if let Some(end) = end {
                break end;
            }
            self.peer.settle_takeover();
            #[cfg(test)]
            self.pipeline.assert_one_status();
        };
        let ended = self.finish(reason).await;
        if let Some(report_to) = report_to {
            // The command's sender may have stopped waiting; the end is recorded either way.
            let _ = report_to.send(ended);
        }
        reason
    }

    async fn next_event(&mut self) -> LinkEvent {
        let deadline = self.next_deadline();
        if deadline < self.timer.deadline() || self.timer.is_elapsed() {
            self.timer.as_mut().reset(deadline);
        }
        // Servers are not read while the shim is too slow to receive their responses; the shim is always read.
        let room = self.can_read_servers();
        let Self { peer, pipeline, servers, commands, timer, .. } = self;
        let write_when_idle = pipeline.recorder.should_write_when_idle();
        let event = async {
            tokio::select! {
                frame = peer.next() => LinkEvent::Frame(frame),
                (slot, from, event) = servers.next(), if room => LinkEvent::Server(slot, from, event),
                found = pipeline.lookups.next() => LinkEvent::Lookup(found),
                result = pipeline.recording.written() => LinkEvent::Recorded(result),
                scrubbed = pipeline.large.scrubbed() => LinkEvent::Scrubbed(scrubbed),
                command = commands.recv() => LinkEvent::Command(command),
                () = timer => LinkEvent::Timer,
            }
        };
        // No other event is ready, so all responses have been written: the audit write delays none of them.
        tokio::select! {
            biased;
            event = event => event,
            () = ready(()), if write_when_idle => LinkEvent::Idle,
        }
    }

    /// Handles one event; returns the end of the link if the event causes it.
    fn on_event(&mut self, event: LinkEvent, now: Instant) -> Option<LinkEnd> {
        let end = match event {
            LinkEvent::Frame(Ok(frame)) => {
                let (messages, end) = self.peer.receive(frame);
                self.pipeline.receive(messages);
                end
            }
            LinkEvent::Frame(Err(lost)) => {
                self.peer.on_disconnect(&lost);
                None
            }
            LinkEvent::Server(slot, from, event) => {
                self.on_server_batch(slot, from, event, now);
                None
            }
            LinkEvent::Lookup(found) => {
                self.pipeline.on_lookup_result(&found);
                None
            }
            LinkEvent::Recorded(result) => {
                self.pipeline.on_recorded(&mut self.servers, result, now);
                None
            }
            LinkEvent::Scrubbed(scrubbed) => {
                self.pipeline.on_scrubbed(&mut self.servers, scrubbed, now);
                None
            }
            LinkEvent::Idle => {
                self.pipeline.recorder.write(&self.pipeline.caller);
                None
            }
            LinkEvent::Command(None) => Some(EndReason::Stopped),
            LinkEvent::Command(Some(Command::Attach { connection, resume })) => {
                let (messages, end) = self.peer.attach(*connection, resume);
                self.pipeline.receive(messages);
                end
            }
            LinkEvent::Command(Some(Command::Describe(reply))) => {
                // The command's sender may have stopped waiting.
                let _ = reply.send(self.describe());
                None
            }
            LinkEvent::Command(Some(Command::End { reason, ended })) => return Some((reason, Some(ended))),
            LinkEvent::Timer => self.on_timer(now),
        };
        end.map(|reason| (reason, None))
    }

    /// Handles an event of a process, and the buffered events after it.
    fn on_server_batch(&mut self, slot: SlotKey, from: ProcessId, first: servers::Event, now: Instant) {
        let mut next = Some((from, first));
        let mut handled = 0;
        while let Some((process, event)) = next {
            self.pipeline.on_server_event(&mut self.servers, slot, process, event, now);
            self.peer.queue(&mut self.pipeline.replies);
            handled += 1;
            next = match handled < MAX_BATCH && self.can_read_servers() {
                true => self.servers.buffered(slot),
                false => None,
            };
        }
    }

    /// Charges the memory that the link holds and may take next.
    fn settle_memory(&mut self) {
        self.peer.queue(&mut self.pipeline.replies);
        let held = self.held_bytes();
        self.memory.count(held);
        // What was read from servers is in the link's buffers now, unless a worker still scrubs it.
        if !self.pipeline.large.is_being_scrubbed() {
            self.servers.release_handled();
        }
        self.memory.reserve(held, self.peer.inbox.expected_bytes());
    }

    /// The memory of the link's buffers.
    fn held_bytes(&self) -> usize {
        self.peer.held_bytes() + held_bytes(&self.pipeline) + self.servers.held_bytes()
    }

    /// Whether another message of a server can be read: there is memory for it, and room in the outbox or, if it is a
    /// request, in the queue of undecided messages, and no earlier message, which it must not overtake, is still being
    /// scrubbed.
    fn can_read_servers(&self) -> bool {
        self.peer.has_room()
            && self.memory.allows_reading(self.peer.held_bytes())
            && !self.pipeline.large.is_being_scrubbed()
            && has_room_for_server_requests(&self.pipeline.incoming)
    }

    /// Whether this link has memory, and its server room, for more messages of the shim.
    fn credit(&self) -> Credit {
        match !self.memory.allows_credit() || self.servers.is_full() || self.pipeline.parked.is_full() {
            true => Credit::Withhold,
            false => Credit::Give,
        }
    }
}
