//! One process of a slot, or one connection to an HTTP server, from its start to its end.
//!
//! ```text
//!   Starting ─▶ Started ─▶ Replaying ─▶ Serving ─▶ Draining     the process that calls go to
//!       │                      │           ▲
//!       │                      ▼           │ promoted
//!       └───────────────▶ ListingTools ─▶ Standby                a process that is to take over
//! ```
//!
//! What must stay true: no call reaches a process before it serves; a draining process gets no new call, only requests
//! about its calls; a completed start is not polled again; [`Generation::next`] may be dropped at any await.

mod opening;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_process::Ended;
use cofferdam_secrets::SecretReads;
use relay_proto::code::Code;
use relay_proto::envelope::IdValue;
use relay_proto::replay::{Replay, ReplayMessage};
use tokio::time::{Instant, timeout, timeout_at};

use crate::event::{Event, ProcessId, Role};
use crate::launcher::Launcher;
use crate::outbound::{Outbound, Outgoing};
use crate::spec::ServerSpec;
use crate::start_error::StartError;
use crate::terminating::{EndPolicy, StartFuture, Terminating};
use crate::tool_fingerprint::{Fingerprinting, ToolFingerprint};
use crate::upstream::{NotificationBudget, StdioProcess, Upstream};

pub(crate) struct Generation {
    pub(crate) id: ProcessId,
    /// The configuration that it was started with.
    pub(crate) spec: Arc<ServerSpec>,
    /// A hash of the protocol version and capabilities in the response to its replayed handshake.
    pub(crate) agreed: Option<u64>,
    end_policy: EndPolicy,
    goal: Goal,
    phase: Phase,
    /// When it was started, or began to serve.
    since: Instant,
    budget: NotificationBudget,
}

/// What a generation is started for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Goal {
    Serve,
    TakeOver,
}

enum Phase {
    ListingTools {
        upstream: Upstream,
        tools: Fingerprinting,
        deadline: Instant,
    },
    Draining {
        upstream: Upstream,
        until: Instant,
    },
    /// It has no upstream any more.
    Ended,
    Replaying {
        upstream: Upstream,
        /// The id of the replayed handshake.
        pending_id: IdValue,
        deadline: Instant,
    },
    Serving {
        upstream: Upstream,
        /// A process that has answered no request by then is ended.
        first_reply_by: Option<Instant>,
    },
    Standby {
        upstream: Upstream,
        /// `None` if they could not be listed, see [`Replay::list_tools`].
        tools: Option<ToolFingerprint>,
        /// When it may take over: a process whose tools could not be listed has to run for a while first.
        from: Instant,
    },
    /// The process runs and has been sent nothing. [`Generation::open`] decides whether the handshake is replayed
    /// first.
    Started(Upstream),
    Starting(StartFuture),
}

/// What happened to a generation.
pub(crate) enum Step {
    Event(Event),
    Started(Result<Upstream, StartError>),
    /// The deadline of its phase has passed.
    TimedOut,
}

/// What a step means for the slot.
pub(crate) enum Progress {
    Event(Event),
    NotStarted(StartError),
    /// It can no longer be used; `lived` is how long it served. Requests that wait for it are refused with `code`.
    Ended {
        code: Code,
        why: String,
        lived: Duration,
    },
    /// The slot has nothing to do.
    Pending,
    /// It serves, or is ready to take over.
    Ready,
    /// [`Generation::open`] has to be called next.
    Started,
}

/// The result of sending a message.
pub(crate) enum Delivery {
    /// The process is starting, or its session is being opened again.
    NotReady(Outbound),
    /// The message was not sent.
    Refused { code: Code, why: String },
    Sent {
        /// The Vault reads behind the process's secrets that the recorded decision on the message does not name.
        reads_after_decision: Option<Arc<SecretReads>>,
    },
}

/// Whether a process that takes over is asked for its tools, so that the harness is notified if they changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CheckTools {
    No,
    Yes,
}

/// How long ending a process may take after its grace period.
const END_MARGIN: Duration = Duration::from_secs(2);
const DOES_NOT_READ: &str = "the server does not read what it is sent";

impl Generation {
    /// Starts a process once the earlier ones of the slot are dead: until then they may use files of the server, and
    /// they hold permits of the grant.
    pub(crate) fn start(launcher: Launcher, terminating: Terminating) -> Self {
        let (spec, policy) = (Arc::clone(launcher.server()), launcher.end_policy());
        let start = Box::pin(async move {
            terminating.wait_until_dead().await;
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

    /// For tests: a generation whose start is this future.
    #[cfg(test)]
    pub(crate) fn starting_with(start: StartFuture, spec: Arc<ServerSpec>, policy: EndPolicy) -> Self {
        Self::starting(start, Goal::Serve, spec, policy)
    }

    /// Waits for the next step.
    pub(crate) async fn next(&mut self) -> Step {
        let (upstream, deadline) = match &mut self.phase {
            Phase::Ended | Phase::Started(_) => return pending().await,
            Phase::Starting(start) => {
                let started = start.await;
                self.phase = Phase::Ended;
                return Step::Started(started);
            }
            Phase::ListingTools { upstream, deadline, .. } | Phase::Replaying { upstream, deadline, .. } => {
                (upstream, Some(*deadline))
            }
            Phase::Draining { upstream, until } => (upstream, Some(*until)),
            Phase::Serving { upstream, first_reply_by } => {
                first_reply_by.take_if(|_| !upstream.is_unanswered_process());
                (upstream, *first_reply_by)
            }
            Phase::Standby { upstream, .. } => (upstream, None),
        };
        match deadline {
            None => Step::Event(upstream.next().await),
            Some(deadline) => match timeout_at(deadline, upstream.next()).await {
                Ok(event) => Step::Event(event),
                Err(_) => Step::TimedOut,
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
                Step::TimedOut => {
                    let (code, why) = (Code::ServerUnavailable, opening::explain_timeout(self));
                    return Event::Gone { was: Role::Draining, code, why };
                }
            }
        }
    }

    /// A message that has already arrived.
    pub(crate) fn buffered(&mut self) -> Option<Event> {
        self.process_mut()?.buffered()
    }

    /// Sends a message to a process that serves or drains. A successor that has answered the replayed handshake gets
    /// only notifications and responses; a request to it is dropped. In earlier phases the message is returned as
    /// [`Delivery::NotReady`].
    pub(crate) fn send(&mut self, message: Outgoing<'_>) -> Delivery {
        let sent = Delivery::Sent { reads_after_decision: None };
        match &mut self.phase {
            Phase::Serving { upstream, .. } | Phase::Draining { upstream, .. } if message.is_request() => {
                if upstream.refuses_requests() {
                    return Delivery::Refused { code: Code::ServerUnavailable, why: DOES_NOT_READ.into() };
                }
                if let (Upstream::Stdio(process), Outgoing::Request { bytes, .. }) =
                    (&mut *upstream, &message)
                {
                    // A request that is sent as it was received was decided with this process's secrets: no other reads.
                    process.send(bytes);
                    return sent;
                }
                let message = message.into_owned();
                if !upstream.is_ready_for(&message) {
                    return Delivery::NotReady(message);
                }
                let reads_after_decision = upstream.reads_after_decision(&message);
                upstream.send(message);
                Delivery::Sent { reads_after_decision }
            }
            Phase::Serving { upstream, .. } | Phase::Draining { upstream, .. } => {
                let message = message.into_owned();
                if !upstream.is_ready_for(&message) {
                    return Delivery::NotReady(message);
                }
                if self.budget.allows(upstream, message.bytes.len()) {
                    upstream.send(message);
                }
                sent
            }
            Phase::ListingTools { upstream, .. } | Phase::Standby { upstream, .. } => {
                if !message.is_request() && !upstream.is_full() {
                    upstream.send(message.into_owned());
                }
                sent
            }
            Phase::Ended | Phase::Replaying { .. } | Phase::Started(_) | Phase::Starting(_) => {
                Delivery::NotReady(message.into_owned())
            }
        }
    }

    /// Writes as many queued bytes as the process accepts without waiting.
    pub(crate) fn flush(&mut self) {
        if let Some(process) = self.process_mut() {
            process.pipes.write_now();
        }
    }

    /// Closes the stream of a cancelled request to an HTTP server.
    pub(crate) fn cancel(&mut self, id: &IdValue) {
        if let Phase::Draining { upstream, .. }
        | Phase::Replaying { upstream, .. }
        | Phase::Serving { upstream, .. } = &mut self.phase
        {
            upstream.cancel(id);
        }
    }

    /// Makes it the serving process, whatever its phase; `check` says whether its tools are still to be compared.
    pub(crate) fn promote(&mut self, replay: &mut Replay, check: CheckTools) {
        self.goal = Goal::Serve;
        self.since = Instant::now();
        self.budget = NotificationBudget::default();
        self.phase = match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::ListingTools { mut upstream, .. } | Phase::Standby { mut upstream, .. } => {
                let mut messages = replay.settings();
                if check == CheckTools::Yes {
                    messages.extend(replay.list_tools_to_compare().map(ReplayMessage::Request));
                }
                upstream.send_all(messages);
                Phase::Serving { upstream, first_reply_by: None }
            }
            phase => phase,
        };
    }

    /// Lets it finish its calls and gives it no new ones. None where it cannot have any calls: it is then ended in the
    /// background.
    pub(crate) fn drain(mut self, terminating: &Terminating) -> Option<Self> {
        let until = Instant::now() + self.end_policy.drain;
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Serving { upstream, .. } | Phase::Replaying { upstream, .. } => {
                self.budget = NotificationBudget::default();
                self.phase = Phase::Draining { upstream, until };
                Some(self)
            }
            phase => {
                self.phase = phase;
                self.end_in_background(terminating);
                None
            }
        }
    }

    /// Ends it in the background, whatever its phase.
    pub(crate) fn end_in_background(mut self, terminating: &Terminating) {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Starting(start) => terminating.end_starting(start, self.end_policy),
            phase => {
                if let Some(upstream) = phase.into_upstream() {
                    terminating.end(upstream, self.end_policy);
                }
            }
        }
    }

    /// Ends it with its descendants, and returns whether all of them are dead.
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
            // Dropping the start kills the process, without waiting for its end.
            Err(_) => Ended::NotYet,
        }
    }

    /// Whether it is starting, or its handshake is being replayed.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Replaying { .. } | Phase::Started(_) | Phase::Starting(_))
    }

    /// When it may take over, and its tools where they are known; none where it is not on standby.
    pub(crate) fn standby(&self) -> Option<(Instant, Option<ToolFingerprint>)> {
        match self.phase {
            Phase::Standby { from, tools, .. } => Some((from, tools)),
            _ => None,
        }
    }

    pub(crate) fn upstream(&self) -> Option<&Upstream> {
        match &self.phase {
            Phase::ListingTools { upstream, .. }
            | Phase::Draining { upstream, .. }
            | Phase::Replaying { upstream, .. }
            | Phase::Serving { upstream, .. }
            | Phase::Standby { upstream, .. }
            | Phase::Started(upstream) => Some(upstream),
            Phase::Ended | Phase::Starting(_) => None,
        }
    }

    /// The stdio process; none unless it serves.
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
            Self::ListingTools { upstream, .. }
            | Self::Draining { upstream, .. }
            | Self::Replaying { upstream, .. }
            | Self::Serving { upstream, .. }
            | Self::Standby { upstream, .. }
            | Self::Started(upstream) => Some(upstream),
            Self::Ended | Self::Starting(_) => None,
        }
    }
}
