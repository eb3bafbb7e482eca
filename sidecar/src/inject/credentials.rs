//! What one session holds: its secrets, each read once and shared by its servers, and the scrubber that knows every
//! value the session ever had. A secret of Vault's is read anew when its end is near, its token or login turned, or it is
//! time to look for a newer one; while that fails, what is held and still good goes on.
//!
//! Must stay true: each secret is read by one at a time, and the others wait for that; a failure of Vault's is remembered
//! until the next try is due; a value is known to the log's scrubber before anybody can use it, and for a while after its last
//! session is gone, for a session's last lines are written late. What nobody holds any more is kept in bounds.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use relay_proto::name::Name;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::config::{Limits, Origin, SecretSource};
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
}

/// The scrubber of the sidecar's own log: it knows the values of all sessions, and those of the last that ended.
pub(crate) struct LogScrubber {
    known: StdMutex<Known>,
    scrubber: ArcSwap<Scrubber>,
    /// Something was learnt since the scrubber was made. The next line makes it anew, once for all that was learnt.
    stale: AtomicBool,
}

#[derive(Default)]
struct Known {
    values: HashMap<Digest, Value>,
    /// Values without a holder, the longest without one first.
    released: VecDeque<Digest>,
}

struct Value {
    needle: Needle,
    holders: usize,
}

/// SHA-256 of a value. It never leaves this module.
type Digest = [u8; SHA256_OUTPUT_LEN];

/// Values that are still scrubbed although no session holds them: those of some hundred sessions, so that a line which
/// is written after its session's end finds them here.
const MAX_RELEASED: usize = 1024;

/// Whoever waits for a credential is answered within ten seconds.
const PATIENCE: Duration = Duration::from_millis(9500);

impl Credentials {
    pub(crate) fn new(log: Arc<LogScrubber>, vault: Option<SessionVault>) -> Self {
        Self {
            vault,
            slots: StdMutex::default(),
            newest: ArcSwap::default(),
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

    /// What was read last, by name.
    pub(crate) fn newest(&self) -> Arc<BTreeMap<Name, Arc<Material>>> {
        self.newest.load_full()
    }

    pub(crate) fn vault(&self) -> Option<&SessionVault> {
        self.vault.as_ref()
    }

    /// Known to the scrubbers before anybody can use it.
    fn keep(&self, slot: &mut Slot, name: &Name, material: Material) -> Arc<Material> {
        self.learn(&opened::needles(name, &material));
        let material = Arc::new(material);
        slot.material = Some(Arc::clone(&material));
        self.newest.rcu(|newest| {
            let mut newest = BTreeMap::clone(newest);
            newest.insert(name.clone(), Arc::clone(&material));
            newest
        });
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

impl Default for LogScrubber {
    fn default() -> Self {
        Self {
            known: StdMutex::default(),
            scrubber: ArcSwap::from_pointee(Scrubber::new(Vec::new())),
            stale: AtomicBool::new(false),
        }
    }
}

impl LogScrubber {
    pub(crate) fn current(&self) -> Arc<Scrubber> {
        if self.stale.load(Ordering::Acquire) {
            let known = self.lock();
            // Another line may have done it while this one waited.
            if self.stale.load(Ordering::Acquire) {
                let needles = known.values.values().map(|value| value.needle.clone()).collect();
                self.scrubber.store(Arc::new(Scrubber::new(needles)));
                self.stale.store(false, Ordering::Release);
            }
        }
        self.scrubber.load_full()
    }

    /// One more holder of each. Sessions that share a secret share its place here.
    fn learn(&self, needles: &[Needle]) {
        let mut known = self.lock();
        let Known { values, released } = &mut *known;
        for needle in needles {
            let key = key(needle);
            match values.entry(key) {
                Entry::Occupied(mut value) => {
                    if value.get().holders == 0 {
                        released.retain(|other| *other != key);
                    }
                    value.get_mut().holders += 1;
                }
                Entry::Vacant(place) => {
                    place.insert(Value { needle: needle.clone(), holders: 1 });
                    self.stale.store(true, Ordering::Release);
                }
            }
        }
    }

    /// One holder less of each. The scrubber is not made anew for that: it is when there is something to learn.
    fn release(&self, needles: &[Needle]) {
        let mut known = self.lock();
        let Known { values, released } = &mut *known;
        for needle in needles {
            let key = key(needle);
            let Some(value) = values.get_mut(&key) else { continue };
            value.holders -= 1;
            if value.holders == 0 {
                released.push_back(key);
            }
        }
        while released.len() > MAX_RELEASED {
            if let Some(oldest) = released.pop_front() {
                values.remove(&oldest);
            }
        }
    }

    /// Each change under this lock is whole at every step, and it is taken while a failed task is taken down.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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

fn key(needle: &Needle) -> Digest {
    let digest = digest(&SHA256, &needle.value);
    digest.as_ref().try_into().expect("SHA-256 has this length")
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;

    fn needle(value: &str) -> Needle {
        Needle { label: "some.value".into(), value: Zeroizing::new(value.into()) }
    }

    /// A session that holds this value.
    fn holding(log: &Arc<LogScrubber>, value: &str) -> Credentials {
        let credentials = Credentials::new(Arc::clone(log), None);
        log.learn(&[needle(value)]);
        credentials.known.lock().unwrap().push(needle(value));
        credentials
    }

    fn scrubs(log: &LogScrubber, value: &str) -> bool {
        log.current().text(format!("it is {value}.").as_bytes()).redactions == 1
    }

    #[test]
    fn a_value_is_scrubbed_while_anybody_holds_it_and_a_while_longer() {
        let log = Arc::<LogScrubber>::default();
        let first = holding(&log, "shared-value-1");
        let second = holding(&log, "shared-value-1");
        assert!(scrubs(&log, "shared-value-1"));
        drop(first);
        // However many come and go, what somebody holds stays.
        for number in 0..2 * MAX_RELEASED {
            drop(holding(&log, &format!("passing-value-{number}")));
        }
        assert!(scrubs(&log, "shared-value-1"));
        assert!(scrubs(&log, &format!("passing-value-{}", 2 * MAX_RELEASED - 1)), "the last lines come late");
        drop(second);
        let _newest = holding(&log, "newest-value");
        assert!(scrubs(&log, "shared-value-1"));
    }

    #[test]
    fn what_nobody_holds_is_forgotten_in_the_end() {
        let log = Arc::<LogScrubber>::default();
        drop(holding(&log, "value-of-the-first"));
        for number in 0..MAX_RELEASED {
            assert!(log.known.lock().unwrap().values.len() <= MAX_RELEASED + 1);
            drop(holding(&log, &format!("passing-value-{number}")));
        }
        let _newest = holding(&log, "newest-value");
        assert!(!scrubs(&log, "value-of-the-first"));
        assert_eq!(log.known.lock().unwrap().values.len(), MAX_RELEASED + 1);
    }

    #[test]
    fn a_value_that_comes_back_is_held_again() {
        let log = Arc::<LogScrubber>::default();
        drop(holding(&log, "value-that-returns"));
        let returned = holding(&log, "value-that-returns");
        for number in 0..2 * MAX_RELEASED {
            drop(holding(&log, &format!("passing-value-{number}")));
        }
        assert!(scrubs(&log, "value-that-returns"));
        drop(returned);
        assert_eq!(log.known.lock().unwrap().released.len(), MAX_RELEASED, "it stands there once");
    }

    #[test]
    fn the_scrubber_is_made_anew_only_for_new_values() {
        let log = Arc::<LogScrubber>::default();
        let _first = holding(&log, "shared-value-1");
        let before = log.current();
        let _second = holding(&log, "shared-value-1");
        assert!(Arc::ptr_eq(&before, &log.current()));
    }
}
