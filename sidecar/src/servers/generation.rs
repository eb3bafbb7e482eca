//! One process of a server, or one connection to it, from its start to its end.
//!
//! ```text
//!   Idle ─▶ Starting ─▶ Replaying ─▶ Serving ─▶ Draining        the process that calls go to
//!               │            │          ▲
//!               │            ▼          │ promoted
//!               └──────▶ Comparing ─▶ Standby                   a process that is to take over
//!
//!   Ending: given up; what waits for it is answered first
//! ```
//!
//! What must stay true: no call reaches a process before it serves; a process that drains gets no new call; a start
//! that is over is not waited for again; [`Generation::next`] may be dropped at any await.

mod opening;

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use relay_proto::code::Code;
use relay_proto::envelope::IdValue;
use relay_proto::memory::{Memory, Saying};
use tokio::time::{Instant, timeout, timeout_at};

use super::event::{Event, Incarnation, Unavailable};
use super::leaving::{Custody, Leaving};
use super::likeness::{Listing, Tools};
use super::start::{StartError, Starter};
use super::upstream::{Said, StdioProcess, Telling, Upstream};
use crate::process::Ended;
use crate::upstream::outbound::Outbound;

pub(super) struct Generation {
    /// Of the process that runs, or of the one that the next start brings.
    pub(super) id: Incarnation,
    /// None before its start.
    pub(super) custody: Option<Custody>,
    /// What its repeated handshake came to.
    pub(super) agreed: Option<u64>,
    goal: Goal,
    phase: Phase,
    /// When it came to be, or to serve.
    since: Instant,
    telling: Telling,
}

pub(super) type Starting = Pin<Box<dyn Future<Output = Result<Upstream, StartError>> + Send>>;

/// What it is started for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Goal {
    Serve,
    TakeOver,
}

enum Phase {
    Comparing {
        upstream: Upstream,
        listing: Listing,
        deadline: Instant,
    },
    Draining {
        upstream: Upstream,
        until: Instant,
    },
    Ending(Box<Ending>),
    Idle,
    Replaying {
        upstream: Upstream,
        /// Of the repeated handshake.
        asked: IdValue,
        deadline: Instant,
    },
    Serving {
        upstream: Upstream,
        /// A process that has said nothing by then is given up.
        first_reply_by: Option<Instant>,
    },
    Standby {
        upstream: Upstream,
        /// None where it is not known how its harness would ask for them.
        tools: Option<Tools>,
        /// One that could be asked nothing has to live a little before it is trusted with calls.
        from: Instant,
    },
    Starting(Starting),
}

/// A process that is of no use any more.
pub(super) struct Ending {
    upstream: Upstream,
    pub(super) why: String,
    /// What waits for it is refused with this.
    pub(super) code: Code,
    /// How long it was useful.
    pub(super) lived: Duration,
}

/// What happened to it.
pub(super) enum Step {
    /// The deadline of its phase is over.
    Late,
    Said(Said),
    Started(Result<Upstream, StartError>),
}

/// What that means for its owner.
pub(super) enum Progress {
    Event(Event),
    /// It is of no use.
    Failed(String),
    /// An HTTP server has forgotten the session.
    Forgotten,
    /// It ended by itself.
    Gone(String),
    /// It is a step further, and there is nothing to do.
    Going,
    /// The repeated handshake was not sent, or is without an answer.
    NotReplayed {
        code: Code,
        why: String,
    },
    NotStarted(StartError),
    /// It serves, or could.
    Ready,
    /// It did not run, and can be sent again once the session is open again.
    Returned(Outbound),
}

/// Whether a process that takes over is asked for its tools, so that the harness hears of others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CheckTools {
    No,
    Yes,
}

/// What an end may take on top of its grace.
const END_MARGIN: Duration = Duration::from_secs(2);

impl Generation {
    /// None runs; the next start brings this one.
    pub(super) fn idle() -> Self {
        Self {
            id: Incarnation::next(),
            custody: None,
            agreed: None,
            goal: Goal::Serve,
            phase: Phase::Idle,
            since: Instant::now(),
            telling: Telling::default(),
        }
    }

    /// A process that is to take over from the one that serves.
    pub(super) fn to_take_over(starter: Starter) -> Self {
        Self {
            custody: Some(starter.custody()),
            goal: Goal::TakeOver,
            phase: Phase::Starting(Box::pin(starter.start_beside())),
            ..Self::idle()
        }
    }

    #[cfg(test)]
    pub(super) fn starting(start: Starting, custody: Option<Custody>) -> Self {
        Self { custody, phase: Phase::Starting(start), ..Self::idle() }
    }

    #[cfg(test)]
    pub(super) fn serving(upstream: Upstream, custody: Custody) -> Self {
        let phase = Phase::Serving { upstream, first_reply_by: None };
        Self { custody: Some(custody), phase, ..Self::idle() }
    }

    /// Starts it, once those before it are dead: two processes of one server at a time would compete for its files and
    /// its place.
    pub(super) fn start(&mut self, starter: Starter, leaving: Leaving) {
        self.custody = Some(starter.custody());
        self.phase = Phase::Starting(Box::pin(async move {
            leaving.gone().await;
            starter.start().await
        }));
    }

    /// The next thing that happens to it; nothing does to one that is idle or ending.
    pub(super) async fn next(&mut self) -> Step {
        let (upstream, deadline) = match &mut self.phase {
            Phase::Ending(_) | Phase::Idle => return pending().await,
            Phase::Starting(start) => {
                let started = start.await;
                self.phase = Phase::Idle;
                return Step::Started(started);
            }
            Phase::Comparing { upstream, deadline, .. } | Phase::Replaying { upstream, deadline, .. } => {
                (upstream, Some(*deadline))
            }
            Phase::Draining { upstream, until } => (upstream, Some(*until)),
            Phase::Serving { upstream, first_reply_by } => (upstream, *first_reply_by),
            Phase::Standby { upstream, .. } => (upstream, None),
        };
        match deadline {
            None => Step::Said(upstream.next().await),
            Some(deadline) => match timeout_at(deadline, upstream.next()).await {
                Ok(said) => Step::Said(said),
                Err(_) => Step::Late,
            },
        }
    }

    /// What one that drains says, its end included.
    pub(super) async fn next_of_draining(&mut self) -> Event {
        loop {
            match self.next().await {
                Step::Late => return Event::Gone { why: self.lateness() },
                Step::Said(Said::Event(event)) => return event,
                // Of HTTP servers only, and none of those is drained.
                Step::Said(Said::Forgotten | Said::Returned(_)) | Step::Started(_) => {}
            }
        }
    }

    /// Takes one step further. `first` is the method of the first request that waits for it; `agreed` is what the
    /// handshake of the process before came to, where that is known.
    pub(super) fn advance(
        &mut self,
        step: Step,
        memory: &mut Memory,
        first: Option<&str>,
        agreed: Option<u64>,
    ) -> Progress {
        match step {
            Step::Late => Progress::Failed(self.lateness()),
            Step::Started(Err(error)) => Progress::NotStarted(error),
            Step::Started(Ok(upstream)) => self.open(upstream, memory, first),
            Step::Said(Said::Forgotten) => Progress::Forgotten,
            Step::Said(Said::Returned(message)) => Progress::Returned(message),
            Step::Said(Said::Event(event)) => self.on_event(event, memory, agreed),
        }
    }

    /// It serves from now on, however far it is; `check` says whether its tools are still to be compared.
    pub(super) fn promote(&mut self, memory: &mut Memory, check: CheckTools) {
        self.goal = Goal::Serve;
        self.since = Instant::now();
        self.telling = Telling::default();
        self.phase = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Comparing { mut upstream, .. } | Phase::Standby { mut upstream, .. } => {
                let mut messages = memory.preferences();
                if check == CheckTools::Yes {
                    messages.extend(memory.ask_for_tools().map(Saying::Request));
                }
                upstream.tell(messages);
                Phase::Serving { upstream, first_reply_by: None }
            }
            phase => phase,
        };
    }

    /// It gets no new calls, and goes on for those that it has. None where there is no process.
    pub(super) fn drain(mut self) -> Option<Self> {
        let patience = self.custody.as_ref().map_or(Duration::ZERO, |custody| custody.drain);
        let upstream = self.take_upstream()?;
        self.telling = Telling::default();
        self.phase = Phase::Draining { upstream, until: Instant::now() + patience };
        Some(self)
    }

    /// It is of no use any more, after a useful life of this length.
    pub(super) fn give_up(&mut self, lived: Duration, code: Code, why: String) {
        if let Some(upstream) = self.take_upstream() {
            self.phase = Phase::Ending(Box::new(Ending { upstream, why, code, lived }));
        }
    }

    /// Ends it in the background, however far it is. It is idle then.
    pub(super) fn see_off(&mut self, leaving: &Leaving) {
        let Some(custody) = self.custody.clone() else { return };
        if let Phase::Starting(_) = self.phase {
            if let Phase::Starting(start) = std::mem::replace(&mut self.phase, Phase::Idle) {
                leaving.see_off_starting(start, custody);
            }
        } else if let Some(upstream) = self.take_upstream() {
            leaving.see_off(upstream, custody);
        }
    }

    /// Ends whatever runs, descendants included, and says what became of it.
    pub(super) async fn end(mut self, grace: Duration, deadline: Instant) -> Ended {
        if let Some(upstream) = self.take_upstream() {
            return upstream.end(grace).await;
        }
        let Phase::Starting(start) = self.phase else { return Ended::All };
        // The process may exist by now: finish the start, so that its end is waited for too.
        match timeout(grace, start).await {
            Ok(Ok(upstream)) => {
                let left = deadline.saturating_duration_since(Instant::now() + END_MARGIN);
                upstream.end(grace.min(left)).await
            }
            Ok(Err(_)) => Ended::All,
            // It is dropped, and therefore being killed; its end is not waited for.
            Err(_) => Ended::NotYet,
        }
    }

    /// Says something to a process that has heard the handshake. One that does not read is told nothing.
    pub(super) fn tell(&mut self, message: Outbound) {
        match &mut self.phase {
            Phase::Draining { upstream, .. } | Phase::Serving { upstream, .. } => {
                if self.telling.allows(upstream, message.bytes.len()) {
                    upstream.send(message);
                }
            }
            Phase::Comparing { upstream, .. } | Phase::Standby { upstream, .. } => {
                if !upstream.is_full() {
                    upstream.send(message);
                }
            }
            Phase::Ending(_) | Phase::Idle | Phase::Replaying { .. } | Phase::Starting(_) => {}
        }
    }

    /// Sends a request about what this process has; none where it does not serve or drain.
    pub(super) fn send_alone(&mut self, message: Outbound) -> Option<Result<Option<Event>, Unavailable>> {
        match &mut self.phase {
            Phase::Draining { upstream, .. } => Some(upstream.send_alone(message)),
            Phase::Serving { upstream: process @ Upstream::Stdio(_), .. } => {
                Some(process.send_alone(message))
            }
            _ => None,
        }
    }

    /// Whether nothing is on its way to it.
    pub(super) fn has_heard_all(&self) -> bool {
        self.upstream().is_none_or(|upstream| upstream.queued_bytes() == 0)
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    pub(super) fn is_replaying(&self) -> bool {
        matches!(self.phase, Phase::Replaying { .. })
    }

    /// Whether there will be a process soon.
    pub(super) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Replaying { .. } | Phase::Starting(_))
    }

    /// From when on it may take over.
    pub(super) fn ready_from(&self) -> Option<Instant> {
        match self.phase {
            Phase::Standby { from, .. } => Some(from),
            _ => None,
        }
    }

    /// Of one that is ready to take over.
    pub(super) fn tools(&self) -> Option<Tools> {
        match self.phase {
            Phase::Standby { tools, .. } => tools,
            _ => None,
        }
    }

    pub(super) fn ending(&mut self) -> Option<&mut Ending> {
        match &mut self.phase {
            Phase::Ending(ending) => Some(ending),
            _ => None,
        }
    }

    /// How long it has served.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    pub(super) fn upstream(&self) -> Option<&Upstream> {
        match &self.phase {
            Phase::Comparing { upstream, .. }
            | Phase::Draining { upstream, .. }
            | Phase::Replaying { upstream, .. }
            | Phase::Serving { upstream, .. }
            | Phase::Standby { upstream, .. } => Some(upstream),
            Phase::Ending(ending) => Some(&ending.upstream),
            Phase::Idle | Phase::Starting(_) => None,
        }
    }

    /// Of one that serves.
    pub(super) fn serving_mut(&mut self) -> Option<&mut Upstream> {
        match &mut self.phase {
            Phase::Serving { upstream, .. } => Some(upstream),
            _ => None,
        }
    }

    /// The process, where it serves.
    pub(super) fn process(&self) -> Option<&StdioProcess> {
        match &self.phase {
            Phase::Serving { upstream: Upstream::Stdio(process), .. } => Some(process),
            _ => None,
        }
    }

    pub(super) fn process_mut(&mut self) -> Option<&mut StdioProcess> {
        match self.serving_mut() {
            Some(Upstream::Stdio(process)) => Some(process),
            _ => None,
        }
    }

    /// An HTTP server's connection learns that a request was cancelled.
    pub(super) fn cancel(&mut self, id: &IdValue) {
        if let Phase::Replaying { upstream: Upstream::Http(http), .. }
        | Phase::Serving { upstream: Upstream::Http(http), .. } = &mut self.phase
        {
            http.upstream.cancel(id);
        }
    }

    /// It is idle then. None where there is no process, or its start is not over.
    pub(super) fn take_upstream(&mut self) -> Option<Upstream> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Comparing { upstream, .. }
            | Phase::Draining { upstream, .. }
            | Phase::Replaying { upstream, .. }
            | Phase::Serving { upstream, .. }
            | Phase::Standby { upstream, .. } => Some(upstream),
            Phase::Ending(ending) => Some(ending.upstream),
            phase @ (Phase::Idle | Phase::Starting(_)) => {
                self.phase = phase;
                None
            }
        }
    }
}
