//! The server of a link that new messages go to, whatever state it is in.
//!
//! It is started by the first message for it, and again after a crash by the next one, not before its backoff is over
//! and its predecessor dead. A new process hears what its predecessor was told before anything else, unless the harness
//! makes a handshake of its own; so does an HTTP server that has forgotten its session. Answers to what we asked in
//! doing so come out like others, under ids that are [`Memory::is_own`]. What waits for a server did not run, and is told so
//! before whatever may have. [`Current::next`] may be dropped at any await.

use std::time::Duration;

use relay_proto::code::Code;
use relay_proto::envelope::IdValue;
use relay_proto::memory::Memory;

use super::backoff::Backoff;
use super::event::{CancelledWhile, DID_NOT_RUN, Event, Incarnation, Passed, Unavailable};
use super::generation::{Generation, Progress};
use super::leaving::Leaving;
use super::queue::Queue;
use super::start::Starter;
use super::upstream::{StdioProcess, Upstream};
use crate::upstream::outbound::Outbound;
use crate::upstream::stdio::StdioEvent;

pub(super) struct Current {
    /// The process, or the one that the next message starts.
    pub(super) generation: Generation,
    /// What the harness said to this server, for its successor.
    pub(super) memory: Memory,
    /// Messages that wait for the start or the handshake.
    queue: Queue,
    backoff: Backoff,
    pub(super) leaving: Leaving,
}

/// Whether the handshake is repeated in a session that was lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reopened {
    No,
    Yes,
}

/// Ids of requests that the sidecar makes by itself begin with this.
const OWN_IDS: &str = "cofferdam-replay-";

impl Default for Current {
    fn default() -> Self {
        Self {
            generation: Generation::idle(),
            memory: Memory::new(OWN_IDS),
            queue: Queue::default(),
            backoff: Backoff::default(),
            leaving: Leaving::default(),
        }
    }
}

impl Current {
    pub(super) fn id(&self) -> Incarnation {
        self.generation.id
    }

    /// Hands one message to a process that can take it at once, which is almost always; otherwise it is to be
    /// [sent](Self::send).
    pub(super) fn pass(&mut self, message: &[u8]) -> Passed {
        match self.generation.process_mut() {
            Some(process) if self.queue.is_empty() => process.pass(message),
            _ => Passed::No,
        }
    }

    pub(super) fn write_now(&mut self) {
        if let Some(process) = self.generation.process_mut() {
            process.upstream.write_now();
        }
    }

    /// Sends, or starts the server and sends then.
    pub(super) fn send(
        &mut self,
        message: Outbound,
        starter: impl FnOnce() -> Starter,
    ) -> Result<(), Unavailable> {
        if let Some(ending) = self.generation.ending() {
            return Err(Unavailable { code: ending.code, why: ending.why.clone() });
        }
        if let Some(upstream) = self.generation.serving_mut() {
            if upstream.is_crowded() {
                return Err(Unavailable::because("the server does not read what it is sent"));
            }
            if self.queue.is_empty() && upstream.is_ready_for(&message) {
                upstream.send(message);
                return Ok(());
            }
        }
        if self.generation.is_idle() {
            if let Some(wait) = self.backoff.wait() {
                let seconds = wait.as_secs() + 1;
                return Err(Unavailable::because(format!(
                    "the server keeps failing; it is started again in {seconds} s at the earliest"
                )));
            }
            self.queue.push(message);
            self.generation.start(starter(), self.leaving.clone());
            return Ok(());
        }
        if self.queue.is_crowded() {
            return Err(Unavailable::because("the server is starting and too much waits for it"));
        }
        self.queue.push(message);
        Ok(())
    }

    /// Says something to a server that runs, or will soon: none is started for that, and one that does not read is
    /// told nothing. Its own end is reported by `next`.
    pub(super) fn tell(&mut self, message: Outbound) {
        if self.generation.is_idle() || self.generation.ending().is_some() {
            return;
        }
        let is_empty = self.queue.is_empty();
        let is_ready = self.generation.serving_mut().is_some_and(|upstream| upstream.is_ready_for(&message));
        if is_empty && is_ready {
            self.generation.tell(message);
        } else if !self.queue.is_crowded() {
            self.queue.push(message);
        }
    }

    /// The harness gave up on a request: HTTP servers learn it by the end of the stream.
    pub(super) fn cancel(&mut self, id: &IdValue) -> CancelledWhile {
        if self.queue.withdraw(id) {
            return CancelledWhile::Queued;
        }
        self.generation.cancel(id);
        CancelledWhile::UnderWay
    }

    /// Whether the server takes so slowly that the link should stop reading.
    pub(super) fn is_full(&self) -> bool {
        self.queue.is_full() || self.generation.upstream().is_some_and(Upstream::is_full)
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.generation.upstream().and_then(Upstream::pid)
    }

    /// A message that has arrived already.
    pub(super) fn buffered(&mut self) -> Option<Event> {
        match self.generation.process_mut()?.upstream.buffered()? {
            StdioEvent::Line(line) => Some(Event::Message(line)),
            StdioEvent::Oversize { id } => Some(Event::Oversize { id }),
            StdioEvent::Closed | StdioEvent::Unsent { .. } => None,
        }
    }

    pub(super) async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.next_of_ending() {
                return event;
            }
            if let Some(event) = self.send_queued() {
                return event;
            }
            let step = self.generation.next().await;
            let Self { generation, memory, queue, .. } = self;
            match generation.advance(step, memory, queue.first_method(), None) {
                Progress::Event(event) => return event,
                Progress::Failed(why) => self.give_up(Duration::ZERO, why),
                Progress::Forgotten => {
                    if self.open_again() == Reopened::Yes {
                        return Event::Forgotten;
                    }
                }
                Progress::Going | Progress::Ready => {}
                Progress::Gone(why) => {
                    let lived = match self.generation.is_opening() {
                        true => Duration::ZERO,
                        false => self.generation.age(),
                    };
                    self.give_up(lived, why);
                }
                Progress::NotReplayed { code, why } => self.not_replayed(code, &why),
                Progress::NotStarted(error) => {
                    self.queue.clear();
                    if !error.is_paced() {
                        self.backoff.failed(Duration::ZERO);
                    }
                    return Event::NotStarted { code: error.code(), why: error.told() };
                }
                Progress::Returned(message) => {
                    self.queue.push(message);
                    if self.open_again() == Reopened::Yes {
                        return Event::Forgotten;
                    }
                }
            }
        }
    }

    /// What is left of it, to be ended.
    pub(super) fn into_parts(self) -> (Generation, Leaving) {
        (self.generation, self.leaving)
    }

    /// The process, where it runs and its handshake is over.
    pub(super) fn process(&self) -> Option<&StdioProcess> {
        self.generation.process()
    }

    pub(super) fn process_mut(&mut self) -> Option<&mut StdioProcess> {
        self.generation.process_mut()
    }

    /// Whether nothing runs, and nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.generation.is_idle()
    }

    /// Whether there will be a process soon.
    pub(super) fn is_opening(&self) -> bool {
        self.generation.is_opening()
    }

    /// Ends whatever runs in the background.
    pub(super) fn dismiss(mut self) -> Leaving {
        self.generation.see_off(&self.leaving);
        self.leaving
    }

    /// Puts another process, or the way to one, in the place of this one, which has been sent all that waited for it
    /// and drains; none where there is none.
    pub(super) fn hand_over(&mut self, next: Generation) -> Option<Generation> {
        if let Some(upstream) = self.generation.serving_mut() {
            while let Some(message) = self.queue.pop() {
                // A process takes everything; what it does not get comes back from it.
                upstream.send(message);
            }
        }
        std::mem::replace(&mut self.generation, next).drain()
    }

    /// Gives a server that serves what waits for it, and says what the link should hear of that.
    fn send_queued(&mut self) -> Option<Event> {
        let upstream = self.generation.serving_mut()?;
        while let Some(message) = self.queue.pop_if(|first| upstream.is_ready_for(first)) {
            let sent_with = upstream.sent_with(&message);
            upstream.send(message);
            if sent_with.is_some() {
                return sent_with;
            }
        }
        None
    }

    /// What the link hears of a process that was given up: first what did not run, then its end.
    fn next_of_ending(&mut self) -> Option<Event> {
        let ending = self.generation.ending()?;
        while let Some(message) = self.queue.pop() {
            if let Some(id) = message.request_id() {
                return Some(Event::refused(id.clone(), ending.code, &ending.why));
            }
        }
        let why = std::mem::take(&mut ending.why);
        // Where credentials are asked for, the next try waits by itself.
        if ending.code != Code::CredentialUnavailable {
            self.backoff.failed(ending.lived);
        }
        self.generation.see_off(&self.leaving);
        Some(Event::Gone { why })
    }

    /// Opens a forgotten session again, unless the server forgets all the time.
    fn open_again(&mut self) -> Reopened {
        let Some(upstream) = self.generation.serving_mut() else { return Reopened::No };
        // The news may be older than the present session.
        if !upstream.has_lost_its_session() {
            return Reopened::No;
        }
        self.backoff.failed(self.generation.age());
        if self.backoff.wait().is_some() {
            self.give_up(Duration::ZERO, "the server keeps forgetting the MCP session".into());
        } else if !self.memory.has_handshake() && self.queue.first_method() != Some("initialize") {
            self.give_up(Duration::ZERO, "the server ended the MCP session".into());
        } else if let Some(upstream) = self.generation.take_upstream() {
            self.generation.open(upstream, &mut self.memory, self.queue.first_method());
        }
        match self.generation.is_replaying() {
            true => Reopened::Yes,
            false => Reopened::No,
        }
    }

    fn give_up(&mut self, lived: Duration, why: String) {
        self.generation.give_up(lived, Code::ServerUnavailable, why);
    }

    /// The repeated handshake got no answer.
    fn not_replayed(&mut self, code: Code, why: &str) {
        let why = why.strip_prefix(DID_NOT_RUN).unwrap_or(why);
        let code = match code {
            Code::CredentialUnavailable => code,
            _ => Code::ServerUnavailable,
        };
        self.generation.give_up(Duration::ZERO, code, format!("the handshake could not be repeated: {why}"));
    }
}

#[cfg(test)]
mod tests;
