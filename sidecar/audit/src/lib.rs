//! The record of every decision and outcome: one hash chain of `.jsonl` files under `state-dir/audit/`.
//!
//! What must stay true:
//! - `submit` reports a decision as recorded only when it is as durable as `audit-sync` promises; otherwise the calls
//!   are refused. In `write` mode that is one `write(2)`.
//! - A disk that hangs blocks at most one of the callers' threads: see `writer`.
//! - Lines are only ever appended, by one sidecar at a time; an incomplete line is removed or marked as torn before
//!   another line is written.
//! - Failures stay local: a budget that is used up refuses calls of its own sandbox only, and it refills; while the disk
//!   is full calls are refused, and accepted again without a restart once there is space.
//! - No record contains a secret. Fields are names and numbers; text from outside (methods, tools, rules, details) is
//!   scrubbed by the caller first.
//!
//! | module | what it is for |
//! |---|---|
//! | `record`, `admin_record`, `text` | what is recorded, and its JSON |
//! | `files`, `key` | names and lines of the files; the key for the hashes of arguments |
//! | `chain` | the hash chain over the lines |
//! | `batch` | records that are written together |
//! | `open_log` | the log with its key and its syncer |
//! | `writer` | the thread that writes while the disk is slow |
//! | `load` | whether a caller may write by itself |
//! | `log` | appends lines |
//! | `recover` | finds the end of the chain at start |
//! | `sync` | the shared fsync |
//! | `budget`, `room` | how much a sandbox may write, and what the directory and its disk have left |
//! | `verify` | checks the chain |
//! | `prune`, `cut` | removes the oldest files; the signed mark from which the chain is checked then |
//! | `read`, `human` | records for operators |
//! | `lookup` | which messages have a decision, after a restart |
//! | `error` | why a record could not be written |
//!
//! The sidecar deletes nothing: removing old files is the operator's decision, carried out by `audit prune`.

#![forbid(unsafe_code)]

mod admin_record;
mod batch;
mod budget;
mod chain;
mod cut;
mod error;
mod files;
mod human;
mod key;
mod load;
mod log;
mod lookup;
mod open_log;
mod prune;
mod read;
mod record;
mod recover;
mod room;
mod sync;
mod text;
mod verify;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use ring::hmac;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub use self::admin_record::{ActionState, AdminAction, AdminRecord, AdminTarget};
pub use self::batch::Batch;
pub use self::budget::{Budget, BudgetLimits};
pub use self::chain::{Hash, InvalidHash};
pub use self::error::{AuditError, BudgetLimit};
pub use self::human::human;
pub use self::load::WriteBy;
pub use self::log::Head;
pub use self::lookup::{RETRY, RecordedAttempts};
pub use self::prune::{Keep, PruneError, Pruned, prune};
pub use self::read::{Follower, InvalidSelector, Selector, show, tail};
pub use self::record::{
    Call, CallResult, Caller, DecisionRecord, Event, EventRecord, FollowedBy, Mac, OutcomeRecord, SecretUse,
    SentBy,
};
pub use self::verify::{AuditPlace, Verified, VerifyError, verify};

use self::files::Creation;
use self::load::Load;
use self::log::Log;
use self::open_log::{DirectorySyncer, OpenLog, Written};
use self::room::Room;
use self::sync::Syncer;
use self::text::{Members, name};
use self::writer::Writer;

/// The audit of this sidecar. Clones share one audit; dropping the last one unlocks the directory.
#[derive(Clone)]
pub struct Audit {
    /// Declared before `open_log`, so that its thread is joined before the directory is unlocked.
    writer: Arc<Writer>,
    open_log: Arc<OpenLog>,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// `state-dir/audit`; created if missing.
    pub directory: PathBuf,
    pub sync: SyncMode,
    /// `audit-file-bytes`
    pub file_bytes: u64,
    /// `audit-field-bytes`; at least 64 (a hash is never cut) and at most 4096 (a line stays bounded).
    pub field_bytes: usize,
    /// `audit-total-bytes`
    pub total_bytes: u64,
    pub write_by: WriteBy,
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
    /// The sandbox has used up its budget: the call must be refused.
    OverBudget(BudgetLimit),
    Yes,
}

impl Audit {
    /// Locks the directory for this process, finds the end of the chain and marks a torn last line. Blocks.
    pub fn open(options: Options) -> Result<Self, AuditError> {
        Self::open_with_sync(options, File::sync_data)
    }

    /// Like [`open`](Self::open), with another function instead of `fdatasync(2)`, for tests of its failure.
    pub fn open_with_sync(
        options: Options,
        sync_file: impl Fn(&File) -> io::Result<()> + Send + Sync + 'static,
    ) -> Result<Self, AuditError> {
        let Options { directory, sync, file_bytes, field_bytes, total_bytes, write_by } = options;
        files::prepare_directory(&directory)?;
        let lock = lock(&directory)?;
        let key = key::load_or_create(&directory)?;
        let log = recover::open(&directory, file_bytes)?;
        let syncer = match sync {
            SyncMode::Call => Some(start_syncer(&directory, &log, sync_file)?),
            SyncMode::Write => None,
        };
        let open_log = Arc::new(OpenLog {
            field_bytes: field_bytes.clamp(64, 4096),
            key,
            log: Mutex::new(log),
            room: Mutex::new(Room::new(total_bytes)),
            syncer,
            load: Load::new(write_by),
            _lock: lock,
            directory,
        });
        let writer = Writer::start(Arc::clone(&open_log))
            .map_err(AuditError::prepare("cannot start the write thread for", &open_log.directory))?;
        Ok(Self { writer: Arc::new(writer), open_log })
    }

    /// An empty batch.
    pub fn batch(&self) -> Batch {
        Batch::new(self.open_log.field_bytes)
    }

    /// Writes a batch with one `write(2)` and empties it. Usually it is written when this returns; while the disk is
    /// slow or the log is in use, and with `audit-sync = "call"`, the caller has to wait for the result.
    ///
    /// On an error none of the calls may be made; a call over its sandbox's budget is refused alone. After
    /// [`AuditError::Sync`] the records are in the file although the calls were not made: the caller writes outcomes
    /// `refused`. After any other error nothing was written.
    pub fn submit(&self, budget: &Budget, batch: &mut Batch) -> Submitted {
        self.submit_charged(Some(budget), batch)
    }

    /// Records decisions. Returns once they are as durable as `audit-sync` promises; see [`submit`](Self::submit).
    pub async fn decisions(
        &self,
        budget: &Budget,
        records: &[DecisionRecord<'_>],
    ) -> Result<Vec<Recorded>, AuditError> {
        let mut batch = self.batch();
        records.iter().for_each(|record| batch.decision(record));
        match self.submit(budget, &mut batch) {
            Submitted::Done(result) => result,
            Submitted::Pending(pending) => pending.await,
        }
    }

    /// Records one decision; see [`decisions`](Self::decisions).
    pub async fn decision(&self, budget: &Budget, record: &DecisionRecord<'_>) -> Result<(), AuditError> {
        match self.decisions(budget, std::slice::from_ref(record)).await?.as_slice() {
            [Recorded::OverBudget(limit)] => Err(AuditError::Budget(*limit)),
            _ => Ok(()),
        }
    }

    /// Writes a batch of outcomes without a sync: one that is lost in a crash of the host is `outcome_unknown` anyway.
    /// While the disk is slow they are written later.
    ///
    /// The budget has reserved their bytes if their decisions were [`FollowedBy::Outcome`]; each of those needs
    /// exactly one outcome.
    pub fn outcomes(&self, budget: &Budget, batch: &mut Batch) -> Result<(), AuditError> {
        self.write_unsynced(Some(budget), batch)
    }

    /// Writes one outcome; see [`outcomes`](Self::outcomes).
    pub fn outcome(&self, budget: &Budget, record: &OutcomeRecord<'_>) -> Result<(), AuditError> {
        let mut batch = self.batch();
        batch.outcome(record);
        self.outcomes(budget, &mut batch)
    }

    /// Writes an event; while the disk is slow, later. Charged to no budget: such events are rare, or limited elsewhere.
    pub fn event(&self, event: &EventRecord<'_>) -> Result<(), AuditError> {
        let mut batch = self.batch();
        batch.event(event);
        self.write_unsynced(None, &mut batch)
    }

    /// Writes an event that a sandbox caused. It is written even if the budget is used up, and charged to it: a sandbox
    /// that opens links in a loop uses up its budget.
    pub fn sandbox_event(&self, budget: &Budget, event: &EventRecord<'_>) -> Result<(), AuditError> {
        let mut batch = self.batch();
        batch.event(event);
        self.write_unsynced(Some(budget), &mut batch)
    }

    /// Records an action that is carried out next. The returned future completes once the record is as durable as
    /// `audit-sync` promises: on an error an action that gives rights must not be carried out.
    pub fn admin_request(
        &self,
        record: &AdminRecord<'_>,
    ) -> impl Future<Output = Result<(), AuditError>> + Send + use<> {
        let mut batch = self.batch();
        batch.admin(record);
        let submitted = self.submit_charged(None, &mut batch);
        async {
            match submitted {
                Submitted::Done(result) => result.map(drop),
                Submitted::Pending(pending) => pending.await.map(drop),
            }
        }
    }

    /// Records the result of an action; while the disk is slow, later.
    pub fn admin_result(&self, record: &AdminRecord<'_>) -> Result<(), AuditError> {
        let mut batch = self.batch();
        batch.admin(record);
        self.write_unsynced(None, &mut batch)
    }

    /// Formats session, link and server once, for all records of a link.
    pub fn caller(&self, session: &str, link: &str, server: Option<&str>) -> Caller {
        Caller::new(session, link, server, self.open_log.field_bytes)
    }

    /// The keyed hash under which arguments are recorded.
    pub fn arguments_mac(&self, arguments: &[u8]) -> Mac {
        Mac(Hash::from_digest(hmac::sign(&self.open_log.key, arguments).as_ref()))
    }

    /// The last record.
    pub fn head(&self) -> Head {
        self.open_log.log().head()
    }

    /// Whether the audit has a decision about this message: if not, the message was never sent. Blocks;
    /// [`decided`](Self::decided) searches for many messages at once.
    pub fn has_decision(&self, link: &str, seq: u64) -> Result<bool, AuditError> {
        Ok(!self.decided(link, &[seq])?.is_empty())
    }

    /// Which of these messages of a link have a decision, in one search. Blocks: it reads files, newest first.
    ///
    /// If the search stops because the audit is too large, the remaining messages are reported as decided and repeated,
    /// so that they are not run again.
    pub fn decided(&self, link: &str, seqs: &[u64]) -> Result<BTreeMap<u64, RecordedAttempts>, AuditError> {
        let mut link_member = Vec::new();
        Members::new(&mut link_member, self.open_log.field_bytes).text(name!("link"), link);
        lookup::decided(&self.open_log.directory, &link_member, seqs, lookup::SEARCH_BYTES)
    }

    fn submit_charged(&self, budget: Option<&Budget>, batch: &mut Batch) -> Submitted {
        match self.write_or_queue(budget, batch) {
            Ok(written) => match written {
                Ok((recorded, None)) => Submitted::Done(Ok(recorded)),
                Ok((recorded, Some(pending_sync))) => {
                    Submitted::Pending(Box::pin(async { pending_sync.synced().await.map(|()| recorded) }))
                }
                Err(error) => Submitted::Done(Err(error)),
            },
            Err(Some(queued)) => Submitted::Pending(Box::pin(async {
                let (recorded, pending_sync) = queued.await.map_err(|_| AuditError::Overloaded)??;
                if let Some(pending_sync) = pending_sync {
                    pending_sync.synced().await?;
                }
                Ok(recorded)
            })),
            Err(None) => Submitted::Done(Err(AuditError::Overloaded)),
        }
    }

    fn write_unsynced(&self, budget: Option<&Budget>, batch: &mut Batch) -> Result<(), AuditError> {
        match self.write_or_queue(budget, batch) {
            Ok(written) => written.map(drop),
            Err(Some(_)) => Ok(()),
            Err(None) => Err(AuditError::Overloaded),
        }
    }

    /// Writes a batch (`Ok`), or queues it for the audit's own thread (`Err(Some)`). `Err(None)` if that queue is full.
    fn write_or_queue(
        &self,
        budget: Option<&Budget>,
        batch: &mut Batch,
    ) -> Result<Written, Option<oneshot::Receiver<Written>>> {
        let open_log = &self.open_log;
        if open_log.load.allows_direct_write()
            && let Some(mut log) = open_log.try_log()
        {
            let began = Instant::now();
            let written = open_log.write(&mut log, budget, batch);
            open_log.load.record_write_time(began);
            batch.clear();
            return Ok(written);
        }
        let batch = std::mem::replace(batch, self.batch());
        Err(self.writer.submit(&open_log.load, batch, budget.cloned()))
    }
}

/// Whether a submitted batch is already written.
pub enum Submitted {
    Done(Result<Vec<Recorded>, AuditError>),
    Pending(PendingRecords),
}

/// The result of records that wait for the disk. They are written even if this is dropped.
pub type PendingRecords = Pin<Box<dyn Future<Output = Result<Vec<Recorded>, AuditError>> + Send>>;

fn start_syncer(
    directory: &Path,
    log: &Log,
    sync_file: impl Fn(&File) -> io::Result<()> + Send + Sync + 'static,
) -> Result<DirectorySyncer, AuditError> {
    let handle = Arc::new(File::open(directory).map_err(AuditError::read(directory))?);
    let syncer = Syncer::start_with(sync_file)
        .map_err(AuditError::prepare("cannot start the sync thread for", directory))?;
    let syncer = DirectorySyncer { syncer, directory: handle };
    // What this start created or appended must be synced with the first decision.
    syncer.include_with_directory(&log.file);
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
