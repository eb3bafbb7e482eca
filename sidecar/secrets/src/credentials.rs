//! The secrets of one session: each is read once and shared by its servers, and the scrubber knows every value that the
//! session ever had, except those that ended long ago ([`known`](super::known)). A secret that may change is kept by a task
//! of its own ([`upkeep`](super::upkeep)); a caller that needs one that is not current reads it itself. While that fails,
//! the values that are held and still valid are used.
//!
//! What must stay true: one caller at a time reads a secret, and the others wait for it; a failure of a source is
//! remembered until the next attempt is due; the scrubbers know a value before it can be used; a user of older values than
//! the newest can tell by their generation; values without users are given back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use relay_proto::name::Name;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::error::{SecretError, SecretProblem, SourceFailure};
use super::known::{Known, Learnt, Scrubbing};
use super::local::LocalSource;
use super::material::Material;
use super::renewal::Terms;
use super::reread::RereadPace;
use super::source::{Ask, RevokedWith, Source};
use super::spec::{SecretSpec, SourceLimits};
use super::upkeep::{How, Keeper, Note};
use cofferdam_scrub::log_scrubber::LogScrubber;
use cofferdam_scrub::{Needle, Scrubber};

pub struct Credentials {
    /// None where the sidecar has no Vault.
    vault: Option<Arc<dyn Source>>,
    local: LocalSource,
    /// Run the upkeep of secrets.
    pub(super) tasks: TaskTracker,
    slots: StdMutex<BTreeMap<Name, Arc<Mutex<Slot>>>>,
    /// The last that was read of each secret.
    newest: ArcSwap<BTreeMap<Name, Arc<Material>>>,
    /// Counts how often a secret got other values than it had.
    changes: watch::Sender<u64>,
    /// The state of the upkeep of each secret that may change.
    pub(super) notes: StdMutex<BTreeMap<Name, Note>>,
    scrubber: ArcSwap<Scrubber>,
    /// What the scrubber looks for.
    known: StdMutex<Known>,
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

/// A caller that waits for a credential of Vault's is answered within ten seconds.
pub(super) const PATIENCE: Duration = Duration::from_millis(9500);

impl Credentials {
    pub fn new(log: Arc<LogScrubber>, vault: Option<Arc<dyn Source>>, tasks: TaskTracker) -> Self {
        Self {
            vault,
            local: LocalSource::default(),
            tasks,
            slots: StdMutex::default(),
            newest: ArcSwap::default(),
            changes: watch::Sender::default(),
            notes: StdMutex::default(),
            scrubber: ArcSwap::from_pointee(Scrubber::new(Vec::new())),
            known: StdMutex::default(),
            log,
        }
    }

    /// The secret, read now or held already.
    pub async fn obtain(
        self: &Arc<Self>,
        spec: &SecretSpec,
        limits: SourceLimits,
    ) -> Result<Arc<Material>, SecretError> {
        // The upkeep runs a local command again: callers need not wait for it while their credential is valid.
        let serves = |held: &Arc<Material>| match spec.origin.is_in_vault() {
            true => held.is_current(),
            false => held.is_usable(),
        };
        if let Some(held) = self.newest.load().get(&spec.name).filter(|held| serves(held)) {
            return Ok(Arc::clone(held));
        }
        let source = self.source(spec)?;
        if !spec.origin.is_in_vault() {
            // A command has a time limit of its own.
            return self.obtain_from(source, spec, limits).await;
        }
        match timeout(PATIENCE, self.obtain_from(source, spec, limits)).await {
            Ok(obtained) => obtained,
            Err(_) => {
                let held = self.newest.load().get(&spec.name).cloned();
                let late = || SecretError::new(spec, source.too_slow(spec).into());
                held.filter(|held| held.is_usable()).ok_or_else(late)
            }
        }
    }

    async fn obtain_from(
        self: &Arc<Self>,
        source: &dyn Source,
        spec: &SecretSpec,
        limits: SourceLimits,
    ) -> Result<Arc<Material>, SecretError> {
        let slot = self.slot(&spec.name);
        let mut slot = slot.lock().await;
        if let Some(material) = slot.material.as_ref().filter(|held| held.is_current()) {
            return Ok(Arc::clone(material));
        }
        let fallback = slot.material.clone().filter(|held| held.is_usable());
        let now = Instant::now();
        if let Some(failure) = slot.failure.clone().filter(|failure| failure.next_attempt > now) {
            return fallback.ok_or_else(|| SecretError::new(spec, failure.into()));
        }
        self.read(&mut slot, source, spec, limits).await.or_else(|error| {
            if fallback.is_some() {
                tracing::warn!(secret = %spec.name, why = %error.cause, "a secret was not read again; the one that is held is still used");
            }
            fallback.ok_or(error)
        })
    }

    /// Reads it now; if it may change, it is kept from then on.
    pub(super) async fn read(
        self: &Arc<Self>,
        slot: &mut Slot,
        source: &dyn Source,
        spec: &SecretSpec,
        limits: SourceLimits,
    ) -> Result<Arc<Material>, SecretError> {
        let how = How::new(spec, limits);
        let (material, terms) = self.read_from(source, slot, &how).await?;
        if spec.origin.may_change() {
            self.keep_renewed(source, slot, how, terms);
        }
        Ok(material)
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
    pub fn newest(&self) -> Arc<BTreeMap<Name, Arc<Material>>> {
        self.newest.load_full()
    }

    /// Counts every secret that gets other values than it had: a server may still run with the former ones.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The scrubbers know the values before they can be used.
    fn keep(&self, slot: &mut Slot, name: &Name, mut material: Material) -> Arc<Material> {
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

    /// Holds these values from now on, as if they had just been read. For tests of servers.
    #[doc(hidden)]
    pub fn hold(&self, name: &Name, material: Material) -> Arc<Material> {
        let slot = self.slot(name);
        let mut slot = slot.try_lock().expect("a test reads nothing at the same time");
        self.keep(&mut slot, name, material)
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

    pub fn scrubber(&self) -> Arc<Scrubber> {
        self.scrubber.load_full()
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        self.log.release(&self.known.get_mut().unwrap_or_else(PoisonError::into_inner).held());
    }
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
