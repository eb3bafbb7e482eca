//! Which sandboxes may connect: enrolments, independent of sessions and kept across restarts and upgrades of the sidecar.
//!
//! | module | what it holds |
//! |---|---|
//! | `denied` | why a peer is refused, and what to do about it |
//! | `disk` | one file for each, whole or not there |
//! | `epochs` | tickets and epochs: of two copies of a key one falls behind |
//! | `hash` | what tickets and epochs are recognised by |
//! | [`key`] | the sidecar's own key, which sandboxes pin |
//! | `record` | one enrolment |
//!
//! What must stay true: a ticket is valid for one key, and neither it nor an epoch is stored in the clear; what a sandbox
//! is promised is on disk before it is sent; an enrolment that has ended stays ended. Functions that write and sync files
//! say so: they must not run on a thread of the runtime.

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
pub(crate) use record::Why;
use record::{Kind, Over, Record, Rest, Time};
use tokio::time::Instant;

pub(crate) struct Enrolments {
    directory: PathBuf,
    table: Mutex<Table>,
    /// Held while writing the current content of the table, so the last writer writes the newest state.
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
    /// Epochs that were current since the start, the latest last: their links may confirm them late.
    past: VecDeque<Fingerprint>,
    alerts: RateLimiter,
}

/// An enrolment as others see it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Enrolment {
    pub(crate) id: Arc<str>,
    pub(crate) name: Option<String>,
    pub(crate) grant: Name,
    pub(crate) expires: SystemTime,
}

/// What a new enrolment is to be.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) grant: Name,
    /// For people; need not be the only one of its kind.
    pub(crate) name: Option<String>,
    pub(crate) ttl: Duration,
    /// `limits.enrolments`.
    pub(crate) most: usize,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NotMade {
    #[error(
        "there are as many enrolments as `limits.enrolments` allows ({0}); end one with `cofferdam kill`, or raise it"
    )]
    Full(usize),
    #[error(
        "a name has 1 to {MAX_NAME} characters, and none that a terminal would obey; choose another `--name`"
    )]
    Name,
    #[error(
        "`{0}` has a socket of the enrolment {1}; end that with `cofferdam kill {1}`, or choose another directory"
    )]
    Taken(PathBuf, Arc<str>),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What changed with time.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// Over since the last sweep.
    pub(crate) over: Vec<Arc<str>>,
    /// The next time at which something will be over.
    pub(crate) next: Option<SystemTime>,
}

/// How long the end of an enrolment is remembered, so that its sandbox is told what happened and not just "unknown".
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);
/// A name is shown in tables.
const MAX_NAME: usize = 64;
/// Alerts in the audit about one enrolment, within a minute.
pub(crate) const ALERTS_PER_MINUTE: u32 = 6;

impl Enrolments {
    /// Reads what there is under the state directory; reads and writes files.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let directory = state_dir.join("enrolments");
        disk::prepare(&directory)?;
        let mut table = Table::default();
        for record in disk::read_all(&directory)? {
            table.insert(record);
        }
        Ok(Self { directory, table: Mutex::new(table), disk: Mutex::default() })
    }

    /// A ticket for one sandbox. Writes.
    pub(crate) fn issue(
        &self,
        terms: Terms,
        ticket_ttl: Duration,
        now: SystemTime,
    ) -> Result<(Enrolment, Ticket), NotMade> {
        let ticket = Ticket(crate::random::hex::<32>());
        let fingerprint = Fingerprint::of_ticket(&ticket).expect("it was made a moment ago, of 64 digits");
        let until = Time::from(now).after(ticket_ttl);
        let enrolled =
            self.make(terms, Kind::Ticket { ticket: fingerprint, until, rest: Rest::new() }, now)?;
        Ok((enrolled, ticket))
    }

    /// A socket in this directory, for one sandbox. Writes.
    pub(crate) fn socket(
        &self,
        terms: Terms,
        directory: PathBuf,
        now: SystemTime,
    ) -> Result<Enrolment, NotMade> {
        let taken = self.sockets(now).into_iter().find(|(_, other)| *other == directory);
        if let Some((enrolled, _)) = taken {
            return Err(NotMade::Taken(directory, enrolled.id));
        }
        self.make(terms, Kind::Socket { directory, rest: Rest::new() }, now)
    }

    /// A sandbox that the host reaches into. Writes.
    pub(crate) fn attach(&self, terms: Terms, now: SystemTime) -> Result<Enrolment, NotMade> {
        self.make(terms, Kind::Attached, now)
    }

    /// The sockets that should be listened on.
    pub(crate) fn sockets(&self, now: SystemTime) -> Vec<(Enrolment, PathBuf)> {
        let table = self.lock();
        let live = table.by_id.iter().filter(|(_, entry)| entry.record.over(now.into()).is_none());
        live.filter_map(|(id, entry)| match &entry.record.kind {
            Kind::Socket { directory, .. } => Some((entry.enrolled(id), directory.clone())),
            _ => None,
        })
        .collect()
    }

    /// The sandboxes that the host reached into.
    pub(crate) fn attached(&self, now: SystemTime) -> Vec<Enrolment> {
        let table = self.lock();
        let live = table.by_id.iter().filter(|(_, entry)| entry.record.over(now.into()).is_none());
        live.filter(|(_, entry)| matches!(entry.record.kind, Kind::Attached))
            .map(|(id, entry)| entry.enrolled(id))
            .collect()
    }

    /// An enrolment that is not over.
    pub(crate) fn find(&self, id: &str, now: SystemTime) -> Result<Enrolment, Denied> {
        let table = self.lock();
        let (id, entry) = table.by_id.get_key_value(id).ok_or(Denied::UnknownKey)?;
        entry.live(id, now.into())
    }

    /// Ends an enrolment for good; what it was is remembered for a while. Writes.
    ///
    /// Nothing where there is none, or none any more. Where it cannot be written it is over all the same, until a restart.
    pub(crate) fn end(&self, id: &str, now: SystemTime) -> Result<Option<Enrolment>, StoreError> {
        let ended = {
            let mut table = self.lock();
            let Some((id, _)) = table.by_id.get_key_value(id) else { return Ok(None) };
            let id = Arc::clone(id);
            let Some(entry) = table.by_id.get_mut(&id) else { return Ok(None) };
            if entry.record.over(now.into()).is_some() {
                return Ok(None);
            }
            entry.record.over = Some(Over { at: now.into(), why: Why::Ended });
            entry.enrolled(&id)
        };
        self.save(&ended.id)?;
        Ok(Some(ended))
    }

    /// Finds what is over by now, and forgets what was long ago. Writes.
    pub(crate) fn sweep(&self, now: SystemTime) -> Swept {
        let now = Time::from(now);
        let (mut swept, mut changed) = (Swept::default(), Vec::new());
        {
            let mut table = self.lock();
            for (id, entry) in &mut table.by_id {
                match entry.record.over(now) {
                    Some(over) if entry.record.over.is_none() => {
                        entry.record.over = Some(over);
                        swept.over.push(Arc::clone(id));
                        changed.push(Arc::clone(id));
                    }
                    Some(over) if over.at.after(REMEMBERED) <= now => changed.push(Arc::clone(id)),
                    Some(_) => {}
                    None => {
                        let next = entry.record.next_end().to_system();
                        swept.next = Some(swept.next.map_or(next, |earlier| earlier.min(next)));
                    }
                }
            }
            for id in &changed {
                let over = table.by_id.get(id).and_then(|entry| entry.record.over);
                if over.is_some_and(|over| over.at.after(REMEMBERED) <= now) {
                    table.remove(id);
                }
            }
        }
        for id in changed {
            if let Err(error) = self.save(&id) {
                tracing::error!(%error, enrolment = %id, "the end of an enrolment was not written down");
            }
        }
        swept
    }

    /// Whether one more alert about this enrolment may be written; if so, it is counted.
    pub(crate) fn may_alert(&self, id: &str) -> bool {
        self.lock().by_id.get_mut(id).is_some_and(|entry| entry.alerts.allows(Instant::now()))
    }

    /// Writes what the table says of this enrolment.
    pub(crate) fn save(&self, id: &str) -> Result<(), StoreError> {
        let _turn = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        let record = self.lock().by_id.get(id).map(|entry| entry.record.clone());
        match record {
            Some(record) => disk::write(&self.directory, &record),
            None => disk::remove(&self.directory, id),
        }
    }

    fn make(&self, terms: Terms, kind: Kind, now: SystemTime) -> Result<Enrolment, NotMade> {
        let Terms { grant, name, ttl, most } = terms;
        if name.as_deref().is_some_and(|name| !is_name(name)) {
            return Err(NotMade::Name);
        }
        let id: Arc<str> = crate::random::id("e").into();
        let (made, expires) = (Time::from(now), Time::from(now).after(ttl));
        let (enrolled, forgotten) = {
            let mut table = self.lock();
            let forgotten = match table.by_id.len() >= most {
                true => Some(table.forget_one().ok_or(NotMade::Full(most))?),
                false => None,
            };
            table.insert(Record::new(id.to_string(), name, grant, made, expires, kind));
            (table.by_id[&id].enrolled(&id), forgotten)
        };
        if let Some(forgotten) = forgotten {
            self.save(&forgotten)?;
        }
        self.save(&id).inspect_err(|_| self.lock().remove(&id))?;
        Ok(enrolled)
    }

    /// Each change under this lock is whole at every step.
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

    /// Makes room: what has been over longest goes, if anything is. What no sweep has found yet stays: its socket and its
    /// links would never be told.
    fn forget_one(&mut self) -> Option<Arc<str>> {
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

    fn live(&self, id: &Arc<str>, now: Time) -> Result<Enrolment, Denied> {
        match self.record.over(now) {
            Some(over) => Err(Denied::Over(over.why)),
            None => Ok(self.enrolled(id)),
        }
    }
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}
