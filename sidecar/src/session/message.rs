//! One message of the harness's: what it asks for, and what is decided about it.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use relay_proto::delivery::Received;
use relay_proto::envelope::{self, Id, IdValue, Kind, Malformed, Strictness, ToolCall};
use relay_proto::json;
use relay_proto::mcp::{self, Method, Subject};
use relay_proto::name::Name;
use tokio::time::Instant;

use super::calls::{Attempt, Call, Purpose};
use super::tasks::{self, Tasks};
use crate::config::{Config, Scope, Server};
use crate::inject::Secrets;
use crate::policy::{self, Decision, Request, Verdict};
use crate::servers::scoped::Process;

/// A message as it was read.
pub(super) enum Content<'a> {
    Call {
        asked: Asked<'a>,
        id: Id<'a>,
        value: IdValue,
    },
    Malformed(Malformed),
    Notification(Asked<'a>),
    /// An answer to a request of the server's.
    Response {
        id: Option<Id<'a>>,
    },
}

/// What a request or notification wants.
pub(super) struct Asked<'a> {
    pub(super) received: &'a Received,
    pub(super) params: Option<Range<usize>>,
    pub(super) method: Cow<'a, str>,
    /// The method's row in the table, if it has one.
    pub(super) known: Option<&'static Method>,
    /// The tool of a `tools/call`.
    pub(super) tool: Option<Cow<'a, str>>,
    /// Where what the record keeps a code of stands: a tool's arguments, or the parameters of anything else.
    arguments: Option<Range<usize>>,
}

/// What was decided about a message, and about which server.
pub(super) struct Ruling {
    pub(super) decision: Decision,
    pub(super) standing: Standing,
    /// None where the grant does not name it.
    pub(super) server: Option<Arc<Server>>,
    /// What an allowed call runs with, where that is not what the server itself runs with.
    pub(super) scope: Option<Arc<Scope>>,
    /// When the time of a repeated call is over, counted from its first attempt.
    pub(super) deadline: Option<Instant>,
    /// What was held when it was written down, where it may be made with other secrets than that.
    pub(super) held: Option<Arc<Secrets>>,
}

/// What stood in the way, where something did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Standing {
    MaybeRan,
    NotGranted,
    /// It may have run, and runs once more.
    Repeated,
    Rules,
    TooManyInFlight,
}

impl<'a> Content<'a> {
    pub(super) fn read(received: &'a Received, depth: usize) -> Self {
        let envelope = match envelope::read_within(&received.bytes, Strictness::Whole, depth) {
            Ok(envelope) => envelope,
            Err(malformed) => return Self::Malformed(malformed),
        };
        match envelope.kind {
            Kind::Request { id, method } => {
                let value = id.value();
                Self::Call { asked: Asked::new(received, method, envelope.body, envelope.call), id, value }
            }
            Kind::Notification { method } => {
                Self::Notification(Asked::new(received, method, envelope.body, envelope.call))
            }
            Kind::Response { id, .. } => Self::Response { id },
        }
    }
}

impl<'a> Asked<'a> {
    fn new(
        received: &'a Received,
        method: Cow<'a, str>,
        params: Option<Range<usize>>,
        call: Option<ToolCall<'a>>,
    ) -> Self {
        let (tool, arguments) = match call {
            Some(ToolCall { tool: tool @ Some(_), arguments }) => (tool, arguments),
            Some(ToolCall { tool: None, .. }) | None => (None, params.clone()),
        };
        let known = mcp::lookup(&method);
        Self { received, params, method, known, tool, arguments }
    }

    pub(super) fn is_tool_call(&self) -> bool {
        self.known.is_some_and(Method::is_tool_call)
    }

    /// Where a member of the parameters stands.
    pub(super) fn param(&self, key: &str) -> Option<Range<usize>> {
        json::member(&self.received.bytes, self.params.clone()?, key)
    }

    /// What the record keeps a code of: a tool's arguments, or the parameters of anything else.
    pub(super) fn arguments(&self) -> Option<&'a [u8]> {
        self.arguments.clone().map(|span| &self.received.bytes[span])
    }

    /// What the modern HTTP transport repeats in `Mcp-Name`.
    pub(super) fn header_name(&self) -> Option<String> {
        match self.known?.subject {
            Subject::None => None,
            Subject::Param(key) => json::text(&self.received.bytes, self.param(key)?).map(Into::into),
            Subject::Tool => self.tool.as_deref().map(Into::into),
        }
    }

    /// The task that it is about.
    fn task(&self) -> Option<Box<str>> {
        tasks::asked_for(&self.received.bytes, self.known?, self.params.clone())
    }

    /// The call that this request makes.
    pub(super) fn call(
        &self,
        id: &Id<'_>,
        on: Process,
        began: Instant,
        timeout: Duration,
        attempt: Attempt,
    ) -> Call {
        Call {
            id: id.spelled().into(),
            on,
            seq: self.received.seq,
            purpose: Purpose::of(self.known),
            method: match self.known {
                Some(method) => method.name.into(),
                None => self.method.clone().into_owned().into(),
            },
            tool: self.tool.as_deref().map(Into::into),
            task: self.task(),
            began,
            deadline: (!self.known.is_some_and(|method| method.open_ended)).then(|| began + timeout),
            attempt,
            kept: None,
            sent_with: None,
        }
    }
}

impl Ruling {
    /// What the configuration says. A server that the grant does not name is out of reach, whatever is asked of it.
    pub(super) fn of(config: &Config, grant: &Name, server: &Name, asked: &Asked<'_>) -> Self {
        let granted = config.grants.get(grant).is_some_and(|grant| grant.servers.contains(server));
        let Some(server) = config.servers.get(server).filter(|_| granted) else {
            let decision = policy::server_not_granted(server);
            return Self {
                decision,
                standing: Standing::NotGranted,
                server: None,
                scope: None,
                deadline: None,
                held: None,
            };
        };
        let decision = match (asked.is_tool_call(), asked.tool.as_deref()) {
            (true, Some(tool)) => server.rules.decide(Request::Tool(tool)),
            (true, None) => {
                Decision { verdict: Verdict::Deny, rule: "tools/call without a tool's name".into() }
            }
            (false, _) => server.rules.decide(Request::Method(&asked.method)),
        };
        let scope = match asked.tool.as_deref() {
            Some(tool) if !server.scopes.is_empty() => server.scope(tool).cloned(),
            _ => None,
        };
        let server = Some(Arc::clone(server));
        Self { decision, standing: Standing::Rules, server, scope, deadline: None, held: None }
    }

    /// A question about a task is asked with what the tool runs with that made the task.
    pub(super) fn follow(&mut self, asked: &Asked<'_>, tasks: &Tasks) {
        let Some(server) = self.server.as_ref().filter(|server| !server.scopes.is_empty()) else { return };
        if let Some(task) = asked.task() {
            self.scope = tasks.tool_of(&task).and_then(|tool| server.scope(tool)).cloned();
        }
    }

    pub(super) fn malformed() -> Self {
        let decision = Decision { verdict: Verdict::Deny, rule: "message_malformed".into() };
        Self { decision, standing: Standing::Rules, server: None, scope: None, deadline: None, held: None }
    }

    pub(super) fn allows(&self) -> bool {
        self.decision.verdict == Verdict::Allow
    }

    /// A call that wants no answer would have nobody who watches what it runs with.
    pub(super) fn deny_unasked_call(&mut self, asked: &Asked<'_>) {
        let by_tool = self.server.as_ref().is_some_and(|server| !server.scopes.is_empty());
        if by_tool && asked.is_tool_call() {
            self.deny(Standing::Rules, "scopes: tools/call without an id");
        }
    }

    /// Allowed although it may have run, by this rule.
    pub(super) fn repeat(&mut self, rule: &'static str, deadline: Option<Instant>) {
        self.deadline = deadline;
        self.standing = Standing::Repeated;
        self.decision.rule = rule.into();
    }

    pub(super) fn deny(&mut self, standing: Standing, rule: &'static str) {
        self.standing = standing;
        self.decision = Decision { verdict: Verdict::Deny, rule: rule.into() };
    }
}
