//! What a session holds of its secrets: the values last read, why a read failed, and every value to scrub.
//!
//! What must stay true: the scrubbers know a value before it can be used; a user of older values than the newest can tell by
//! their generation; a failure of a source is remembered until the next attempt is due.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use arc_swap::ArcSwap;
use relay_proto::name::Name;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::{SecretError, SecretProblem, SourceFailure};
use super::known::{Known, Learnt, Scrubbing};
use super::local::LocalSource;
use super::material::Material;
use super::renewal::Terms;
use super::reread::RereadPace;
use super::source::{Ask, Asker, RevokedWith, Source};
use super::spec::{SecretSpec, SourceLimits};
use cofferdam_scrub::log_scrubber::LogScrubber;
use cofferdam_scrub::{Needle, Scrubber};

/// The secrets of one session, shared by its callers and the tasks that renew them.
pub(super) struct Store {
    /// None where the sidecar has no Vault.
    vault: Option<Arc<dyn Source>>,
    local: LocalSource,
    slots: StdMutex<BTreeMap<Name, Arc<Mutex<Slot>>>>,
    /// The last that was read of each secret.
    newest: ArcSwap<BTreeMap<Name, Arc<Material>>>,
    /// Counts how often a secret got other values than it had.
    changes: watch::Sender<u64>,
    /// The state of the upkeep of each secret that may change.
    pub(super) notes: StdMutex<BTreeMap<Name, Note>>,
    scrubber: ArcSwap<Scrubber>,
    /// What the scrubber looks for.
    pub(super) known: StdMutex<Known>,
    log: Arc<LogScrubber>,
}

/// The state of one secret.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) material: Option<Arc<Material>>,
    /// Why the last read failed, and when the next may be tried.
    pub(super) failure: Option<SourceFailure>,
    pub(super) keeper: Option<Keeper>,
    /// Servers refused what was made from it.
    pub(super) refusals: RereadPace,
}

/// How a secret is read again.
#[derive(Clone)]
pub(super) struct How {
    pub(super) spec: Arc<SecretSpec>,
    pub(super) limits: SourceLimits,
    pub(super) asker: Asker,
}

/// The task that does it.
pub(super) struct Keeper {
    pub(super) how: How,
    pub(super) terms: watch::Sender<Terms>,
    /// The task ends when this is cancelled.
    pub(super) period: CancellationToken,
}

/// The state of a secret's upkeep.
#[derive(Clone, Debug, Default)]
pub(super) struct Note {
    pub(super) origin: String,
    pub(super) renewals: u64,
    pub(super) last_error: Option<String>,
    pub(super) next: Option<Instant>,
}

impl Store {
    pub(super) fn new(log: Arc<LogScrubber>, vault: Option<Arc<dyn Source>>) -> Self {
        Self {
            vault,
            local: LocalSource::default(),
            slots: StdMutex::default(),
            newest: ArcSwap::default(),
            changes: watch::Sender::default(),
            notes: StdMutex::default(),
            scrubber: ArcSwap::from_pointee(Scrubber::new(Vec::new())),
            known: StdMutex::default(),
            log,
        }
    }

    /// Reads it, whatever is held; a failure is remembered.
    pub(super) async fn read_from(
        &self,
        source: &dyn Source,
        slot: &mut Slot,
        how: &How,
    ) -> Result<(Arc<Material>, Terms), SecretError> {
        slot.failure = None;
        let learn = |needles: &[Needle], revoked_with: RevokedWith| self.learn(needles, revoked_with);
        let How { spec, limits, asker } = how;
        match source.read(Ask { spec, limits: *limits, asker: *asker, learn: &learn }).await {
            Ok(lease) => {
                let terms = lease.terms;
                Ok((self.keep(slot, &spec.name, Material::new(spec, lease)), terms))
            }
            Err(cause) => {
                let error = SecretError::new(spec, cause);
                if let Some(failure) = error.failure() {
                    // The one place that logs what the source said.
                    tracing::warn!(secret = %error.secret, why = failure.detail, "a secret was not read");
                    slot.failure = Some(failure.clone());
                }
                self.note_failure(&error);
                Err(error)
            }
        }
    }

    /// Where a secret is read.
    pub(super) fn source(&self, spec: &SecretSpec) -> Result<&dyn Source, SecretError> {
        match spec.origin.is_in_vault() {
            true => self.vault.as_deref().ok_or_else(|| SecretError::new(spec, SecretProblem::NoVault)),
            false => Ok(&self.local),
        }
    }

    /// What was read last, by name.
    pub(super) fn newest(&self) -> Arc<BTreeMap<Name, Arc<Material>>> {
        self.newest.load_full()
    }

    /// Counts every secret that gets other values than it had: a server may still run with the former ones.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The scrubbers know the values before they can be used.
    pub(super) fn keep(&self, slot: &mut Slot, name: &Name, mut material: Material) -> Arc<Material> {
        self.learn(&material.needles(name), material.revoked_with());
        if let Some(before) = slot.material.as_ref().filter(|before| material.replaces_unnoticed(before)) {
            let before = Arc::clone(before);
            before.adopt(material);
            return before;
        }
        let is_change = slot.material.is_some();
        material.generation = slot.material.as_ref().map_or(1, |before| before.generation + 1);
        let material = Arc::new(material);
        slot.material = Some(Arc::clone(&material));
        self.newest.rcu(|newest| {
            let mut newest = BTreeMap::clone(newest);
            newest.insert(name.clone(), Arc::clone(&material));
            newest
        });
        if is_change {
            self.changes.send_modify(|changes| *changes += 1);
        }
        material
    }

    fn learn(&self, needles: &[Needle], revoked_with: RevokedWith) {
        let mut known = self.known.lock().expect("no holder of this lock panics");
        let Learnt { scrubber, held, let_go } = known.learn(needles, revoked_with, Instant::now());
        self.log.learn(&held);
        if scrubber == Scrubbing::ToBeMade {
            self.scrubber.store(Arc::new(Scrubber::new(known.needles())));
        }
        self.log.release(&let_go);
    }

    pub(super) fn slot(&self, name: &Name) -> Arc<Mutex<Slot>> {
        let mut slots = self.slots.lock().expect("no holder of this lock panics");
        Arc::clone(slots.entry(name.clone()).or_default())
    }

    pub(super) fn scrubber(&self) -> Arc<Scrubber> {
        self.scrubber.load_full()
    }

    pub(super) fn note_failure(&self, error: &SecretError) {
        let Some(failure) = error.failure() else { return };
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let note = notes.entry(error.secret.clone()).or_default();
        note.origin.clone_from(&error.origin);
        note.last_error = Some(failure.detail.clone());
        note.next = Some(failure.next_attempt);
    }
}

impl How {
    pub(super) fn new(spec: &SecretSpec, limits: SourceLimits) -> Self {
        Self { spec: Arc::new(spec.clone()), limits, asker: Asker::Caller }
    }
}

impl Keeper {
    pub(super) fn is_running(&self) -> bool {
        !self.period.is_cancelled()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.log.release(&self.known.get_mut().unwrap_or_else(PoisonError::into_inner).held());
    }
}
