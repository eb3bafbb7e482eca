//! The sandbox's enrolment: the key that its shims share, in one small directory, and how they get it.
//!
//! | module | what it holds |
//! |---|---|
//! | `file` | `enrolment.json`: written atomically, readable by its owner only |
//! | `lock` | one shim at a time presents the key |
//! | `source` | where an enrolment string may come from |
//!
//! Must stay true: the key is generated here and stored before its ticket is sent; a shim that sends Hello with the key
//! holds the lock until the Welcome's epoch is stored; a key takes precedence over a leftover ticket; and a shim
//! without an enrolment searches for one at every attempt, so that the shim need not be restarted.

mod file;
mod lock;
mod source;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use relay_carriage::identity::{Identity, IdentityError};
use relay_proto::address::Address;
use relay_proto::control::{Epoch, Proof, Ticket};
use relay_proto::enrolment::{EnrolmentString, InvalidEnrolment};
use relay_proto::key::PublicKey;

use lock::Lock;

use crate::options::EnrolmentSources;

/// The state directory, the sources of enrolment strings, and the keys that were refused.
#[derive(Clone, Debug)]
pub(crate) struct EnrolmentState {
    directory: PathBuf,
    sources: EnrolmentSources,
    /// Keys that the sidecar refused for good, the latest last.
    refused: Arc<Mutex<VecDeque<RefusedKey>>>,
}

/// A refused key and its ticket. An enrolment string may stay in its source after use, and there are several sources; with
/// all refused tickets recorded, no string is tried twice.
#[derive(Clone, Debug)]
struct RefusedKey {
    key: PublicKey,
    ticket: Ticket,
}

/// The stored enrolment.
#[derive(Clone, Debug)]
pub(crate) struct SavedEnrolment {
    pub(crate) relay: Address,
    pub(crate) pin: PublicKey,
    pub(crate) identity: Identity,
    /// Stored even after its use, to distinguish a leftover string from a new one.
    ticket: Ticket,
    /// `None` until the first Welcome.
    epoch: Option<Epoch>,
}

/// The right to present the sandbox's key. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct HeldKey {
    directory: PathBuf,
    saved: SavedEnrolment,
    _lock: Lock,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("another shim of this sandbox has held `{lock}` for {seconds} seconds; is it suspended?")]
    Busy { lock: PathBuf, seconds: u64 },
    /// Another shim enrolled the sandbox again in the meantime.
    #[error("the sandbox was enrolled again while this shim connected")]
    Changed,
    #[error("cannot read `{path}`: {why}; remove it and enrol the sandbox again: {NEXT}")]
    Damaged { path: PathBuf, why: String },
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("this sandbox has no enrolment; {NEXT}")]
    None,
    #[error("the enrolment string in {origin} cannot be used: {source}")]
    InvalidString { origin: String, source: InvalidEnrolment },
    #[error("cannot read the enrolment string in {origin}: {source}")]
    Unreadable { origin: String, source: io::Error },
    #[error(
        "{action} `{path}`: {source}; the sandbox's key must be stored: give `--state` or COFFERDAM_STATE a directory that \
         can be written, a tmpfs is enough"
    )]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// More than there are sources of enrolment strings.
const MAX_REFUSED: usize = 8;
const NEXT: &str = "run `cofferdam enroll` on the host and write its string to COFFERDAM_ENROLL_FILE or /run/cofferdam/enroll";

impl EnrolmentState {
    pub(crate) fn new(directory: PathBuf, sources: EnrolmentSources) -> Self {
        Self { directory, sources, refused: Arc::default() }
    }

    /// Finds the enrolment to use now. If there is only a string with a ticket, generates a key for it and stores both.
    pub(crate) async fn find(&self) -> Result<SavedEnrolment, StateError> {
        if let Ok(Some(saved)) = self.usable_enrolment() {
            return Ok(saved);
        }
        // Without a string there is nothing to do, and no lock to wait for.
        if self.sources.read(&self.refused_tickets())?.is_none() {
            // Another shim may have used the string in the meantime.
            return self.usable_enrolment()?.ok_or(StateError::None);
        }
        let _lock = Lock::acquire(&self.directory).await?;
        if let Ok(Some(saved)) = self.usable_enrolment() {
            return Ok(saved);
        }
        let found = self.sources.read(&self.refused_tickets())?.ok_or(StateError::None)?;
        let EnrolmentString { pin, ticket, relay } = found.enrolment.clone();
        let saved = SavedEnrolment { relay, pin, identity: Identity::generate()?, ticket, epoch: None };
        file::write(&self.directory, &saved)?;
        // If the string cannot be removed, it is a leftover, and the key takes precedence.
        found.remove();
        Ok(saved)
    }

    /// What there is, without changing it: no key is made, and no string is used.
    pub(crate) fn inspect(&self) -> Result<FoundEnrolment, StateError> {
        if let Some(SavedEnrolment { relay, pin, .. }) = file::read(&self.directory)? {
            return Ok(FoundEnrolment::Stored { relay, pin });
        }
        Ok(match self.sources.read(&[])? {
            Some(_) => FoundEnrolment::Waiting,
            None => FoundEnrolment::None,
        })
    }

    /// Waits for the lock on the key. Returns it with the proof to send on a connection that was made with this key.
    pub(crate) async fn hold(&self, key: &PublicKey) -> Result<(HeldKey, Proof), StateError> {
        let lock = Lock::acquire(&self.directory).await?;
        let saved = self
            .usable_enrolment()?
            .filter(|saved| saved.identity.public() == *key)
            .ok_or(StateError::Changed)?;
        let proof = match &saved.epoch {
            Some(epoch) => Proof::Key { epoch: Some(epoch.clone()) },
            None => Proof::Ticket { ticket: saved.ticket.clone() },
        };
        Ok((HeldKey { directory: self.directory.clone(), saved, _lock: lock }, proof))
    }

    /// Records that the sidecar refused this key for good. Returns whether there is another enrolment to try.
    pub(crate) fn record_refusal(&self, key: &PublicKey) -> OtherEnrolment {
        if let Ok(Some(saved)) = file::read(&self.directory)
            && saved.identity.public() == *key
        {
            let mut refused = self.lock_refused();
            if refused.len() == MAX_REFUSED {
                refused.pop_front();
            }
            refused.push_back(RefusedKey { key: *key, ticket: saved.ticket });
        }
        let ready = matches!(self.usable_enrolment(), Ok(Some(_)))
            || matches!(self.sources.read(&self.refused_tickets()), Ok(Some(_)));
        if ready { OtherEnrolment::Ready } else { OtherEnrolment::None }
    }

    /// The stored enrolment, unless it was refused.
    fn usable_enrolment(&self) -> Result<Option<SavedEnrolment>, StateError> {
        let saved = file::read(&self.directory)?;
        let refused = self.lock_refused();
        Ok(saved.filter(|saved| refused.iter().all(|refused| refused.key != saved.identity.public())))
    }

    fn refused_tickets(&self) -> Vec<Ticket> {
        self.lock_refused().iter().map(|refused| refused.ticket.clone()).collect()
    }

    fn lock_refused(&self) -> MutexGuard<'_, VecDeque<RefusedKey>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The enrolment of this sandbox.
#[derive(Clone, Debug)]
pub(crate) enum FoundEnrolment {
    None,
    Stored {
        relay: Address,
        pin: PublicKey,
    },
    /// It cannot be read.
    Unusable,
    /// A string with a ticket.
    Waiting,
}

/// Whether there is another enrolment than the one that was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OtherEnrolment {
    None,
    Ready,
}

impl HeldKey {
    pub(crate) fn key(&self) -> PublicKey {
        self.saved.identity.public()
    }

    /// Stores the Welcome's epoch. The epoch must not be confirmed to the sidecar before this has returned.
    pub(crate) fn store_epoch(self, epoch: Epoch) -> Result<(), StateError> {
        let Self { directory, saved, _lock } = self;
        file::write(&directory, &SavedEnrolment { epoch: Some(epoch), ..saved })
    }
}
