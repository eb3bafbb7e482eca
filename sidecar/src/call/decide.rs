//! Decides about a message: first by the rules, then, if they allow it, by limits and earlier attempts.
//!
//! What must stay true: rules win. A denied tool is refused as denied even on a full link, and even if it may have run.

use std::sync::Arc;

use cofferdam_audit::{self as audit, DecisionRecord, FollowedBy, Mac, SecretUse};
use cofferdam_policy::{self as policy, Decision, Glob, Rules, Verdict};
use cofferdam_secrets::{SecretReads, Secrets};
use relay_proto::delivery::Received;
use relay_proto::envelope::IdValue;
use relay_proto::limits::MAX_TOOL_NAME;
use relay_proto::mcp;
use relay_proto::name::Name;
use tokio::time::Instant;

use super::CallerContext;
use super::admit::{DecisionFacts, PriorAttempts, ToolListWait};
use super::catalogue::{Coverage, Repeat, ToolCatalogue};
use super::decode::{Inbound, Request};
use super::parked::ParkReason;
use super::record::{NotWritten, RecordStatus};
use super::tasks::TaskTable;
use crate::config::{Config, Scope, Server};

/// The result of admission and decision.
#[expect(clippy::large_enum_variant, reason = "almost all are decided, and moved straight into a vector")]
pub(crate) enum Resolution<'a> {
    Decided(Decided<'a>),
    /// The request cannot be decided yet.
    Park(IdValue, ParkReason),
}

/// One message with its decision. A response needs no decision and no record.
pub(crate) struct Decided<'a> {
    pub(super) received: &'a Received,
    pub(super) inbound: Inbound<'a>,
    pub(super) ruling: Option<Ruling>,
}

/// The decided messages of one chunk so far.
pub(crate) struct DecidedChunk<'a> {
    pub(super) messages: Vec<Decided<'a>>,
    /// How many of them are allowed requests.
    pub(super) allowed_requests: usize,
    /// A filter over the ids of the allowed requests: an id whose [`bit_of`] is not set is not among them.
    id_bits: u64,
}

/// The decision about a message, with the server and credentials that it applies to.
pub(crate) struct Ruling {
    pub(super) decision: Decision,
    pub(super) reason: DecisionReason,
    /// `None` if the grant does not name the server, or if the message is malformed.
    pub(super) server: Option<Arc<Server>>,
    /// The scope whose credentials an allowed call uses, if its tool is in a scope.
    pub(super) scope: Option<Arc<Scope>>,
    /// The deadline of the first attempt, for a retried request.
    pub(super) deadline: Option<Instant>,
    /// The secrets that the decision record names. The process may have newer ones by the time the call is sent.
    pub(super) held: Option<Arc<Secrets>>,
}

/// Why a message was allowed or refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DecisionReason {
    MaybeRan,
    NotGranted,
    /// The request may have run, and is sent once more.
    Repeated,
    Rules,
    TooManyInFlight,
}

/// Decides about a message that was admitted.
pub(crate) fn decide<'a>(
    config: &Config,
    caller: &CallerContext,
    tasks: &TaskTable,
    catalogue: &ToolCatalogue,
    received: &'a Received,
    inbound: Inbound<'a>,
    facts: DecisionFacts,
) -> Resolution<'a> {
    let ruling = match &inbound {
        Inbound::Response { .. } => None,
        Inbound::FromServer { request, .. } | Inbound::InsideMessage { request, .. } => {
            Some(Ruling::of_server_request(config, &caller.session.grant, &caller.server, request))
        }
        Inbound::Malformed(_) => Some(Ruling::malformed()),
        Inbound::Notification(request) => {
            let mut ruling = Ruling::by_rules(config, &caller.session.grant, &caller.server, request);
            ruling.deny_call_without_id(request);
            Some(ruling)
        }
        Inbound::Request { request, value, .. } => {
            let mut ruling = Ruling::by_rules(config, &caller.session.grant, &caller.server, request);
            ruling.use_scope_of_task(request, tasks);
            match ruling.existence(request, catalogue) {
                ToolExistence::Listed => {}
                ToolExistence::NotListed => ruling.deny(DecisionReason::Rules, NOT_LISTED),
                ToolExistence::Unknown if facts.tool_list_wait == ToolListWait::Allowed => {
                    return Resolution::Park(value.clone(), ParkReason::ToolsUnknown);
                }
                // The server does not list its tools: it answers by itself.
                ToolExistence::Unknown => {}
            }
            if let Some(server) = ruling.server.as_ref().filter(|_| ruling.allows()) {
                let repeat = match facts.prior {
                    PriorAttempts::None => Repeat::No,
                    PriorAttempts::One => catalogue.repeat(server.retry, request),
                    PriorAttempts::Repeated => Repeat::No,
                };
                if repeat == Repeat::Unknown && facts.tool_list_wait == ToolListWait::Allowed {
                    return Resolution::Park(value.clone(), ParkReason::ToolsUnknown);
                }
                ruling.apply(facts, repeat);
            }
            Some(ruling)
        }
    };
    Resolution::Decided(Decided { received, inbound, ruling })
}

/// Whether the server has the tool of a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ToolExistence {
    /// Or it does not matter.
    Listed,
    NotListed,
    /// Its tools have not been listed yet.
    Unknown,
}

const NOT_LISTED: &str = "tools: not listed by the server";

/// The server, if the grant names it.
fn granted_server<'a>(config: &'a Config, grant: &Name, server: &Name) -> Option<&'a Arc<Server>> {
    let granted = config.grants.get(grant).is_some_and(|grant| grant.servers.contains(server));
    config.servers.get(server).filter(|_| granted)
}

impl Ruling {
    /// Applies the configured rules. Every request to a server that the grant does not name is denied.
    fn by_rules(config: &Config, grant: &Name, server: &Name, request: &Request<'_>) -> Self {
        let Some(server) = granted_server(config, grant, server) else {
            return Self::new(policy::server_not_granted(server), DecisionReason::NotGranted);
        };
        let decision = match (request.is_tool_call(), request.tool.as_deref()) {
            (true, Some(tool)) => server.rules.decide(policy::Request::Tool(tool)),
            (true, None) => {
                Decision { verdict: Verdict::Deny, rule: "tools/call without a tool's name".into() }
            }
            (false, _) => server.rules.decide(policy::Request::Method(&request.method)),
        };
        let scope = match request.tool.as_deref() {
            Some(tool) if !server.scopes.is_empty() => server.scope(tool).cloned(),
            _ => None,
        };
        Self { server: Some(Arc::clone(server)), scope, ..Self::new(decision, DecisionReason::Rules) }
    }

    /// Decides about a request of the server to the harness.
    fn of_server_request(config: &Config, grant: &Name, server: &Name, request: &Request<'_>) -> Self {
        let Some(server) = granted_server(config, grant, server) else {
            return Self::new(policy::server_not_granted(server), DecisionReason::NotGranted);
        };
        let decision = server.rules.decide(policy::Request::ToHarness(&request.method));
        Self { server: Some(Arc::clone(server)), ..Self::new(decision, DecisionReason::Rules) }
    }

    /// Whether the tool of an allowed call exists, where that matters: a call of a tool that does not exist is answered
    /// like one of a tool that is hidden by its name.
    fn existence(&self, request: &Request<'_>, catalogue: &ToolCatalogue) -> ToolExistence {
        let rules = self.server.as_ref().filter(|_| self.allows()).map(|server| &server.rules);
        let hides_by_name = rules.is_some_and(Rules::hides_by_name);
        match request.tool.as_deref().filter(|_| hides_by_name) {
            // Longer names are not remembered.
            Some(tool) if tool.len() <= MAX_TOOL_NAME && !catalogue.lists(tool) => match catalogue.coverage {
                Coverage::Partial => ToolExistence::Unknown,
                Coverage::Whole => ToolExistence::NotListed,
            },
            _ => ToolExistence::Listed,
        }
    }

    fn malformed() -> Self {
        let decision = Decision { verdict: Verdict::Deny, rule: "message_malformed".into() };
        Self::new(decision, DecisionReason::Rules)
    }

    fn new(decision: Decision, reason: DecisionReason) -> Self {
        Self { decision, reason, server: None, scope: None, deadline: None, held: None }
    }

    pub(super) fn allows(&self) -> bool {
        self.decision.verdict == Verdict::Allow
    }

    /// The reads of secrets that the decision record names, to be compared with those that the call is sent with.
    pub(super) fn decision_reads(&self) -> Option<Arc<SecretReads>> {
        let (server, held) = (self.server.as_ref()?, self.held.as_ref()?);
        let names = self.scope.as_ref().map_or_else(|| server.secrets(), |scope| scope.secrets());
        (!names.is_empty()).then(|| Arc::new(SecretReads::of(names, held)))
    }

    /// A request about a task uses the credentials of the tool that created the task.
    fn use_scope_of_task(&mut self, request: &Request<'_>, tasks: &TaskTable) {
        let Some(server) = self.server.as_ref().filter(|server| !server.scopes.is_empty()) else { return };
        if let Some(task) = request.task() {
            self.scope = tasks.tool_of(&task).and_then(|tool| server.scope(tool)).cloned();
        }
    }

    /// A call without an id gets no response, so it could not be detected when the scope's process has finished it.
    fn deny_call_without_id(&mut self, request: &Request<'_>) {
        let has_scopes = self.server.as_ref().is_some_and(|server| !server.scopes.is_empty());
        if has_scopes && request.is_tool_call() {
            self.deny(DecisionReason::Rules, "scopes: tools/call without an id");
        }
    }

    /// Applies limits and earlier attempts to a request that the rules allow.
    fn apply(&mut self, facts: DecisionFacts, repeat: Repeat) {
        let DecisionFacts { prior, room, deadline, now, .. } = facts;
        let in_time = deadline.is_none_or(|deadline| deadline > now);
        match (prior, repeat) {
            (PriorAttempts::None, _) if room => {}
            (PriorAttempts::None, _) => {
                self.deny(DecisionReason::TooManyInFlight, "limits.requests-in-flight");
            }
            (PriorAttempts::One, Repeat::Yes(rule)) if room && in_time => {
                self.deadline = deadline;
                self.reason = DecisionReason::Repeated;
                self.decision.rule = rule.into();
            }
            (PriorAttempts::One | PriorAttempts::Repeated, _) => {
                self.deny(DecisionReason::MaybeRan, "maybe-ran");
            }
        }
    }

    fn deny(&mut self, reason: DecisionReason, rule: &'static str) {
        self.reason = reason;
        self.decision = Decision { verdict: Verdict::Deny, rule: rule.into() };
    }
}

impl<'a> DecidedChunk<'a> {
    pub(super) fn with_capacity(count: usize) -> Self {
        Self { messages: Vec::with_capacity(count), allowed_requests: 0, id_bits: 0 }
    }

    pub(super) fn push(&mut self, message: Decided<'a>) {
        if let Some(id) = message.allowed_id() {
            self.allowed_requests += 1;
            self.id_bits |= bit_of(id);
        }
        self.messages.push(message);
    }

    /// Whether one of the allowed requests uses this id.
    pub(super) fn uses_id(&self, id: &IdValue) -> bool {
        self.id_bits & bit_of(id) != 0 && self.messages.iter().any(|message| message.allowed_id() == Some(id))
    }
}

/// Maps an id to one bit of 64 by its last two characters, so that consecutive numbers get different bits.
fn bit_of(id: &IdValue) -> u64 {
    let (IdValue::Integer(text) | IdValue::Text(text)) = id;
    let text = text.as_bytes();
    let last_two = &text[text.len().saturating_sub(2)..];
    let bit = last_two.iter().fold(0_u8, |bit, digit| bit.wrapping_mul(10).wrapping_add(*digit));
    1 << (bit % 64)
}

impl<'a> Decided<'a> {
    /// Whether later messages must be decided after this one is carried out: a cancellation frees an id and room for a
    /// request.
    pub(super) fn is_cancellation(&self) -> bool {
        matches!(&self.inbound, Inbound::Notification(request) if request.method == mcp::CANCELLED)
    }

    /// Whether an outcome record follows the decision.
    fn has_outcome(&self) -> bool {
        let is_request = matches!(self.inbound, Inbound::FromServer { .. } | Inbound::Request { .. });
        is_request && self.ruling.as_ref().is_some_and(Ruling::allows)
    }

    /// Whether this is an allowed request of the harness.
    fn is_allowed_request(&self) -> bool {
        matches!(self.inbound, Inbound::Request { .. }) && self.ruling.as_ref().is_some_and(Ruling::allows)
    }

    /// The id of this message, if it is an allowed request.
    fn allowed_id(&self) -> Option<&IdValue> {
        match &self.inbound {
            Inbound::Request { value, .. } if self.is_allowed_request() => Some(value),
            _ => None,
        }
    }

    /// The result for this message when the audit cannot be written.
    pub(super) fn status_without_audit(&self) -> RecordStatus {
        match self.ruling {
            Some(_) => RecordStatus::NotWritten(NotWritten::Disk),
            None => RecordStatus::Written,
        }
    }

    pub(super) fn scope(&self) -> Option<&Arc<Scope>> {
        self.ruling.as_ref()?.scope.as_ref()
    }

    /// The configured pattern by which the tool belongs to its scope.
    fn scope_pattern(&self) -> Option<&str> {
        self.scope()?.pattern(self.inbound.request()?.tool.as_deref()?).map(Glob::as_str)
    }

    pub(super) fn to_record<'r>(
        &'r self,
        call: audit::Call<'r>,
        ruling: &'r Ruling,
        arguments: Option<&'r Mac>,
        policy: &'r str,
        secrets: &'r [SecretUse<'r>],
    ) -> DecisionRecord<'r> {
        DecisionRecord {
            call,
            arguments,
            verdict: ruling.decision.verdict,
            rule: &ruling.decision.rule,
            policy,
            scope: self.scope_pattern(),
            secrets,
            bytes: self.received.bytes.len() as u64,
            followed_by: match self.has_outcome() {
                true => FollowedBy::Outcome,
                false => FollowedBy::Nothing,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use relay_proto::frame::MaybeRan;

    use super::super::decode::decode;
    use super::*;

    /// Ids that share a bit are distinguished, and the ids of denied requests stay free.
    #[test]
    fn only_allowed_requests_of_the_chunk_use_their_ids() {
        let ids: Vec<String> = (0..60).map(|number| number.to_string()).chain(["\"7\"".into()]).collect();
        let received = |id: &String| Received {
            seq: 1,
            maybe_ran: MaybeRan::No,
            bytes: format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#).into_bytes(),
        };
        let messages: Vec<Received> = ids.iter().map(received).collect();
        let mut chunk = DecidedChunk::with_capacity(messages.len());
        for (index, message) in messages.iter().enumerate() {
            let verdict = if index % 3 == 0 { Verdict::Deny } else { Verdict::Allow };
            let ruling = Ruling::new(Decision { verdict, rule: "".into() }, DecisionReason::Rules);
            let inbound = decode(message, 8);
            chunk.push(Decided { received: message, inbound, ruling: Some(ruling) });
        }
        assert_eq!(chunk.allowed_requests, 40);
        for number in 0..60_usize {
            let is_used = chunk.uses_id(&IdValue::Integer(number.to_string().into()));
            assert_eq!(is_used, number % 3 != 0, "{number}");
        }
        assert!(
            !chunk.uses_id(&IdValue::Text("8".into())) && !chunk.uses_id(&IdValue::Integer("108".into()))
        );
    }
}
