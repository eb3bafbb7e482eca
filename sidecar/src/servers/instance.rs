//! The one server of one link, whatever state it is in.
//!
//! It is started by the first message for it, and again after a crash by the next one, not before its backoff is over
//! and its predecessor dead. A new process hears what its predecessor was told before anything else, unless the harness
//! makes a handshake of its own; so does an HTTP server that has forgotten its session. Answers to what we asked in
//! doing so come out like others, under ids that are [`Memory::is_own`]. What waits for a server did not run, and is told so
//! before whatever may have. [`Instance::next`] may be dropped at any await.

use std::future::pending;
use std::time::Duration;

use relay_proto::envelope::{IdValue, Outcome};
use relay_proto::memory::{Heard, Memory, Question, Saying};
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use super::event::{CancelledWhile, Event, Passed, Unavailable};

use super::backoff::Backoff;
use super::leaving::{Custody, Leaving};
use super::queue::Queue;
use super::start::Starter;
use super::state::State;
use super::upstream::{Said, Telling, Upstream};
use crate::process::Ended;
use crate::upstream::outbound::Outbound;
use crate::upstream::stdio::StdioEvent;

pub(crate) struct Instance {
    state: State,
    /// What the harness said to this server, for its successor.
    pub(crate) memory: Memory,
    /// Messages that wait for the start or the handshake.
    queue: Queue,
    backoff: Backoff,
    started: Instant,
    leaving: Leaving,
    custody: Option<Custody>,
    telling: Telling,
}

/// Ids of requests that the sidecar makes by itself begin with this.
const OWN_IDS: &str = "cofferdam-replay-";
/// The whole of an end. With the goodbye before it, a session is over within the promised five seconds.
const END_TIME: Duration = Duration::from_secs(4);
/// What an end may take on top of its grace.
const END_MARGIN: Duration = Duration::from_secs(2);
/// Requests that every server answers soon. A call may take its time, also the first one.
const PROMPT: [&str; 3] = ["initialize", "ping", "server/discover"];

impl Default for Instance {
    fn default() -> Self {
        Self {
            state: State::Idle,
            memory: Memory::new(OWN_IDS),
            queue: Queue::default(),
            backoff: Backoff::default(),
            started: Instant::now(),
            leaving: Leaving::default(),
            custody: None,
            telling: Telling::default(),
        }
    }
}

impl Instance {
    /// Hands one message to a process that can take it at once, which is almost always; otherwise it is to be
    /// [sent](Self::send).
    pub(crate) fn pass(&mut self, message: &[u8]) -> Passed {
        match &mut self.state {
            State::Running { upstream: Upstream::Stdio(stdio), .. } if self.queue.is_empty() => {
                stdio.pass(message)
            }
            _ => Passed::No,
        }
    }

    /// Writes what was passed, as far as the process takes it at once; the rest goes with [`Self::next`].
    pub(crate) fn write_now(&mut self) {
        if let State::Running { upstream: Upstream::Stdio(stdio), .. } = &mut self.state {
            stdio.upstream.write_now();
        }
    }

    /// Sends, or starts the server and sends then.
    pub(crate) fn send(
        &mut self,
        message: Outbound,
        starter: impl FnOnce() -> Starter,
    ) -> Result<(), Unavailable> {
        match &mut self.state {
            State::Running { upstream, .. } if upstream.is_crowded() => {
                Err(Unavailable::because("the server does not read what it is sent"))
            }
            State::Running { upstream, .. } if self.queue.is_empty() && upstream.is_ready_for(&message) => {
                upstream.send(message).map_err(|error| Unavailable::because(error.to_string()))
            }
            State::Ending { why, .. } => Err(Unavailable::because(why.clone())),
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
    pub(crate) fn tell(&mut self, message: Outbound) {
        match &mut self.state {
            State::Ending { .. } | State::Idle => {}
            State::Running { upstream, .. } if self.queue.is_empty() && upstream.is_ready_for(&message) => {
                if self.telling.allows(upstream, message.bytes.len()) {
                    drop(upstream.send(message));
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
    pub(crate) fn cancel(&mut self, id: &IdValue) -> CancelledWhile {
        if self.queue.withdraw(id) {
            return CancelledWhile::Queued;
        }
        if let Some(Upstream::Http(http)) = self.state.upstream_mut() {
            http.upstream.cancel(id);
        }
        CancelledWhile::UnderWay
    }

    /// Whether the server takes so slowly that the link should stop reading.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.is_full() || self.state.upstream().is_some_and(Upstream::is_full)
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.state.upstream().and_then(Upstream::pid)
    }

    /// A message that has arrived already.
    pub(crate) fn buffered(&mut self) -> Option<Event> {
        match &mut self.state {
            State::Running { upstream: Upstream::Stdio(stdio), .. } => match stdio.upstream.buffered()? {
                StdioEvent::Line(line) => Some(Event::Message(line)),
                StdioEvent::Oversize { id } => Some(Event::Oversize { id }),
                StdioEvent::Closed | StdioEvent::Unsent { .. } => None,
            },
            _ => None,
        }
    }

    pub(crate) async fn next(&mut self) -> Event {
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
                        let id = message.request_id().cloned();
                        if let (Err(error), Some(id)) = (upstream.send(message), id) {
                            return Event::did_not_run(id, &error.to_string());
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
                        Said::Event(Event::Message(message)) => match self.memory.hear(&message) {
                            Some(Heard::Handshake(Outcome::Result)) => self.replayed(),
                            Some(Heard::Handshake(Outcome::Error)) => self.give_up(
                                Duration::ZERO,
                                "the server refused the handshake that it accepted before".into(),
                            ),
                            Some(Heard::Nothing | Heard::ToolsChanged) => {}
                            None => return Event::Message(message),
                        },
                        Said::Event(Event::Gone { why }) => self.give_up(Duration::ZERO, why),
                        Said::Event(Event::Failed { id, why, .. }) if id == *asked => {
                            self.give_up(Duration::ZERO, why);
                        }
                        Said::Event(event) => return event,
                        // Told of the session before this handshake.
                        Said::Forgotten => {}
                        Said::Returned(message) => self.queue.push(message),
                    }
                }
                State::Ending { why, lived, .. } => {
                    while let Some(message) = self.queue.pop() {
                        if let Some(id) = message.request_id() {
                            return Event::did_not_run(id.clone(), why);
                        }
                    }
                    let (why, lived) = (std::mem::take(why), *lived);
                    self.lost(lived);
                    return Event::Gone { why };
                }
            }
        }
    }

    /// Ends whatever runs, descendants included, and says what became of it.
    pub(crate) async fn end(self, grace: Duration) -> Ended {
        let Self { state, leaving, .. } = self;
        let deadline = Instant::now() + END_TIME;
        let current = async {
            match state {
                State::Idle => Ended::All,
                State::Ending { upstream, .. }
                | State::Replaying { upstream, .. }
                | State::Running { upstream, .. } => upstream.end(grace).await,
                // The process may exist by now: finish the start, so that its end is waited for too.
                State::Starting { start } => match timeout(grace, start).await {
                    Ok(Ok(upstream)) => {
                        let left = deadline.saturating_duration_since(Instant::now() + END_MARGIN);
                        upstream.end(grace.min(left)).await
                    }
                    Ok(Err(_)) => Ended::All,
                    // Given up, so it is being killed; nobody waits for that.
                    Err(_) => Ended::NotYet,
                },
            }
        };
        let all = async { tokio::join!(current, leaving.gone()) };
        match timeout_at(deadline, all).await {
            Ok((Ended::All, Ended::All)) => Ended::All,
            Ok(_) | Err(_) => Ended::NotYet,
        }
    }

    fn start(&mut self, starter: Starter) {
        self.custody = Some(starter.custody());
        let leaving = self.leaving.clone();
        self.state = State::Starting {
            start: Box::pin(async move {
                // Two processes of one server at a time would fight for its files and its place.
                leaving.gone().await;
                starter.start().await
            }),
        };
    }

    /// A server is there: the handshake first, where there is one to repeat.
    fn open(&mut self, mut upstream: Upstream) {
        self.started = Instant::now();
        self.telling = Telling::default();
        let patience = self.custody.as_ref().map_or(Duration::ZERO, |custody| custody.patience);
        let deadline = self.started + patience;
        let first = self.queue.first_method();
        let handshake = match first {
            // The harness makes its own.
            Some("initialize") => None,
            _ => self.memory.handshake(),
        };
        match handshake {
            None => {
                let is_prompt = first.is_some_and(|method| PROMPT.contains(&method));
                let first_word = (is_prompt && matches!(upstream, Upstream::Stdio(_))).then_some(deadline);
                if first != Some("initialize") {
                    self.tell_settings(&mut upstream);
                }
                self.state = State::Running { upstream, first_word };
            }
            Some(Question { id, method, message }) => {
                // If it cannot be sent, the time runs out.
                drop(upstream.send(Outbound::request(message, id.clone(), method, None)));
                self.state = State::Replaying { upstream, asked: id, deadline };
            }
        }
    }

    fn replayed(&mut self) {
        let State::Replaying { mut upstream, .. } = std::mem::replace(&mut self.state, State::Idle) else {
            return;
        };
        self.tell_settings(&mut upstream);
        self.state = State::Running { upstream, first_word: None };
    }

    /// What cannot be sent is not told; the process is then on its way out.
    fn tell_settings(&mut self, upstream: &mut Upstream) {
        for saying in self.memory.settings() {
            drop(upstream.send(match saying {
                Saying::Notification { method, message } => Outbound::notification(message, method),
                Saying::Request(Question { id, method, message }) => {
                    Outbound::request(message, id, method, None)
                }
            }));
        }
    }

    /// Opens a forgotten session again, unless the server forgets all the time.
    fn renew(&mut self) {
        let State::Running { upstream, .. } = &self.state else { return };
        // The news may be older than the present session.
        if !upstream.has_lost_its_session() {
            return;
        }
        self.backoff.failed(self.started.elapsed());
        if self.backoff.wait().is_some() {
            return self.give_up(Duration::ZERO, "the server keeps forgetting the MCP session".into());
        }
        if !self.memory.has_handshake() && self.queue.first_method() != Some("initialize") {
            return self.give_up(Duration::ZERO, "the server ended the MCP session".into());
        }
        if let State::Running { upstream, .. } = std::mem::replace(&mut self.state, State::Idle) {
            self.open(upstream);
        }
    }

    /// The server is of no use any more, after a useful life of this length.
    fn give_up(&mut self, lived: Duration, why: String) {
        if let Some(upstream) = std::mem::replace(&mut self.state, State::Idle).into_upstream() {
            self.state = State::Ending { upstream, why, lived };
        }
    }

    /// Back to idle; what is left of the server dies in the background.
    fn lost(&mut self, lived: Duration) {
        self.backoff.failed(lived);
        let upstream = std::mem::replace(&mut self.state, State::Idle).into_upstream();
        if let (Some(upstream), Some(custody)) = (upstream, self.custody.clone()) {
            self.leaving.see_off(upstream, custody);
        }
    }
}

#[cfg(test)]
mod tests;
