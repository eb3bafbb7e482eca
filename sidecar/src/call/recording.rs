//! Messages whose decisions wait to be written to a slow disk.
//!
//! Usually decisions are written at once and none of this is used. Otherwise the chunk waits here while the link
//! continues with heartbeats, commands, and responses of its servers; later messages wait behind the chunk. After
//! [`RECORD_TIME`] its requests are refused, and so is every later request until the disk has written the records.
//!
//! What must stay true: nothing is sent before its decision is written, however long that takes; a call whose decision
//! was written after it was refused gets the outcome `refused`.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_audit::{self as audit, AuditError, CallResult, PendingRecords};
use cofferdam_base::PacedLines;
use cofferdam_servers::ServerSet;
use relay_proto::code::Code;
use tokio::time::Instant;

use super::admit::Incoming;
use super::decide::{Decided, Ruling};
use super::decode::{Inbound, decode_incoming};
use super::forward::Prepared;
use super::in_flight::Call;
use super::record::{NotWritten, RecordStatus, record_statuses};
use super::used_secrets::HeldSecrets;
use super::{ChunkExecution, Pipeline, RecordedWhen};
use crate::config::Config;

/// The chunk of one link whose decisions are being written.
#[derive(Default)]
pub(crate) struct RecordingChunk(Option<RecordingState>);

enum RecordingState {
    Pending {
        records: PendingRecords,
        chunk: Chunk,
        deadline: Instant,
    },
    /// The requests of the chunk were refused. These calls need an outcome if their decisions are written after all.
    Overdue {
        records: PendingRecords,
        calls: Vec<(Recordable, Option<Call>)>,
    },
}

/// Decided messages with everything that is needed to carry them out.
pub(super) struct Chunk {
    pub(super) messages: Vec<Incoming>,
    pub(super) decisions: Vec<PendingDecision>,
    pub(super) held: HeldSecrets,
    pub(super) config: Arc<Config>,
}

/// The decision about one message.
pub(super) struct PendingDecision {
    ruling: Option<Ruling>,
    prepared: Option<Prepared>,
    /// Why admission refused the message: this cannot be found out by decoding it again.
    refused: Option<relay_proto::envelope::Malformed>,
}

/// Whether a message has a decision to be recorded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Recordable {
    No,
    Yes,
}

pub(crate) type RecordResult = Result<Vec<audit::Recorded>, AuditError>;

/// How long a request waits for its decision to be written: shorter than the timeout of any harness.
const RECORD_TIME: Duration = Duration::from_secs(10);

/// Every link with a call causes such a line.
static BLOCKED_LINES: PacedLines = PacedLines::new("the audit's disk is blocked: calls are refused");

impl PendingDecision {
    pub(super) fn new(message: Decided<'_>, prepared: Option<Prepared>) -> Self {
        let refused = match message.inbound {
            Inbound::Malformed(malformed) => Some(malformed),
            _ => None,
        };
        Self { ruling: message.ruling, prepared, refused }
    }

    fn recordable(&self) -> Recordable {
        match self.ruling {
            Some(_) => Recordable::Yes,
            None => Recordable::No,
        }
    }
}

impl RecordingChunk {
    /// Whether later messages have to wait.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.0, Some(RecordingState::Pending { .. }))
    }

    /// Whether the disk has been blocked for too long: nothing can be recorded now.
    pub(super) fn is_overdue(&self) -> bool {
        matches!(self.0, Some(RecordingState::Overdue { .. }))
    }

    pub(super) fn wait(&mut self, records: PendingRecords, chunk: Chunk, now: Instant) {
        self.0 = Some(RecordingState::Pending { records, chunk, deadline: now + RECORD_TIME });
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.0 {
            Some(RecordingState::Pending { deadline, .. }) => Some(*deadline),
            Some(RecordingState::Overdue { .. }) | None => None,
        }
    }

    /// Bytes of the messages that wait.
    pub(super) fn bytes(&self) -> usize {
        match &self.0 {
            Some(RecordingState::Pending { chunk, .. }) => chunk.messages.iter().map(Incoming::bytes).sum(),
            Some(RecordingState::Overdue { .. }) | None => 0,
        }
    }

    /// Requests that wait for a response.
    pub(super) fn requests(&self) -> usize {
        match &self.0 {
            Some(RecordingState::Pending { chunk, .. }) => {
                chunk.decisions.iter().filter(|decision| decision.prepared.is_some()).count()
            }
            Some(RecordingState::Overdue { .. }) | None => 0,
        }
    }

    /// The link ends: takes out the calls of a pending chunk, which were not made.
    pub(super) fn end(&mut self) -> Vec<Call> {
        match self.0.take() {
            Some(RecordingState::Pending { chunk, .. }) => {
                let prepared = chunk.decisions.into_iter().filter_map(|decision| decision.prepared);
                prepared.map(|prepared| prepared.call).collect()
            }
            Some(RecordingState::Overdue { .. }) | None => Vec::new(),
        }
    }

    /// Waits until the records are written, or the write has failed. Cancel-safe.
    pub(crate) async fn written(&mut self) -> RecordResult {
        match &mut self.0 {
            Some(RecordingState::Pending { records, .. } | RecordingState::Overdue { records, .. }) => {
                records.await
            }
            None => pending().await,
        }
    }
}

impl Pipeline {
    /// The records of the pending chunk are written, or the write has failed.
    pub(crate) fn on_recorded(&mut self, servers: &mut ServerSet, result: RecordResult, now: Instant) {
        match self.recording.0.take() {
            Some(RecordingState::Pending { chunk, .. }) => {
                let has_decision =
                    chunk.decisions.iter().map(|decision| decision.recordable() == Recordable::Yes);
                let recorded = record_statuses(&self.caller, result, has_decision);
                chunk.carry_out(self, servers, recorded, now);
            }
            Some(RecordingState::Overdue { calls, .. }) => {
                let has_decision = calls.iter().map(|(recordable, _)| *recordable == Recordable::Yes);
                let recorded = record_statuses(&self.caller, result, has_decision);
                for ((_, call), recorded) in calls.into_iter().zip(recorded) {
                    if let Some(call) = call.filter(|_| !matches!(recorded, RecordStatus::NotWritten(_))) {
                        self.recorder.store_outcome(
                            call,
                            CallResult::Refused,
                            Some(Code::ServerUnavailable),
                            now,
                        );
                    }
                }
            }
            None => {}
        }
    }

    /// Refuses the requests of a chunk that has waited for too long.
    pub(super) fn expire_recording(&mut self, servers: &mut ServerSet, now: Instant) {
        if self.recording.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        let Some(RecordingState::Pending { records, chunk, .. }) = self.recording.0.take() else { return };
        if let Some(left_out) = BLOCKED_LINES.admit() {
            tracing::error!(link = %self.caller.link, left_out, "the audit's disk is blocked: calls are refused");
        }
        let calls = chunk.decisions.iter().map(|decision| {
            (decision.recordable(), decision.prepared.as_ref().map(|prepared| prepared.call.clone()))
        });
        let calls: Vec<_> = calls.collect();
        let recorded = calls.iter().map(|(recordable, _)| match recordable {
            Recordable::Yes => RecordStatus::NotWritten(NotWritten::Disk),
            Recordable::No => RecordStatus::Written,
        });
        let recorded = recorded.collect();
        chunk.carry_out(self, servers, recorded, now);
        self.recording.0 = Some(RecordingState::Overdue { records, calls });
    }
}

impl Chunk {
    /// Carries out the decisions of this chunk.
    fn carry_out(
        self,
        pipeline: &mut Pipeline,
        servers: &mut ServerSet,
        recorded: Vec<RecordStatus>,
        now: Instant,
    ) {
        let Self { messages, decisions, held, config } = self;
        let decided = messages.iter().zip(decisions).map(|(message, decision)| {
            let PendingDecision { ruling, prepared, refused } = decision;
            let inbound = match refused {
                Some(malformed) => Inbound::Malformed(malformed),
                None => decode_incoming(message, config.limits.message_depth),
            };
            (Decided { received: &message.received, inbound, ruling }, prepared)
        });
        let execution =
            ChunkExecution { pipeline, servers, config: &config, now, recorded_when: RecordedWhen::Later };
        execution.carry_out_all(decided, recorded, &held);
    }
}
