//! The secrets of one session: each is read once and shared by its servers, and the scrubber knows every value that the
//! session ever had, except those that ended long ago ([`known`](super::known)). A secret that may change is kept by a task
//! of its own ([`upkeep`](super::upkeep)); a caller that needs one that is not current reads it itself. While that fails,
//! the values that are held and still valid are used.
//!
//! What must stay true: one caller at a time reads a secret, and the others wait for it; a failure of a source is
//! remembered until the next attempt is due; the scrubbers know a value before it can be used; a user of older values than
//! the newest can tell by their generation; values without users are given back.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use relay_proto::name::Name;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::error::SecretError;
use super::material::Material;
use super::reread::Reread;
use super::source::Source;
use super::spec::{SecretSpec, SourceLimits};
use super::store::{How, Slot, Store};
use super::upkeep::{self, Held};
use cofferdam_base::metrics::{self, Outcome};
use cofferdam_scrub::Scrubber;
use cofferdam_scrub::log_scrubber::LogScrubber;

pub struct Credentials {
    store: Arc<Store>,
    /// Run the upkeep of secrets.
    tasks: TaskTracker,
}

/// A caller that waits for a credential of Vault's is answered within ten seconds.
const PATIENCE: Duration = Duration::from_millis(9500);

impl Credentials {
    pub fn new(log: Arc<LogScrubber>, vault: Option<Arc<dyn Source>>, tasks: TaskTracker) -> Self {
        Self { store: Arc::new(Store::new(log, vault)), tasks }
    }

    /// The secret, read now or held already.
    pub async fn obtain(
        &self,
        spec: &SecretSpec,
        limits: SourceLimits,
    ) -> Result<Arc<Material>, SecretError> {
        // The upkeep runs a local command again: callers need not wait for it while their credential is valid.
        let serves = |held: &Arc<Material>| match spec.origin.is_in_vault() {
            true => held.is_current(),
            false => held.is_usable(),
        };
        if let Some(held) = self.store.newest().get(&spec.name).filter(|held| serves(held)) {
            return Ok(Arc::clone(held));
        }
        let source = self.store.source(spec)?;
        if !spec.origin.is_in_vault() {
            // A command has a time limit of its own.
            return self.obtain_from(source, spec, limits).await;
        }
        match timeout(PATIENCE, self.obtain_from(source, spec, limits)).await {
            Ok(obtained) => obtained,
            Err(_) => {
                let held = self.store.newest().get(&spec.name).cloned();
                let late = || SecretError::new(spec, source.too_slow(spec).into());
                held.filter(|held| held.is_usable()).ok_or_else(late)
            }
        }
    }

    async fn obtain_from(
        &self,
        source: &dyn Source,
        spec: &SecretSpec,
        limits: SourceLimits,
    ) -> Result<Arc<Material>, SecretError> {
        let slot = self.store.slot(&spec.name);
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
    async fn read(
        &self,
        slot: &mut Slot,
        source: &dyn Source,
        spec: &SecretSpec,
        limits: SourceLimits,
    ) -> Result<Arc<Material>, SecretError> {
        let how = How::new(spec, limits);
        let (material, terms) = self.store.read_from(source, slot, &how).await?;
        if spec.origin.may_change() {
            upkeep::keep_renewed(&self.store, &self.tasks, source, slot, how, terms);
        }
        Ok(material)
    }

    /// A server refused what was made from these values of the secret: reads it again, wherever it is from, unless
    /// other values were read since or it was read for the same reason a moment ago.
    pub async fn reread(
        &self,
        spec: &SecretSpec,
        limits: SourceLimits,
        seen_generation: u64,
    ) -> Result<Reread, SecretError> {
        let slot = self.store.slot(&spec.name);
        let source = self.store.source(spec)?;
        let within = async {
            let mut slot = slot.lock().await;
            let is_other = |held: &&Arc<Material>| held.generation != seen_generation && held.is_live();
            if let Some(material) = slot.material.as_ref().filter(is_other) {
                return Ok(Reread::Read(Arc::clone(material)));
            }
            let failure = slot.failure.clone();
            if let Some(failure) = failure.filter(|failure| failure.next_attempt > Instant::now()) {
                return Err(SecretError::new(spec, failure.into()));
            }
            if let Err(next) = slot.refusals.begin() {
                return Ok(Reread::TooSoon { next });
            }
            let read = self.read(&mut slot, source, spec, limits).await;
            metrics::reread(Outcome::of(&read));
            read.map(Reread::Read)
        };
        let late = |_| Err(SecretError::new(spec, source.too_slow(spec).into()));
        timeout(PATIENCE, within).await.unwrap_or_else(late)
    }

    /// The secrets that may change which the session has or tried to read, by name.
    pub fn held(&self) -> Vec<Held> {
        let newest = self.store.newest();
        let notes = self.store.notes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let held = notes.into_iter().map(|(secret, note)| {
            let material = newest.get(&secret);
            Held {
                lease: material.and_then(|material| material.lease.as_ref()?.hash.clone()),
                unrevocable: material.is_some_and(|material| !material.has_lease()),
                expires: material.and_then(|material| material.expires()),
                origin: note.origin,
                renewals: note.renewals,
                last_error: note.last_error,
                next: note.next,
                secret,
            }
        });
        held.collect()
    }

    /// What was read last, by name.
    pub fn newest(&self) -> Arc<BTreeMap<Name, Arc<Material>>> {
        self.store.newest()
    }

    /// Counts every secret that gets other values than it had: a server may still run with the former ones.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.store.changes()
    }

    /// Holds these values from now on, as if they had just been read. For tests of servers.
    #[doc(hidden)]
    pub fn hold(&self, name: &Name, material: Material) -> Arc<Material> {
        let slot = self.store.slot(name);
        let mut slot = slot.try_lock().expect("a test reads nothing at the same time");
        self.store.keep(&mut slot, name, material)
    }

    pub fn scrubber(&self) -> Arc<Scrubber> {
        self.store.scrubber()
    }
}

#[cfg(test)]
mod tests;
