//! What follows from a decision that is written down: the message goes to the server, or its sender is told why not.

use std::sync::Arc;

use bytes::Bytes;
use relay_proto::code::{self, Code};
use relay_proto::envelope::{self, Id, IdValue};
use relay_proto::json;
use relay_proto::mcp::{self, Audience, Method, MethodKind};

use super::calls::{Attempt, Call, Purpose};
use super::link::Link;
use super::message::{Asked, Content, Ruling, Standing};
use super::requests::{Step, Written};
use crate::audit::CallResult;
use crate::config::{Config, Server};
use crate::metrics::RequestOutcome;
use crate::policy::Verdict;
use crate::servers::instance::{Passed, Unavailable};
use crate::servers::scoped::{Lane, Process};
use crate::servers::start::Starter;
use crate::upstream::outbound::Outbound;

const UNRECORDED: &str =
    "it did not run, because the decision about it could not be recorded; tell the host's administrator";
const UNRECORDED_REPEAT: &str = "it may or may not have run before, and was not repeated because the decision about that could not be recorded; tell the host's administrator";

impl Link {
    /// Sends the calls of tools that a batch begins with, if the base's process can take them at once. All else that is
    /// to be done for them is done in [`Self::carry_out`], while the process works on them; nobody waits in between.
    pub(super) fn send_ahead(&mut self, steps: &[Step<'_>], written: &mut [Written]) {
        for (step, written) in steps.iter().zip(written) {
            let Some(server) = step.base_call().filter(|_| *written == Written::Yes) else { break };
            let lane = self.servers.lane(server, None);
            if self.servers.pass(lane, &step.received.bytes) == Passed::No {
                break;
            }
            *written = Written::YesAndPassed;
        }
        self.servers.write_now();
    }

    pub(super) fn carry_out(&mut self, config: &Arc<Config>, step: Step<'_>, written: Written) {
        match (step.content, step.ruling) {
            (Content::Call { asked, id, value }, Some(ruling)) => {
                self.call(config, &asked, &id, value, &ruling, written)
            }
            (Content::Notification(asked), Some(ruling)) if ruling.allows() && written == Written::Yes => {
                self.notification(&asked);
            }
            // A notification has nobody to tell.
            (Content::Notification(_), _) => self.counted.refused += 1,
            (Content::Response { id }, _) => self.response(&step.received.bytes, id.as_ref()),
            (Content::Malformed(malformed), _) => {
                self.counted.refused += 1;
                self.requests.count(RequestOutcome::Malformed);
                let sentence = format!("the message was not relayed: {malformed}");
                let answer = code::error_response(malformed.id.as_deref(), Code::MessageMalformed, &sentence);
                self.answer(&answer);
            }
            (Content::Call { id, .. }, None) => self.refuse_unrecorded(id.raw),
        }
    }

    fn call(
        &mut self,
        config: &Arc<Config>,
        asked: &Asked<'_>,
        id: &Id<'_>,
        value: IdValue,
        ruling: &Ruling,
        written: Written,
    ) {
        let (Verdict::Allow, Some(server)) = (ruling.decision.verdict, &ruling.server) else {
            self.requests.count(match written {
                Written::No => RequestOutcome::Unrecorded,
                Written::Unsafely | Written::Yes | Written::YesAndPassed => RequestOutcome::Denied,
            });
            return match (written, ruling.standing) {
                // What may have run cannot be said not to have.
                (Written::No, Standing::MaybeRan) => self.explain(asked, id, ruling),
                (Written::No, _) => self.refuse_unrecorded(id.raw),
                (Written::Unsafely | Written::Yes | Written::YesAndPassed, _) => {
                    self.explain(asked, id, ruling)
                }
            };
        };
        let attempt = match ruling.standing {
            Standing::Repeated => Attempt::Second,
            _ => Attempt::First,
        };
        let lane = self.servers.lane(server, ruling.scope.as_ref());
        let on = self.servers.process(lane);
        let mut call = asked.call(id, on, self.woke, server.call_timeout, attempt);
        call.deadline = ruling.deadline.or(call.deadline);
        match (written, attempt) {
            (Written::Yes | Written::YesAndPassed, _) => {}
            (Written::No, Attempt::Second) => {
                self.requests.count(RequestOutcome::Unrecorded);
                return self.refuse(id.raw, Code::OutcomeUnknown, UNRECORDED_REPEAT);
            }
            (Written::No, Attempt::First) => {
                self.requests.count(RequestOutcome::Unrecorded);
                return self.refuse_unrecorded(id.raw);
            }
            (Written::Unsafely, _) => {
                // The record stands although the call is not made: it must not look like one that was.
                return self.fail(call, Code::ServerUnavailable, UNRECORDED);
            }
        }
        self.servers.memory_mut().request(&asked.received.bytes, id, &asked.method, asked.params.clone());
        if call.purpose == Purpose::Setting {
            self.servers.set_beside(&asked.received.bytes, id, &asked.method);
        }
        self.counted.calls += 1;
        let bytes = &asked.received.bytes;
        // A listener may be opened as often as its server goes away: backoff sees to the pace.
        let again = attempt == Attempt::First || call.purpose == Purpose::Listen;
        if again && asked.may_be_repeated(&self.repeats.hints, server.retry) {
            call.kept = Some(Bytes::copy_from_slice(bytes));
        }
        let task = call.task.as_deref().and_then(|task| self.tasks.process_of(task)).filter(|has| *has != on);
        if written == Written::YesAndPassed || task.is_none() && self.servers.pass(lane, bytes) == Passed::Yes
        {
            return self.calls.insert(value, call);
        }
        let message = Outbound::request(bytes.clone(), value.clone(), &asked.method, asked.header_name())
            .in_scope(ruling.scope.clone())
            .decided(ruling.decided());
        let sent = match task.and_then(|process| Some((process, self.servers.send_to(process, &message)?))) {
            Some((process, sent)) => sent.map(|event| (process, event)),
            None => self.deliver(lane, message, config, server).map(|()| (self.servers.process(lane), None)),
        };
        match sent {
            Ok((on, event)) => {
                self.calls.insert(value, Call { on, ..call });
                if let Some(event) = event {
                    self.server_event(on, event);
                }
            }
            Err(Unavailable { code, why }) => self.fail(call, code, &format!("it did not run: {why}")),
        }
    }

    fn notification(&mut self, asked: &Asked<'_>) {
        let bytes = &asked.received.bytes;
        let message = Outbound::notification(bytes.clone(), &asked.method);
        let audience = match asked.known {
            Some(Method { kind: MethodKind::Notification, audience, .. }) => Some(*audience),
            // A notification that this version does not know concerns the server as a whole.
            _ => asked.method.starts_with(mcp::NOTIFICATION_PREFIX).then_some(Audience::Current),
        };
        match audience {
            Some(Audience::CancelledRequest) => match self.cancelled(asked) {
                Some(process) => self.servers.tell_to(process, message),
                None => self.servers.tell(self.servers.base(), message),
            },
            Some(Audience::ProgressToken) => {
                let token = asked.param("progressToken").map(|span| &bytes[span]);
                match token.and_then(|token| self.server_requests.waits_for_progress(token)) {
                    Some(process) => self.servers.tell_to(process, message),
                    None => self.servers.tell(self.servers.base(), message),
                }
            }
            Some(Audience::All) => self.servers.tell_each(&message),
            Some(Audience::Current) => {
                self.servers.memory_mut().notification(bytes, &asked.method);
                self.servers.tell_all(message);
            }
            // Not a notification of MCP: it is not for the tools of a scope.
            None => self.servers.tell(self.servers.base(), message),
        }
    }

    /// The harness gave up on a request: it gets no answer any more. Says who works on it.
    fn cancelled(&mut self, asked: &Asked<'_>) -> Option<Process> {
        let id = envelope::cancelled_request(&asked.received.bytes, asked.params.clone())?;
        self.repeats.withdraw(&id);
        let call = self.calls.abandon(&id)?;
        let on = call.on;
        self.servers.cancel(on.lane, &id);
        self.servers.memory_mut().forget(&id);
        self.record_outcome(call, CallResult::Cancelled, None, 0, 0);
        Some(on)
    }

    /// The harness's answer to a request of the server's.
    fn response(&mut self, bytes: &[u8], id: Option<&Id<'_>>) {
        let Some(id) = id else { return };
        let Some((process, original)) = self.server_requests.answered(&id.value()) else { return };
        let message = json::replace(bytes, id.span.clone(), &original);
        self.servers.tell_to(process, Outbound::response(message));
    }

    pub(super) fn deliver(
        &mut self,
        lane: Lane,
        message: Outbound,
        config: &Arc<Config>,
        server: &Arc<Server>,
    ) -> Result<(), Unavailable> {
        let Self { servers, session, id, .. } = self;
        let starter = || Starter::of(session, config, server, id);
        servers.send(lane, message, starter)
    }

    /// A refusal in words that a model can act on.
    fn explain(&mut self, asked: &Asked<'_>, id: &Id<'_>, ruling: &Ruling) {
        let server = &self.server;
        let (code, sentence) = match (ruling.standing, ruling.decision.verdict, asked.tool.as_deref()) {
            (Standing::MaybeRan, ..) => (
                Code::OutcomeUnknown,
                "the connection to the host was lost while this request was under way; it may or may not have run, so check before you repeat it".into(),
            ),
            (Standing::NotGranted, ..) => (
                Code::ServerNotGranted,
                format!("this sandbox may not use server `{server}`; ask the user to add it to the grant"),
            ),
            (Standing::TooManyInFlight, ..) => (
                Code::ServerUnavailable,
                "it did not run: too many requests wait for answers already; wait for some of them".into(),
            ),
            (Standing::Repeated | Standing::Rules, Verdict::Ask, Some(tool)) => (
                Code::ApprovalRequired,
                format!("tool `{tool}` of `{server}` needs a person's approval, which cannot be asked for yet; use another tool, or ask the user to change the rule"),
            ),
            (Standing::Repeated | Standing::Rules, _, Some(tool)) if self.shown.contains(tool) => (
                Code::ToolDenied,
                format!("the rules of the host do not allow tool `{tool}` any more; list the tools again"),
            ),
            (Standing::Repeated | Standing::Rules, _, Some(tool)) => {
                self.counted.refused += 1;
                let answer = code::unknown_tool_response(id.raw, tool);
                self.answer(&answer);
                return;
            }
            (Standing::Repeated | Standing::Rules, _, None) => (
                Code::ToolDenied,
                format!("the rules of the host do not allow method `{}` on server `{server}`", asked.method),
            ),
        };
        self.refuse(id.raw, code, &sentence);
    }

    fn refuse_unrecorded(&mut self, id: &[u8]) {
        self.refuse(id, Code::ServerUnavailable, UNRECORDED);
    }

    pub(super) fn refuse(&mut self, id: &[u8], code: Code, sentence: &str) {
        self.counted.refused += 1;
        let answer = code::error_response(Some(id), code, sentence);
        self.answer(&answer);
    }
}
