//! From a process that runs to one that serves or could: the repeated handshake, the comparison of its tools.

use std::ops::Range;
use std::time::Duration;

use relay_proto::envelope::{self, IdValue, Kind, Outcome, Strictness};
use relay_proto::memory::{Memory, Question};
use tokio::time::Instant;

use super::{Generation, Goal, Phase, Progress};
use crate::servers::event::Event;
use crate::servers::likeness::{Listing, Tools, Turned, agreement};
use crate::servers::upstream::{Telling, Upstream};
use crate::upstream::outbound::Outbound;

/// Requests that every server answers soon. A call may take its time, also the first one.
const PROMPT: [&str; 3] = ["initialize", "ping", "server/discover"];
/// A program that does not start right has exited by then.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

impl Generation {
    /// A server is there, or has to open its session again: the handshake first, where there is one to repeat.
    pub(in crate::servers) fn open(
        &mut self,
        mut upstream: Upstream,
        memory: &mut Memory,
        first: Option<&str>,
    ) -> Progress {
        self.since = Instant::now();
        self.telling = Telling::default();
        let patience = self.custody.as_ref().map_or(Duration::ZERO, |custody| custody.patience);
        let deadline = self.since + patience;
        let is_own = first == Some("initialize");
        // The harness makes its own.
        let handshake = if is_own { None } else { memory.handshake() };
        match (handshake, self.goal) {
            (Some(Question { id, method, message }), _) => {
                // If it cannot be sent, the time runs out.
                upstream.send(Outbound::request(message, id.clone(), method, None));
                self.phase = Phase::Replaying { upstream, asked: id, deadline };
                Progress::Going
            }
            (None, Goal::Serve) => {
                let is_prompt = first.is_some_and(|method| PROMPT.contains(&method));
                let is_process = matches!(upstream, Upstream::Stdio(_));
                if !is_own {
                    upstream.tell(memory.settings());
                }
                let first_reply_by = (is_prompt && is_process).then_some(deadline);
                self.phase = Phase::Serving { upstream, first_reply_by };
                Progress::Ready
            }
            (None, Goal::TakeOver) => self.compare(upstream, deadline, memory),
        }
    }

    pub(super) fn on_event(&mut self, event: Event, memory: &mut Memory, agreed: Option<u64>) -> Progress {
        if let Phase::Serving { first_reply_by, .. } = &mut self.phase {
            *first_reply_by = None;
        }
        match (event, &self.phase) {
            (Event::Gone { why }, _) => Progress::Gone(why),
            (Event::Failed { id, code, why }, Phase::Replaying { asked, .. }) if id == *asked => {
                Progress::NotReplayed { code, why }
            }
            (
                Event::Message(message),
                Phase::Comparing { .. } | Phase::Replaying { .. } | Phase::Standby { .. },
            ) => match own_answer(&message, memory) {
                Some((id, outcome, body)) => self.on_own_answer(&id, outcome, &message, body, memory, agreed),
                None => Progress::Event(Event::Message(message)),
            },
            (event, _) => Progress::Event(event),
        }
    }

    fn on_own_answer(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
        memory: &mut Memory,
        agreed: Option<u64>,
    ) -> Progress {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Replaying { upstream, asked, deadline } if asked == *id => {
                memory.own_response(id, outcome, message, None);
                let found = agreement(message, body);
                if let Some(why) = self.objection(outcome, found, agreed) {
                    self.phase = Phase::Replaying { upstream, asked, deadline };
                    return Progress::Failed(why.into());
                }
                self.agreed = found;
                self.replayed(upstream, deadline, memory)
            }
            Phase::Comparing { mut upstream, mut listing, deadline } if listing.asked() == id => {
                match listing.hear(outcome, message, body, memory) {
                    Turned::More(question) => {
                        upstream.send(question);
                        self.phase = Phase::Comparing { upstream, listing, deadline };
                        Progress::Going
                    }
                    Turned::Done(tools) => self.stand_by(upstream, Some(tools)),
                }
            }
            phase => {
                self.phase = phase;
                if self.goal == Goal::Serve {
                    memory.own_response(id, outcome, message, body);
                }
                Progress::Going
            }
        }
    }

    /// What speaks against a process that answered the repeated handshake like this.
    fn objection(&self, outcome: Outcome, found: Option<u64>, agreed: Option<u64>) -> Option<&'static str> {
        match (self.goal, outcome) {
            (Goal::Serve, Outcome::Error) => Some("the server refused the handshake that it accepted before"),
            (Goal::TakeOver, Outcome::Error) => {
                Some("the new process refused the handshake that the old one accepted")
            }
            (Goal::TakeOver, Outcome::Result) if agreed.is_some() && agreed != found => {
                Some("the protocol's version or the capabilities of the new process differ")
            }
            (Goal::Serve | Goal::TakeOver, Outcome::Result) => None,
        }
    }

    fn replayed(&mut self, mut upstream: Upstream, deadline: Instant, memory: &mut Memory) -> Progress {
        match self.goal {
            Goal::Serve => {
                // What cannot be sent is not told; the process is then on its way out.
                upstream.tell(memory.settings());
                self.phase = Phase::Serving { upstream, first_reply_by: None };
                Progress::Ready
            }
            Goal::TakeOver => {
                upstream.tell(memory.initialized().into_iter().collect());
                self.compare(upstream, deadline, memory)
            }
        }
    }

    fn compare(&mut self, mut upstream: Upstream, deadline: Instant, memory: &mut Memory) -> Progress {
        match Listing::begin(memory) {
            Some((listing, question)) => {
                upstream.send(question);
                self.phase = Phase::Comparing { upstream, listing, deadline };
                Progress::Going
            }
            None => self.stand_by(upstream, None),
        }
    }

    fn stand_by(&mut self, upstream: Upstream, tools: Option<Tools>) -> Progress {
        let from = Instant::now() + if tools.is_some() { Duration::ZERO } else { SIGN_OF_LIFE };
        self.phase = Phase::Standby { upstream, tools, from };
        Progress::Ready
    }

    /// What is said when the deadline of its phase is over.
    pub(super) fn lateness(&self) -> String {
        match (&self.phase, self.goal) {
            (Phase::Draining { .. }, _) => {
                let seconds = self.custody.as_ref().map_or(0, |custody| custody.drain.as_secs());
                format!(
                    "the server's process was replaced because its credential changed, and ended after `limits.replace-drain` ({seconds} s)"
                )
            }
            (_, Goal::TakeOver) => {
                "the new process did not answer the repeated handshake or list its tools within `limits.server-start-timeout`".into()
            }
            (Phase::Replaying { .. }, Goal::Serve) => {
                "the server did not answer the repeated handshake in time".into()
            }
            (_, Goal::Serve) => "the server said nothing within `limits.server-start-timeout`".into(),
        }
    }
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
