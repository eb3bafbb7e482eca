//! One process of a slot, or one connection to an HTTP server, from its start to its end.
//!
//! ```text
//!   Starting ─▶ Started ─▶ Replaying ─▶ Serving ─▶ Draining     the process that calls go to
//!       │                      │           ▲
//!       │                      ▼           │ promoted
//!       └─────────────────▶ Comparing ─▶ Standby                 a process that is to take over
//! ```
//!
//! What must stay true: no call reaches a process before it serves; a draining process gets no new call, only requests
//! about what it has; a start that has ended is not waited for again; [`Generation::next`] may be dropped at any await.

mod opening;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_process::Ended;
use cofferdam_secrets::Reads;
use relay_proto::code::Code;
use relay_proto::envelope::IdValue;
use relay_proto::replay::{Replay, ReplayMessage};
use tokio::time::{Instant, timeout, timeout_at};

use crate::event::{Event, ProcessId, Role};
use crate::launcher::Launcher;
use crate::leaving::{EndPolicy, Leaving, StartFuture};
use crate::outbound::{Outbound, Outgoing};
use crate::spec::ServerSpec;
use crate::start_error::StartError;
use crate::tool_fingerprint::{Fingerprinting, ToolFingerprint};
use crate::upstream::stdio::StdioEvent;
use crate::upstream::{NotificationBudget, StdioProcess, Upstream};

pub(crate) struct Generation {
    pub(crate) id: ProcessId,
    /// As configured when it was started.
    pub(crate) spec: Arc<ServerSpec>,
    /// A hash of what its replayed handshake agreed on.
    pub(crate) agreed: Option<u64>,
    end_policy: EndPolicy,
    goal: Goal,
    phase: Phase,
    /// When it was started, or began to serve.
    since: Instant,
    budget: NotificationBudget,
}

/// What it is started for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Goal {
    Serve,
    TakeOver,
}

enum Phase {
    Comparing {
        upstream: Upstream,
        tools: Fingerprinting,
        deadline: Instant,
    },
    Draining {
        upstream: Upstream,
        until: Instant,
    },
    /// Its upstream was taken out.
    Over,
    Replaying {
        upstream: Upstream,
        /// The id of the replayed handshake.
        asked: IdValue,
        deadline: Instant,
    },
    Serving {
        upstream: Upstream,
        /// A process that has sent nothing by then is given up.
        first_reply_by: Option<Instant>,
    },
    Standby {
        upstream: Upstream,
        /// None where it is not known how the harness would ask for them.
        tools: Option<ToolFingerprint>,
        /// A process that could be asked nothing has to live a little before it is trusted with calls.
        from: Instant,
    },
    /// It runs and was sent nothing: the pipeline says what comes first.
    Started(Upstream),
    Starting(StartFuture),
}

/// What happened to it.
pub(crate) enum Step {
    Event(Event),
    /// The deadline of its phase has passed.
    Late,
    Started(Result<Upstream, StartError>),
}

/// What that means for its slot.
pub(crate) enum Progress {
    Event(Event),
    /// It is a step further, and there is nothing to do.
    Going,
    NotStarted(StartError),
    /// It is of no use any more, after a useful life of this length. What waits for it is refused with this code.
    Over {
        code: Code,
        why: String,
        lived: Duration,
    },
    /// It serves, or could.
    Ready,
    /// [`Generation::open`] is next.
    Started,
}

/// What became of a message.
pub(crate) enum Delivery {
    /// The process is starting, or its session is being opened again.
    NotReady(Outbound),
    /// It did not run.
    Refused { code: Code, why: String },
    Sent {
        /// The reads of its secrets, where the message was decided with others.
        other_reads: Option<Arc<Reads>>,
    },
}

/// Whether a process that takes over is asked for its tools, so that the harness is notified if they changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CheckTools {
    No,
    Yes,
}

/// What an end may take on top of its grace.
const END_MARGIN: Duration = Duration::from_secs(2);
const DOES_NOT_READ: &str = "the server does not read what it is sent";

impl Generation {
    /// Starts a process once those before it are dead: two processes of one slot at a time would compete for its
    /// files and its permit.
    pub(crate) fn start(launcher: Launcher, leaving: Leaving) -> Self {
        let (spec, policy) = (Arc::clone(launcher.server()), launcher.end_policy());
        let start = Box::pin(async move {
            leaving.gone().await;
            launcher.start().await
        });
        Self::starting(start, Goal::Serve, spec, policy)
    }

    /// Starts a process that is to take over from the one that serves.
    pub(crate) fn start_successor(launcher: Launcher) -> Self {
        let (spec, policy) = (Arc::clone(launcher.server()), launcher.end_policy());
        Self::starting(Box::pin(launcher.start_successor()), Goal::TakeOver, spec, policy)
    }

    fn starting(start: StartFuture, goal: Goal, spec: Arc<ServerSpec>, end_policy: EndPolicy) -> Self {
        Self {
            id: ProcessId::next(),
            spec,
            agreed: None,
            end_policy,
            goal,
            phase: Phase::Starting(start),
            since: Instant::now(),
            budget: NotificationBudget::default(),
        }
    }

    /// For tests: a start that ends as the test says.
    #[cfg(test)]
    pub(crate) fn starting_with(start: StartFuture, spec: Arc<ServerSpec>, policy: EndPolicy) -> Self {
        Self::starting(start, Goal::Serve, spec, policy)
    }

    /// The next thing that happens to it.
    pub(crate) async fn next(&mut self) -> Step {
        let (upstream, deadline) = match &mut self.phase {
            Phase::Over | Phase::Started(_) => return pending().await,
            Phase::Starting(start) => {
                let started = start.await;
                self.phase = Phase::Over;
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
            None => Step::Event(upstream.next().await),
            Some(deadline) => match timeout_at(deadline, upstream.next()).await {
                Ok(event) => Step::Event(event),
                Err(_) => Step::Late,
            },
        }
    }

    /// The next event of a draining process, its end included.
    pub(crate) async fn next_of_draining(&mut self) -> Event {
        loop {
            match self.next().await {
                Step::Event(Event::SessionLost) | Step::Started(_) => {}
                Step::Event(Event::Gone { code, why, .. }) => {
                    return Event::Gone { was: Role::Draining, code, why };
                }
                Step::Event(event) => return event,
                Step::Late => {
                    let (code, why) = (Code::ServerUnavailable, opening::explain_lateness(self));
                    return Event::Gone { was: Role::Draining, code, why };
                }
            }
        }
    }

    /// A message that has arrived already.
    pub(crate) fn buffered(&mut self) -> Option<Event> {
        match self.process_mut()?.pipes.buffered()? {
            StdioEvent::Line(line) => Some(Event::Message(line)),
            StdioEvent::Oversize { id } => Some(Event::Oversize { id }),
            StdioEvent::Closed | StdioEvent::Unsent { .. } => None,
        }
    }

    /// Sends a message to a process that serves or drains. Others are sent nothing but notifications and responses,
    /// once they have been sent the handshake.
    pub(crate) fn send(&mut self, message: Outgoing<'_>) -> Delivery {
        let sent = Delivery::Sent { other_reads: None };
        match &mut self.phase {
            Phase::Serving { upstream, .. } | Phase::Draining { upstream, .. } if message.is_request() => {
                if upstream.is_crowded() {
                    return Delivery::Refused { code: Code::ServerUnavailable, why: DOES_NOT_READ.into() };
                }
                if let (Upstream::Stdio(process), Outgoing::Request { bytes, .. }) =
                    (&mut *upstream, &message)
                {
                    // Its decision names the reads that this process has.
                    process.send(bytes);
                    return sent;
                }
                let message = message.into_kept();
                if !upstream.is_ready_for(&message) {
                    return Delivery::NotReady(message);
                }
                let other_reads = upstream.other_reads(&message);
                upstream.send(message);
                Delivery::Sent { other_reads }
            }
            Phase::Serving { upstream, .. } | Phase::Draining { upstream, .. } => {
                let message = message.into_kept();
                if !upstream.is_ready_for(&message) {
                    return Delivery::NotReady(message);
                }
                if self.budget.allows(upstream, message.bytes.len()) {
                    upstream.send(message);
                }
                sent
            }
            Phase::Comparing { upstream, .. } | Phase::Standby { upstream, .. } => {
                if !message.is_request() && !upstream.is_full() {
                    upstream.send(message.into_kept());
                }
                sent
            }
            Phase::Over | Phase::Replaying { .. } | Phase::Started(_) | Phase::Starting(_) => {
                Delivery::NotReady(message.into_kept())
            }
        }
    }

    /// Writes what was queued, as far as the process takes it at once.
    pub(crate) fn flush(&mut self) {
        if let Some(process) = self.process_mut() {
            process.pipes.write_now();
        }
    }

    /// An HTTP server's connection learns that a request was cancelled.
    pub(crate) fn cancel(&mut self, id: &IdValue) {
        if let Phase::Draining { upstream, .. }
        | Phase::Replaying { upstream, .. }
        | Phase::Serving { upstream, .. } = &mut self.phase
        {
            upstream.cancel(id);
        }
    }

    /// It serves from now on, however far it is; `check` says whether its tools are still to be compared.
    pub(crate) fn promote(&mut self, replay: &mut Replay, check: CheckTools) {
        self.goal = Goal::Serve;
        self.since = Instant::now();
        self.budget = NotificationBudget::default();
        self.phase = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Comparing { mut upstream, .. } | Phase::Standby { mut upstream, .. } => {
                let mut messages = replay.preferences();
                if check == CheckTools::Yes {
                    messages.extend(replay.ask_for_tools().map(ReplayMessage::Request));
                }
                upstream.send_all(messages);
                Phase::Serving { upstream, first_reply_by: None }
            }
            phase => phase,
        };
    }

    /// Turns it into one that gets no new calls and finishes those that it has. None where there is no process that
    /// could have any; that one is ended.
    pub(crate) fn drain(mut self, leaving: &Leaving) -> Option<Self> {
        let until = Instant::now() + self.end_policy.drain;
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Serving { upstream, .. } | Phase::Replaying { upstream, .. } => {
                self.budget = NotificationBudget::default();
                self.phase = Phase::Draining { upstream, until };
                Some(self)
            }
            phase => {
                self.phase = phase;
                self.end_in_background(leaving);
                None
            }
        }
    }

    /// Ends it in the background, however far it is.
    pub(crate) fn end_in_background(mut self, leaving: &Leaving) {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Starting(start) => leaving.end_starting(start, self.end_policy),
            phase => {
                if let Some(upstream) = phase.into_upstream() {
                    leaving.end(upstream, self.end_policy);
                }
            }
        }
    }

    /// Ends it, descendants included, and says what became of it.
    pub(crate) async fn end(self, grace: Duration, deadline: Instant) -> Ended {
        let start = match self.phase {
            Phase::Starting(start) => start,
            phase => match phase.into_upstream() {
                Some(upstream) => return upstream.end(grace).await,
                None => return Ended::All,
            },
        };
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

    /// Whether it has yet to begin to serve.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Replaying { .. } | Phase::Started(_) | Phase::Starting(_))
    }

    /// From when on it may take over, and its tools where they are known.
    pub(crate) fn standby(&self) -> Option<(Instant, Option<ToolFingerprint>)> {
        match self.phase {
            Phase::Standby { from, tools, .. } => Some((from, tools)),
            _ => None,
        }
    }

    pub(crate) fn upstream(&self) -> Option<&Upstream> {
        match &self.phase {
            Phase::Comparing { upstream, .. }
            | Phase::Draining { upstream, .. }
            | Phase::Replaying { upstream, .. }
            | Phase::Serving { upstream, .. }
            | Phase::Standby { upstream, .. }
            | Phase::Started(upstream) => Some(upstream),
            Phase::Over | Phase::Starting(_) => None,
        }
    }

    /// The process, where it serves.
    pub(crate) fn process(&self) -> Option<&StdioProcess> {
        match &self.phase {
            Phase::Serving { upstream: Upstream::Stdio(process), .. } => Some(process),
            _ => None,
        }
    }

    pub(crate) fn process_mut(&mut self) -> Option<&mut StdioProcess> {
        match &mut self.phase {
            Phase::Serving { upstream: Upstream::Stdio(process), .. } => Some(process),
            _ => None,
        }
    }
}

impl Phase {
    fn into_upstream(self) -> Option<Upstream> {
        match self {
            Self::Comparing { upstream, .. }
            | Self::Draining { upstream, .. }
            | Self::Replaying { upstream, .. }
            | Self::Serving { upstream, .. }
            | Self::Standby { upstream, .. }
            | Self::Started(upstream) => Some(upstream),
            Self::Over | Self::Starting(_) => None,
        }
    }
}
