//! The open log with its key for arguments and its syncer.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use cofferdam_base::metrics;
use ring::hmac;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Recorded;
use super::batch::{Batch, EntryKind, EventSpace};
use super::budget::{Budget, Charge, Exhausted, Report};
use super::error::AuditError;
use super::log::Log;
use super::record::{Event, EventRecord, FollowedBy, OutcomeRecord};
use super::room::Room;
use super::sync::{self, Syncer};
use super::text::Members;

/// How often to try the lock before a batch is queued. Takes some microseconds, as a write into the page cache does.
const LOCK_ATTEMPTS: u32 = 200;

pub(super) struct OpenLog {
    pub(super) directory: PathBuf,
    pub(super) max_field_bytes: usize,
    pub(super) key: hmac::Key,
    pub(super) log: Mutex<Log>,
    /// The number of the last record, for readers who must not wait for the log.
    pub(super) last_number: AtomicU64,
    pub(super) room: Mutex<Room>,
    /// What the room had left after the last write, for those who must not wait for the disk.
    pub(super) known_room: AtomicU64,
    /// Set while an empty batch is queued, whose write measures the room.
    pub(super) is_measuring: AtomicBool,
    /// With `audit-sync = "call"`.
    pub(super) syncer: Option<DirectorySyncer>,
}

/// The result of writing a batch: one [`Recorded`] for each decision or action, and the sync to wait for.
pub(super) type Written = Result<(Vec<Recorded>, Option<PendingSync>), AuditError>;

/// With `audit-sync = "call"`: the file, and the result of its sync.
pub(super) struct PendingSync {
    path: PathBuf,
    synced: oneshot::Receiver<sync::Synced>,
}

impl PendingSync {
    pub(super) async fn synced(self) -> Result<(), AuditError> {
        let Self { path, synced } = self;
        match synced.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(source)) => Err(AuditError::Sync { path, source }),
            Err(_) => {
                let source = Arc::new(std::io::Error::other("the sync thread has exited"));
                Err(AuditError::Sync { path, source })
            }
        }
    }
}

impl OpenLog {
    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        // The log changes its state only after a write, so a panic leaves it consistent.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log, unless another writer holds it for longer than a quick write takes.
    pub(super) fn try_log(&self) -> Option<MutexGuard<'_, Log>> {
        for _ in 0..LOCK_ATTEMPTS {
            match self.log.try_lock() {
                Ok(log) => return Some(log),
                Err(TryLockError::Poisoned(log)) => return Some(log.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        None
    }

    /// Writes a batch, all or nothing. Decisions and events over the budget are left out.
    pub(super) fn write(&self, log: &mut Log, budget: Option<&Budget>, batch: &Batch) -> Written {
        self.is_measuring.store(false, Ordering::Relaxed);
        let reserved = ReservedLengths::of(batch);
        let (mut recorded, mut charged, mut left_out) = (Vec::new(), 0, 0);
        let now = Instant::now();
        // Only a holder of the log locks this.
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let room_left = room.left(&self.directory, now);
        for (kind, members) in batch.records() {
            log.begin(kind.as_str());
            log.staged.bytes.extend_from_slice(members);
            let bytes = log.sealed_length();
            let charge = budget.map(|budget| charge_record(budget, kind, bytes, reserved, room_left, now));
            match charge.transpose() {
                Ok(charge) => {
                    charged += charge.unwrap_or_default();
                    log.stage();
                    if kind.has_result() {
                        recorded.push(Recorded::Yes);
                    }
                }
                Err(exhausted) => {
                    if exhausted.report == Report::Due {
                        self.stage_exhausted_event(log, batch, &exhausted.limit.to_string());
                    }
                    match kind.has_result() {
                        true => recorded.push(Recorded::OverBudget(exhausted.limit)),
                        false => left_out += 1,
                    }
                }
            }
        }
        let told = budget.and_then(|budget| budget.leave_out(left_out, now));
        if let Some(left_out) = told {
            self.stage_exhausted_event(log, batch, &format!("events left out: {left_out}"));
        }
        let written = log.staged_length();
        if let Err(error) = self.commit(log) {
            if let Some(budget) = budget {
                budget.refund(charged);
                budget.restore_left_out(told.unwrap_or_default());
            }
            return Err(error);
        }
        room.count_written(written);
        self.known_room.store(room.left(&self.directory, now), Ordering::Relaxed);
        // Under the log's lock, so that the file is still the one that was written to.
        let request_sync = |syncer: &DirectorySyncer| PendingSync {
            path: log.path(),
            synced: syncer.request_sync(&log.file),
        };
        let synced = self.syncer.as_ref().filter(|_| !recorded.is_empty()).map(request_sync);
        Ok((recorded, synced))
    }

    fn stage_exhausted_event(&self, log: &mut Log, batch: &Batch, limit: &str) {
        let mut event = EventRecord::new(Event::BudgetExhausted);
        event.session = batch.session.as_deref();
        event.detail = Some(limit);
        log.begin("event");
        event.write(&mut Members::new(&mut log.staged.bytes, self.max_field_bytes));
        log.stage();
    }

    fn commit(&self, log: &mut Log) -> Result<(), AuditError> {
        let committed = log.commit();
        metrics::count_audit_write(metrics::Outcome::of(&committed));
        committed?;
        self.last_number.store(log.number, Ordering::Relaxed);
        if let Some(retired) = log.retired.take()
            && let Some(syncer) = &self.syncer
        {
            syncer.include_with_directory(&retired);
        }
        Ok(())
    }
}

/// The space that is reserved for records that are certain to follow.
#[derive(Clone, Copy)]
struct ReservedLengths {
    for_outcome: u64,
    for_event: u64,
}

impl ReservedLengths {
    fn of(batch: &Batch) -> Self {
        Self {
            for_outcome: OutcomeRecord::max_length(batch.max_field_bytes()),
            for_event: EventRecord::reserved_length(batch.max_field_bytes()),
        }
    }
}

/// Charges a record of so many bytes to its sandbox. Returns what was charged, for the case that it cannot be written.
fn charge_record(
    budget: &Budget,
    kind: EntryKind,
    bytes: u64,
    reserved: ReservedLengths,
    room_left: u64,
    now: Instant,
) -> Result<u64, Exhausted> {
    let charge = match kind {
        // Actions of the admin API belong to no sandbox.
        EntryKind::Admin => return Ok(0),
        EntryKind::Event(EventSpace::Alert) => return budget.charge_alert(bytes, now).map(|()| bytes),
        EntryKind::Event(EventSpace::Reserved) => {
            budget.charge_reserved(reserved.for_event, bytes, now);
            return Ok(bytes);
        }
        EntryKind::Outcome => {
            // Refunded before the decisions are charged, so that they can use what these outcomes did not need.
            budget.refund(reserved.for_outcome.saturating_sub(bytes));
            return Ok(bytes);
        }
        EntryKind::Decision(FollowedBy::Outcome) => {
            Charge { bytes: bytes + reserved.for_outcome, records: 2 }
        }
        EntryKind::Decision(FollowedBy::Nothing) | EntryKind::Event(EventSpace::IfLeft) => {
            Charge { bytes, records: 1 }
        }
    };
    budget.charge(charge, room_left, now).map(|()| charge.bytes)
}

/// A syncer, and the directory that has to be synced too when a file was added.
pub(super) struct DirectorySyncer {
    pub(super) syncer: Syncer,
    pub(super) directory: Arc<File>,
}

impl DirectorySyncer {
    fn request_sync(&self, file: &Arc<File>) -> oneshot::Receiver<sync::Synced> {
        self.syncer.request_sync(file)
    }

    /// The next sync includes this file and the directory.
    pub(super) fn include_with_directory(&self, file: &Arc<File>) {
        self.syncer.include(file);
        self.syncer.include(&self.directory);
    }
}
