//! What one session holds: its secrets, each read once and shared by its servers, and the scrubber that knows every
//! value the session ever had. A secret of Vault's is read anew when its end is near, its token or login turned, or it is
//! time to look for a newer one; while that fails, what is held and still good goes on.
//!
//! Must stay true: each secret is read by one at a time, and the others wait for that; a failure of Vault's is remembered
//! until the next try is due; a value is known to the scrubbers before anybody can use it; whoever runs with older values
//! than the newest can tell by their generation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use relay_proto::name::Name;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};

use super::log_scrubber::LogScrubber;
use super::reread::{Reread, RereadPace};
use crate::config::{Limits, Origin, SecretSource};
use crate::metrics;
use crate::scrub::{Needle, Scrubber};
use crate::secret::{self, Material, SecretError, SecretProblem, opened};
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
    scrubber: ArcSwap<Scrubber>,
    /// Every value ever held; only grows.
    known: StdMutex<Vec<Needle>>,
    log: Arc<LogScrubber>,
}

/// One secret's place.
#[derive(Default)]
struct Slot {
    material: Option<Arc<Material>>,
    /// Why it was not read the last time, and when it may be tried again.
    trouble: Option<Trouble>,
    refusals: RereadPace,
}

/// Whoever waits for a credential is answered within ten seconds.
const PATIENCE: Duration = Duration::from_millis(9500);

impl Credentials {
    pub(crate) fn new(log: Arc<LogScrubber>, vault: Option<SessionVault>) -> Self {
        Self {
            vault,
            slots: StdMutex::default(),
            newest: ArcSwap::default(),
            changes: watch::Sender::default(),
            scrubber: ArcSwap::from_pointee(Scrubber::new(Vec::new())),
            known: StdMutex::default(),
            log,
        }
    }

    /// The secret, read now or held already.
    pub(crate) async fn obtain(
        &self,
        source: &SecretSource,
        limits: &Limits,
    ) -> Result<Arc<Material>, SecretError> {
        let slot = self.slot(&source.name);
        let within = async {
            let mut slot = slot.lock().await;
            match source.origin.is_in_vault() {
                true => self.obtain_from_vault(&mut slot, source, limits).await,
                false => match &slot.material {
                    Some(material) => Ok(Arc::clone(material)),
                    None => {
                        let material = secret::fetch(source, limits).await?;
                        Ok(self.keep(&mut slot, &source.name, material))
                    }
                },
            }
        };
        match source.origin.is_in_vault() {
            true => timeout(PATIENCE, within).await.unwrap_or_else(|_| Err(late(source))),
            false => within.await,
        }
    }

    async fn obtain_from_vault(
        &self,
        slot: &mut Slot,
        source: &SecretSource,
        limits: &Limits,
    ) -> Result<Arc<Material>, SecretError> {
        let Some(vault) = &self.vault else { return Err(SecretError::new(source, SecretProblem::NoVault)) };
        let live = slot.material.clone().filter(|material| material.is_live());
        let vouched =
            |material: &Arc<Material>| material.token().is_some_and(|token| vault.vouches_for(token));
        if let Some(material) = live.clone().filter(|material| material.is_fresh() && vouched(material)) {
            return Ok(material);
        }
        // What hangs from a token that is no more is no more; a value that was only read is as good as before.
        let fallback = live.filter(|material| vouched(material) || !material.has_lease());
        let now = Instant::now();
        if let Some(trouble) = slot.trouble.clone().filter(|trouble| trouble.next > now) {
            return fallback.ok_or_else(|| SecretError::new(source, SecretProblem::Vault(Box::new(trouble))));
        }
        slot.trouble = None;
        match secret::fetch_from_vault(source, limits, vault, &|needles| self.learn(needles)).await {
            Ok(material) => Ok(self.keep(slot, &source.name, material)),
            Err(error) => {
                if let SecretProblem::Vault(trouble) = &error.cause {
                    slot.trouble = Some(Trouble::clone(trouble));
                }
                if fallback.is_some() {
                    tracing::warn!(secret = %source.name, why = %error.cause, "a secret was not read anew; the one that is held goes on");
                }
                fallback.ok_or(error)
            }
        }
    }

    /// A server refused what was made from these values of the secret: reads it anew, wherever it is from, unless
    /// somebody has read others since or it was read for the same reason a moment ago.
    pub(crate) async fn reread(
        &self,
        source: &SecretSource,
        limits: &Limits,
        seen_generation: u64,
    ) -> Result<Reread, SecretError> {
        let slot = self.slot(&source.name);
        let within = async {
            let mut slot = slot.lock().await;
            let other =
                |material: &&Arc<Material>| material.generation != seen_generation && material.is_live();
            if let Some(material) = slot.material.as_ref().filter(other) {
                return Ok(Reread::Read(Arc::clone(material)));
            }
            if let Some(trouble) = slot.trouble.clone().filter(|trouble| trouble.next > Instant::now()) {
                return Err(SecretError::new(source, SecretProblem::Vault(Box::new(trouble))));
            }
            if let Err(next) = slot.refusals.begin() {
                return Ok(Reread::TooSoon { next });
            }
            let material = match &self.vault {
                Some(vault) if source.origin.is_in_vault() => {
                    secret::fetch_from_vault(source, limits, vault, &|needles| self.learn(needles)).await
                }
                _ => secret::fetch(source, limits).await,
            };
            metrics::reread(metrics::Outcome::of(&material));
            Ok(Reread::Read(self.keep(&mut slot, &source.name, material?)))
        };
        timeout(PATIENCE, within).await.unwrap_or_else(|_| Err(late(source)))
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
        self.learn(&opened::needles(name, &material));
        let before = slot.material.as_ref();
        let is_change = before.is_some_and(|before| !material.replaces_unnoticed(before));
        material.generation = before.map_or(1, |before| before.generation + u64::from(is_change));
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

    fn learn(&self, needles: &[Needle]) {
        let mut known = self.known.lock().expect("no holder of this lock panics");
        let is_new = |needle: &&Needle| !known.iter().any(|other| other.value == needle.value);
        let new: Vec<Needle> = needles.iter().filter(is_new).cloned().collect();
        if !new.is_empty() {
            self.log.learn(&new);
            known.extend(new);
            self.scrubber.store(Arc::new(Scrubber::new(known.clone())));
        }
    }

    fn slot(&self, name: &Name) -> Arc<Mutex<Slot>> {
        let mut slots = self.slots.lock().expect("no holder of this lock panics");
        Arc::clone(slots.entry(name.clone()).or_default())
    }

    pub(crate) fn scrubber(&self) -> Arc<Scrubber> {
        self.scrubber.load_full()
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        self.log.release(self.known.get_mut().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Somebody else's try, or Vault, takes longer than anybody waits.
fn late(source: &SecretSource) -> SecretError {
    let asked = Asked { method: http::Method::GET, path: in_vault(source) };
    let error = VaultError { asked, problem: Problem::Unreachable { why: "it takes too long".into() } };
    let trouble = Trouble { error, next: Instant::now() + BETWEEN_TRIES };
    SecretError::new(source, SecretProblem::Vault(Box::new(trouble)))
}

fn in_vault(source: &SecretSource) -> String {
    match &source.origin {
        Origin::Kv { path, .. } | Origin::Vault { path, .. } => path.to_string(),
        Origin::Env(_) | Origin::Exec(_) | Origin::File(_) => String::new(),
    }
}
