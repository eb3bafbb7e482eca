//! Writes decisions and outcomes to the audit, and counts them.
//!
//! A decision is written before it is carried out. Nothing waits for an outcome to be written: if the sidecar crashes
//! first, the audit lacks the outcome, although the harness may have received the response. So outcomes are written in
//! batches: with the next decisions, when the link is idle, or after [`OUTCOME_DELAY`].

use std::borrow::Cow;
use std::time::Duration;

use cofferdam_audit::{
    self as audit, AuditError, Batch, BudgetLimit, CallResult, OutcomeRecord, PendingRecords, SecretUse,
    SentBy, Submitted,
};
use cofferdam_base::PacedLines;
use cofferdam_base::metrics::{self, RequestOutcome, ServerTally};
use cofferdam_policy as policy;
use cofferdam_scrub::Scrubber;
use relay_proto::code::Code;
use relay_proto::envelope;
use tokio::time::Instant;

use super::CallerContext;
use super::decide::Decided;
use super::in_flight::Call;
use super::used_secrets::{HeldSecrets, secret_uses, uses_of_reads};
use crate::config::Config;

pub(crate) struct Recorder {
    outcomes: Vec<Outcome>,
    /// Reused, to save allocations.
    batch: Batch,
    /// When the outcomes are written at the latest.
    due: Option<Instant>,
    pub(crate) counters: LinkCounters,
    /// The metrics of this server's requests.
    tally: ServerTally,
}

/// The counters of a link that `cofferdam sessions` shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkCounters {
    pub(crate) calls: u64,
    pub(crate) refused: u64,
    pub(crate) redactions: u64,
}

/// Whether the decision about a message is in the audit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RecordStatus {
    /// The decision is not carried out.
    NotWritten(NotWritten),
    Written,
    /// The record is in the file, but a host crash may lose it: the call is not made.
    WrittenNotSynced,
}

/// Why a decision is not in the audit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NotWritten {
    /// The sandbox has used up its budget.
    Budget(BudgetLimit),
    /// The disk is full, slow or broken.
    Disk,
}

/// Whether the decisions of a chunk are written.
pub(super) enum Recording {
    /// One result for each message, in order.
    Done(Vec<RecordStatus>),
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

/// The scrubbed method and tool of a call, and the secrets that it was sent with if they differ from those in its
/// decision record.
type OutcomeFields<'a> = (Cow<'a, str>, Option<Cow<'a, str>>, Vec<SecretUse<'a>>);

/// How long outcomes wait for a shared write: usually the next call of a busy harness comes first.
const OUTCOME_DELAY: Duration = Duration::from_millis(20);
/// An idle link writes this many outcomes or more without waiting for [`OUTCOME_DELAY`].
const IDLE_WRITE_COUNT: usize = 8;
/// With this many outcomes stored, [`Recorder::write_due`] does not wait for [`OUTCOME_DELAY`]. One pass of the link's
/// loop adds fewer, so its responses are sent first.
const MAX_UNWRITTEN_OUTCOMES: usize = 128;

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

    pub(crate) fn should_write_when_idle(&self) -> bool {
        self.outcomes.len() >= IDLE_WRITE_COUNT
    }

    /// Stores the outcome of a call for which no response of the server was relayed.
    pub(super) fn store_outcome(&mut self, call: Call, result: CallResult, code: Option<Code>, now: Instant) {
        let duration = now.saturating_duration_since(call.began);
        self.push(Outcome { call, result, code, bytes: 0, duration, redactions: 0 }, now);
    }

    /// Stores the outcome of a call whose response was relayed: the size that the server sent, and the number of
    /// redactions.
    pub(super) fn store_relayed(
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
        // The metric counts requests of harnesses.
        if outcome.call.sent_by == SentBy::Harness {
            self.count(outcome.result.into());
        }
        self.outcomes.push(outcome);
        self.due.get_or_insert(now + OUTCOME_DELAY);
    }

    /// Writes the outcomes if they are due, or too many.
    pub(crate) fn write_due(&mut self, caller: &CallerContext, now: Instant) {
        if self.due.is_some_and(|due| due <= now) || self.outcomes.len() >= MAX_UNWRITTEN_OUTCOMES {
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

    /// Writes decisions and all stored outcomes, with one write. Does not wait for a slow disk.
    pub(super) async fn record(
        &mut self,
        caller: &CallerContext,
        config: &Config,
        decided: &[Decided<'_>],
        held: &HeldSecrets,
    ) -> Recording {
        if decided.iter().all(|message| message.ruling.is_none()) {
            return Recording::Done(vec![RecordStatus::Written; decided.len()]);
        }
        self.batch_outcomes(caller);
        self.batch_decisions(caller, config, decided, held);
        let session = &caller.session;
        match session.context.audit.submit(&session.budget, &mut self.batch).await {
            Submitted::Done(result) => {
                if let Err(error) = &result {
                    self.report_lost(caller, error);
                }
                self.clear();
                Recording::Done(record_statuses(
                    caller,
                    result,
                    decided.iter().map(|message| message.ruling.is_some()),
                ))
            }
            Submitted::Pending(pending) => {
                self.clear();
                Recording::Pending(pending)
            }
        }
    }

    fn batch_decisions(
        &mut self,
        caller: &CallerContext,
        config: &Config,
        decided: &[Decided<'_>],
        held: &HeldSecrets,
    ) {
        let CallerContext { session, server, audit: audit_caller, .. } = caller;
        let audit = &session.context.audit;
        let scrubber = session.credentials.scrubber();
        let secrets = config.servers.get(server).map(|server| server.secrets()).unwrap_or_default();
        let secrets = secret_uses(secrets, &held.base);
        // Scrubbed, because the sandbox may repeat a credential that it got from a server.
        let scrubbed_fields: Vec<_> = decided
            .iter()
            .enumerate()
            .map(|(index, message)| match message.inbound.request() {
                Some(request) => {
                    let scope = message.scope().zip(held.in_scope(index));
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
        for (message, (method, tool, mac, of_scope)) in decided.iter().zip(&scrubbed_fields) {
            let Some(ruling) = &message.ruling else { continue };
            let call = audit::Call {
                caller: audit_caller,
                sent_by: message.inbound.sent_by(),
                seq: message.received.seq,
                method,
                tool: tool.as_deref(),
            };
            let secrets = of_scope.as_ref().unwrap_or(&secrets);
            self.batch.decision(&message.to_record(
                call,
                ruling,
                mac.as_ref(),
                &config.policy_digest,
                secrets,
            ));
        }
    }

    fn batch_outcomes(&mut self, caller: &CallerContext) {
        let mut batch = std::mem::take(&mut self.batch);
        let fields = self.outcome_fields(&caller.scrubber());
        for record in self.records(&caller.audit, &fields) {
            batch.outcome(&record);
        }
        drop(fields);
        self.batch = batch;
    }

    fn clear(&mut self) {
        self.outcomes.clear();
        self.due = None;
    }

    /// Scrubbed, because the sandbox may repeat a credential that it got from a server.
    fn outcome_fields(&self, scrubber: &Scrubber) -> Vec<OutcomeFields<'_>> {
        self.outcomes
            .iter()
            .map(|outcome| {
                let tool = outcome.call.tool.as_deref().map(|tool| scrubber.name(tool));
                let secrets = outcome.call.sent_with.as_deref().map(uses_of_reads).unwrap_or_default();
                (method_name(scrubber, &outcome.call.method), tool, secrets)
            })
            .collect()
    }

    fn records<'a>(
        &'a self,
        caller: &'a audit::Caller,
        fields: &'a [OutcomeFields<'_>],
    ) -> impl Iterator<Item = OutcomeRecord<'a>> {
        self.outcomes.iter().zip(fields).map(move |(outcome, (method, tool, secrets))| OutcomeRecord {
            call: audit::Call {
                caller,
                sent_by: outcome.call.sent_by,
                seq: outcome.call.seq,
                method,
                tool: tool.as_deref(),
            },
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
        if count > 0
            && let Some(left_out) = UNRECORDED_OUTCOME_LINES.admit()
        {
            tracing::error!(link = %caller.link, session = %caller.session.id, %error, count, left_out, "call outcomes were not recorded");
        }
    }
}

/// With a full disk every call causes such lines.
static UNRECORDED_DECISION_LINES: PacedLines =
    PacedLines::new("decisions were not recorded: the calls are refused");
static UNRECORDED_OUTCOME_LINES: PacedLines = PacedLines::new("call outcomes were not recorded");

/// One result for each message, in order; `has_decision` says for each whether it has a decision to be recorded.
pub(super) fn record_statuses(
    caller: &CallerContext,
    result: Result<Vec<audit::Recorded>, AuditError>,
    has_decision: impl Iterator<Item = bool>,
) -> Vec<RecordStatus> {
    let (written, default) = match result {
        Ok(written) => {
            let over_budget = |recorded: &audit::Recorded| match recorded {
                audit::Recorded::OverBudget(limit) => Some(*limit),
                audit::Recorded::Yes => None,
            };
            if let Some(limit) = written.iter().find_map(over_budget) {
                log_unrecorded(caller, &AuditError::Budget(limit));
            }
            (written, RecordStatus::NotWritten(NotWritten::Disk))
        }
        Err(error) => {
            log_unrecorded(caller, &error);
            let default = match error {
                AuditError::Sync { .. } => RecordStatus::WrittenNotSynced,
                _ => RecordStatus::NotWritten(NotWritten::Disk),
            };
            (Vec::new(), default)
        }
    };
    let mut written = written.into_iter().map(RecordStatus::from);
    has_decision
        .map(|has_decision| match has_decision {
            true => written.next().unwrap_or(default),
            false => RecordStatus::Written,
        })
        .collect()
}

fn log_unrecorded(caller: &CallerContext, error: &AuditError) {
    let CallerContext { session, link, .. } = caller;
    if let Some(left_out) = UNRECORDED_DECISION_LINES.admit() {
        tracing::error!(%link, session = %session.id, %error, left_out, "decisions were not recorded: the calls are refused");
    }
}

/// The method name to record. Names of MCP itself need no scrubbing.
fn method_name<'a>(scrubber: &Scrubber, method: &'a str) -> Cow<'a, str> {
    match policy::known_method(method) {
        Some(known) => Cow::Borrowed(known),
        None => scrubber.name(method),
    }
}

/// The result that is recorded for a response of a server, or of the harness.
pub(super) fn call_result(outcome: envelope::Outcome) -> CallResult {
    match outcome {
        envelope::Outcome::Error => CallResult::Error,
        envelope::Outcome::Result => CallResult::Result,
    }
}

impl From<audit::Recorded> for RecordStatus {
    fn from(recorded: audit::Recorded) -> Self {
        match recorded {
            audit::Recorded::OverBudget(limit) => Self::NotWritten(NotWritten::Budget(limit)),
            audit::Recorded::Yes => Self::Written,
        }
    }
}

impl NotWritten {
    /// Why the decision could not be recorded, and what to do, for the harness and its user.
    pub(super) fn sentence(self) -> String {
        match self {
            Self::Budget(limit) => {
                format!("this sandbox has used up its share of the host's audit: {limit}; {}", limit.hint())
            }
            Self::Disk => {
                "the host's audit cannot be written; its administrator finds the reason in the sidecar's log"
                    .to_owned()
            }
        }
    }
}
