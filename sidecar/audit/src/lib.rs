//! The record of every decision and outcome: one hash chain of `.jsonl` files under `state-dir/audit/`.
//!
//! What must stay true:
//! - `submit` reports a decision as recorded only when it is as durable as `audit-sync` promises; otherwise the calls
//!   are refused. In `write` mode that is one `write(2)`.
//! - A disk that hangs blocks no caller, and at most one worker thread of the runtime: see `writer`.
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
//! | `writer` | who writes: a task, or a thread while the disk is slow |
//! | `log` | appends lines |
//! | `recover` | finds the end of the chain at start |
//! | `sync` | the shared fsync |
//! | `reservation` | space for the events of a link, reserved before it is opened |
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
mod log;
mod lookup;
mod open_log;
mod prune;
mod read;
mod record;
mod recover;
mod reservation;
mod room;
mod sync;
mod text;
mod verify;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ring::hmac;
use tokio::task::coop;
use tokio::time::Instant;

pub use self::admin_record::{ActionState, AdminAction, AdminRecord, AdminTarget};
pub use self::batch::Batch;
pub use self::budget::{Budget, BudgetLimits};
pub use self::chain::{Hash, InvalidHash};
pub use self::error::{AuditError, BudgetLimit};
pub use self::human::{HumanRecord, Tone, human};
pub use self::key::key_bytes;
pub use self::lookup::{RETRY, RecordedAttempts};
pub use self::prune::{Keep, PruneError, Pruned, prune};
pub use self::read::{Follower, InvalidSelector, Selector, show, tail};
pub use self::record::{
    Call, CallResult, Caller, DecisionRecord, Event, EventRecord, FollowedBy, Mac, OutcomeRecord, SecretUse,
    SentBy,
};
pub use self::reservation::{EventReservation, NoSpace};
pub use self::verify::{AuditPlace, Head, Verified, VerifyError, verify};
pub use self::writer::WriteBy;

use self::batch::EventSpace;
use self::files::Creation;
use self::log::Log;
use self::open_log::{DirectorySyncer, OpenLog, Written};
use self::room::Room;
use self::sync::Syncer;
use self::text::{Members, name};
use self::writer::{Submission, WaitForResult, Writer};

/// The audit of this sidecar. Clones share one audit; dropping the last one unlocks the directory.
#[derive(Clone)]
pub struct Audit {
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
        let mut room = Room::new(total_bytes);
        let open_log = Arc::new(OpenLog {
            known_room: AtomicU64::new(room.left(&directory, Instant::now())),
            is_measuring: AtomicBool::new(false),
            room: Mutex::new(room),
            max_field_bytes: field_bytes.clamp(64, 4096),
            key,
            last_number: AtomicU64::new(log.number),
            log: Mutex::new(log),
            syncer,
            directory,
        });
        let writer = Writer::start(Arc::clone(&open_log), write_by, lock)
            .map_err(AuditError::prepare("cannot start the write thread for", &open_log.directory))?;
        Ok(Self { writer: Arc::new(writer), open_log })
    }

    /// An empty batch.
    pub fn batch(&self) -> Batch {
        Batch::new(self.open_log.max_field_bytes)
    }

    /// Writes a batch with one `write(2)` and empties it. Usually it is written when this returns, after microseconds;
    /// while the disk is slow, and with `audit-sync = "call"`, the caller has to wait for the result.
    ///
    /// On an error none of the calls may be made; a call over its sandbox's budget is refused alone. After
    /// [`AuditError::Sync`] the records are in the file although the calls were not made: the caller writes outcomes
    /// `refused`. After any other error nothing was written.
    pub async fn submit(&self, budget: &Budget, batch: &mut Batch) -> Submitted {
        result(self.writer.submit(batch, Some(budget), WaitForResult::Yes)).await
    }

    /// Records decisions. Returns once they are as durable as `audit-sync` promises; see [`submit`](Self::submit).
    pub async fn decisions(
        &self,
        budget: &Budget,
        records: &[DecisionRecord<'_>],
    ) -> Result<Vec<Recorded>, AuditError> {
        let mut batch = self.batch();
        records.iter().for_each(|record| batch.decision(record));
        match self.submit(budget, &mut batch).await {
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

    /// Writes an event that no sandbox can cause in number; while the disk is slow, later. Charged to no budget.
    pub fn event(&self, event: &EventRecord<'_>) -> Result<(), AuditError> {
        let mut batch = self.batch();
        batch.event(event, EventSpace::IfLeft);
        self.write_unsynced(None, &mut batch)
    }

    /// Writes an event that a sandbox caused, charged to its budget. If that is used up, the event is left out; how many were
    /// left out is recorded at most once a minute.
    pub fn sandbox_event(&self, budget: &Budget, event: &EventRecord<'_>) -> Result<(), AuditError> {
        let mut batch = self.batch();
        batch.event(event, EventSpace::IfLeft);
        self.write_unsynced(Some(budget), &mut batch)
    }

    /// Writes an alert about a sandbox, also if its budget is used up. More than six a minute are left out and counted.
    pub fn alert(&self, budget: &Budget, event: &EventRecord<'_>) -> Result<(), AuditError> {
        let mut batch = self.batch();
        batch.event(event, EventSpace::Alert);
        self.write_unsynced(Some(budget), &mut batch)
    }

    /// Records a requested action, or the result of one. The returned future completes once the record is as durable as
    /// `audit-sync` promises: on an error an action that gives rights must not be carried out.
    pub fn admin(
        &self,
        record: &AdminRecord<'_>,
    ) -> impl Future<Output = Result<(), AuditError>> + Send + use<> {
        let mut batch = self.batch();
        batch.admin(record);
        let submission = self.writer.submit(&mut batch, None, WaitForResult::Yes);
        async {
            match result(submission).await {
                Submitted::Done(result) => result.map(drop),
                Submitted::Pending(pending) => pending.await.map(drop),
            }
        }
    }

    /// Formats session, link and server once, for all records of a link.
    pub fn caller(&self, session: &str, link: &str, server: Option<&str>) -> Caller {
        Caller::new(session, link, server, self.open_log.max_field_bytes)
    }

    /// The keyed hash under which arguments are recorded.
    pub fn arguments_mac(&self, arguments: &[u8]) -> Mac {
        Mac(Hash::from_digest(hmac::sign(&self.open_log.key, arguments).as_ref()))
    }

    /// The number of the last record. Never waits for the disk.
    pub fn last_number(&self) -> u64 {
        self.open_log.last_number.load(Ordering::Relaxed)
    }

    /// Number and chain of the last record.
    #[cfg(test)]
    fn end(&self) -> recover::NumberAndChain {
        let log = self.open_log.log();
        (log.number, log.chain)
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
        Members::new(&mut link_member, self.open_log.max_field_bytes).text(name!("link"), link);
        lookup::decided(&self.open_log.directory, &link_member, seqs, lookup::SEARCH_BYTES)
    }

    fn write_unsynced(&self, budget: Option<&Budget>, batch: &mut Batch) -> Result<(), AuditError> {
        match self.writer.submit(batch, budget, WaitForResult::No) {
            Submission::Written(written) => written.map(drop),
            Submission::Prompt(_) | Submission::Late(_) | Submission::Queued => Ok(()),
            Submission::Refused => Err(AuditError::Overloaded),
        }
    }
}

/// Waits for a quick write, not for a slow one.
async fn result(submission: Submission) -> Submitted {
    let late = match submission {
        Submission::Written(written) => return Submitted::from(written),
        // Without the limit for busy tasks, which would set the caller aside on a worker that may hang next.
        Submission::Prompt(prompt) => match coop::unconstrained(prompt).await {
            Ok(Ok(written)) => return Submitted::from(written),
            Ok(Err(late)) => late,
            Err(_) => return Submitted::Done(Err(AuditError::Overloaded)),
        },
        Submission::Late(late) => late,
        Submission::Queued | Submission::Refused => return Submitted::Done(Err(AuditError::Overloaded)),
    };
    Submitted::Pending(Box::pin(async {
        let (recorded, pending_sync) = late.await.map_err(|_| AuditError::Overloaded)??;
        if let Some(pending_sync) = pending_sync {
            pending_sync.synced().await?;
        }
        Ok(recorded)
    }))
}

/// Whether a submitted batch is already written.
pub enum Submitted {
    Done(Result<Vec<Recorded>, AuditError>),
    Pending(PendingRecords),
}

impl From<Written> for Submitted {
    fn from(written: Written) -> Self {
        match written {
            Ok((recorded, None)) => Self::Done(Ok(recorded)),
            Ok((recorded, Some(pending_sync))) => {
                Self::Pending(Box::pin(async { pending_sync.synced().await.map(|()| recorded) }))
            }
            Err(error) => Self::Done(Err(error)),
        }
    }
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

/// Locks the audit for this process, whose id is written to the lock for the error message of another.
fn lock(directory: &Path) -> Result<File, AuditError> {
    let path = directory.join("lock");
    let mut file = files::open_append(&path, Creation::IfMissing)
        .map_err(AuditError::prepare("cannot open the audit's lock", &path))?;
    match file.try_lock() {
        Ok(()) => {
            // On a full disk the file stays empty, which does not impair the lock.
            let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            Err(AuditError::Busy { path: directory.to_owned(), pid: read_pid(&path) })
        }
        Err(TryLockError::Error(source)) => {
            Err(AuditError::prepare("cannot lock the audit with", &path)(source))
        }
    }
}

/// Enough for any process id and a newline.
const MAX_PID_BYTES: u64 = 16;

/// The process id in a lock. `None` if the file has none, as one of an older version.
fn read_pid(lock: &Path) -> Option<u32> {
    let mut text = String::new();
    File::open(lock).ok()?.take(MAX_PID_BYTES).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
