//! The one task that owns a link: its connection, its server, its timers.
//!
//! Everything of a link is in here and nowhere else, so nothing needs a lock: a message is read, decided, recorded and
//! sent on without changing hands. The link outlives its connections; it ends by the shim's goodbye, by its grace or
//! its session running out, or because somebody ended it, and then its server is dead before the task is over.

use std::fmt;
use std::future::ready;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_base::RateLimiter;
use relay_proto::code::Code;
use relay_proto::control::{Goodbye, Resumed, Retry, Welcome};
use relay_proto::delivery::{Inbox, Outbox, Received};
use relay_proto::frame::Frame;
use relay_proto::limits::DEFAULT_WINDOW;
use relay_proto::name::Name;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::Session;
use super::attach::Newcomer;
use super::calls::Calls;
use super::command::{Command, EndReason, Ended};
use super::connection::{Connection, Lost};
use super::outcomes::Outcomes;
use super::repeats::Repeats;
use super::server_requests::ServerRequests;
use super::tasks::Tasks;
use super::tokens::Tokens;
use super::tools::ShownTools;
use super::visitor::{Offer, Offered};
use crate::audit;
use crate::metrics::{self, ServerTally};
use crate::servers::instance::Event;
use crate::servers::scoped::{Process, Servers};

pub(crate) struct Link {
    pub(super) id: Arc<str>,
    pub(super) server: Name,
    pub(super) session: Arc<Session>,
    /// All of these as the audit names them.
    pub(super) caller: audit::Caller,
    pub(super) connection: Option<Connection>,
    /// The epoch that came with the link's first Welcome, until the shim speaks.
    unconfirmed: Option<Box<dyn FnOnce() -> Offered + Send>>,
    /// The time of this turn: whatever happens in one turn happens at once.
    pub(super) woke: Instant,
    pub(super) lost: Option<Instant>,
    /// Somebody who wants this link while another connection has it.
    pub(super) newcomer: Option<Newcomer>,
    /// When the last Ping was sent: one is enough until something is heard.
    pub(super) pinged: Instant,
    pub(super) outbox: Outbox,
    pub(super) inbox: Inbox,
    /// What the inbox enforces, whatever the configuration says by now.
    pub(super) promised: Promised,
    pub(super) tokens: Tokens,
    pub(super) servers: Servers,
    pub(super) calls: Calls,
    pub(super) server_requests: ServerRequests,
    pub(super) tasks: Tasks,
    pub(super) shown: ShownTools,
    pub(super) repeats: Repeats,
    commands: mpsc::Receiver<Command>,
    timer: Pin<Box<Sleep>>,
    pub(super) counted: Counted,
    /// What everybody is told of this server's requests.
    pub(super) requests: ServerTally,
    pub(super) outcomes: Outcomes,
    /// How much this link may fill the log and the audit with its comings and goings.
    pub(super) talk: RateLimiter,
    pub(super) alerts: Arc<Mutex<RateLimiter>>,
    /// Places for those who may have been late, while it is seen whether they leave.
    pub(super) late: Arc<Semaphore>,
    /// How many searches of the audit this link may still cause.
    pub(super) searches: usize,
}

/// A new link's first connection, and the epoch that its key is offered.
pub(crate) struct Arrived {
    pub(crate) connection: Connection,
    pub(crate) offer: Option<Offer>,
}

/// What a shim was told at its first `Welcome`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promised {
    pub(super) message_bytes: usize,
    pub(super) window_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) calls: u64,
    pub(super) refused: u64,
    pub(super) redactions: u64,
}

/// Why and for whom a link ends.
pub(super) type End = (EndReason, Option<oneshot::Sender<Ended>>);

enum Wake {
    Command(Option<Command>),
    Connection(Result<Frame, Lost>),
    /// Nothing else happens now.
    Leisure,
    Server(Process, Event),
    Timer,
}

/// Frames, or messages of a server, taken in one turn: enough to share a write among, few enough that nobody else waits long.
const MAX_BATCH: usize = 64;
/// How long a goodbye may take to leave.
pub(super) const GOODBYE_TIME: Duration = Duration::from_millis(500);
/// Lines in the log about one link's connections, within a minute.
const TALK_PER_MINUTE: u32 = 60;
/// Alerts in the audit about one link, within a minute: each is worth one look, not a thousand.
const ALERTS_PER_MINUTE: u32 = 6;
/// An honest shim gives up a few connections in a row at most.
const MAX_LATE: usize = 8;
/// Searches of the audit for what may have run on earlier links: an honest shim has one such link behind it, or two.
const MAX_SEARCHES: usize = 4;

impl Link {
    /// A new link on an accepted connection; its `Welcome` is the first frame.
    pub(crate) fn new(
        session: Arc<Session>,
        id: Arc<str>,
        server: Name,
        arrived: Arrived,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        let Arrived { connection, offer } = arrived;
        let (epoch, unconfirmed) = offer.map(|offer| (offer.epoch, offer.confirm)).unzip();
        let limits = session.context.config.load().limits.clone();
        // Whoever asks for another name gets no link; a label must not be the sandbox's choice.
        let is_configured = session.context.config.load().servers.contains_key(&server);
        let requests = metrics::requests_of(if is_configured { server.as_str() } else { "" });
        let caller = session.context.audit.caller(&session.id, &id, Some(server.as_str()));
        let mut link = Self {
            id,
            server,
            session,
            caller,
            connection: Some(connection),
            unconfirmed,
            woke: Instant::now(),
            lost: None,
            newcomer: None,
            pinged: Instant::now(),
            outbox: Outbox::new(DEFAULT_WINDOW),
            inbox: Inbox::new(limits.message_bytes, limits.window_bytes),
            promised: Promised { message_bytes: limits.message_bytes, window_bytes: limits.window_bytes },
            tokens: Tokens::new(),
            servers: Servers::default(),
            calls: Calls::default(),
            server_requests: ServerRequests::default(),
            tasks: Tasks::default(),
            shown: ShownTools::default(),
            repeats: Repeats::default(),
            commands,
            timer: Box::pin(sleep_until(Instant::now())),
            counted: Counted::default(),
            requests,
            outcomes: Outcomes::default(),
            talk: RateLimiter::per_minute(TALK_PER_MINUTE),
            alerts: Arc::new(Mutex::new(RateLimiter::per_minute(ALERTS_PER_MINUTE))),
            late: Arc::new(Semaphore::new(MAX_LATE)),
            searches: MAX_SEARCHES,
        };
        let welcome = Welcome { epoch, ..link.welcome(Resumed::Fresh, link.tokens.current()) };
        link.push(&Frame::Welcome(welcome));
        link
    }

    /// Lives until the link is over, and says why it is.
    pub(crate) async fn run(mut self) -> EndReason {
        let (reason, waiting) = loop {
            self.hand_out();
            self.write_due_outcomes();
            let wake = self.wait().await;
            self.woke = Instant::now();
            if let ControlFlow::Break(end) = self.handle(wake).await {
                break end;
            }
            self.attend();
            self.let_go();
            self.repeat().await;
            self.settle_newcomer();
            #[cfg(test)]
            self.assert_one_place();
        };
        let ended = self.finish(reason).await;
        if let Some(waiting) = waiting {
            // Whoever asked may be gone; the end is recorded either way.
            let _ = waiting.send(ended);
        }
        reason
    }

    /// An id is waited for, abandoned or held back, never two of these at once.
    #[cfg(test)]
    fn assert_one_place(&self) {
        for id in self.repeats.held_ids() {
            assert!(!self.calls.is_taken(id), "{id:?} is held back and in flight");
        }
        self.calls.assert_one_place();
    }

    async fn wait(&mut self) -> Wake {
        let deadline = self.next_deadline();
        if deadline < self.timer.deadline() || self.timer.is_elapsed() {
            self.timer.as_mut().reset(deadline);
        }
        // A server whose answers the shim does not take is not read; the shim itself always is.
        let room = !self.outbox.is_full();
        let worth_a_write = self.outcomes.are_worth_a_write();
        let Self { connection, servers, commands, timer, .. } = self;
        let happens = async {
            tokio::select! {
                frame = next_frame(connection) => Wake::Connection(frame),
                (from, event) = servers.next(), if room => Wake::Server(from, event),
                command = commands.recv() => Wake::Command(command),
                () = timer => Wake::Timer,
            }
        };
        // Everything that waits to leave has left when this is found to wait: whoever gets it works meanwhile.
        tokio::select! {
            biased;
            wake = happens => wake,
            () = ready(()), if worth_a_write => Wake::Leisure,
        }
    }

    async fn handle(&mut self, wake: Wake) -> ControlFlow<End> {
        match wake {
            Wake::Connection(Ok(frame)) => return self.frames(frame).await,
            Wake::Connection(Err(lost)) => self.disconnected(&lost),
            Wake::Server(from, event) => self.server_events(from, event),
            Wake::Leisure => self.write_outcomes(),
            Wake::Command(None) => return ControlFlow::Break((EndReason::Stopped, None)),
            Wake::Command(Some(Command::Attach { connection, resume })) => {
                return self.attach(*connection, resume).await;
            }
            Wake::Command(Some(Command::Describe(reply))) => {
                // Whoever asked may have lost patience.
                let _ = reply.send(self.describe());
            }
            Wake::Command(Some(Command::End { reason, ended })) => {
                return ControlFlow::Break((reason, Some(ended)));
            }
            Wake::Timer => return self.tick().map_break(|reason| (reason, None)),
        }
        ControlFlow::Continue(())
    }

    /// Takes one frame and those that came with it.
    pub(super) async fn frames(&mut self, first: Frame) -> ControlFlow<End> {
        // A goodbye may have been said before the Welcome came.
        if !matches!(first, Frame::Goodbye(_)) {
            self.confirm().map_break(|reason| (reason, None))?;
        }
        let mut messages = Vec::new();
        let mut flow = ControlFlow::Continue(());
        let mut next = Some(first);
        let mut taken = 0;
        while let Some(frame) = next {
            flow = self.frame(frame, &mut messages);
            taken += 1;
            next = match (&flow, &mut self.connection) {
                (ControlFlow::Continue(()), Some(connection)) if taken < MAX_BATCH => connection.buffered(),
                _ => None,
            };
        }
        if !messages.is_empty() {
            self.arrived(messages).await;
        }
        flow.map_break(|reason| (reason, None))
    }

    /// Takes one frame; whole messages are collected. A peer that breaks the protocol loses its link.
    fn frame(&mut self, frame: Frame, messages: &mut Vec<Received>) -> ControlFlow<EndReason> {
        match frame {
            Frame::Message(part) => match self.inbox.accept(part) {
                Ok(message) => messages.extend(message),
                Err(error) => return self.misbehaved(&error.to_string()),
            },
            Frame::Ack(ack) => {
                if let Err(error) = self.outbox.acknowledge(ack) {
                    return self.misbehaved(&error.to_string());
                }
            }
            Frame::Ping => self.pong(),
            Frame::Pong => {
                if let Some(connection) = &mut self.connection {
                    connection.ponged();
                }
            }
            Frame::Goodbye(_) => return ControlFlow::Break(EndReason::Goodbye),
            Frame::Hello(_) | Frame::Refusal(_) | Frame::Status(_) | Frame::Welcome(_) => {
                return self.misbehaved("a handshake frame came after the handshake");
            }
        }
        ControlFlow::Continue(())
    }

    /// The shim has spoken: what its Welcome brought has arrived.
    fn confirm(&mut self) -> ControlFlow<EndReason> {
        self.tokens.confirm();
        match self.unconfirmed.take().map(|confirm| confirm()) {
            Some(Offered::LeftBehind) => {
                self.alert("another copy of the key was used since this link was given");
                ControlFlow::Break(EndReason::Cloned)
            }
            Some(Offered::Good) | None => ControlFlow::Continue(()),
        }
    }

    fn misbehaved(&mut self, why: &str) -> ControlFlow<EndReason> {
        tracing::warn!(link = %self.id, session = %self.session.id, why, "protocol broken by the shim");
        ControlFlow::Break(EndReason::Broken)
    }

    /// Takes what a server gave, and what it gave along with it.
    fn server_events(&mut self, from: Process, first: Event) {
        let mut next = Some((from, first));
        let mut taken = 0;
        while let Some((process, event)) = next {
            self.server_event(process, event);
            taken += 1;
            next = match taken < MAX_BATCH && !self.outbox.is_full() {
                true => self.servers.buffered(from.lane),
                false => None,
            };
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    pub(super) fn push(&mut self, frame: &Frame) {
        if let Some(connection) = &mut self.connection {
            connection.push(frame);
        }
    }

    pub(super) fn disconnected(&mut self, reason: &impl fmt::Display) {
        if self.talk.allows(Instant::now()) {
            tracing::info!(link = %self.id, session = %self.session.id, %reason, "connection lost");
        }
        self.connection = None;
        self.lost = Some(Instant::now());
    }

    pub(super) async fn say_goodbye(&mut self, code: Code, message: &str, retry: Retry) {
        if let Some(connection) = &mut self.connection {
            let goodbye = Goodbye { code: code.as_str().into(), message: message.into(), retry };
            connection.push(&Frame::Goodbye(goodbye));
            // Whoever does not read it goes without.
            let _ = timeout(GOODBYE_TIME, connection.flush()).await;
        }
    }
}

async fn next_frame(connection: &mut Option<Connection>) -> Result<Frame, Lost> {
    match connection {
        Some(connection) => connection.next().await,
        None => std::future::pending().await,
    }
}
