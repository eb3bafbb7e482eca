//! What one session holds: its secrets, each read once and shared by its servers, and the scrubber that knows every
//! value the session ever had, but for those that were over long ago (`known`). A secret of Vault's is kept by a task of
//! its own (`upkeep`) as long as the session has links; whoever needs one that is not fresh, or whose token or login
//! turned, reads it himself. While that fails, what is held and still good goes on.
//!
//! Must stay true: each secret is read by one at a time, and the others wait for that; a failure of Vault's is remembered
//! until the next try is due; a value is known to the scrubbers before anybody can use it; whoever runs with older values
//! than the newest can tell by their generation; values that nobody holds any more are given back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use relay_proto::name::Name;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};

use super::known::{Known, Learnt, Scrubbing};
use super::log_scrubber::LogScrubber;
use super::reread::RereadPace;
use super::upkeep::{How, Keeper, Note};
use crate::scrub::{Needle, Scrubber};
use crate::secret::{
    self, Material, Origin, SecretError, SecretProblem, SecretSpec, SourceLimits, Tie, opened,
};
use crate::vault::leases::Terms;
use crate::vault::login::Trouble;
use crate::vault::session::{BETWEEN_TRIES, SessionVault};
use crate::vault::{Asked, Problem, VaultError};

pub(crate) struct Credentials {
    /// None where the sidecar has no Vault.
    vault: Option<SessionVault>,
    slots: StdMutex<BTreeMap<Name, Arc<Mutex<Slot>>>>,
    /// The last that was read of each secret.
    newest: ArcSwap<BTreeMap<Name, Arc<Material>>>,
    /// Counts the times that a secret got other values than it had.
    changes: watch::Sender<u64>,
    /// How the upkeep of each secret of Vault's stands.
    pub(super) notes: StdMutex<BTreeMap<Name, Note>>,
    scrubber: ArcSwap<Scrubber>,
    /// What the scrubber looks for.
    known: StdMutex<Known>,
    log: Arc<LogScrubber>,
}

/// One secret's place.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) material: Option<Arc<Material>>,
    /// Why it was not read the last time, and when it may be tried again.
    pub(super) trouble: Option<Trouble>,
    /// Who keeps it.
    pub(super) keeper: Option<Keeper>,
    /// Servers refused what was made from it.
    pub(super) refusals: RereadPace,
}

/// Whoever waits for a credential is answered within ten seconds.
pub(super) const PATIENCE: Duration = Duration::from_millis(9500);

impl Credentials {
    pub(crate) fn new(log: Arc<LogScrubber>, vault: Option<SessionVault>) -> Self {
        Self {
            vault,
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
    pub(crate) async fn obtain(
        self: &Arc<Self>,
        source: &SecretSpec,
        limits: SourceLimits,
    ) -> Result<Arc<Material>, SecretError> {
        if !source.origin.is_in_vault() {
            let slot = self.slot(&source.name);
            let mut slot = slot.lock().await;
            if let Some(material) = &slot.material {
                return Ok(Arc::clone(material));
            }
            return self.read(&mut slot, source, limits).await;
        }
        let Some(vault) = &self.vault else { return Err(SecretError::new(source, SecretProblem::NoVault)) };
        if let Some(fresh) =
            self.newest.load().get(&source.name).filter(|held| is_as_good_as_new(held, vault))
        {
            return Ok(Arc::clone(fresh));
        }
        match timeout(PATIENCE, self.obtain_from_vault(vault, source, limits)).await {
            Ok(obtained) => obtained,
            // Somebody else's try, or Vault, takes longer than anybody waits.
            Err(_) => {
                let held = self.newest.load().get(&source.name).cloned();
                held.filter(|held| goes_on(held, vault)).ok_or_else(|| late(source))
            }
        }
    }

    async fn obtain_from_vault(
        self: &Arc<Self>,
        vault: &SessionVault,
        source: &SecretSpec,
        limits: SourceLimits,
    ) -> Result<Arc<Material>, SecretError> {
        let slot = self.slot(&source.name);
        let mut slot = slot.lock().await;
        if let Some(material) = slot.material.as_ref().filter(|held| is_as_good_as_new(held, vault)) {
            return Ok(Arc::clone(material));
        }
        let fallback = slot.material.clone().filter(|held| goes_on(held, vault));
        let now = Instant::now();
        if let Some(trouble) = slot.trouble.clone().filter(|trouble| trouble.next > now) {
            return fallback.ok_or_else(|| SecretError::new(source, SecretProblem::Vault(Box::new(trouble))));
        }
        self.read(&mut slot, source, limits).await.or_else(|error| {
            if fallback.is_some() {
                tracing::warn!(secret = %source.name, why = %error.cause, "a secret was not read anew; the one that is held goes on");
            }
            fallback.ok_or(error)
        })
    }

    /// Reads it now, wherever it is from; one of Vault's is kept from then on.
    pub(super) async fn read(
        self: &Arc<Self>,
        slot: &mut Slot,
        source: &SecretSpec,
        limits: SourceLimits,
    ) -> Result<Arc<Material>, SecretError> {
        let Some(vault) = self.vault().filter(|_| source.origin.is_in_vault()) else {
            let material = secret::fetch(source, limits).await?;
            return Ok(self.keep(slot, &source.name, material));
        };
        let how = How::new(source, limits);
        let (material, terms) = self.read_from_vault(vault, slot, &how).await?;
        self.tend(vault, slot, how, terms);
        Ok(material)
    }

    /// Reads it, whatever is held; a failure is remembered.
    pub(super) async fn read_from_vault(
        &self,
        vault: &SessionVault,
        slot: &mut Slot,
        how: &How,
    ) -> Result<(Arc<Material>, Terms), SecretError> {
        slot.trouble = None;
        let learn = |needles: &[Needle], tie: Tie| self.learn(needles, tie);
        match secret::fetch_from_vault(&how.source, how.secret_bytes, (vault, how.asker), &learn).await {
            Ok((material, terms)) => Ok((self.keep(slot, &how.source.name, material), terms)),
            Err(error) => {
                if let SecretProblem::Vault(trouble) = &error.cause {
                    // Here alone stands what Vault said.
                    tracing::warn!(secret = %error.secret, why = trouble.error.explained(), "a secret was not read");
                    slot.trouble = Some(Trouble::clone(trouble));
                }
                self.note_failure(&error);
                Err(error)
            }
        }
    }

    /// What was read last, by name.
    pub(crate) fn newest(&self) -> Arc<BTreeMap<Name, Arc<Material>>> {
        self.newest.load_full()
    }

    /// Hears of every secret that gets other values than it had: then somebody may run with those before.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn vault(&self) -> Option<&SessionVault> {
        self.vault.as_ref()
    }

    /// Known to the scrubbers before anybody can use it.
    fn keep(&self, slot: &mut Slot, name: &Name, mut material: Material) -> Arc<Material> {
        self.learn(&opened::needles(name, &material), material.tie());
        if let Some(before) = slot.material.as_ref().filter(|before| material.replaces_unnoticed(before)) {
            // Whoever has them need not hear of it, and has them for longer.
            before.extend(material.life());
            return Arc::clone(before);
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

    /// Holds these values from now on, as if they had just been read.
    #[cfg(test)]
    pub(crate) fn hold(&self, name: &Name, material: Material) -> Arc<Material> {
        let slot = self.slot(name);
        let mut slot = slot.try_lock().expect("a test reads nothing at the same time");
        self.keep(&mut slot, name, material)
    }

    fn learn(&self, needles: &[Needle], tie: Tie) {
        let mut known = self.known.lock().expect("no holder of this lock panics");
        let Learnt { scrubber, held, let_go } = known.learn(needles, tie, Instant::now());
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

    pub(crate) fn scrubber(&self) -> Arc<Scrubber> {
        self.scrubber.load_full()
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        self.log.release(&self.known.get_mut().unwrap_or_else(PoisonError::into_inner).held());
    }
}

/// Whether whoever needs it now gets it as it is.
fn is_as_good_as_new(material: &Material, vault: &SessionVault) -> bool {
    material.is_fresh() && is_vouched_for(material, vault)
}

/// Whether it is used while nothing newer can be had. What hangs from a token that is no more is no more; a value that
/// was only read is as good as before.
pub(super) fn goes_on(material: &Material, vault: &SessionVault) -> bool {
    material.is_live() && (!material.has_lease() || is_of_these_links(material, vault))
}

fn is_of_these_links(material: &Material, vault: &SessionVault) -> bool {
    material.life().read_with.is_some_and(|with| vault.has_read(with))
}

fn is_vouched_for(material: &Material, vault: &SessionVault) -> bool {
    match material.token() {
        Some(token) => vault.vouches_for(token),
        None => is_of_these_links(material, vault),
    }
}

pub(super) fn late(source: &SecretSpec) -> SecretError {
    let asked = Asked { method: http::Method::GET, path: in_vault(source) };
    let error = VaultError { asked, problem: Problem::Unreachable { why: "it takes too long".into() } };
    let trouble = Trouble { error, next: Instant::now() + BETWEEN_TRIES };
    SecretError::new(source, SecretProblem::Vault(Box::new(trouble)))
}

fn in_vault(source: &SecretSpec) -> String {
    match &source.origin {
        Origin::Kv { path, .. } | Origin::Vault { path, .. } => path.to_string(),
        Origin::Env(_) | Origin::Exec(_) | Origin::File(_) => String::new(),
    }
}
