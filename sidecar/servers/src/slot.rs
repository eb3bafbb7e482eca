//! The place of one server, or of one of its scopes, in a link: the process that calls go to, the one that is to take
//! over from it, and those that finish their calls.
//!
//! ```text
//!   successor ──takes over──▶ current ──hands over──▶ draining ──all answered, or timed out──▶ terminating
//! ```
//!
//! The first request starts the process; after a crash, the next request starts another one, but not before the backoff
//! has passed and the old process is dead. A new process, or an HTTP server that has lost its session, is first sent the
//! handshake and settings of its predecessor, unless the harness itself begins with a handshake.
//!
//! What must stay true: each request goes to one process, and only that process may answer it; a process that handed
//! over gets no new call; a slot where nothing is being replaced costs nothing extra. [`Slot::wait`] may be dropped at
//! any await.

mod replace;
#[cfg(test)]
mod tests;

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_secrets::SecretReads;
use futures_util::future::select_all;
use relay_proto::code::Code;
use relay_proto::replay::Replay;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::event::{Event, ProcessId, Role, SlotKey};
use crate::generation::{CheckTools, Delivery, Generation, Progress, Step};
use crate::launcher::Launcher;
use crate::outbound::{Outbound, OutboundCow};
use crate::processes::Processes;
use crate::replacement::Replacement;
use crate::spec::Scope;
use crate::start_backoff::StartBackoff;

pub(crate) use self::replace::AdvanceContext;

pub(crate) struct Slot {
    pub(crate) key: SlotKey,
    /// None for the server's own slot.
    pub(crate) scope: Option<Arc<Scope>>,
    /// The handshake and settings for a scope's processes; the server's own slot uses those of the link.
    scope_replay: Option<Box<Replay>>,
    pub(crate) processes: Processes,
    /// None where no credential of the processes can change.
    replacement: Option<Box<Replacement>>,
    backoff: StartBackoff,
    timer: Option<Pin<Box<Sleep>>>,
    /// [`Self::advance_replacements`] has something to do.
    is_replacement_due: bool,
}

/// An event of a slot that has not been handled yet.
pub(crate) enum SlotEvent {
    Current(Step),
    Draining(ProcessId, Event),
    ReplacementDue,
    Successor(Step),
}

/// What happens to a message while no process is ready for it.
#[derive(Clone, Copy)]
pub enum WhenNotReady<'a> {
    /// A process is started where there is none, and the message is returned to wait for it.
    Start(&'a dyn Fn() -> Launcher),
    /// It is returned where a process is starting, and dropped where there is none.
    Return,
}

/// The result of sending a message.
#[derive(Debug)]
pub enum SendResult {
    /// There is no such process any more, or none to be started: the message was dropped.
    NoProcess,
    /// The message has to be sent again after [`Event::Ready`] of its slot.
    NotReady(Outbound),
    /// The request did not run.
    Refused { code: Code, why: String },
    Sent {
        on: ProcessId,
        /// Vault reads that supplied the process's secrets, but are missing from the decision recorded for this message.
        reads_after_decision: Option<Arc<SecretReads>>,
    },
}

/// The result of [`Slot::begin_handshake`].
#[derive(Debug)]
pub enum HandshakeStart {
    /// The process is being ended: handle this like [`Event::Gone`] of the current process.
    Failed { process: ProcessId, code: Code, why: String },
    /// There is no process, or no handshake is to be replayed to it.
    NotNeeded,
    /// The process serves: send the messages that wait for its slot.
    Ready,
    /// The handshake is being replayed; [`Event::Ready`] or [`Event::Gone`] follows.
    Replaying(ProcessId),
}

/// How soon a slot checks again on a process that is starting, a handshake that is open or bytes that are being written.
const RECHECK_DELAY: Duration = Duration::from_millis(200);

impl Slot {
    pub(crate) fn new(key: SlotKey, scope: Option<Arc<Scope>>) -> Self {
        Self {
            key,
            scope,
            scope_replay: None,
            processes: Processes::default(),
            replacement: None,
            backoff: StartBackoff::default(),
            timer: None,
            is_replacement_due: false,
        }
    }

    /// Sends to the current process, or starts one. `base` is the replay of the server's own slot.
    pub(crate) fn send(
        &mut self,
        message: OutboundCow<'_>,
        when: WhenNotReady<'_>,
        base: &Replay,
    ) -> SendResult {
        if let Some(current) = &mut self.processes.current {
            return SendResult::of(current.id, current.send(message));
        }
        let WhenNotReady::Start(launcher) = when else { return SendResult::NoProcess };
        if let Some(wait) = self.backoff.wait() {
            let seconds = wait.as_secs() + 1;
            let why = format!("the server keeps failing; it is started again in {seconds} s at the earliest");
            return SendResult::Refused { code: Code::ServerUnavailable, why };
        }
        self.start(launcher(), base);
        SendResult::NotReady(message.into_owned())
    }

    /// Bytes that the processes have not read yet, and bytes of the messages that are replayed to the scope's processes.
    pub(crate) fn held_bytes(&self) -> usize {
        let recorded = self.scope_replay.as_ref().map_or(0, |replay| replay.recorded_bytes());
        self.processes.queued_bytes() + recorded
    }

    /// Writes as many queued bytes as the current process accepts without waiting.
    pub(crate) fn flush(&mut self) {
        if let Some(current) = &mut self.processes.current {
            current.flush();
        }
    }

    /// Replays the handshake, unless the first waiting request is itself one; `first` is the method of that request.
    pub(crate) fn begin_handshake(&mut self, first: Option<&str>, base: &mut Replay) -> HandshakeStart {
        let Some(current) = &mut self.processes.current else { return HandshakeStart::NotNeeded };
        let process = current.id;
        if current.has_lost_its_session() {
            self.backoff.record_end(current.age());
            if self.backoff.wait().is_some() {
                let (code, why) = (Code::ServerUnavailable, "the server keeps losing the MCP session".into());
                self.end_current(code, Duration::ZERO, base);
                return HandshakeStart::Failed { process, code, why };
            }
        }
        let replay = replay_of(&mut self.scope_replay, base);
        match current.open(replay, first) {
            Progress::Ready => HandshakeStart::Ready,
            Progress::Ended { code, why, served_for } => {
                self.end_current(code, served_for, base);
                HandshakeStart::Failed { process, code, why }
            }
            _ if current.is_opening() => HandshakeStart::Replaying(process),
            _ => HandshakeStart::NotNeeded,
        }
    }

    /// Waits for the next event: of a process, a changed credential, the timer or a queued notice. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> SlotEvent {
        if !self.processes.notices.is_empty() {
            return SlotEvent::ReplacementDue;
        }
        let Self { processes, replacement, timer, .. } = self;
        let Processes { current, successor, draining, .. } = processes;
        if successor.is_none() && draining.is_empty() {
            let Some(replacement) = replacement else { return SlotEvent::Current(step_of(current).await) };
            // The serving process is polled first: changed credentials can wait until it has no event.
            return tokio::select! {
                biased;
                step = step_of(current) => SlotEvent::Current(step),
                () = replacement.changed() => SlotEvent::ReplacementDue,
                () = timer_expired(timer) => SlotEvent::ReplacementDue,
            };
        }
        tokio::select! {
            step = step_of(current) => SlotEvent::Current(step),
            step = step_of(successor) => SlotEvent::Successor(step),
            (process, event) = next_of_draining(draining) => SlotEvent::Draining(process, event),
            () = changed(replacement) => SlotEvent::ReplacementDue,
            () = timer_expired(timer) => SlotEvent::ReplacementDue,
        }
    }

    /// Handles an event of the slot; returns the event for the pipeline, if any.
    pub(crate) fn handle(&mut self, slot_event: SlotEvent, base: &mut Replay) -> Option<(ProcessId, Event)> {
        match slot_event {
            SlotEvent::Current(step) => self.on_current(step, base),
            SlotEvent::Draining(process, event) => {
                if let Event::Gone { .. } = event {
                    self.processes.end_draining(process);
                }
                Some((process, event))
            }
            SlotEvent::ReplacementDue => {
                self.timer = None;
                Some(self.replacement_due())
            }
            SlotEvent::Successor(step) => self.on_successor(step, base),
        }
    }

    /// A message of the current process that has already arrived.
    pub(crate) fn buffered(&mut self) -> Option<(ProcessId, Event)> {
        let current = self.processes.current.as_mut()?;
        Some((current.id, current.buffered()?))
    }

    fn start(&mut self, launcher: Launcher, base: &Replay) {
        let launcher = match &self.scope {
            Some(scope) => {
                self.scope_replay = Some(Box::new(base.for_sibling()));
                launcher.in_scope(scope)
            }
            None => launcher,
        };
        match &mut self.replacement {
            Some(replacement) => replacement.on_start(&launcher),
            None => self.replacement = Replacement::of(&launcher),
        }
        if self.replacement.is_some() {
            self.wake_at(Some(Instant::now() + RECHECK_DELAY));
        }
        self.processes.current = Some(Generation::start(launcher, self.processes.terminating.clone()));
    }

    fn on_current(&mut self, step: Step, base: &mut Replay) -> Option<(ProcessId, Event)> {
        let current = self.processes.current.as_mut()?;
        let process = current.id;
        let event = match current.advance(step, replay_of(&mut self.scope_replay, base), None) {
            Progress::Event(event) => event,
            Progress::Pending => return None,
            Progress::Ready => Event::Ready,
            Progress::Started => Event::Started,
            Progress::NotStarted(error) => {
                self.processes.current = None;
                if !error.source_has_backoff() {
                    self.backoff.record_end(Duration::ZERO);
                }
                self.promote_successor(base);
                Event::NotStarted { code: error.code(), why: error.for_sandbox(), detail: error.explain() }
            }
            Progress::Ended { code, why, served_for } => {
                self.end_current(code, served_for, base);
                Event::Gone { was: Role::Current, code, why }
            }
        };
        Some((process, event))
    }

    /// Ends the current process, which served for the time `served_for`. Its successor, if there is one, takes over at once.
    fn end_current(&mut self, code: Code, served_for: Duration, base: &mut Replay) {
        // Sources of credentials have a backoff of their own.
        if code != Code::CredentialUnavailable {
            self.backoff.record_end(served_for);
        }
        if let Some(current) = self.processes.current.take() {
            current.end_in_background(&self.processes.terminating);
        }
        self.promote_successor(base);
    }

    fn promote_successor(&mut self, base: &mut Replay) {
        let Some(replacement) = &mut self.replacement else { return };
        replacement.offered.forget_tools();
        if let Some(mut successor) = self.processes.successor.take() {
            successor.promote(replay_of(&mut self.scope_replay, base), CheckTools::Yes);
            self.processes.current = Some(successor);
        }
        self.wake_at(Some(Instant::now() + RECHECK_DELAY));
    }

    /// The event that makes the pipeline call [`Self::advance_replacements`].
    fn replacement_due(&mut self) -> (ProcessId, Event) {
        self.is_replacement_due = true;
        (ProcessId::NONE, Event::ReplacementDue)
    }

    fn wake_at(&mut self, when: Option<Instant>) {
        self.timer = when.map(|when| Box::pin(sleep_until(when)));
    }
}

impl SendResult {
    pub(crate) fn of(on: ProcessId, delivery: Delivery) -> Self {
        match delivery {
            Delivery::NotReady(message) => Self::NotReady(message),
            Delivery::Refused { code, why } => Self::Refused { code, why },
            Delivery::Sent { reads_after_decision } => Self::Sent { on, reads_after_decision },
        }
    }
}

fn replay_of<'a>(own: &'a mut Option<Box<Replay>>, base: &'a mut Replay) -> &'a mut Replay {
    match own {
        Some(own) => own,
        None => base,
    }
}

async fn step_of(generation: &mut Option<Generation>) -> Step {
    match generation {
        Some(generation) => generation.next().await,
        None => pending().await,
    }
}

async fn next_of_draining(draining: &mut [Generation]) -> (ProcessId, Event) {
    if draining.is_empty() {
        return pending().await;
    }
    let events = draining
        .iter_mut()
        .map(|draining| Box::pin(async { (draining.id, draining.next_of_draining().await) }));
    select_all(events).await.0
}

async fn changed(replacement: &mut Option<Box<Replacement>>) {
    match replacement {
        Some(replacement) => replacement.changed().await,
        None => pending().await,
    }
}

async fn timer_expired(timer: &mut Option<Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.await,
        None => pending().await,
    }
}
