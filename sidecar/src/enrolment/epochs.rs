//! Tickets and epochs: a ticket is valid for one key, and of two copies of that key only one stays valid.
//!
//! Every new link of a key is offered a new epoch. The epoch becomes current when its arrival is confirmed: by the first
//! frame of the link that it was offered to, or by a Hello with it. Until then the previous epoch is still
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
use super::record::{EndCause, SandboxIdentity, Timestamp};
use super::{Denied, Enrolment, Enrolments, Entry, Table};

/// What the first frame of a link means for the epoch that it was offered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ConfirmOutcome {
    /// The offered epoch is current now, and must be saved.
    NowCurrent,
    /// The epoch was current already: another link was opened with it before.
    AlreadyCurrent,
    /// Another copy of the key confirmed an epoch that was offered as an alternative to this one.
    Outdated,
}

/// The number of unconfirmed offers that are stored. A sandbox with a working network holds one of the last few.
const MAX_OFFERED: usize = 16;

/// The number of past epochs that may still be confirmed: each belongs to a link whose first frame is in transit while
/// later links of its sandbox have been opened already.
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
        self.save(&enrolled.id).map_err(Denied::NotSaved)?;
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
        table.by_id[&id].enrolment_if_valid(&id, now.into())
    }

    /// Finds the enrolment of a key, without a check of its epoch: a link that is resumed proves its resume token instead.
    pub(crate) fn recognise(&self, key: &PublicKey, now: SystemTime) -> Result<Enrolment, Denied> {
        let table = self.lock();
        let id = table.by_key.get(key).ok_or(Denied::UnknownKey)?;
        table.by_id[id].enrolment_if_valid(id, now.into())
    }

    /// Makes an epoch current, at the first frame of the link that was offered it. The caller must call
    /// [`Enrolments::save`], which writes, on another thread; until then both epochs are valid in the file.
    pub(crate) fn confirm(&self, id: &str, epoch: &Fingerprint) -> ConfirmOutcome {
        let mut table = self.lock();
        let Some(entry) = table.by_id.get_mut(id) else { return ConfirmOutcome::Outdated };
        if entry.past_epochs.contains(epoch) {
            return ConfirmOutcome::AlreadyCurrent;
        }
        match &mut entry.record.identity {
            SandboxIdentity::Key { offered_epochs, .. } if offered_epochs.contains(epoch) => {
                entry.make_current(epoch.clone());
                ConfirmOutcome::NowCurrent
            }
            _ => ConfirmOutcome::Outdated,
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
        let ticket = Fingerprint::of_ticket(ticket).ok_or(Denied::MalformedTicket)?;
        let id = self.by_ticket.get(&ticket).ok_or(Denied::UnknownTicket)?;
        let entry = &self.by_id[id];
        let enrolled = entry.enrolment_if_valid(id, now).map_err(|denied| match denied {
            Denied::Ended(EndCause::Unused) => Denied::TicketExpired,
            other => other,
        })?;
        match &entry.record.identity {
            SandboxIdentity::Ticket { .. } => match self.by_key.contains_key(key) {
                true => Err(Denied::KeyAlreadyEnrolled(enrolled)),
                false => Ok(Arc::clone(id)),
            },
            // The Welcome to this key may have been lost.
            SandboxIdentity::Key { key: enrolled_key, current_epoch: None, .. } if enrolled_key == key => {
                Ok(Arc::clone(id))
            }
            _ => Err(Denied::TicketReused(enrolled)),
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
        let enrolled = entry.enrolment_if_valid(id, now)?;
        match (&entry.record.identity, epoch.map(Fingerprint::of_epoch)) {
            (SandboxIdentity::Key { current_epoch, offered_epochs, .. }, Some(presented))
                if current_epoch.as_ref() == Some(&presented) || offered_epochs.contains(&presented) =>
            {
                Ok(Arc::clone(id))
            }
            _ => Err(Denied::Cloned(enrolled)),
        }
    }

    /// Applies a checked proof: the ticket is used up, or the presented epoch becomes current. Adds `next` to the offers.
    fn apply(
        &mut self,
        id: &Arc<str>,
        key: &PublicKey,
        proof: &KeyProof<'_>,
        next: Fingerprint,
    ) -> Result<Enrolment, Denied> {
        let entry = self.by_id.get_mut(id).ok_or(Denied::UnknownKey)?;
        if let SandboxIdentity::Ticket { ticket, rest, .. } = &mut entry.record.identity {
            let (ticket, rest) = (ticket.clone(), std::mem::take(rest));
            entry.record.identity = SandboxIdentity::Key {
                key: *key,
                ticket,
                current_epoch: None,
                offered_epochs: VecDeque::new(),
                rest,
            };
            self.by_key.insert(*key, Arc::clone(id));
        }
        if let KeyProof::Epoch(Some(epoch)) = proof {
            entry.make_current(Fingerprint::of_epoch(epoch));
        }
        if let SandboxIdentity::Key { offered_epochs, .. } = &mut entry.record.identity {
            if offered_epochs.len() == MAX_OFFERED {
                offered_epochs.pop_front();
            }
            offered_epochs.push_back(next);
        }
        Ok(entry.to_enrolment(id))
    }
}

impl Entry {
    fn make_current(&mut self, epoch: Fingerprint) {
        let SandboxIdentity::Key { current_epoch, offered_epochs, .. } = &mut self.record.identity else {
            return;
        };
        if current_epoch.as_ref() == Some(&epoch) {
            return;
        }
        *current_epoch = Some(epoch.clone());
        offered_epochs.clear();
        if self.past_epochs.len() == MAX_PAST {
            self.past_epochs.pop_front();
        }
        self.past_epochs.push_back(epoch);
    }
}
