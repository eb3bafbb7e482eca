//! Opens a started process: replays the handshake and, for a successor, lists its tools so that they can be compared.

use std::ops::Range;
use std::time::Duration;

use relay_proto::code::Code;
use relay_proto::envelope::{self, IdValue, Kind, Outcome, Strictness};
use relay_proto::mcp;
use relay_proto::replay::{OwnRequest, Replay};
use tokio::time::Instant;

use super::{Generation, Goal, Phase, Progress, Step};
use crate::event::{DID_NOT_RUN, Event};
use crate::outbound::Outbound;
use crate::tool_fingerprint::{Fingerprinting, PageResult, ToolFingerprint, agreement};
use crate::upstream::{NotificationBudget, StdioProcess, Upstream};

/// How long a process whose tools were not listed has to run before it takes over: a broken program has exited by
/// then.
const MIN_LIFE_WITHOUT_LIST: Duration = Duration::from_secs(2);

/// A response to a request of the sidecar itself.
struct OwnReply<'a> {
    id: IdValue,
    outcome: Outcome,
    message: &'a [u8],
    body: Option<Range<usize>>,
}

impl Generation {
    /// Applies one step. `agreed` is a hash of what the predecessor's handshake agreed on, where that is known.
    pub(crate) fn advance(&mut self, step: Step, replay: &mut Replay, agreed: Option<u64>) -> Progress {
        match (step, self.goal) {
            (Step::TimedOut, _) => ended(Duration::ZERO, explain_timeout(self)),
            (Step::Started(Err(error)), _) => Progress::NotStarted(error),
            (Step::Started(Ok(upstream)), Goal::Serve) => {
                self.phase = Phase::Started(upstream);
                Progress::Started
            }
            (Step::Started(Ok(upstream)), Goal::TakeOver) => self.begin(upstream, replay, None),
            (Step::Event(event), _) => self.on_event(event, replay, agreed),
        }
    }

    /// Opens a process that was started, or an HTTP session that was lost: replays the handshake, if there is one.
    /// `first` is the method of the first request that waits.
    pub(crate) fn open(&mut self, replay: &mut Replay, first: Option<&str>) -> Progress {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Started(upstream) => self.begin(upstream, replay, first),
            Phase::Serving { upstream, first_reply_by } => {
                // The session may have been opened again since the event that led to this call.
                if !upstream.has_lost_its_session() {
                    self.phase = Phase::Serving { upstream, first_reply_by };
                    return Progress::Pending;
                }
                if !replay.has_handshake() && first != Some(mcp::INITIALIZE) {
                    self.phase = Phase::Serving { upstream, first_reply_by };
                    return ended(Duration::ZERO, "the server ended the MCP session".into());
                }
                self.begin(upstream, replay, first)
            }
            phase => {
                self.phase = phase;
                Progress::Pending
            }
        }
    }

    /// Whether it serves and its HTTP server has lost the session.
    pub(crate) fn has_lost_its_session(&self) -> bool {
        matches!(&self.phase, Phase::Serving { upstream, .. } if upstream.has_lost_its_session())
    }

    /// The time since it began to serve, or since its start.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    fn begin(&mut self, mut upstream: Upstream, replay: &mut Replay, first: Option<&str>) -> Progress {
        self.since = Instant::now();
        self.budget = NotificationBudget::default();
        let deadline = self.since + self.end_policy.start_timeout;
        let harness_begins = first == Some(mcp::INITIALIZE);
        let handshake = if harness_begins { None } else { replay.handshake() };
        match (handshake, self.goal) {
            (Some(OwnRequest { id, method, message }), _) => {
                // If it cannot be sent, the deadline ends the attempt.
                upstream.send(Outbound::request(message, id.clone(), method, None));
                self.phase = Phase::Replaying { upstream, pending_id: id, deadline };
                Progress::Pending
            }
            (None, Goal::Serve) => {
                let answers_promptly =
                    first.and_then(mcp::lookup).is_some_and(|method| method.quick_response);
                let is_process = matches!(upstream, Upstream::Stdio(_));
                if !harness_begins {
                    upstream.send_all(replay.after_handshake());
                }
                // Calls have no such deadline: even the first call may take long.
                let first_reply_by = (answers_promptly && is_process).then_some(deadline);
                self.phase = Phase::Serving { upstream, first_reply_by };
                Progress::Ready
            }
            (None, Goal::TakeOver) => self.list_tools(upstream, deadline, replay),
        }
    }

    fn on_event(&mut self, event: Event, replay: &mut Replay, agreed: Option<u64>) -> Progress {
        match (event, &self.phase) {
            (Event::Gone { why, .. }, _) => match self.goal {
                Goal::Serve if self.is_opening() => ended(Duration::ZERO, why),
                Goal::Serve => ended(self.since.elapsed(), why),
                Goal::TakeOver => ended(Duration::ZERO, format!("the new process ended: {why}")),
            },
            (Event::Failed { id, code, why }, Phase::Replaying { pending_id, .. }) if id == *pending_id => {
                self.goal.handshake_failed(code, &why)
            }
            (
                Event::Message(message),
                Phase::ListingTools { .. } | Phase::Replaying { .. } | Phase::Standby { .. },
            ) => match parse_own_reply(&message, replay) {
                Some(reply) => self.on_own_reply(reply, replay, agreed),
                None => Progress::Event(Event::Message(message)),
            },
            (event, _) => Progress::Event(event),
        }
    }

    fn on_own_reply(&mut self, reply: OwnReply<'_>, replay: &mut Replay, agreed: Option<u64>) -> Progress {
        let OwnReply { id, outcome, message, body } = reply;
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Replaying { upstream, pending_id, deadline } if pending_id == id => {
                replay.handle_own_response(&id, outcome, message, None);
                let found = agreement(message, body);
                if let Some(why) = self.goal.objection(outcome, found, agreed) {
                    self.phase = Phase::Replaying { upstream, pending_id, deadline };
                    return ended(Duration::ZERO, why.into());
                }
                self.agreed = found;
                self.on_handshake_replayed(upstream, deadline, replay)
            }
            Phase::ListingTools { mut upstream, mut tools, deadline } if *tools.pending_id() == id => {
                match tools.on_response(outcome, message, body, replay) {
                    PageResult::More(request) => {
                        upstream.send(request);
                        self.phase = Phase::ListingTools { upstream, tools, deadline };
                        Progress::Pending
                    }
                    PageResult::Done(tools) => self.stand_by(upstream, Some(tools)),
                }
            }
            phase => {
                self.phase = phase;
                if self.goal == Goal::Serve {
                    replay.handle_own_response(&id, outcome, message, body);
                }
                Progress::Pending
            }
        }
    }

    fn on_handshake_replayed(
        &mut self,
        mut upstream: Upstream,
        deadline: Instant,
        replay: &mut Replay,
    ) -> Progress {
        match self.goal {
            Goal::Serve => {
                // If the settings cannot be sent, the process is about to exit.
                upstream.send_all(replay.after_handshake());
                self.phase = Phase::Serving { upstream, first_reply_by: None };
                Progress::Ready
            }
            Goal::TakeOver => {
                upstream.send_all(replay.initialized().into_iter().collect());
                self.list_tools(upstream, deadline, replay)
            }
        }
    }

    fn list_tools(&mut self, mut upstream: Upstream, deadline: Instant, replay: &mut Replay) -> Progress {
        match Fingerprinting::begin(replay) {
            Some((tools, request)) => {
                upstream.send(request);
                self.phase = Phase::ListingTools { upstream, tools, deadline };
                Progress::Pending
            }
            None => self.stand_by(upstream, None),
        }
    }

    fn stand_by(&mut self, upstream: Upstream, tools: Option<ToolFingerprint>) -> Progress {
        let from = Instant::now() + if tools.is_some() { Duration::ZERO } else { MIN_LIFE_WITHOUT_LIST };
        self.phase = Phase::Standby { upstream, tools, from };
        Progress::Ready
    }
}

impl Goal {
    /// Why a process with this response to the replayed handshake cannot be used; `None` if it can be used.
    fn objection(self, outcome: Outcome, found: Option<u64>, agreed: Option<u64>) -> Option<&'static str> {
        match (self, outcome) {
            (Goal::Serve, Outcome::Error) => Some("the server refused the handshake that it accepted before"),
            (Goal::TakeOver, Outcome::Error) => {
                Some("the new process refused the handshake that the old one accepted")
            }
            (Goal::TakeOver, Outcome::Result) if agreed.is_some() && agreed != found => Some(
                "the protocol version or the capabilities of the new process differ from those of the old one",
            ),
            (Goal::Serve | Goal::TakeOver, Outcome::Result) => None,
        }
    }

    /// The replayed handshake could not be sent, or got no response.
    fn handshake_failed(self, code: Code, why: &str) -> Progress {
        let code = match code {
            Code::CredentialUnavailable => code,
            _ => Code::ServerUnavailable,
        };
        let why = match self {
            Goal::Serve => {
                let why = why.strip_prefix(DID_NOT_RUN).unwrap_or(why);
                format!("the handshake could not be repeated: {why}")
            }
            Goal::TakeOver => why.to_owned(),
        };
        Progress::Ended { code, why, lived: Duration::ZERO }
    }
}

fn ended(lived: Duration, why: String) -> Progress {
    Progress::Ended { code: Code::ServerUnavailable, why, lived }
}

/// Describes which deadline has passed.
pub(super) fn explain_timeout(generation: &Generation) -> String {
    let stray = generation.process().map(StdioProcess::describe_stray_output).unwrap_or_default();
    match (&generation.phase, generation.goal) {
        (Phase::Draining { .. }, _) => {
            let seconds = generation.end_policy.drain.as_secs();
            format!(
                "the server's process was replaced because its credential changed, and ended after `limits.replace-drain` ({seconds} s)"
            )
        }
        (_, Goal::TakeOver) => {
            format!(
                "the new process did not answer the repeated handshake or list its tools within `limits.server-start-timeout`{stray}"
            )
        }
        (Phase::Replaying { .. }, Goal::Serve) => {
            format!("the server did not answer the repeated handshake in time{stray}")
        }
        (_, Goal::Serve) => {
            format!("the server answered no request within `limits.server-start-timeout`{stray}")
        }
    }
}

fn parse_own_reply<'a>(message: &'a [u8], replay: &Replay) -> Option<OwnReply<'a>> {
    let envelope = envelope::read(message, Strictness::Envelope).ok()?;
    match envelope.kind {
        Kind::Response { id: Some(id), outcome } => {
            let id = id.value();
            replay.is_own(&id).then_some(OwnReply { id, outcome, message, body: envelope.body })
        }
        _ => None,
    }
}
