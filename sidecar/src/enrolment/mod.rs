//! Enrolments: which sandboxes may connect. They are independent of sessions, and survive restarts and upgrades.
//!
//! | module | what it holds |
//! |---|---|
//! | `denied` | why a peer is refused, and what to do about it |
//! | `disk` | one file per enrolment, written atomically |
//! | `epochs` | tickets and epochs, by which a copied key is detected |
//! | `hash` | the hashes of tickets and epochs that are stored |
//! | [`key`] | the sidecar's own key, which sandboxes pin |
//! | `record` | one enrolment |
//!
//! What must stay true: a ticket is valid for one key; tickets and epochs are stored as hashes only; an epoch is on disk
//! before it is sent; an enrolment that has ended stays ended. Functions marked "Writes" write and sync files: they must
//! not run on a thread of the async runtime.

mod denied;
mod disk;
mod epochs;
mod hash;
pub(crate) mod key;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use cofferdam_base::RateLimiter;
use relay_proto::control::Ticket;
use relay_proto::key::PublicKey;
use relay_proto::name::Name;

pub(crate) use denied::{Denied, NEXT_STEP};
pub(crate) use disk::StoreError;
pub(crate) use epochs::{ConfirmOutcome, KeyProof};
pub(crate) use hash::Fingerprint;
pub(crate) use record::{EndCause, EnrolmentKind};
use record::{EnrolmentEnd, Record, SandboxIdentity, Timestamp, UnknownKeys};
use tokio::time::Instant;

pub(crate) struct Enrolments {
    directory: PathBuf,
    table: Mutex<Table>,
    /// Locked while a record is written, so that the last writer writes the newest state.
    disk_lock: Mutex<()>,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<Arc<str>, Entry>,
    by_key: HashMap<PublicKey, Arc<str>>,
    by_ticket: HashMap<Fingerprint, Arc<str>>,
}

struct Entry {
    record: Record,
    /// Epochs that have been current since the sidecar's start, the latest last. Their links may confirm them late.
    past_epochs: VecDeque<Fingerprint>,
    alerts: RateLimiter,
}

/// An enrolment as the rest of the sidecar sees it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Enrolment {
    pub(crate) id: Arc<str>,
    pub(crate) name: Option<String>,
    pub(crate) grant: Name,
    pub(crate) expires: SystemTime,
}

/// The parameters of a new enrolment.
#[derive(Clone, Debug)]
pub(crate) struct NewEnrolment {
    pub(crate) grant: Name,
    /// For lists and logs; need not be unique.
    pub(crate) name: Option<String>,
    pub(crate) ttl: Duration,
    /// `limits.enrolments`.
    pub(crate) max_enrolments: usize,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NotCreated {
    #[error(
        "there are as many enrolments as `limits.enrolments` allows ({0}); end one with `cofferdam kill`, or raise the limit"
    )]
    TooMany(usize),
    #[error(
        "a name has 1 to {MAX_NAME_CHARACTERS} characters and no control characters; choose another `--name`"
    )]
    InvalidName,
    #[error(
        "`{0}` has a socket of the enrolment {1}; end that with `cofferdam kill {1}`, or choose another directory"
    )]
    DirectoryInUse(PathBuf, Arc<str>),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result of [`Enrolments::sweep`].
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// Enrolments that expired since the last sweep.
    pub(crate) ended: Vec<Enrolment>,
    /// When the next enrolment expires.
    pub(crate) next: Option<SystemTime>,
}

/// How long the record of an ended enrolment is stored, so that its sandbox gets the reason instead of "unknown key".
const ENDED_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// Names are shown in tables.
const MAX_NAME_CHARACTERS: usize = 64;
/// Alerts in the audit about one enrolment, within a minute.
pub(crate) const ALERTS_PER_MINUTE: u32 = 6;

/// Below the state directory.
const DIRECTORY: &str = "enrolments";

/// The sandboxes with a socket of their own, each with the socket's directory, as a sidecar has stored them that may be running.
pub(crate) fn read_socket_directories(
    state_dir: &Path,
    now: SystemTime,
) -> io::Result<Vec<(Enrolment, PathBuf)>> {
    let records = disk::read_unchanged(&state_dir.join(DIRECTORY))?;
    let valid = records.into_iter().filter(|record| record.end_at(now.into()).is_none());
    let with_socket = valid.filter_map(|record| match &record.identity {
        SandboxIdentity::Socket { directory, .. } => {
            Some((Enrolment::of(&record, record.id.as_str().into()), directory.clone()))
        }
        _ => None,
    });
    Ok(with_socket.collect())
}

impl Enrolments {
    /// Reads the enrolments in the state directory. Writes.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let directory = state_dir.join(DIRECTORY);
        disk::create_private_directory(&directory)?;
        let mut table = Table::default();
        for record in disk::read_all(&directory)? {
            table.insert(record);
        }
        Ok(Self { directory, table: Mutex::new(table), disk_lock: Mutex::default() })
    }

    /// Creates an enrolment with a ticket for one sandbox. Writes.
    pub(crate) fn create_with_ticket(
        &self,
        new: NewEnrolment,
        ticket_ttl: Duration,
        now: SystemTime,
    ) -> Result<(Enrolment, Ticket), NotCreated> {
        let ticket = Ticket(cofferdam_base::random::hex::<32>());
        let fingerprint = Fingerprint::of_ticket(&ticket).expect("a generated ticket has 64 digits");
        let until = Timestamp::from(now).after(ticket_ttl);
        let enrolled = self.create(
            new,
            SandboxIdentity::Ticket { ticket: fingerprint, until, rest: UnknownKeys::new() },
            now,
        )?;
        Ok((enrolled, ticket))
    }

    /// Creates an enrolment with a socket in this directory, for one sandbox. Writes.
    pub(crate) fn create_with_socket(
        &self,
        new: NewEnrolment,
        directory: PathBuf,
        now: SystemTime,
    ) -> Result<Enrolment, NotCreated> {
        let in_use = self.sockets(now).into_iter().find(|(_, other)| *other == directory);
        if let Some((enrolled, _)) = in_use {
            return Err(NotCreated::DirectoryInUse(directory, enrolled.id));
        }
        self.create(new, SandboxIdentity::Socket { directory, rest: UnknownKeys::new() }, now)
    }

    /// Creates an enrolment for a sandbox that the host connects to. Writes.
    pub(crate) fn create_attached(
        &self,
        new: NewEnrolment,
        now: SystemTime,
    ) -> Result<Enrolment, NotCreated> {
        self.create(new, SandboxIdentity::Attached, now)
    }

    /// Enrolments with a socket, each with the socket's directory.
    pub(crate) fn sockets(&self, now: SystemTime) -> Vec<(Enrolment, PathBuf)> {
        let table = self.lock();
        let valid = table.by_id.iter().filter(|(_, entry)| entry.record.end_at(now.into()).is_none());
        valid
            .filter_map(|(id, entry)| match &entry.record.identity {
                SandboxIdentity::Socket { directory, .. } => {
                    Some((entry.to_enrolment(id), directory.clone()))
                }
                _ => None,
            })
            .collect()
    }

    /// Enrolments of sandboxes that the host connects to.
    pub(crate) fn attached(&self, now: SystemTime) -> Vec<Enrolment> {
        let table = self.lock();
        let valid = table.by_id.iter().filter(|(_, entry)| entry.record.end_at(now.into()).is_none());
        valid
            .filter(|(_, entry)| matches!(entry.record.identity, SandboxIdentity::Attached))
            .map(|(id, entry)| entry.to_enrolment(id))
            .collect()
    }

    /// Every enrolment that has not ended.
    pub(crate) fn list(&self, now: SystemTime) -> Vec<(Enrolment, EnrolmentKind)> {
        let table = self.lock();
        let valid = table.by_id.iter().filter(|(_, entry)| entry.record.end_at(now.into()).is_none());
        valid.map(|(id, entry)| (entry.to_enrolment(id), entry.record.identity.kind())).collect()
    }

    /// Finds an enrolment that has not ended.
    pub(crate) fn find(&self, id: &str, now: SystemTime) -> Result<Enrolment, Denied> {
        let table = self.lock();
        let (id, entry) = table.by_id.get_key_value(id).ok_or(Denied::UnknownKey)?;
        entry.enrolment_if_valid(id, now.into())
    }

    /// The key that has used the enrolment's ticket, if it has not ended.
    pub(crate) fn key(&self, id: &str, now: SystemTime) -> Option<PublicKey> {
        let table = self.lock();
        let entry = table.by_id.get(id).filter(|entry| entry.record.end_at(now.into()).is_none())?;
        entry.record.key().copied()
    }

    /// Ends an enrolment; its record stays for a day. Writes.
    ///
    /// `Ok(None)` if it does not exist or has ended already. After an error the enrolment has ended too, but only until a
    /// restart.
    pub(crate) fn end(&self, id: &str, now: SystemTime) -> Result<Option<Enrolment>, StoreError> {
        let ended = {
            let mut table = self.lock();
            let Some((id, _)) = table.by_id.get_key_value(id) else { return Ok(None) };
            let id = Arc::clone(id);
            let Some(entry) = table.by_id.get_mut(&id) else { return Ok(None) };
            if entry.record.end_at(now.into()).is_some() {
                return Ok(None);
            }
            entry.record.ended = Some(EnrolmentEnd { at: now.into(), why: EndCause::EndedByOperator });
            entry.to_enrolment(&id)
        };
        self.save(&ended.id)?;
        Ok(Some(ended))
    }

    /// Marks expired enrolments as ended, and removes those that ended long ago. Writes.
    pub(crate) fn sweep(&self, now: SystemTime) -> Swept {
        let now = Timestamp::from(now);
        let (mut swept, mut changed) = (Swept::default(), Vec::new());
        {
            let mut table = self.lock();
            for (id, entry) in &mut table.by_id {
                match entry.record.end_at(now) {
                    Some(end) if entry.record.ended.is_none() => {
                        entry.record.ended = Some(end);
                        swept.ended.push(entry.to_enrolment(id));
                        changed.push(Arc::clone(id));
                    }
                    Some(end) if end.at.after(ENDED_RETENTION) <= now => changed.push(Arc::clone(id)),
                    Some(_) => {}
                    None => {
                        let next = entry.record.next_end().to_system();
                        swept.next = Some(swept.next.map_or(next, |earlier| earlier.min(next)));
                    }
                }
            }
            for id in &changed {
                let ended = table.by_id.get(id).and_then(|entry| entry.record.ended);
                if ended.is_some_and(|end| end.at.after(ENDED_RETENTION) <= now) {
                    table.remove(id);
                }
            }
        }
        for id in changed {
            if let Err(error) = self.save(&id) {
                tracing::error!(%error, enrolment = %id, "the end of an enrolment was not saved");
            }
        }
        swept
    }

    /// Whether one more alert about this enrolment may be written; if so, it is counted.
    pub(crate) fn may_alert(&self, id: &str) -> bool {
        self.lock().by_id.get_mut(id).is_some_and(|entry| entry.alerts.allows(Instant::now()))
    }

    /// Saves the current record of this enrolment, or removes its file. Writes.
    pub(crate) fn save(&self, id: &str) -> Result<(), StoreError> {
        let _writing = self.disk_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let record = self.lock().by_id.get(id).map(|entry| entry.record.clone());
        match record {
            Some(record) => disk::write(&self.directory, &record),
            None => disk::remove(&self.directory, id),
        }
    }

    fn create(
        &self,
        new: NewEnrolment,
        identity: SandboxIdentity,
        now: SystemTime,
    ) -> Result<Enrolment, NotCreated> {
        let NewEnrolment { grant, name, ttl, max_enrolments } = new;
        if name.as_deref().is_some_and(|name| !is_name(name)) {
            return Err(NotCreated::InvalidName);
        }
        let id: Arc<str> = cofferdam_base::random::id("e").into();
        let (created, expires) = (Timestamp::from(now), Timestamp::from(now).after(ttl));
        let (enrolled, removed) = {
            let mut table = self.lock();
            let removed = match table.by_id.len() >= max_enrolments {
                true => Some(table.remove_oldest_ended().ok_or(NotCreated::TooMany(max_enrolments))?),
                false => None,
            };
            table.insert(Record::new(id.to_string(), name, grant, created, expires, identity));
            (table.by_id[&id].to_enrolment(&id), removed)
        };
        if let Some(removed) = removed {
            self.save(&removed)?;
        }
        self.save(&id).inspect_err(|_| self.lock().remove(&id))?;
        Ok(enrolled)
    }

    /// A poisoned lock is used: every change under it leaves the table consistent.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn insert(&mut self, record: Record) {
        let id: Arc<str> = record.id.as_str().into();
        if let Some(key) = record.key() {
            self.by_key.insert(*key, Arc::clone(&id));
        }
        if let Some(ticket) = record.ticket() {
            self.by_ticket.insert(ticket.clone(), Arc::clone(&id));
        }
        self.by_id.insert(
            id,
            Entry {
                record,
                past_epochs: VecDeque::new(),
                alerts: RateLimiter::per_minute(ALERTS_PER_MINUTE),
            },
        );
    }

    fn remove(&mut self, id: &str) {
        let Some(entry) = self.by_id.remove(id) else { return };
        if let Some(key) = entry.record.key() {
            self.by_key.remove(key);
        }
        if let Some(ticket) = entry.record.ticket() {
            self.by_ticket.remove(ticket);
        }
    }

    /// Removes the enrolment that ended first, if any. An expired enrolment that no sweep has found yet is not removed:
    /// otherwise its socket and links would never be closed.
    fn remove_oldest_ended(&mut self) -> Option<Arc<str>> {
        let ended = self.by_id.iter().filter_map(|(id, entry)| Some((entry.record.ended?.at, id)));
        let (_, oldest) = ended.min()?;
        let oldest = Arc::clone(oldest);
        self.remove(&oldest);
        Some(oldest)
    }
}

impl Enrolment {
    fn of(record: &Record, id: Arc<str>) -> Self {
        let Record { name, grant, expires, .. } = record;
        Self { id, name: name.clone(), grant: grant.clone(), expires: expires.to_system() }
    }
}

impl Entry {
    fn to_enrolment(&self, id: &Arc<str>) -> Enrolment {
        Enrolment::of(&self.record, Arc::clone(id))
    }

    /// The enrolment, or why it has ended.
    fn enrolment_if_valid(&self, id: &Arc<str>, now: Timestamp) -> Result<Enrolment, Denied> {
        match self.record.end_at(now) {
            Some(end) => Err(Denied::Ended(end.why)),
            None => Ok(self.to_enrolment(id)),
        }
    }
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_CHARACTERS).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}
