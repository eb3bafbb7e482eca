//! Tickets and epochs: a ticket is valid for one key, and of two copies of that key only one stays valid.
//!
//! Every new link of a key is offered a new epoch. It becomes current when its arrival is confirmed: by
//! the first frame of the link that it was offered to, or by a Hello with it. Until then the previous epoch is still
//! valid, because the offer may have been lost; and so is every other offer that replaced the same epoch, because a
//! delayed Hello may arrive after its successor. So at most one chain of holders continues; a peer with any other epoch
//! holds an outdated copy.
//!
//! What must stay true: an offer is on disk before it is sent; an outdated epoch never becomes current again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use relay_proto::control::{Epoch, Proof, Ticket};
use relay_proto::key::PublicKey;

use super::hash::Fingerprint;
use super::record::{EndCause, Kind, Timestamp};
use super::{Denied, Enrolment, Enrolments, Entry, Table};

/// What the first frame of a link means for the epoch that it was offered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Confirmed {
    /// The offered epoch is current now, and must be saved.
    NowCurrent,
    /// The epoch was current already: another link was opened with it before.
    AlreadyCurrent,
    /// Another copy of the key confirmed an epoch that was offered as an alternative to this one.
    Outdated,
}

/// Unconfirmed offers for one epoch. A sandbox with a working network holds one of the last few.
const MAX_OFFERED: usize = 16;

/// Past epochs that may still be confirmed: each belongs to a link whose first frame is in transit while later links of
/// its sandbox have been opened already.
const MAX_PAST: usize = 64;

impl Enrolments {
    /// Admits a key by its ticket or its epoch, for a new link, and offers the next epoch. Writes.
    pub(crate) fn admit(
        &self,
        key: &PublicKey,
        proof: &KeyProof<'_>,
        now: SystemTime,
    ) -> Result<(Enrolment, Epoch), Denied> {
        let epoch = Epoch(cofferdam_base::random::hex::<32>());
        let enrolled = {
            let mut table = self.lock();
            let id = table.check(key, proof, now.into())?;
            table.apply(&id, key, proof, Fingerprint::of_epoch(&epoch))?
        };
        self.save(&enrolled.id).map_err(Denied::NotWritten)?;
        Ok((enrolled, epoch))
    }

    /// Whether this key would be admitted. Changes nothing.
    pub(crate) fn check(
        &self,
        key: &PublicKey,
        proof: &KeyProof<'_>,
        now: SystemTime,
    ) -> Result<Enrolment, Denied> {
        let table = self.lock();
        let id = table.check(key, proof, now.into())?;
        table.by_id[&id].live(&id, now.into())
    }

    /// Finds the enrolment of a key, without a check of its epoch: a link that is resumed proves its resume token instead.
    pub(crate) fn recognise(&self, key: &PublicKey, now: SystemTime) -> Result<Enrolment, Denied> {
        let table = self.lock();
        let id = table.by_key.get(key).ok_or(Denied::UnknownKey)?;
        table.by_id[id].live(id, now.into())
    }

    /// Called at the first frame of the link that was offered this epoch. The caller must call [`Enrolments::save`], which
    /// writes, on another thread; until then both epochs are valid in the file.
    pub(crate) fn confirm(&self, id: &str, epoch: &Fingerprint) -> Confirmed {
        let mut table = self.lock();
        let Some(entry) = table.by_id.get_mut(id) else { return Confirmed::Outdated };
        if entry.past.contains(epoch) {
            return Confirmed::AlreadyCurrent;
        }
        match &mut entry.record.kind {
            Kind::Key { offered, .. } if offered.contains(epoch) => {
                entry.make_current(epoch.clone());
                Confirmed::NowCurrent
            }
            _ => Confirmed::Outdated,
        }
    }
}

/// The proof that a peer shows together with its key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyProof<'a> {
    Epoch(Option<&'a Epoch>),
    Ticket(&'a Ticket),
}

impl<'a> KeyProof<'a> {
    /// `None` for the proof of a peer without a key.
    pub(crate) fn of(proof: &'a Proof) -> Option<Self> {
        match proof {
            Proof::Key { epoch } => Some(Self::Epoch(epoch.as_ref())),
            Proof::Ticket { ticket } => Some(Self::Ticket(ticket)),
            Proof::Socket => None,
        }
    }
}

impl Table {
    /// The enrolment that this key may use now.
    fn check(&self, key: &PublicKey, proof: &KeyProof<'_>, now: Timestamp) -> Result<Arc<str>, Denied> {
        match proof {
            KeyProof::Ticket(ticket) => self.check_ticket(key, ticket, now),
            KeyProof::Epoch(epoch) => self.check_epoch(key, *epoch, now),
        }
    }

    fn check_ticket(&self, key: &PublicKey, ticket: &Ticket, now: Timestamp) -> Result<Arc<str>, Denied> {
        let ticket = Fingerprint::of_ticket(ticket).ok_or(Denied::Malformed)?;
        let id = self.by_ticket.get(&ticket).ok_or(Denied::Foreign)?;
        let entry = &self.by_id[id];
        let enrolled = entry.live(id, now).map_err(|denied| match denied {
            Denied::Over(EndCause::Unused) => Denied::TicketExpired,
            other => other,
        })?;
        match &entry.record.kind {
            Kind::Ticket { .. } => match self.by_key.contains_key(key) {
                true => Err(Denied::KeyTaken(enrolled)),
                false => Ok(Arc::clone(id)),
            },
            // Its Welcome may have been lost.
            Kind::Key { key: bound, current: None, .. } if bound == key => Ok(Arc::clone(id)),
            _ => Err(Denied::Reused(enrolled)),
        }
    }

    fn check_epoch(
        &self,
        key: &PublicKey,
        epoch: Option<&Epoch>,
        now: Timestamp,
    ) -> Result<Arc<str>, Denied> {
        let id = self.by_key.get(key).ok_or(Denied::UnknownKey)?;
        let entry = &self.by_id[id];
        let enrolled = entry.live(id, now)?;
        match (&entry.record.kind, epoch.map(Fingerprint::of_epoch)) {
            (Kind::Key { current, offered, .. }, Some(shown))
                if current.as_ref() == Some(&shown) || offered.contains(&shown) =>
            {
                Ok(Arc::clone(id))
            }
            _ => Err(Denied::Cloned(enrolled)),
        }
    }

    /// Applies a checked proof: the ticket is used up, or the shown epoch becomes the current one.
    fn apply(
        &mut self,
        id: &Arc<str>,
        key: &PublicKey,
        proof: &KeyProof<'_>,
        next: Fingerprint,
    ) -> Result<Enrolment, Denied> {
        let entry = self.by_id.get_mut(id).ok_or(Denied::UnknownKey)?;
        if let Kind::Ticket { ticket, rest, .. } = &mut entry.record.kind {
            let (ticket, rest) = (ticket.clone(), std::mem::take(rest));
            entry.record.kind =
                Kind::Key { key: *key, ticket, current: None, offered: VecDeque::new(), rest };
            self.by_key.insert(*key, Arc::clone(id));
        }
        if let KeyProof::Epoch(Some(epoch)) = proof {
            entry.make_current(Fingerprint::of_epoch(epoch));
        }
        if let Kind::Key { offered, .. } = &mut entry.record.kind {
            if offered.len() == MAX_OFFERED {
                offered.pop_front();
            }
            offered.push_back(next);
        }
        Ok(entry.enrolled(id))
    }
}

impl Entry {
    fn make_current(&mut self, epoch: Fingerprint) {
        let Kind::Key { current, offered, .. } = &mut self.record.kind else { return };
        if current.as_ref() == Some(&epoch) {
            return;
        }
        *current = Some(epoch.clone());
        offered.clear();
        if self.past.len() == MAX_PAST {
            self.past.pop_front();
        }
        self.past.push_back(epoch);
    }
}
