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
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use cofferdam_base::RateLimiter;
use relay_proto::control::Ticket;
use relay_proto::key::PublicKey;
use relay_proto::name::Name;

pub(crate) use denied::{Denied, NEXT_STEP};
pub(crate) use disk::StoreError;
pub(crate) use epochs::{Confirmed, KeyProof};
pub(crate) use hash::Fingerprint;
pub(crate) use record::{EndCause, EnrolmentKind};
use record::{EnrolmentEnd, Kind, Record, Timestamp, UnknownKeys};
use tokio::time::Instant;

pub(crate) struct Enrolments {
    directory: PathBuf,
    table: Mutex<Table>,
    /// Locked while a record is written, so that the last writer writes the newest state.
    disk: Mutex<()>,
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
    past: VecDeque<Fingerprint>,
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
pub(crate) struct Terms {
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
    Full(usize),
    #[error("a name has 1 to {MAX_NAME} characters and no control characters; choose another `--name`")]
    Name,
    #[error(
        "`{0}` has a socket of the enrolment {1}; end that with `cofferdam kill {1}`, or choose another directory"
    )]
    Taken(PathBuf, Arc<str>),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result of a sweep.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// Enrolments that expired since the last sweep.
    pub(crate) ended: Vec<Enrolment>,
    /// When the next enrolment expires.
    pub(crate) next: Option<SystemTime>,
}

/// How long an ended enrolment is kept, so that its sandbox gets the reason instead of "unknown key".
const KEEP_ENDED: Duration = Duration::from_secs(24 * 60 * 60);
/// In characters: names are shown in tables.
const MAX_NAME: usize = 64;
/// Alerts in the audit about one enrolment, within a minute.
pub(crate) const ALERTS_PER_MINUTE: u32 = 6;

impl Enrolments {
    /// Reads the enrolments in the state directory. Writes.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let directory = state_dir.join("enrolments");
        disk::prepare(&directory)?;
        let mut table = Table::default();
        for record in disk::read_all(&directory)? {
            table.insert(record);
        }
        Ok(Self { directory, table: Mutex::new(table), disk: Mutex::default() })
    }

    /// Creates an enrolment with a ticket for one sandbox. Writes.
    pub(crate) fn issue(
        &self,
        terms: Terms,
        ticket_ttl: Duration,
        now: SystemTime,
    ) -> Result<(Enrolment, Ticket), NotCreated> {
        let ticket = Ticket(cofferdam_base::random::hex::<32>());
        let fingerprint = Fingerprint::of_ticket(&ticket).expect("a generated ticket has 64 digits");
        let until = Timestamp::from(now).after(ticket_ttl);
        let enrolled =
            self.create(terms, Kind::Ticket { ticket: fingerprint, until, rest: UnknownKeys::new() }, now)?;
        Ok((enrolled, ticket))
    }

    /// Creates an enrolment with a socket in this directory, for one sandbox. Writes.
    pub(crate) fn socket(
        &self,
        terms: Terms,
        directory: PathBuf,
        now: SystemTime,
    ) -> Result<Enrolment, NotCreated> {
        let taken = self.sockets(now).into_iter().find(|(_, other)| *other == directory);
        if let Some((enrolled, _)) = taken {
            return Err(NotCreated::Taken(directory, enrolled.id));
        }
        self.create(terms, Kind::Socket { directory, rest: UnknownKeys::new() }, now)
    }

    /// Creates an enrolment for a sandbox that the host connects to. Writes.
    pub(crate) fn attach(&self, terms: Terms, now: SystemTime) -> Result<Enrolment, NotCreated> {
        self.create(terms, Kind::Attached, now)
    }

    /// Enrolments with a socket, each with the socket's directory.
    pub(crate) fn sockets(&self, now: SystemTime) -> Vec<(Enrolment, PathBuf)> {
        let table = self.lock();
        let live = table.by_id.iter().filter(|(_, entry)| entry.record.over(now.into()).is_none());
        live.filter_map(|(id, entry)| match &entry.record.kind {
            Kind::Socket { directory, .. } => Some((entry.enrolled(id), directory.clone())),
            _ => None,
        })
        .collect()
    }

    /// Enrolments of sandboxes that the host connects to.
    pub(crate) fn attached(&self, now: SystemTime) -> Vec<Enrolment> {
        let table = self.lock();
        let live = table.by_id.iter().filter(|(_, entry)| entry.record.over(now.into()).is_none());
        live.filter(|(_, entry)| matches!(entry.record.kind, Kind::Attached))
            .map(|(id, entry)| entry.enrolled(id))
            .collect()
    }

    /// Every enrolment that has not ended.
    pub(crate) fn list(&self, now: SystemTime) -> Vec<(Enrolment, EnrolmentKind)> {
        let table = self.lock();
        let live = table.by_id.iter().filter(|(_, entry)| entry.record.over(now.into()).is_none());
        live.map(|(id, entry)| (entry.enrolled(id), entry.record.kind.name())).collect()
    }

    /// Finds an enrolment that has not ended.
    pub(crate) fn find(&self, id: &str, now: SystemTime) -> Result<Enrolment, Denied> {
        let table = self.lock();
        let (id, entry) = table.by_id.get_key_value(id).ok_or(Denied::UnknownKey)?;
        entry.live(id, now.into())
    }

    /// The key that has used the enrolment's ticket, if it has not ended.
    pub(crate) fn key(&self, id: &str, now: SystemTime) -> Option<PublicKey> {
        let table = self.lock();
        let entry = table.by_id.get(id).filter(|entry| entry.record.over(now.into()).is_none())?;
        entry.record.key().copied()
    }

    /// Ends an enrolment; its record is kept for a while. Writes.
    ///
    /// `Ok(None)` if it does not exist or has ended already. After an error it has ended too, but only until a restart.
    pub(crate) fn end(&self, id: &str, now: SystemTime) -> Result<Option<Enrolment>, StoreError> {
        let ended = {
            let mut table = self.lock();
            let Some((id, _)) = table.by_id.get_key_value(id) else { return Ok(None) };
            let id = Arc::clone(id);
            let Some(entry) = table.by_id.get_mut(&id) else { return Ok(None) };
            if entry.record.over(now.into()).is_some() {
                return Ok(None);
            }
            entry.record.over = Some(EnrolmentEnd { at: now.into(), why: EndCause::Ended });
            entry.enrolled(&id)
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
                match entry.record.over(now) {
                    Some(over) if entry.record.over.is_none() => {
                        entry.record.over = Some(over);
                        swept.ended.push(entry.enrolled(id));
                        changed.push(Arc::clone(id));
                    }
                    Some(over) if over.at.after(KEEP_ENDED) <= now => changed.push(Arc::clone(id)),
                    Some(_) => {}
                    None => {
                        let next = entry.record.next_end().to_system();
                        swept.next = Some(swept.next.map_or(next, |earlier| earlier.min(next)));
                    }
                }
            }
            for id in &changed {
                let over = table.by_id.get(id).and_then(|entry| entry.record.over);
                if over.is_some_and(|over| over.at.after(KEEP_ENDED) <= now) {
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
        let _writing = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        let record = self.lock().by_id.get(id).map(|entry| entry.record.clone());
        match record {
            Some(record) => disk::write(&self.directory, &record),
            None => disk::remove(&self.directory, id),
        }
    }

    fn create(&self, terms: Terms, kind: Kind, now: SystemTime) -> Result<Enrolment, NotCreated> {
        let Terms { grant, name, ttl, max_enrolments } = terms;
        if name.as_deref().is_some_and(|name| !is_name(name)) {
            return Err(NotCreated::Name);
        }
        let id: Arc<str> = cofferdam_base::random::id("e").into();
        let (made, expires) = (Timestamp::from(now), Timestamp::from(now).after(ttl));
        let (enrolled, removed) = {
            let mut table = self.lock();
            let removed = match table.by_id.len() >= max_enrolments {
                true => Some(table.remove_oldest_ended().ok_or(NotCreated::Full(max_enrolments))?),
                false => None,
            };
            table.insert(Record::new(id.to_string(), name, grant, made, expires, kind));
            (table.by_id[&id].enrolled(&id), removed)
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
            Entry { record, past: VecDeque::new(), alerts: RateLimiter::per_minute(ALERTS_PER_MINUTE) },
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

    /// Removes the enrolment that ended first, if any. An expired one that no sweep has found yet is kept: otherwise its
    /// socket and links would never be closed.
    fn remove_oldest_ended(&mut self) -> Option<Arc<str>> {
        let over = self.by_id.iter().filter_map(|(id, entry)| Some((entry.record.over?.at, id)));
        let (_, oldest) = over.min()?;
        let oldest = Arc::clone(oldest);
        self.remove(&oldest);
        Some(oldest)
    }
}

impl Entry {
    fn enrolled(&self, id: &Arc<str>) -> Enrolment {
        let Record { name, grant, expires, .. } = &self.record;
        Enrolment {
            id: Arc::clone(id),
            name: name.clone(),
            grant: grant.clone(),
            expires: expires.to_system(),
        }
    }

    fn live(&self, id: &Arc<str>, now: Timestamp) -> Result<Enrolment, Denied> {
        match self.record.over(now) {
            Some(over) => Err(Denied::Over(over.why)),
            None => Ok(self.enrolled(id)),
        }
    }
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}
