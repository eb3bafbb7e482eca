//! What a session holds: the newest values of each secret, why a read failed, and which values its scrubber searches for.
//!
//! What must stay true: a value is in the scrubbers before it can be used; each change
//! increments the version of the values, so that the holder of older values can detect it; a source's failure is recorded
//! until its next attempt is due.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use arc_swap::ArcSwap;
use cofferdam_base::PacedLines;
use relay_proto::name::Name;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::{SecretError, SecretProblem, SourceFailure};
use super::known::{KnownValues, ScrubberChanges, ScrubberUpdate};
use super::local::LocalSource;
use super::material::Material;
use super::outliving::EarlierValues;
use super::renewal::Terms;
use super::reread::RereadBackoff;
use super::source::{Requester, Source, SourceRequest, ValueEnd};
use super::spec::{SecretSpec, SourceLimits};
use super::uses::SecretUses;
use cofferdam_scrub::shared::SharedValues;
use cofferdam_scrub::{Guessable, IsOwn, Naming, Needle, OwnNames, Scrubber, ValueId};

/// A sandbox can cause these lines with each session that it opens.
static FAILED_LINES: PacedLines = PacedLines::new("reading a secret failed");
static GUESSABLE_LINES: PacedLines = PacedLines::new("a secret value could be found by guessing");

/// The secrets of one session, shared by its callers and the tasks that renew them.
pub(super) struct Store {
    /// `None` if no Vault is configured.
    vault: Option<Arc<dyn Source>>,
    local: LocalSource,
    entries: StdMutex<BTreeMap<Name, Arc<Mutex<SecretEntry>>>>,
    /// The same values as in `entries`, readable without waiting for a read under way.
    newest: ArcSwap<BTreeMap<Name, Arc<Material>>>,
    /// Counts how often a secret got new values.
    changes: watch::Sender<u64>,
    /// Of secrets that may change: those with a renewal task, and those whose last read failed.
    pub(super) renewal_statuses: StdMutex<BTreeMap<Name, RenewalStatus>>,
    /// The labels of the values that the session knows.
    labels: ArcSwap<HashMap<ValueId, Arc<str>>>,
    /// Earlier values that the source cannot revoke.
    pub(super) earlier: StdMutex<BTreeMap<Name, EarlierValues>>,
    pub(super) uses: Arc<SecretUses>,
    pub(super) known: StdMutex<KnownValues>,
    log: Arc<SharedValues>,
}

/// One secret of the session. Its lock is held while the secret is read or renewed.
#[derive(Default)]
pub(super) struct SecretEntry {
    pub(super) material: Option<Arc<Material>>,
    /// Why the last read failed, and when the next attempt is due.
    pub(super) failure: Option<SourceFailure>,
    pub(super) renewal_task: Option<RenewalTask>,
    /// Limits the reads that servers cause by refusing the values.
    pub(super) reread_backoff: RereadBackoff,
}

/// What is needed to read a secret again.
#[derive(Clone)]
pub(super) struct ReadRequest {
    pub(super) spec: Arc<SecretSpec>,
    pub(super) limits: SourceLimits,
    pub(super) requester: Requester,
}

/// A handle to the task that renews a secret.
pub(super) struct RenewalTask {
    pub(super) request: ReadRequest,
    /// Passes the terms of values that a caller has read to the task.
    pub(super) terms: watch::Sender<Terms>,
    /// The task ends when this is cancelled.
    pub(super) stop: CancellationToken,
}

/// Whether a secret is read again when its values end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Reading {
    /// It is read again.
    #[default]
    Scheduled,
    /// It is not: every server that uses the secret keeps its first value, so that a new one would have no user.
    Suspended,
}

/// The state of a secret's renewal and the error of its last read, for [`SecretStatus`](super::credentials::SecretStatus).
#[derive(Clone, Debug, Default)]
pub(super) struct RenewalStatus {
    pub(super) origin: String,
    pub(super) renewals: u64,
    pub(super) last_error: Option<String>,
    pub(super) next: Option<Instant>,
    pub(super) reading: Reading,
}

impl Store {
    pub(super) fn new(log: Arc<SharedValues>, vault: Option<Arc<dyn Source>>) -> Self {
        Self {
            vault,
            local: LocalSource::default(),
            entries: StdMutex::default(),
            newest: ArcSwap::default(),
            changes: watch::Sender::default(),
            renewal_statuses: StdMutex::default(),
            labels: ArcSwap::default(),
            earlier: StdMutex::default(),
            uses: Arc::default(),
            known: StdMutex::default(),
            log,
        }
    }

    /// Reads the secret, even if current values are held, and stores the values or the failure in `entry`.
    pub(super) async fn read_from(
        &self,
        source: &dyn Source,
        entry: &mut SecretEntry,
        request: &ReadRequest,
    ) -> Result<(Arc<Material>, Terms), SecretError> {
        entry.failure = None;
        let add_to_scrubbers = |needles: &[Needle], end: ValueEnd| self.add_to_scrubbers(needles, end);
        let ReadRequest { spec, limits, requester } = request;
        match source
            .read(SourceRequest {
                spec,
                limits: *limits,
                requester: *requester,
                add_to_scrubbers: &add_to_scrubbers,
            })
            .await
        {
            Ok(lease) => {
                let terms = lease.terms;
                Ok((self.set_newest(entry, &spec.name, Material::new(spec, lease)), terms))
            }
            Err(cause) => {
                let error = SecretError::new(spec, cause);
                if let Some(failure) = error.failure() {
                    // This may quote the source: it goes to the log and to `sessions` only, never to a sandbox.
                    if let Some(left_out) = FAILED_LINES.admit() {
                        tracing::warn!(secret = %error.secret, left_out, why = failure.explained(), "reading a secret failed");
                    }
                    entry.failure = Some(failure.clone());
                }
                self.record_failure(&error);
                Err(error)
            }
        }
    }

    /// The source that a secret is read from.
    pub(super) fn source(&self, spec: &SecretSpec) -> Result<&dyn Source, SecretError> {
        match spec.origin.is_in_vault() {
            true => self.vault.as_deref().ok_or_else(|| SecretError::new(spec, SecretProblem::NoVault)),
            false => Ok(&self.local),
        }
    }

    /// The values that were read last, by the name of their secret.
    pub(super) fn newest(&self) -> Arc<BTreeMap<Name, Arc<Material>>> {
        self.newest.load_full()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Makes these the newest values of the secret, after they were added to the scrubbers.
    pub(super) fn set_newest(
        &self,
        entry: &mut SecretEntry,
        name: &Name,
        mut material: Material,
    ) -> Arc<Material> {
        self.add_to_scrubbers(&material.needles(name), material.value_end());
        if let Some(before) = entry.material.as_ref().filter(|before| material.is_equivalent_to(before)) {
            let before = Arc::clone(before);
            before.adopt_validity_of(material);
            return before;
        }
        if let Some(before) = &entry.material {
            self.remember_earlier(name, before);
        }
        let is_change = entry.material.is_some();
        material.version = entry.material.as_ref().map_or(1, |before| before.version + 1);
        let material = Arc::new(material);
        entry.material = Some(Arc::clone(&material));
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

    /// Remembers values that are replaced, if they outlive the session.
    fn remember_earlier(&self, name: &Name, before: &Material) {
        if let Some(until) = before.outlives_session() {
            let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
            earlier.entry(name.clone()).or_default().add(until, Instant::now());
        }
    }

    fn add_to_scrubbers(&self, needles: &[Needle], end: ValueEnd) {
        let mut known = self.known.lock().expect("no holder of this lock panics");
        let ScrubberChanges { scrubber, added_to_log, removed_from_log } =
            known.add(needles, end, Instant::now());
        self.log.learn(&added_to_log);
        for needle in &added_to_log {
            let Some(guessable) = Guessable::of(&needle.value) else { continue };
            let Some(left_out) = GUESSABLE_LINES.admit() else { continue };
            match guessable {
                Guessable::Value => tracing::warn!(
                    secret = %needle.label,
                    left_out,
                    "a secret value could be found by guessing; it is removed only from what its own servers send: use a longer one"
                ),
                Guessable::Part => tracing::warn!(
                    secret = %needle.label,
                    left_out,
                    "a line of a secret value could be found by guessing, or the text that its escapes stand for; it is removed only from what its own servers send: use longer lines"
                ),
            }
        }
        if scrubber == ScrubberUpdate::Rebuild {
            let needles = known.needles();
            let labelled = self.log.ids(&needles).into_iter().zip(&needles);
            let labels = labelled.filter_map(|(id, needle)| Some((id?, Arc::clone(&needle.label)))).collect();
            self.labels.store(Arc::new(labels));
        }
        self.log.release(&removed_from_log);
    }

    pub(super) fn entry(&self, name: &Name) -> Arc<Mutex<SecretEntry>> {
        let mut entries = self.entries.lock().expect("no holder of this lock panics");
        Arc::clone(entries.entry(name.clone()).or_default())
    }

    /// A scrubber for the values of all sessions, which names those of this session that `is_own` accepts.
    pub(super) fn scrubber(&self, is_own: Arc<IsOwn>) -> Scrubber {
        self.log.scrubber(Naming::Own(OwnNames { labels: self.labels.load_full(), is_own }))
    }

    /// A scrubber for the values of all sessions, for what the host is shown.
    pub(super) fn scrubber_naming_all(&self) -> Scrubber {
        self.log.scrubber(Naming::All)
    }

    pub(super) fn record_failure(&self, error: &SecretError) {
        let Some(failure) = error.failure() else { return };
        let mut renewal_statuses = self.renewal_statuses.lock().unwrap_or_else(PoisonError::into_inner);
        let status = renewal_statuses.entry(error.secret.clone()).or_default();
        status.origin.clone_from(&error.origin);
        status.last_error = Some(failure.explained());
        status.next = Some(failure.next_attempt);
    }
}

impl ReadRequest {
    pub(super) fn new(spec: &SecretSpec, limits: SourceLimits) -> Self {
        Self { spec: Arc::new(spec.clone()), limits, requester: Requester::Caller }
    }
}

impl RenewalTask {
    pub(super) fn is_running(&self) -> bool {
        !self.stop.is_cancelled()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.log.release(&self.known.get_mut().unwrap_or_else(PoisonError::into_inner).held_by_log());
    }
}
