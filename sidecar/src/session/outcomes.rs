//! What became of calls, written down in batches: when there is nothing else to do, with the next decisions, or soon.
//!
//! An outcome that is lost with the sidecar is unknown to whoever reads the audit, as it is to the harness; so nobody
//! waits for it to be written. Many are written once their answers are on their way, while others work on those; few
//! share the write of the decisions that follow.

use std::borrow::Cow;
use std::time::Duration;

use relay_proto::code::Code;
use tokio::time::Instant;

use super::calls::Call;
use super::link::Link;
use super::used_secrets::other_uses;
use crate::audit::{self, CallResult, OutcomeRecord, SecretUse};
use crate::policy;
use crate::scrub::Scrubber;

/// Outcomes of one link that wait to be written.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    waiting: Vec<Outcome>,
    /// When they are written at the latest.
    due: Option<Instant>,
}

#[derive(Debug)]
struct Outcome {
    call: Call,
    result: CallResult,
    code: Option<Code>,
    bytes: usize,
    duration: Duration,
    redactions: u32,
}

/// The method and the tool of a call, as they may be written down, and the secrets that its decision names otherwise.
type Names<'a> = (Cow<'a, str>, Option<Cow<'a, str>>, Vec<SecretUse<'a>>);

/// Long enough that the next call of a busy harness comes within it.
const LATEST: Duration = Duration::from_millis(20);
/// So many are worth a write of their own when there is nothing else to do.
const WORTH_A_WRITE: usize = 8;
/// So many are written without waiting for anything: more than one turn brings, whose answers are to leave first.
const MAX_WAITING: usize = 128;

impl Outcomes {
    /// When [`Link::write_due_outcomes`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn are_worth_a_write(&self) -> bool {
        self.waiting.len() >= WORTH_A_WRITE
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.due = None;
    }

    /// What the sandbox called them may repeat what a server told it.
    pub(super) fn names(&self, scrubber: &Scrubber) -> Vec<Names<'_>> {
        self.waiting
            .iter()
            .map(|outcome| {
                let tool = outcome.call.tool.as_deref().map(|tool| scrubber.name(tool));
                let secrets = outcome.call.sent_with.as_deref().map(other_uses).unwrap_or_default();
                (method_name(scrubber, &outcome.call.method), tool, secrets)
            })
            .collect()
    }

    pub(super) fn records<'a>(
        &'a self,
        of: &'a audit::Caller,
        names: &'a [Names<'_>],
    ) -> impl Iterator<Item = OutcomeRecord<'a>> {
        self.waiting.iter().zip(names).map(move |(outcome, (method, tool, secrets))| OutcomeRecord {
            call: audit::Call { of, seq: outcome.call.seq, method, tool: tool.as_deref() },
            result: outcome.result,
            code: outcome.code.map(Code::as_str),
            bytes: outcome.bytes as u64,
            duration: outcome.duration,
            redactions: u64::from(outcome.redactions),
            secrets,
        })
    }
}

/// A method as it may be written down. The protocol's own words are nobody's secret.
pub(super) fn method_name<'a>(scrubber: &Scrubber, method: &'a str) -> Cow<'a, str> {
    match policy::known_method(method) {
        Some(known) => Cow::Borrowed(known),
        None => scrubber.name(method),
    }
}

impl Link {
    pub(super) fn record_outcome(
        &mut self,
        call: Call,
        result: CallResult,
        code: Option<Code>,
        bytes: usize,
        redactions: u32,
    ) {
        self.requests.count(result.into());
        let duration = self.woke.saturating_duration_since(call.began);
        self.outcomes.waiting.push(Outcome { call, result, code, bytes, duration, redactions });
        self.outcomes.due.get_or_insert(self.woke + LATEST);
    }

    /// Writes those that have waited long enough, or are many.
    pub(super) fn write_due_outcomes(&mut self) {
        let due = self.outcomes.due.is_some_and(|due| due <= self.woke);
        if due || self.outcomes.len() >= MAX_WAITING {
            self.write_outcomes();
        }
    }

    /// Writes all that wait, with one write.
    pub(super) fn write_outcomes(&mut self) {
        if self.outcomes.len() == 0 {
            return;
        }
        let names = self.outcomes.names(&self.session.credentials.scrubber());
        let records = self.outcomes.records(&self.caller, &names);
        if let Err(error) = self.session.context.audit.outcomes(&self.session.budget, records) {
            self.outcomes_lost(&error);
        }
        self.outcomes.clear();
    }

    pub(super) fn outcomes_lost(&self, error: &audit::AuditError) {
        let count = self.outcomes.len();
        if count > 0 {
            tracing::error!(link = %self.id, session = %self.session.id, %error, count, "outcomes not recorded");
        }
    }
}
