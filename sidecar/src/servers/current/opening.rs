//! How a process comes to be the current one, and how it ceases to be: started, told what its predecessor was told, put
//! in the place of another, given up.

use std::time::Duration;

use relay_proto::code::Code;
use relay_proto::mcp;
use relay_proto::memory::Question;
use tokio::time::Instant;

use super::Current;
use crate::servers::event::{DID_NOT_RUN, Incarnation};
use crate::servers::start::Starter;
use crate::servers::state::State;
use crate::servers::upstream::{Telling, Upstream};
use crate::upstream::outbound::Outbound;

impl Current {
    pub(super) fn start(&mut self, starter: Starter) {
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
    pub(super) fn open(&mut self, mut upstream: Upstream) {
        self.started = Instant::now();
        self.telling = Telling::default();
        let patience = self.custody.as_ref().map_or(Duration::ZERO, |custody| custody.patience);
        let deadline = self.started + patience;
        let first = self.queue.first_method();
        let handshake = match first {
            // The harness makes its own.
            Some(mcp::INITIALIZE) => None,
            _ => self.memory.handshake(),
        };
        match handshake {
            None => {
                let is_prompt = first.and_then(mcp::lookup).is_some_and(|method| method.prompt);
                let first_word = (is_prompt && matches!(upstream, Upstream::Stdio(_))).then_some(deadline);
                if first != Some(mcp::INITIALIZE) {
                    self.tell_settings(&mut upstream);
                }
                self.state = State::Running { upstream, first_word };
            }
            Some(Question { id, method, message }) => {
                // If it cannot be sent, the time runs out.
                upstream.send(Outbound::request(message, id.clone(), method, None));
                self.state = State::Replaying { upstream, asked: id, deadline };
            }
        }
    }

    pub(super) fn replayed(&mut self) {
        let State::Replaying { mut upstream, .. } = std::mem::replace(&mut self.state, State::Idle) else {
            return;
        };
        self.tell_settings(&mut upstream);
        self.state = State::Running { upstream, first_word: None };
    }

    /// What cannot be sent is not told; the process is then on its way out.
    pub(super) fn tell_settings(&mut self, upstream: &mut Upstream) {
        upstream.tell(self.memory.settings());
    }

    /// Opens a forgotten session again, unless the server forgets all the time.
    pub(super) fn renew(&mut self) {
        let State::Running { upstream, .. } = &self.state else { return };
        // The news may be older than the present session.
        if !upstream.has_lost_its_session() {
            return;
        }
        self.backoff.failed(self.started.elapsed());
        if self.backoff.wait().is_some() {
            return self.give_up(Duration::ZERO, "the server keeps forgetting the MCP session".into());
        }
        if !self.memory.has_handshake() && self.queue.first_method() != Some(mcp::INITIALIZE) {
            return self.give_up(Duration::ZERO, "the server ended the MCP session".into());
        }
        if let State::Running { upstream, .. } = std::mem::replace(&mut self.state, State::Idle) {
            self.open(upstream);
        }
    }

    /// Puts another process, or the way to one, in the place of this one, which has been sent all that waited for it
    /// and goes on for those who wait for its answers.
    pub(in crate::servers) fn hand_over(
        &mut self,
        state: State,
        incarnation: Incarnation,
    ) -> Option<(Incarnation, Upstream)> {
        if let State::Running { upstream, .. } = &mut self.state {
            while let Some(message) = self.queue.pop() {
                // A process takes everything; what it does not get comes back from it.
                upstream.send(message);
            }
        }
        self.started = Instant::now();
        self.telling = Telling::default();
        let before = std::mem::replace(&mut self.incarnation, incarnation);
        let upstream = std::mem::replace(&mut self.state, state).into_upstream()?;
        Some((before, upstream))
    }

    /// The server is of no use any more, after a useful life of this length.
    pub(super) fn give_up(&mut self, lived: Duration, why: String) {
        if let Some(upstream) = std::mem::replace(&mut self.state, State::Idle).into_upstream() {
            self.state = State::Ending { upstream, why, code: Code::ServerUnavailable, lived };
        }
    }

    /// The repeated handshake got no answer.
    pub(super) fn not_replayed(&mut self, code: Code, why: &str) {
        let why = why.strip_prefix(DID_NOT_RUN).unwrap_or(why);
        self.give_up(Duration::ZERO, format!("the handshake could not be repeated: {why}"));
        if let (Code::CredentialUnavailable, State::Ending { code, .. }) = (code, &mut self.state) {
            *code = Code::CredentialUnavailable;
        }
    }

    /// Back to idle; what is left of the server dies in the background.
    pub(super) fn lost(&mut self, lived: Duration) {
        self.backoff.failed(lived);
        self.let_go();
    }

    /// The same, and it may be started again at once.
    pub(super) fn let_go(&mut self) {
        let upstream = std::mem::replace(&mut self.state, State::Idle).into_upstream();
        if let (Some(upstream), Some(custody)) = (upstream, self.custody.clone()) {
            self.leaving.see_off(upstream, custody);
        }
    }
}
