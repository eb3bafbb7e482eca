//! Decisions and outcomes into the audit, with the numbers that are counted beside them.
//!
//! A decision is written before anything follows from it. An outcome is not waited for: one that is lost with the sidecar
//! is unknown to a reader of the audit, as it is to the harness. So outcomes are written in batches: with the next
//! decisions, when there is nothing else to do, or soon.

use std::borrow::Cow;
use std::time::Duration;

use cofferdam_audit::{
    self as audit, AuditError, Batch, CallResult, OutcomeRecord, PendingRecords, SecretUse, Submitted,
};
use cofferdam_base::metrics::{self, RequestOutcome, ServerTally};
use cofferdam_policy as policy;
use cofferdam_scrub::Scrubber;
use relay_proto::code::Code;
use tokio::time::Instant;

use super::CallerContext;
use super::decide::Decided;
use super::in_flight::Call;
use super::used_secrets::{HeldSecrets, other_uses, secret_uses};
use crate::config::Config;

pub(crate) struct Recorder {
    outcomes: Vec<Outcome>,
    /// Reused, to save allocations.
    batch: Batch,
    /// When they are written at the latest.
    due: Option<Instant>,
    pub(crate) counters: LinkCounters,
    /// What the metrics count of this server's requests.
    tally: ServerTally,
}

/// What `cofferdam sessions` shows of a link's calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkCounters {
    pub(crate) calls: u64,
    pub(crate) refused: u64,
    pub(crate) redactions: u64,
}

/// Whether the decision about a message is in the audit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Recorded {
    /// Nothing follows from it.
    NotWritten,
    Written,
    /// It is in the file, but may be lost with the host: the call is not made.
    WrittenNotSynced,
}

/// Whether the decisions about a chunk are written.
pub(super) enum Recording {
    /// One result for each message, in order.
    Done(Vec<Recorded>),
    /// The audit's disk is slow.
    Pending(PendingRecords),
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

/// The method and the tool of a call, scrubbed, and the secrets that it was made with where its decision names others.
type Names<'a> = (Cow<'a, str>, Option<Cow<'a, str>>, Vec<SecretUse<'a>>);

/// Long enough that the next call of a busy harness comes within it.
const LATEST: Duration = Duration::from_millis(20);
/// So many are worth a write of their own when there is nothing else to do.
const WORTH_A_WRITE: usize = 8;
/// So many are written without waiting for anything: more than one turn brings, whose responses are to leave first.
const MAX_WAITING: usize = 128;

impl Recorder {
    pub(super) fn new(server: &str, batch: Batch) -> Self {
        Self {
            outcomes: Vec::new(),
            batch,
            due: None,
            counters: LinkCounters::default(),
            tally: metrics::requests_of(server),
        }
    }

    pub(super) fn count(&self, outcome: RequestOutcome) {
        self.tally.count(outcome);
    }

    /// When [`Self::write_due`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(crate) fn is_worth_a_write(&self) -> bool {
        self.outcomes.len() >= WORTH_A_WRITE
    }

    /// Takes note of what became of a call that the server did not answer with anything that was relayed.
    pub(super) fn outcome(&mut self, call: Call, result: CallResult, code: Option<Code>, now: Instant) {
        let duration = now.saturating_duration_since(call.began);
        self.push(Outcome { call, result, code, bytes: 0, duration, redactions: 0 }, now);
    }

    /// The same for a call whose response was relayed: its size at the server, and what was taken out of it.
    pub(super) fn relayed(
        &mut self,
        call: Call,
        result: CallResult,
        bytes: usize,
        redactions: u32,
        now: Instant,
    ) {
        let duration = now.saturating_duration_since(call.began);
        self.push(Outcome { call, result, code: None, bytes, duration, redactions }, now);
    }

    fn push(&mut self, outcome: Outcome, now: Instant) {
        self.count(outcome.result.into());
        self.outcomes.push(outcome);
        self.due.get_or_insert(now + LATEST);
    }

    /// Writes outcomes that have waited long enough, or are many.
    pub(crate) fn write_due(&mut self, caller: &CallerContext, now: Instant) {
        if self.due.is_some_and(|due| due <= now) || self.outcomes.len() >= MAX_WAITING {
            self.write(caller);
        }
    }

    /// Writes all outcomes, with one write.
    pub(crate) fn write(&mut self, caller: &CallerContext) {
        if self.outcomes.is_empty() {
            return;
        }
        let session = &caller.session;
        self.batch_outcomes(caller);
        if let Err(error) = session.context.audit.outcomes(&session.budget, &mut self.batch) {
            self.report_lost(caller, &error);
        }
        self.clear();
    }

    /// Writes decisions, all at once, with the outcomes that wait.
    pub(super) fn record(
        &mut self,
        caller: &CallerContext,
        config: &Config,
        decided: &[Decided<'_>],
        held: &HeldSecrets,
    ) -> Recording {
        let CallerContext { session, server, audit: of, .. } = caller;
        let audit = &session.context.audit;
        let scrubber = session.credentials.scrubber();
        let secrets = config.servers.get(server).map(|server| server.secrets()).unwrap_or_default();
        let secrets = secret_uses(secrets, &held.base);
        // What the sandbox wrote may repeat what a server told it.
        let names: Vec<_> = decided
            .iter()
            .enumerate()
            .map(|(place, one)| match one.inbound.request() {
                Some(request) => {
                    let scope = one.scope().zip(held.in_scope(place));
                    (
                        method_name(&scrubber, &request.method),
                        request.tool.as_deref().map(|tool| scrubber.name(tool)),
                        request.arguments().map(|arguments| audit.arguments_mac(arguments)),
                        scope.map(|(scope, held)| secret_uses(scope.secrets(), held)),
                    )
                }
                None => ("".into(), None, None, None),
            })
            .collect();
        if decided.iter().all(|one| one.ruling.is_none()) {
            return Recording::Done(vec![Recorded::Written; decided.len()]);
        }
        self.batch_outcomes(caller);
        for (one, (method, tool, mac, of_scope)) in decided.iter().zip(&names) {
            let Some(ruling) = &one.ruling else { continue };
            let call = audit::Call { of, seq: one.received.seq, method, tool: tool.as_deref() };
            let secrets = of_scope.as_ref().unwrap_or(&secrets);
            self.batch.decision(&one.record(call, ruling, mac.as_ref(), &config.policy_digest, secrets));
        }
        match audit.submit(&session.budget, &mut self.batch) {
            Submitted::Done(result) => {
                if let Err(error) = &result {
                    self.report_lost(caller, error);
                }
                self.clear();
                Recording::Done(recorded(caller, result, decided.iter().map(|one| one.ruling.is_some())))
            }
            Submitted::Pending(pending) => {
                self.clear();
                Recording::Pending(pending)
            }
        }
    }

    fn batch_outcomes(&mut self, caller: &CallerContext) {
        let mut batch = std::mem::take(&mut self.batch);
        let names = self.names(&caller.session.credentials.scrubber());
        for record in self.records(&caller.audit, &names) {
            batch.outcome(&record);
        }
        drop(names);
        self.batch = batch;
    }

    fn clear(&mut self) {
        self.outcomes.clear();
        self.due = None;
    }

    /// What the sandbox called them may repeat what a server told it.
    fn names(&self, scrubber: &Scrubber) -> Vec<Names<'_>> {
        self.outcomes
            .iter()
            .map(|outcome| {
                let tool = outcome.call.tool.as_deref().map(|tool| scrubber.name(tool));
                let secrets = outcome.call.sent_with.as_deref().map(other_uses).unwrap_or_default();
                (method_name(scrubber, &outcome.call.method), tool, secrets)
            })
            .collect()
    }

    fn records<'a>(
        &'a self,
        of: &'a audit::Caller,
        names: &'a [Names<'_>],
    ) -> impl Iterator<Item = OutcomeRecord<'a>> {
        self.outcomes.iter().zip(names).map(move |(outcome, (method, tool, secrets))| OutcomeRecord {
            call: audit::Call { of, seq: outcome.call.seq, method, tool: tool.as_deref() },
            result: outcome.result,
            code: outcome.code.map(Code::as_str),
            bytes: outcome.bytes as u64,
            duration: outcome.duration,
            redactions: u64::from(outcome.redactions),
            secrets,
        })
    }

    fn report_lost(&self, caller: &CallerContext, error: &AuditError) {
        let count = self.outcomes.len();
        if count > 0 {
            tracing::error!(link = %caller.link, session = %caller.session.id, %error, count, "outcomes not recorded");
        }
    }
}

/// One result for each message, in order; `has_decision` says which of them were to be recorded.
pub(super) fn recorded(
    caller: &CallerContext,
    result: Result<Vec<audit::Recorded>, AuditError>,
    has_decision: impl Iterator<Item = bool>,
) -> Vec<Recorded> {
    let (written, otherwise) = match result {
        Ok(written) => (written, Recorded::NotWritten),
        Err(error) => {
            let CallerContext { session, link, .. } = caller;
            tracing::error!(%link, session = %session.id, %error, "decisions not recorded: the calls are refused");
            let otherwise = match error {
                AuditError::Sync { .. } => Recorded::WrittenNotSynced,
                _ => Recorded::NotWritten,
            };
            (Vec::new(), otherwise)
        }
    };
    let mut written = written.into_iter().map(Recorded::from);
    has_decision
        .map(|has_decision| match has_decision {
            true => written.next().unwrap_or(otherwise),
            false => Recorded::Written,
        })
        .collect()
}

/// A method as it may be written down. Names of the protocol itself are not secret.
fn method_name<'a>(scrubber: &Scrubber, method: &'a str) -> Cow<'a, str> {
    match policy::known_method(method) {
        Some(known) => Cow::Borrowed(known),
        None => scrubber.name(method),
    }
}

impl From<audit::Recorded> for Recorded {
    fn from(recorded: audit::Recorded) -> Self {
        match recorded {
            audit::Recorded::OverBudget(_) => Self::NotWritten,
            audit::Recorded::Yes => Self::Written,
        }
    }
}
