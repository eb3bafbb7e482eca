//! The server of a link that new messages go to, whatever state it is in.
//!
//! It is started by the first message for it, and again after a crash by the next one, not before its backoff is over
//! and its predecessor dead. A new process hears what its predecessor was told before anything else, unless the harness
//! makes a handshake of its own; so does an HTTP server that has forgotten its session. Answers to what we asked in
//! doing so come out like others, under ids that are [`Memory::is_own`]. What waits for a server did not run, and is told so
//! before whatever may have. [`Current::next`] may be dropped at any await.

mod opening;

use std::future::pending;
use std::time::Duration;

use relay_proto::code::Code;
use relay_proto::envelope::{IdValue, Outcome};
use relay_proto::memory::{Heard, Memory};
use tokio::time::{Instant, timeout_at};

use super::backoff::Backoff;
use super::event::{CancelledWhile, Event, Incarnation, Passed, Unavailable};
use super::leaving::{Custody, Leaving};
use super::likeness::agreement_in;
use super::queue::Queue;
use super::start::Starter;
use super::state::State;
use super::upstream::{Said, StdioProcess, Telling, Upstream};
use crate::upstream::outbound::Outbound;
use crate::upstream::stdio::StdioEvent;

pub(super) struct Current {
    state: State,
    /// Which process this is, or will be: the next one from the moment that this one is gone.
    pub(super) incarnation: Incarnation,
    /// What the harness said to this server, for its successor.
    pub(super) memory: Memory,
    /// Messages that wait for the start or the handshake.
    queue: Queue,
    backoff: Backoff,
    started: Instant,
    pub(super) leaving: Leaving,
    pub(super) custody: Option<Custody>,
    telling: Telling,
    /// What the handshake came to that was repeated for this process.
    pub(super) agreed: Option<u64>,
}

/// Ids of requests that the sidecar makes by itself begin with this.
const OWN_IDS: &str = "cofferdam-replay-";

impl Default for Current {
    fn default() -> Self {
        Self {
            state: State::Idle,
            incarnation: Incarnation::next(),
            memory: Memory::new(OWN_IDS),
            queue: Queue::default(),
            backoff: Backoff::default(),
            started: Instant::now(),
            leaving: Leaving::default(),
            custody: None,
            telling: Telling::default(),
            agreed: None,
        }
    }
}

impl Current {
    /// Hands one message to a process that can take it at once, which is almost always; otherwise it is to be
    /// [sent](Self::send).
    pub(super) fn pass(&mut self, message: &[u8]) -> Passed {
        match &mut self.state {
            State::Running { upstream: Upstream::Stdio(stdio), .. } if self.queue.is_empty() => {
                stdio.pass(message)
            }
            _ => Passed::No,
        }
    }

    pub(super) fn write_now(&mut self) {
        if let State::Running { upstream: Upstream::Stdio(stdio), .. } = &mut self.state {
            stdio.upstream.write_now();
        }
    }

    /// Sends, or starts the server and sends then.
    pub(super) fn send(
        &mut self,
        message: Outbound,
        starter: impl FnOnce() -> Starter,
    ) -> Result<(), Unavailable> {
        match &mut self.state {
            State::Running { upstream, .. } if upstream.is_crowded() => {
                Err(Unavailable::because("the server does not read what it is sent"))
            }
            State::Running { upstream, .. } if self.queue.is_empty() && upstream.is_ready_for(&message) => {
                upstream.send(message);
                Ok(())
            }
            State::Ending { why, code, .. } => Err(Unavailable { code: *code, why: why.clone() }),
            State::Replaying { .. } | State::Running { .. } | State::Starting { .. } => {
                if self.queue.is_crowded() {
                    return Err(Unavailable::because("the server is starting and too much waits for it"));
                }
                self.queue.push(message);
                Ok(())
            }
            State::Idle => {
                if let Some(wait) = self.backoff.wait() {
                    let seconds = wait.as_secs() + 1;
                    return Err(Unavailable::because(format!(
                        "the server keeps failing; it is started again in {seconds} s at the earliest"
                    )));
                }
                self.queue.push(message);
                self.start(starter());
                Ok(())
            }
        }
    }

    /// Says something to a server that runs, or will soon: nobody starts one to tell it that, and one that does not
    /// read is told nothing. Its own end is reported by `next`.
    pub(super) fn tell(&mut self, message: Outbound) {
        match &mut self.state {
            State::Ending { .. } | State::Idle => {}
            State::Running { upstream, .. } if self.queue.is_empty() && upstream.is_ready_for(&message) => {
                if self.telling.allows(upstream, message.bytes.len()) {
                    upstream.send(message);
                }
            }
            State::Replaying { .. } | State::Running { .. } | State::Starting { .. } => {
                if !self.queue.is_crowded() {
                    self.queue.push(message);
                }
            }
        }
    }

    /// The harness gave up on a request: HTTP servers learn it by the end of the stream.
    pub(super) fn cancel(&mut self, id: &IdValue) -> CancelledWhile {
        if self.queue.withdraw(id) {
            return CancelledWhile::Queued;
        }
        if let Some(Upstream::Http(http)) = self.state.upstream_mut() {
            http.upstream.cancel(id);
        }
        CancelledWhile::UnderWay
    }

    /// Whether the server takes so slowly that the link should stop reading.
    pub(super) fn is_full(&self) -> bool {
        self.queue.is_full() || self.state.upstream().is_some_and(Upstream::is_full)
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.state.upstream().and_then(Upstream::pid)
    }

    /// A message that has arrived already.
    pub(super) fn buffered(&mut self) -> Option<Event> {
        match &mut self.state {
            State::Running { upstream: Upstream::Stdio(stdio), .. } => match stdio.upstream.buffered()? {
                StdioEvent::Line(line) => Some(Event::Message(line)),
                StdioEvent::Oversize { id } => Some(Event::Oversize { id }),
                StdioEvent::Closed | StdioEvent::Unsent { .. } => None,
            },
            _ => None,
        }
    }

    pub(super) async fn next(&mut self) -> Event {
        loop {
            match &mut self.state {
                State::Idle => return pending().await,
                State::Starting { start } => match start.await {
                    Ok(upstream) => self.open(upstream),
                    Err(error) => {
                        self.queue.clear();
                        match error.is_paced() {
                            true => self.state = State::Idle,
                            false => self.lost(Duration::ZERO),
                        }
                        return Event::NotStarted { code: error.code(), why: error.told() };
                    }
                },
                State::Running { upstream, first_word } => {
                    while let Some(message) = self.queue.pop_if(|first| upstream.is_ready_for(first)) {
                        let sent_with = upstream.sent_with(&message);
                        upstream.send(message);
                        if let Some(event) = sent_with {
                            return event;
                        }
                    }
                    let said = match *first_word {
                        None => upstream.next().await,
                        Some(deadline) => match timeout_at(deadline, upstream.next()).await {
                            Ok(said) => said,
                            Err(_) => {
                                let why = "the server said nothing within `limits.server-start-timeout`";
                                self.give_up(Duration::ZERO, why.into());
                                continue;
                            }
                        },
                    };
                    *first_word = None;
                    match said {
                        Said::Event(Event::Gone { why }) => self.give_up(self.started.elapsed(), why),
                        Said::Event(event) => return event,
                        Said::Forgotten => self.renew(),
                        Said::Returned(message) => {
                            self.queue.push(message);
                            self.renew();
                        }
                    }
                    if matches!(self.state, State::Replaying { .. }) {
                        return Event::Forgotten;
                    }
                }
                State::Replaying { upstream, asked, deadline } => {
                    let Ok(said) = timeout_at(*deadline, upstream.next()).await else {
                        let why = "the server did not answer the repeated handshake in time";
                        self.give_up(Duration::ZERO, why.into());
                        continue;
                    };
                    match said {
                        Said::Event(Event::Message(message)) => match self.memory.read_own_response(&message)
                        {
                            Some(Heard::Handshake(Outcome::Result)) => {
                                self.agreed = agreement_in(&message);
                                self.replayed();
                            }
                            Some(Heard::Handshake(Outcome::Error)) => self.give_up(
                                Duration::ZERO,
                                "the server refused the handshake that it accepted before".into(),
                            ),
                            Some(Heard::Nothing | Heard::ToolsChanged) => {}
                            None => return Event::Message(message),
                        },
                        Said::Event(Event::Gone { why }) => self.give_up(Duration::ZERO, why),
                        Said::Event(Event::Failed { id, code, why }) if id == *asked => {
                            self.not_replayed(code, &why);
                        }
                        Said::Event(event) => return event,
                        // Told of the session before this handshake.
                        Said::Forgotten => {}
                        Said::Returned(message) => self.queue.push(message),
                    }
                }
                State::Ending { why, code, lived, .. } => {
                    while let Some(message) = self.queue.pop() {
                        if let Some(id) = message.request_id() {
                            return Event::refused(id.clone(), *code, why);
                        }
                    }
                    let (why, code, lived) = (std::mem::take(why), *code, *lived);
                    match code {
                        // Whoever is asked for one has a pace of its own.
                        Code::CredentialUnavailable => self.let_go(),
                        _ => self.lost(lived),
                    }
                    return Event::Gone { why };
                }
            }
        }
    }

    /// One whose start is this.
    #[cfg(test)]
    pub(super) fn starting(start: super::state::Starting) -> Self {
        Self { state: State::Starting { start }, ..Self::default() }
    }

    /// What is left of it, to be ended.
    pub(super) fn into_parts(self) -> (State, Leaving) {
        (self.state, self.leaving)
    }

    /// The process, where it runs and its handshake is over.
    pub(super) fn process(&self) -> Option<&StdioProcess> {
        match &self.state {
            State::Running { upstream: Upstream::Stdio(process), .. } => Some(process),
            _ => None,
        }
    }

    pub(super) fn process_mut(&mut self) -> Option<&mut StdioProcess> {
        match &mut self.state {
            State::Running { upstream: Upstream::Stdio(process), .. } => Some(process),
            _ => None,
        }
    }

    /// For requests about what the process has that runs; none where there is none.
    pub(super) fn send_to_process(
        &mut self,
        message: &Outbound,
    ) -> Option<Result<Option<Event>, Unavailable>> {
        match &mut self.state {
            State::Running { upstream: process @ Upstream::Stdio(_), .. } => {
                Some(process.send_alone(message.clone()))
            }
            _ => None,
        }
    }

    /// Whether nothing runs, and nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Ends whatever runs in the background.
    pub(super) fn dismiss(mut self) -> Leaving {
        self.lost(Duration::ZERO);
        self.leaving
    }

    /// Whether there will be a process soon.
    pub(super) fn is_opening(&self) -> bool {
        matches!(self.state, State::Replaying { .. } | State::Starting { .. })
    }
}

#[cfg(test)]
mod tests;
