//! The one task that owns a link: its connection, its server processes, its timers.
//!
//! A link's state is owned by this task alone, so nothing needs a lock. The link outlives its connections; it ends with
//! the shim's goodbye, when its grace or its session runs out, or by a command, and its server is dead before the task is
//! over.
//!
//! | module | what it holds |
//! |---|---|
//! | [`command`] | what the registry may ask of a link |
//! | [`connection`] | frames over one byte stream |
//! | [`describe`] | a link and its credentials as `cofferdam sessions` shows them |
//! | [`end`] | the end of a link |
//! | [`peer`] | the shim: its connection, delivery, goodbye |
//! | [`registry`] | all links, by id; which may be opened, resumed, ended |
//! | [`resume`] | resume tokens that turn |
//! | [`takeover`] | a shim that comes back on a new connection |
//! | [`timers`] | heartbeats, deadlines, credit |
//!
//! What becomes of a message is decided in [`crate::call`].

pub(crate) mod command;
pub(crate) mod connection;
pub(crate) mod describe;
mod end;
#[cfg(test)]
mod model;
mod peer;
pub(crate) mod registry;
mod resume;
mod takeover;
mod timers;

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;

use cofferdam_servers::{self as servers, ProcessId, ServerSet, SlotKey};
use relay_proto::frame::Frame;
use relay_proto::name::Name;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep_until};

use self::command::{Command, EndReason, Ended};
use self::connection::{Connection, Lost};
use self::peer::{Credit, Peer};
use crate::call::{LookupResult, Pipeline, RecordResult, Scrubbed};
use crate::session::Session;
use crate::session::principal::EpochOffer;

pub(crate) struct Link {
    peer: Peer,
    pipeline: Pipeline,
    servers: ServerSet,
    commands: mpsc::Receiver<Command>,
    timer: Pin<Box<Sleep>>,
}

/// A new link's first connection, and the epoch that its key is offered.
pub(crate) struct Arrived {
    pub(crate) connection: Connection,
    pub(crate) offer: Option<EpochOffer>,
}

/// Why a link ends, and where to report what ending took.
type End = (EndReason, Option<oneshot::Sender<Ended>>);

enum Event {
    Command(Option<Command>),
    Frame(Result<Frame, Lost>),
    /// Nothing else happens now.
    Idle,
    Lookup(LookupResult),
    Recorded(RecordResult),
    Scrubbed(Scrubbed),
    Server(SlotKey, ProcessId, servers::Event),
    Timer,
}

/// Frames, or messages of a server, taken in one turn: enough to share a write, few enough that nothing else waits long.
const MAX_BATCH: usize = 64;

impl Link {
    /// A new link on an accepted connection; its `Welcome` is the first frame.
    pub(crate) fn new(
        session: Arc<Session>,
        id: Arc<str>,
        server: Name,
        arrived: Arrived,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        let peer = Peer::new(Arc::clone(&session), Arc::clone(&id), server.clone(), arrived);
        Self {
            pipeline: Pipeline::new(session, id, server, peer.message_bytes()),
            peer,
            servers: ServerSet::default(),
            commands,
            timer: Box::pin(sleep_until(Instant::now())),
        }
    }

    /// Runs until the link is over, and says why it is.
    pub(crate) async fn run(mut self) -> EndReason {
        let mut now = Instant::now();
        let (reason, waiting) = loop {
            let credit = self.credit();
            self.peer.send(&mut self.pipeline.replies, credit);
            self.pipeline.recorder.write_due(&self.pipeline.caller, now);
            let event = self.next_event().await;
            now = Instant::now();
            let end = self.on_event(event, now);
            if end.is_none() {
                self.pipeline.advance_replacements(&mut self.servers, now);
            }
            // What came before an end is carried out.
            self.pipeline.run(&mut self.servers);
            if let Some(end) = end {
                break end;
            }
            self.peer.settle_takeover();
            #[cfg(test)]
            self.pipeline.assert_one_status();
        };
        let ended = self.finish(reason).await;
        if let Some(waiting) = waiting {
            // The command's sender may have stopped waiting; the end is recorded either way.
            let _ = waiting.send(ended);
        }
        reason
    }

    async fn next_event(&mut self) -> Event {
        let deadline = self.next_deadline();
        if deadline < self.timer.deadline() || self.timer.is_elapsed() {
            self.timer.as_mut().reset(deadline);
        }
        // A server whose responses the shim does not take is not read; the shim itself always is.
        let room = self.takes_replies();
        let Self { peer, pipeline, servers, commands, timer } = self;
        let write_when_idle = pipeline.recorder.should_write_when_idle();
        let event = async {
            tokio::select! {
                frame = peer.next() => Event::Frame(frame),
                (slot, from, event) = servers.next(), if room => Event::Server(slot, from, event),
                found = pipeline.lookups.next() => Event::Lookup(found),
                result = pipeline.recording.written() => Event::Recorded(result),
                scrubbed = pipeline.large.scrubbed() => Event::Scrubbed(scrubbed),
                command = commands.recv() => Event::Command(command),
                () = timer => Event::Timer,
            }
        };
        // Everything that waits to leave has left when nothing else is ready: the receivers work meanwhile.
        tokio::select! {
            biased;
            event = event => event,
            () = ready(()), if write_when_idle => Event::Idle,
        }
    }

    /// Takes one event; gives the end of the link where it brings one.
    fn on_event(&mut self, event: Event, now: Instant) -> Option<End> {
        let end = match event {
            Event::Frame(Ok(frame)) => {
                let (messages, end) = self.peer.receive(frame);
                self.pipeline.receive(messages);
                end
            }
            Event::Frame(Err(lost)) => {
                self.peer.disconnected(&lost);
                None
            }
            Event::Server(slot, from, event) => {
                self.on_server_batch(slot, from, event, now);
                None
            }
            Event::Lookup(found) => {
                self.pipeline.looked_up(&found);
                None
            }
            Event::Recorded(result) => {
                self.pipeline.on_recorded(&mut self.servers, result, now);
                None
            }
            Event::Scrubbed(scrubbed) => {
                self.pipeline.on_scrubbed(&mut self.servers, scrubbed, now);
                None
            }
            Event::Idle => {
                self.pipeline.recorder.write(&self.pipeline.caller);
                None
            }
            Event::Command(None) => Some(EndReason::Stopped),
            Event::Command(Some(Command::Attach { connection, resume })) => {
                let (messages, end) = self.peer.attach(*connection, resume);
                self.pipeline.receive(messages);
                end
            }
            Event::Command(Some(Command::Describe(reply))) => {
                // The command's sender may have stopped waiting.
                let _ = reply.send(self.describe());
                None
            }
            Event::Command(Some(Command::End { reason, ended })) => return Some((reason, Some(ended))),
            Event::Timer => self.on_timer(now),
        };
        end.map(|reason| (reason, None))
    }

    /// Takes what a process sent, and what it sent along with it.
    fn on_server_batch(&mut self, slot: SlotKey, from: ProcessId, first: servers::Event, now: Instant) {
        let mut next = Some((from, first));
        let mut taken = 0;
        while let Some((process, event)) = next {
            self.pipeline.on_server(&mut self.servers, slot, process, event, now);
            self.peer.queue(&mut self.pipeline.replies);
            taken += 1;
            next = match taken < MAX_BATCH && self.takes_replies() {
                true => self.servers.buffered(slot),
                false => None,
            };
        }
    }

    /// Whether another message of a server can be taken: the shim takes its responses, and none is being scrubbed, which
    /// the next one must not overtake.
    fn takes_replies(&self) -> bool {
        self.peer.has_room() && !self.pipeline.large.is_being_scrubbed()
    }

    /// Whether the shim may send more for this link's server.
    fn credit(&self) -> Credit {
        match self.servers.is_full() || self.pipeline.is_full() {
            true => Credit::Withhold,
            false => Credit::Give,
        }
    }
}
