//! Tickets and epochs: a ticket is good for one key, and of two copies of that key one falls behind.
//!
//! Every new link of a key is offered a new epoch. It becomes current when its arrival is confirmed: by
//! the first frame of the link that it was offered to, or by a Hello with it. Until then the previous epoch is still
//! valid, because the offer may have been lost; and so is every other offer that replaced the same epoch, because a
//! delayed Hello may arrive after its successor. So at most one chain of holders continues; a peer with any other epoch
//! holds an outdated copy.
//!
//! What must stay true: an offer is on disk before it is made; an epoch that was left behind never becomes current again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use relay_proto::control::{Epoch, Proof, Ticket};
use relay_proto::key::PublicKey;

use super::hash::Fingerprint;
use super::record::{Kind, Time, Why};
use super::{Denied, Enrolment, Enrolments, Entry, Table};

/// What a link's first frame told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Confirmed {
    /// The offer is the key's epoch now; to be saved.
    Turned,
    /// It was already: another link came with it before this one spoke.
    Known,
    /// Another copy of the key confirmed an epoch that was offered beside this one: only one of them may go on.
    LeftBehind,
}

/// Unconfirmed offers for one epoch: a sandbox holds one of the last few, or its network is beyond help.
const MAX_OFFERED: usize = 16;

/// Epochs that were current and may still be confirmed late. Each belongs to a link whose first frame is on its way
/// while others of its sandbox have come already.
const PAST: usize = 64;

impl Enrolments {
    /// Lets a key in by its ticket or its epoch, for a new link, and offers the epoch that comes next. Writes.
    pub(crate) fn admit(
        &self,
        key: &PublicKey,
        proof: &KeyProof<'_>,
        now: SystemTime,
    ) -> Result<(Enrolment, Epoch), Denied> {
        let epoch = Epoch(crate::random::hex::<32>());
        let enrolled = {
            let mut table = self.lock();
            let id = table.check(key, proof, now.into())?;
            table.turn(&id, key, proof, Fingerprint::of_epoch(&epoch))?
        };
        self.save(&enrolled.id).map_err(Denied::NotWritten)?;
        Ok((enrolled, epoch))
    }

    /// Whether this key would be let in; changes nothing.
    pub(crate) fn look(
        &self,
        key: &PublicKey,
        proof: &KeyProof<'_>,
        now: SystemTime,
    ) -> Result<Enrolment, Denied> {
        let table = self.lock();
        let id = table.check(key, proof, now.into())?;
        table.by_id[&id].live(&id, now.into())
    }

    /// Whose key it is: for a link that is resumed, which has a token of its own to prove.
    pub(crate) fn recognise(&self, key: &PublicKey, now: SystemTime) -> Result<Enrolment, Denied> {
        let table = self.lock();
        let id = table.by_key.get(key).ok_or(Denied::UnknownKey)?;
        table.by_id[id].live(id, now.into())
    }

    /// The link that was offered this epoch has spoken. [`Enrolments::save`] is left to the caller, who may not wait:
    /// until then the file says that both are good.
    pub(crate) fn confirm(&self, id: &str, epoch: &Fingerprint) -> Confirmed {
        let mut table = self.lock();
        let Some(entry) = table.by_id.get_mut(id) else { return Confirmed::LeftBehind };
        if entry.past.contains(epoch) {
            return Confirmed::Known;
        }
        match &mut entry.record.kind {
            Kind::Key { offered, .. } if offered.contains(epoch) => {
                entry.make_current(epoch.clone());
                Confirmed::Turned
            }
            _ => Confirmed::LeftBehind,
        }
    }
}

/// What comes with a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyProof<'a> {
    Epoch(Option<&'a Epoch>),
    Ticket(&'a Ticket),
}

impl<'a> KeyProof<'a> {
    /// Nothing where it is the proof of another door.
    pub(crate) fn of(proof: &'a Proof) -> Option<Self> {
        match proof {
            Proof::Key { epoch } => Some(Self::Epoch(epoch.as_ref())),
            Proof::Ticket { ticket } => Some(Self::Ticket(ticket)),
            Proof::Socket => None,
        }
    }
}

impl Table {
    /// Which enrolment this key may use now.
    fn check(&self, key: &PublicKey, proof: &KeyProof<'_>, now: Time) -> Result<Arc<str>, Denied> {
        match proof {
            KeyProof::Ticket(ticket) => self.check_ticket(key, ticket, now),
            KeyProof::Epoch(epoch) => self.check_epoch(key, *epoch, now),
        }
    }

    fn check_ticket(&self, key: &PublicKey, ticket: &Ticket, now: Time) -> Result<Arc<str>, Denied> {
        let ticket = Fingerprint::of_ticket(ticket).ok_or(Denied::Malformed)?;
        let id = self.by_ticket.get(&ticket).ok_or(Denied::Foreign)?;
        let entry = &self.by_id[id];
        let enrolled = entry.live(id, now).map_err(|denied| match denied {
            Denied::Over(Why::Unused) => Denied::TicketExpired,
            other => other,
        })?;
        match &entry.record.kind {
            Kind::Ticket { .. } => match self.by_key.contains_key(key) {
                true => Err(Denied::KeyTaken(enrolled)),
                false => Ok(Arc::clone(id)),
            },
            // Its Welcome may have been lost on the way.
            Kind::Key { key: bound, current: None, .. } if bound == key => Ok(Arc::clone(id)),
            _ => Err(Denied::Reused(enrolled)),
        }
    }

    fn check_epoch(&self, key: &PublicKey, epoch: Option<&Epoch>, now: Time) -> Result<Arc<str>, Denied> {
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

    /// What was checked takes effect: the ticket is burnt, or the epoch that was shown is the current one.
    fn turn(
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
        if self.past.len() == PAST {
            self.past.pop_front();
        }
        self.past.push_back(epoch);
    }
}
