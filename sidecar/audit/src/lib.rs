//! The record of every decision and outcome: one hash chain of `.jsonl` files under `state-dir/audit/`.
//!
//! What must stay true:
//! - `decisions` returns `Ok` only when its records are as durable as `audit-sync` promises; otherwise the calls are
//!   refused. In `write` mode that is one `write(2)`.
//! - Lines are only ever appended, by one sidecar at a time; an incomplete line is removed or marked as torn before another
//!   line is written.
//! - Failures stay local: a budget that is used up refuses calls of its own session only; while the disk is full calls are
//!   refused, and accepted again without a restart once there is space.
//! - No record contains a secret. Fields are names and numbers; text from outside (methods, tools, rules, details) is
//!   scrubbed by the caller first.
//!
//! | module | what it is for |
//! |---|---|
//! | `record` | what is recorded |
//! | `chain` | the hash chain over the lines |
//! | `log` | appends lines |
//! | `recover` | finds the end of the chain at start |
//! | `sync` | the shared fsync |
//! | `budget` | how much a session may write |
//! | `verify` | checks the chain |
//! | `read`, `human` | records for operators |
//! | `lookup` | which messages have a decision, after a restart |
//!
//! Nothing is ever deleted here: removing old files is the operator's decision.

#![forbid(unsafe_code)]

mod budget;
mod chain;
mod error;
mod files;
mod human;
mod key;
mod log;
mod lookup;
mod read;
mod record;
mod recover;
mod sync;
mod text;
mod verify;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_base::metrics;
use ring::hmac;
use tokio::time::Instant;

pub use self::budget::{Budget, BudgetLimits};
pub use self::chain::{Hash, InvalidHash};
pub use self::error::{AuditError, BudgetLimit};
pub use self::human::human;
pub use self::log::Head;
pub use self::lookup::{RETRY, RecordedAttempts};
pub use self::read::{Follower, InvalidSelector, Selector, show, tail};
pub use self::record::{
    Call, CallResult, Caller, DecisionRecord, Event, EventRecord, FollowedBy, Mac, OutcomeRecord, SecretUse,
};
pub use self::verify::{AuditPlace, Verified, VerifyError, verify};

use self::budget::{Charge, Report};
use self::files::Creation;
use self::log::Log;
use self::sync::Syncer;
use self::text::{Members, name};

/// The audit of this sidecar. Clones share one audit; dropping the last one unlocks the directory.
#[derive(Clone)]
pub struct Audit(Arc<AuditInner>);

#[derive(Clone, Debug)]
pub struct Options {
    /// `state-dir/audit`; created if missing.
    pub directory: PathBuf,
    pub sync: SyncMode,
    /// `audit-file-bytes`
    pub file_bytes: u64,
    /// `audit-field-bytes`; at least 64 (a hash is never cut) and at most 4096 (a line stays bounded).
    pub field_bytes: usize,
}

/// When a decision counts as written: `audit-sync`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SyncMode {
    /// A decision is fsynced before the call; one fsync serves all decisions that wait for it.
    Call,
    /// `write(2)` has returned: the decision survives a crash of the sidecar, but not of the host.
    Write,
}

/// The result of writing one decision among many.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Recorded {
    /// The session has used up its budget: the call must be refused.
    OverBudget(BudgetLimit),
    Yes,
}

impl Audit {
    /// Locks the directory for this process, finds the end of the chain and marks a torn last line. Blocks.
    pub fn open(options: Options) -> Result<Self, AuditError> {
        Self::open_with_sync(options, File::sync_data)
    }

    /// The same with another function instead of `fdatasync(2)`, for tests of its failure.
    pub fn open_with_sync(
        options: Options,
        sync_file: impl Fn(&File) -> io::Result<()> + Send + Sync + 'static,
    ) -> Result<Self, AuditError> {
        let Options { directory, sync, file_bytes, field_bytes } = options;
        files::prepare_directory(&directory)?;
        let lock = lock(&directory)?;
        let key = key::load_or_create(&directory)?;
        let log = recover::open(&directory, file_bytes)?;
        let syncer = match sync {
            SyncMode::Call => Some(call_syncer(&directory, &log, sync_file)?),
            SyncMode::Write => None,
        };
        Ok(Self(Arc::new(AuditInner {
            field_bytes: field_bytes.clamp(64, 4096),
            directory,
            key,
            log: Mutex::new(log),
            syncer,
            _lock: lock,
        })))
    }

    /// Returns once the records are as durable as `audit-sync` promises: one `write(2)` for all of them. On an error
    /// none of the calls may be made; a call over its session's budget is refused alone.
    ///
    /// After [`AuditError::Sync`] the records are in the file although the calls were not made: the caller writes outcomes
    /// `refused`. After any other error nothing was written.
    pub async fn decisions(
        &self,
        budget: &Budget,
        records: &[DecisionRecord<'_>],
    ) -> Result<Vec<Recorded>, AuditError> {
        self.decisions_after(budget, std::iter::empty(), records).await
    }

    /// The same, with pending outcomes that share the write; see [`outcomes`](Self::outcomes).
    pub async fn decisions_after<'a>(
        &self,
        budget: &Budget,
        outcomes: impl Iterator<Item = OutcomeRecord<'a>>,
        records: &[DecisionRecord<'_>],
    ) -> Result<Vec<Recorded>, AuditError> {
        let (recorded, synced) = self.write_decisions(budget, outcomes, records)?;
        let Some((path, synced)) = synced else { return Ok(recorded) };
        match synced.await {
            Ok(Ok(())) => Ok(recorded),
            Ok(Err(source)) => Err(AuditError::Sync { path, source }),
            Err(_) => Err(AuditError::Sync {
                path,
                source: Arc::new(std::io::Error::other("the sync thread has exited")),
            }),
        }
    }

    /// One decision; see [`decisions`](Self::decisions).
    pub async fn decision(&self, budget: &Budget, record: &DecisionRecord<'_>) -> Result<(), AuditError> {
        match self.decisions(budget, std::slice::from_ref(record)).await?.as_slice() {
            [Recorded::OverBudget(limit)] => Err(AuditError::Budget(*limit)),
            _ => Ok(()),
        }
    }

    /// Writes outcomes without a sync: one that is lost in a crash of the host is `outcome_unknown` anyway.
    ///
    /// The budget has reserved their bytes if their decisions were [`FollowedBy::Outcome`]; call it once for each of those.
    pub fn outcomes<'a>(
        &self,
        budget: &Budget,
        records: impl Iterator<Item = OutcomeRecord<'a>>,
    ) -> Result<(), AuditError> {
        let inner = &*self.0;
        let mut log = inner.log();
        let staged = inner.stage_outcomes(&mut log, records);
        let committed = inner.commit(&mut log);
        let used = if committed.is_ok() { staged.used } else { 0 };
        budget.refund(staged.reserved.saturating_sub(used));
        committed
    }

    /// One outcome; see [`outcomes`](Self::outcomes).
    pub fn outcome(&self, budget: &Budget, record: &OutcomeRecord<'_>) -> Result<(), AuditError> {
        self.outcomes(budget, std::iter::once(*record))
    }

    /// Writes an event. Charged to no budget: events are rare, or limited elsewhere.
    pub fn event(&self, event: &EventRecord<'_>) -> Result<(), AuditError> {
        let mut log = self.0.log();
        self.0.stage_event(&mut log, event);
        self.0.commit(&mut log)
    }

    /// The session, link and server of a link's records.
    pub fn caller(&self, session: &str, link: &str, server: Option<&str>) -> Caller {
        Caller::new(session, link, server, self.0.field_bytes)
    }

    /// The keyed hash under which arguments are recorded.
    pub fn arguments_mac(&self, arguments: &[u8]) -> Mac {
        Mac(Hash::from_digest(hmac::sign(&self.0.key, arguments).as_ref()))
    }

    /// The last record.
    pub fn head(&self) -> Head {
        self.0.log().head()
    }

    /// Whether the audit has a decision about this message: if not, the message was never sent. Blocks;
    /// [`decided`](Self::decided) searches for many messages at once.
    pub fn has_decision(&self, link: &str, seq: u64) -> Result<bool, AuditError> {
        Ok(!self.decided(link, &[seq])?.is_empty())
    }

    /// Which of these messages of a link have a decision, in one search. Blocks: it reads files, newest first.
    ///
    /// If the search stops because the audit is too large, the remaining messages are reported as decided and repeated, so
    /// that they are not run again.
    pub fn decided(&self, link: &str, seqs: &[u64]) -> Result<BTreeMap<u64, RecordedAttempts>, AuditError> {
        let mut needle = Vec::new();
        Members::new(&mut needle, self.0.field_bytes).text(name!("link"), link);
        lookup::decided(&self.0.directory, &needle, seqs, lookup::SEARCH_BYTES)
    }

    fn write_decisions<'a>(
        &self,
        budget: &Budget,
        outcomes: impl Iterator<Item = OutcomeRecord<'a>>,
        records: &[DecisionRecord<'_>],
    ) -> Result<(Vec<Recorded>, Enlisted), AuditError> {
        let inner = &*self.0;
        let mut log = inner.log();
        let staged = inner.stage_outcomes(&mut log, outcomes);
        // Refund first: a session at its limit can use what its last calls did not need.
        budget.refund(staged.reserved.saturating_sub(staged.used));
        let mut charged = staged.used;
        let mut recorded = Vec::with_capacity(records.len());
        let now = Instant::now();
        for record in records {
            log.begin("decision");
            record.write(&mut inner.members(&mut log));
            let charge = match record.followed_by {
                FollowedBy::Nothing => Charge { bytes: log.sealed_length(), records: 1 },
                FollowedBy::Outcome => Charge {
                    bytes: log.sealed_length() + OutcomeRecord::longest(inner.field_bytes),
                    records: 2,
                },
            };
            match budget.charge(charge, now) {
                Ok(()) => {
                    charged += charge.bytes;
                    log.stage();
                    recorded.push(Recorded::Yes);
                }
                Err(exhausted) => {
                    if exhausted.report == Report::Due {
                        let limit = exhausted.limit.to_string();
                        let mut event = EventRecord::new(Event::BudgetExhausted);
                        event.session = Some(&record.call.of.session);
                        event.detail = Some(&limit);
                        inner.stage_event(&mut log, &event);
                    }
                    recorded.push(Recorded::OverBudget(exhausted.limit));
                }
            }
        }
        if let Err(error) = inner.commit(&mut log) {
            budget.refund(charged);
            return Err(error);
        }
        // Under the log's lock, so that the file is still the one that was written to.
        let synced = inner.syncer.as_ref().map(|syncer| (log.path(), syncer.enlist(&log.file)));
        Ok((recorded, synced))
    }
}

type Synced = tokio::sync::oneshot::Receiver<sync::Synced>;
/// With `audit-sync = "call"`: the file, and the result of its sync.
type Enlisted = Option<(PathBuf, Synced)>;

struct AuditInner {
    directory: PathBuf,
    field_bytes: usize,
    key: hmac::Key,
    log: Mutex<Log>,
    /// With `audit-sync = "call"`.
    syncer: Option<SyncerOfDirectory>,
    /// Locked while this audit is open.
    _lock: File,
}

impl AuditInner {
    fn log(&self) -> MutexGuard<'_, Log> {
        // The log changes its state only after a write, so a panic leaves it consistent.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn members<'a>(&self, log: &'a mut Log) -> Members<'a> {
        Members::new(&mut log.staged.bytes, self.field_bytes)
    }

    fn stage_outcomes<'a>(
        &self,
        log: &mut Log,
        records: impl Iterator<Item = OutcomeRecord<'a>>,
    ) -> StagedOutcomes {
        let mut staged = StagedOutcomes::default();
        for record in records {
            log.begin("outcome");
            record.write(&mut self.members(log));
            staged.reserved += OutcomeRecord::longest(self.field_bytes);
            staged.used += log.sealed_length();
            log.stage();
        }
        staged
    }

    fn stage_event(&self, log: &mut Log, event: &EventRecord<'_>) {
        log.begin("event");
        event.write(&mut self.members(log));
        log.stage();
    }

    fn commit(&self, log: &mut Log) -> Result<(), AuditError> {
        let committed = log.commit();
        metrics::audit_written(metrics::Outcome::of(&committed));
        committed?;
        if let Some(retired) = log.retired.take()
            && let Some(syncer) = &self.syncer
        {
            syncer.rotated(&retired);
        }
        Ok(())
    }
}

/// Bytes of staged outcomes: reserved by their decisions, and used.
#[derive(Clone, Copy, Debug, Default)]
struct StagedOutcomes {
    reserved: u64,
    used: u64,
}

/// A syncer, and the directory that it syncs too when a file was added.
struct SyncerOfDirectory {
    syncer: Syncer,
    directory: Arc<File>,
}

impl SyncerOfDirectory {
    fn enlist(&self, file: &Arc<File>) -> Synced {
        self.syncer.enlist(file)
    }

    fn rotated(&self, retired: &Arc<File>) {
        self.syncer.include(retired);
        self.syncer.include(&self.directory);
    }
}

fn call_syncer(
    directory: &Path,
    log: &Log,
    sync_file: impl Fn(&File) -> io::Result<()> + Send + Sync + 'static,
) -> Result<SyncerOfDirectory, AuditError> {
    let handle = Arc::new(File::open(directory).map_err(AuditError::read(directory))?);
    let syncer = Syncer::start_with(sync_file)
        .map_err(AuditError::prepare("cannot start the sync thread for", directory))?;
    let syncer = SyncerOfDirectory { syncer, directory: handle };
    // What this start created or appended must be synced with the first decision.
    syncer.rotated(&log.file);
    Ok(syncer)
}

fn lock(directory: &Path) -> Result<File, AuditError> {
    let path = directory.join("lock");
    let file = files::open_append(&path, Creation::IfMissing)
        .map_err(AuditError::prepare("cannot open the audit's lock", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(AuditError::Busy { path: directory.to_owned() }),
        Err(TryLockError::Error(source)) => {
            Err(AuditError::prepare("cannot lock the audit with", &path)(source))
        }
    }
}
