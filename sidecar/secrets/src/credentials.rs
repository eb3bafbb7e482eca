//! The secrets of one session, as its servers obtain them.
//!
//! A secret is read when a caller first needs it, and shared by all servers of the session. A secret that may change has a
//! task that renews it or reads it again ([`renewal_task`]). A caller that finds no current values reads the
//! secret itself; if that fails, it gets the older values as long as they are valid.
//!
//! What must stay true: one caller at a time reads a secret, and the others wait for its result; between a failed read and
//! its next attempt no caller reads; values that no process or request uses any more are revoked at their source.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use relay_proto::name::Name;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::error::SecretError;
use super::material::Material;
use super::outliving::{OutlivingValues, ValidUntil};
use super::renewal_task;
use super::reread::Reread;
use super::source::Source;
use super::spec::{SecretSpec, SourceLimits};
use super::store::{ReadRequest, Reading, SecretEntry, Store};
use super::uses::{RegisteredUses, SecretUse};
use cofferdam_base::metrics::{self, Outcome};
use cofferdam_scrub::Scrubber;
use cofferdam_scrub::shared::SharedValues;

/// How long a caller waits for Vault. Callers promise a response within ten seconds.
const READ_TIMEOUT: Duration = Duration::from_millis(9500);

pub struct Credentials {
    store: Arc<Store>,
    /// Where the tasks that renew secrets run.
    tasks: TaskTracker,
}

/// A session's view of one secret, as `sessions` and `kill` print it.
#[derive(Clone, Debug)]
pub struct SecretStatus {
    pub secret: Name,
    /// For instance ``Vault's `database/creds/readonly` ``.
    pub origin: String,
    /// A hash of the lease id; `None` without a lease.
    pub lease: Option<String>,
    /// True for newest values without a lease, or with a certificate or web token that is valid without its lease.
    pub unrevocable: bool,
    /// All values that are valid after the session, earlier ones included; `None` if there are none.
    pub outliving: Option<OutlivingValues>,
    /// How many of these are not the newest.
    pub earlier_values: usize,
    /// `None` if nothing was read yet, or the values do not expire.
    pub expires: Option<Instant>,
    /// How often the current lease was renewed.
    pub renewals: u64,
    /// Scrubbed.
    pub last_error: Option<String>,
    /// When the secret is next renewed, read again or retried.
    pub next: Option<Instant>,
    pub reading: Reading,
}

impl Credentials {
    pub fn new(log: Arc<SharedValues>, vault: Option<Arc<dyn Source>>, tasks: TaskTracker) -> Self {
        Self { store: Arc::new(Store::new(log, vault)), tasks }
    }

    /// Returns the current values of the secret: the held ones, or else reads the secret now.
    pub async fn obtain(
        &self,
        spec: &SecretSpec,
        limits: SourceLimits,
    ) -> Result<Arc<Material>, SecretError> {
        // The renewal task runs a local command again; callers need not wait for it while the held values are valid.
        let is_good_enough = |held: &Arc<Material>| match spec.origin.is_in_vault() {
            true => held.is_current(),
            false => held.is_usable(),
        };
        if let Some(held) = self.store.newest().get(&spec.name).filter(|held| is_good_enough(held)) {
            return Ok(Arc::clone(held));
        }
        let source = self.store.source(spec)?;
        if !spec.origin.is_in_vault() {
            // A command has a time limit of its own.
            return self.obtain_from(source, spec, limits).await;
        }
        match timeout(READ_TIMEOUT, self.obtain_from(source, spec, limits)).await {
            Ok(obtained) => obtained,
            Err(_) => {
                let held = self.store.newest().get(&spec.name).cloned();
                let too_slow = || SecretError::new(spec, source.too_slow(spec).into());
                held.filter(|held| held.is_usable()).ok_or_else(too_slow)
            }
        }
    }

    async fn obtain_from(
        &self,
        source: &dyn Source,
        spec: &SecretSpec,
        limits: SourceLimits,
    ) -> Result<Arc<Material>, SecretError> {
        let entry = self.store.entry(&spec.name);
        let mut entry = entry.lock().await;
        if let Some(material) = entry.material.as_ref().filter(|held| held.is_current()) {
            return Ok(Arc::clone(material));
        }
        let fallback = entry.material.clone().filter(|held| held.is_usable());
        let now = Instant::now();
        if let Some(failure) = entry.failure.clone().filter(|failure| failure.next_attempt > now) {
            return fallback.ok_or_else(|| SecretError::new(spec, failure.into()));
        }
        self.read(&mut entry, source, spec, limits).await.or_else(|error| {
            if fallback.is_some() {
                tracing::warn!(secret = %spec.name, why = %error.cause, "reading a secret again failed; the values read before are still used");
            }
            fallback.ok_or(error)
        })
    }

    /// Reads the secret now and, if it may change, lets a task renew it from then on.
    async fn read(
        &self,
        entry: &mut SecretEntry,
        source: &dyn Source,
        spec: &SecretSpec,
        limits: SourceLimits,
    ) -> Result<Arc<Material>, SecretError> {
        let request = ReadRequest::new(spec, limits);
        let (material, terms) = self.store.read_from(source, entry, &request).await?;
        if spec.origin.may_change() {
            renewal_task::start_or_update(&self.store, &self.tasks, source, entry, request, terms);
        }
        Ok(material)
    }

    /// Reads a secret again because a server refused the values of `seen_version`.
    ///
    /// Does not read if newer values are held already, or if the secret was read for this reason shortly before
    /// ([`RereadBackoff`](super::reread::RereadBackoff)).
    pub async fn reread(
        &self,
        spec: &SecretSpec,
        limits: SourceLimits,
        seen_version: u64,
    ) -> Result<Reread, SecretError> {
        let entry = self.store.entry(&spec.name);
        let source = self.store.source(spec)?;
        let reread = async {
            let mut entry = entry.lock().await;
            let is_newer = |held: &&Arc<Material>| held.version != seen_version && held.is_live();
            if let Some(material) = entry.material.as_ref().filter(is_newer) {
                return Ok(Reread::Read(Arc::clone(material)));
            }
            let failure = entry.failure.clone();
            if let Some(failure) = failure.filter(|failure| failure.next_attempt > Instant::now()) {
                return Err(SecretError::new(spec, failure.into()));
            }
            if let Err(next) = entry.reread_backoff.try_begin() {
                return Ok(Reread::TooSoon { next });
            }
            let read = self.read(&mut entry, source, spec, limits).await;
            metrics::count_reread(Outcome::of(&read));
            read.map(Reread::Read)
        };
        let too_slow = |_| Err(SecretError::new(spec, source.too_slow(spec).into()));
        timeout(READ_TIMEOUT, reread).await.unwrap_or_else(too_slow)
    }

    /// The secrets that the session has read or tried to read, by name.
    pub fn statuses(&self) -> Vec<SecretStatus> {
        let newest = self.store.newest();
        let mut renewals = self.store.renewal_statuses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (secret, material) in &*newest {
            renewals.entry(secret.clone()).or_default().origin.clone_from(&material.origin);
        }
        let earlier = self.store.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let scrubber = self.store.scrubber_naming_all();
        let statuses = renewals.into_iter().map(|(secret, status)| {
            let material = newest.get(&secret);
            let newest_until = material.and_then(|material| material.outlives_session());
            let earlier: &[ValidUntil] = earlier.get(&secret).map_or(&[], |earlier| earlier.as_slice());
            let outliving = OutlivingValues::of(newest_until, earlier, now);
            let outliving_count = outliving.map_or(0, |values| values.count);
            SecretStatus {
                lease: material.and_then(|material| material.read_id.as_ref()?.hash.clone()),
                unrevocable: material.is_some_and(|material| !material.has_lease()) || newest_until.is_some(),
                outliving,
                earlier_values: outliving_count.saturating_sub(usize::from(newest_until.is_some())),
                expires: material.and_then(|material| material.expires()),
                origin: status.origin,
                renewals: status.renewals,
                last_error: status.last_error.map(|error| shown_error(&scrubber, &error)),
                next: status.next,
                reading: status.reading,
                secret,
            }
        });
        statuses.collect()
    }

    /// Registers what a server does with new values of its secrets, until the result is dropped. A credential for which
    /// all users keep their first value is not made again.
    pub fn register_uses(&self, uses: Vec<(Name, SecretUse)>) -> RegisteredUses {
        self.store.uses.register(uses)
    }

    /// The values that were read last, by the name of their secret.
    pub fn newest(&self) -> Arc<BTreeMap<Name, Arc<Material>>> {
        self.store.newest()
    }

    /// Counts how often a secret got new values. Servers may still run with the former ones.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.store.changes()
    }

    /// Holds these values from now on, as if they had just been read. For tests of `cofferdam`'s servers.
    #[doc(hidden)]
    pub fn hold(&self, name: &Name, material: Material) -> Arc<Material> {
        let entry = self.store.entry(name);
        let mut entry = entry.try_lock().expect("a test reads nothing at the same time");
        self.store.set_newest(&mut entry, name, material)
    }

    /// A scrubber for the values of all sessions, which names all that this session has read.
    pub fn scrubber(&self) -> Scrubber {
        self.store.scrubber(Arc::new(|_: &str| true))
    }

    /// A scrubber for the values of all sessions, which names only those of the secrets that `is_own` accepts, and the
    /// session's own token and leases in Vault. Values of other secrets and the token of the sidecar's login are replaced
    /// without a name, and those that could be found by guessing stay.
    pub fn scrubber_for(&self, is_own: impl Fn(&str) -> bool + Send + Sync + 'static) -> Scrubber {
        const LOGIN_TOKEN: &str = "vault.login-token";
        /// These are labelled like the fields of a secret.
        const OF_SESSION: [&str; 2] = ["vault.lease-id", "vault.session-token"];
        let is_named = move |label: &str| {
            let secret = label.split('.').next();
            OF_SESSION.contains(&label) || (label != LOGIN_TOKEN && secret.is_some_and(&is_own))
        };
        self.store.scrubber(Arc::new(is_named))
    }
}

/// An error as the host is shown it: scrubbed, and then shortened. The order matters, because the rest of a credential that
/// was cut in two would not be recognised.
fn shown_error(scrubber: &Scrubber, error: &str) -> String {
    const MAX_ERROR_BYTES: usize = 1000;
    let mut shown = scrubber.name(error).into_owned();
    if shown.len() > MAX_ERROR_BYTES {
        shown.truncate(shown.floor_char_boundary(MAX_ERROR_BYTES));
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests;
