//! A process on its way to take over from the one that runs: started, told of the handshake, asked for its tools.
//!
//! What must stay true: no call reaches it before it is ready; what it asks of the harness meanwhile is asked;
//! [`Successor::next`] may be dropped at any await.

use std::future::pending;
use std::ops::Range;
use std::time::Duration;

use relay_proto::envelope::{self, IdValue, Kind, Outcome, Strictness};
use relay_proto::memory::{Memory, Question, Saying};
use tokio::time::{Instant, timeout_at};

use super::event::{Event, Incarnation};
use super::leaving::{Custody, Leaving};
use super::likeness::{Listing, Tools, Turned, agreement};
use super::start::{StartError, Starter};
use super::state::{Starting, State};
use super::upstream::{Said, Upstream};
use crate::upstream::outbound::Outbound;

pub(super) struct Successor {
    pub(super) incarnation: Incarnation,
    pub(super) custody: Custody,
    /// Of its handshake and its list of tools together, from when it runs.
    deadline: Option<Instant>,
    phase: Phase,
}

enum Phase {
    Listing {
        upstream: Upstream,
        listing: Listing,
    },
    /// Taken over or given up.
    Over,
    Ready {
        upstream: Upstream,
        /// None where nobody knows how its harness would ask for them.
        tools: Option<Tools>,
        /// One that could be asked nothing has to live a little before it is trusted with calls.
        from: Instant,
    },
    Replaying {
        upstream: Upstream,
        asked: IdValue,
    },
    Starting(Starting),
}

/// A program that does not start right is gone by then.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// What happened to it.
pub(super) enum Step {
    Late,
    Said(Event),
    Started(Result<Upstream, StartError>),
}

/// What that means.
#[derive(Debug)]
pub(super) enum Progress {
    Failed(String),
    Going,
    /// For the harness.
    Passed(Event),
    Ready,
}

impl Successor {
    pub(super) fn begin(starter: Starter) -> Self {
        Self {
            incarnation: Incarnation::next(),
            custody: starter.custody(),
            deadline: None,
            phase: Phase::Starting(Box::pin(starter.start_beside())),
        }
    }

    pub(super) async fn next(&mut self) -> Step {
        let upstream = match &mut self.phase {
            Phase::Over => return pending().await,
            Phase::Starting(start) => return Step::Started(start.await),
            Phase::Listing { upstream, .. }
            | Phase::Ready { upstream, .. }
            | Phase::Replaying { upstream, .. } => upstream,
        };
        loop {
            let said = match self.deadline {
                Some(deadline) => match timeout_at(deadline, upstream.next()).await {
                    Ok(said) => said,
                    Err(_) => return Step::Late,
                },
                None => upstream.next().await,
            };
            if let Said::Event(event) = said {
                return Step::Said(event);
            }
        }
    }

    /// Takes one step further. `agreed` is what the handshake of the process before came to, where that is known.
    pub(super) fn advance(&mut self, step: Step, memory: &mut Memory, agreed: Option<u64>) -> Progress {
        match step {
            Step::Late => Progress::Failed(
                "the new process did not answer the repeated handshake or list its tools within `limits.server-start-timeout`".into(),
            ),
            Step::Said(Event::Gone { why }) => Progress::Failed(format!("the new process ended: {why}")),
            Step::Said(Event::Message(message)) => match own_answer(&message, memory) {
                Some((id, outcome, body)) => self.hear(&id, outcome, &message, body, memory, agreed),
                None => Progress::Passed(Event::Message(message)),
            },
            Step::Said(event) => Progress::Passed(event),
            Step::Started(Err(error)) => {
                // The start is over, and must not be waited for again.
                self.phase = Phase::Over;
                Progress::Failed(error.told())
            }
            Step::Started(Ok(mut upstream)) => {
                self.deadline = Some(Instant::now() + self.custody.patience);
                match memory.handshake() {
                    Some(Question { id, method, message }) => {
                        upstream.send(Outbound::request(message, id.clone(), method, None));
                        self.phase = Phase::Replaying { upstream, asked: id };
                        Progress::Going
                    }
                    None => self.list(upstream, memory),
                }
            }
        }
    }

    /// From when on it may take over.
    pub(super) fn ready_from(&self) -> Option<Instant> {
        match self.phase {
            Phase::Ready { from, .. } => Some(from),
            _ => None,
        }
    }

    /// Of one that is ready.
    pub(super) fn tools(&self) -> Option<Tools> {
        match self.phase {
            Phase::Ready { tools, .. } => tools,
            _ => None,
        }
    }

    /// Whether it may be told something: whoever has not heard the handshake hears nothing before.
    pub(super) fn tell(&mut self, message: Outbound) {
        if let Phase::Listing { upstream, .. } | Phase::Ready { upstream, .. } = &mut self.phase
            && !upstream.is_full()
        {
            upstream.send(message);
        }
    }

    /// As the current process, however far it is; `check` says whether its tools are still to be compared.
    pub(super) fn into_state(self, memory: &mut Memory, check: CheckTools) -> State {
        let deadline = self.deadline.unwrap_or_else(Instant::now);
        match self.phase {
            Phase::Over => State::Idle,
            Phase::Starting(start) => State::Starting { start },
            Phase::Replaying { upstream, asked } => State::Replaying { upstream, asked, deadline },
            Phase::Listing { mut upstream, .. } | Phase::Ready { mut upstream, .. } => {
                let mut sayings = memory.preferences();
                if check == CheckTools::Yes {
                    sayings.extend(memory.ask_for_tools().map(Saying::Request));
                }
                upstream.tell(sayings);
                State::Running { upstream, first_word: None }
            }
        }
    }

    /// Ends it in the background, however far it is.
    pub(super) fn see_off(self, leaving: &Leaving) {
        match self.phase {
            Phase::Over => {}
            Phase::Starting(start) => leaving.see_off_starting(start, self.custody),
            Phase::Listing { upstream, .. }
            | Phase::Ready { upstream, .. }
            | Phase::Replaying { upstream, .. } => leaving.see_off(upstream, self.custody),
        }
    }

    fn hear(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
        memory: &mut Memory,
        agreed: Option<u64>,
    ) -> Progress {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Replaying { mut upstream, asked } if asked == *id => {
                memory.own_response(id, outcome, message, None);
                if outcome == Outcome::Error {
                    return self
                        .fail(upstream, "the new process refused the handshake that the old one accepted");
                }
                if agreed.is_some_and(|agreed| agreement(message, body) != Some(agreed)) {
                    return self.fail(
                        upstream,
                        "the protocol's version or the capabilities of the new process differ",
                    );
                }
                upstream.tell(memory.initialized().into_iter().collect());
                self.list(upstream, memory)
            }
            Phase::Listing { mut upstream, mut listing } if listing.asked() == id => {
                match listing.hear(outcome, message, body, memory) {
                    Turned::More(question) => {
                        upstream.send(question);
                        self.phase = Phase::Listing { upstream, listing };
                        Progress::Going
                    }
                    Turned::Done(tools) => self.ready(upstream, Some(tools)),
                }
            }
            phase => {
                self.phase = phase;
                Progress::Going
            }
        }
    }

    fn list(&mut self, mut upstream: Upstream, memory: &mut Memory) -> Progress {
        match Listing::begin(memory) {
            Some((listing, question)) => {
                upstream.send(question);
                self.phase = Phase::Listing { upstream, listing };
                Progress::Going
            }
            None => self.ready(upstream, None),
        }
    }

    fn ready(&mut self, upstream: Upstream, tools: Option<Tools>) -> Progress {
        self.deadline = None;
        let from = Instant::now() + if tools.is_some() { Duration::ZERO } else { SIGN_OF_LIFE };
        self.phase = Phase::Ready { upstream, tools, from };
        Progress::Ready
    }

    fn fail(&mut self, upstream: Upstream, why: &str) -> Progress {
        self.phase = Phase::Ready { upstream, tools: None, from: Instant::now() };
        Progress::Failed(why.into())
    }
}

/// Whether a process that takes over is asked for its tools, so that the harness hears of others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CheckTools {
    No,
    Yes,
}

/// An answer to a question of ours.
fn own_answer(message: &[u8], memory: &Memory) -> Option<(IdValue, Outcome, Option<Range<usize>>)> {
    let envelope = envelope::read(message, Strictness::Envelope).ok()?;
    match envelope.kind {
        Kind::Response { id: Some(id), outcome } => {
            let id = id.value();
            memory.is_own(&id).then_some((id, outcome, envelope.body))
        }
        _ => None,
    }
}
