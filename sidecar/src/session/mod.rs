//! Sessions: the time in which an enrolment has links, with the secrets and the audit budget that its links share.
//!
//! | module | what it holds |
//! |---|---|
//! | [`audit_lookups`] | permits to search the audit |
//! | [`changes`] | the changes that clients of the admin API can watch |
//! | [`principal`] | what a connection is granted, and which enrolment it belongs to |

mod audit_lookups;
pub(crate) mod changes;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod principal;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use cofferdam_audit::{Audit, Budget, BudgetLimits, Event, EventRecord};
use cofferdam_scrub::shared::SharedValues;
use cofferdam_secrets::Source;
use cofferdam_secrets::credentials::Credentials;
use cofferdam_secrets::files::FileStore;
use cofferdam_servers::grant_limits::{GrantBounds, GrantLimits};
use cofferdam_vault::{Access, AccessError, SessionVault, TokenOwner};
use relay_proto::name::Name;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use audit_lookups::{LookupPermit, LookupPermits, SandboxPermit};
use changes::{Change, ChangeKind, Changes};
use principal::{Enrolled, Principal};

/// What all sessions share.
pub(crate) struct Context {
    pub(crate) config: ArcSwap<Config>,
    pub(crate) audit: Audit,
    pub(crate) tasks: TaskTracker,
    pub(crate) files: FileStore,
    pub(crate) log: Arc<SharedValues>,
    /// `None` if the configuration at the start had no `[vault]`.
    pub(crate) vault: Option<Arc<Access>>,
    pub(crate) changes: Changes,
    lookups: LookupPermits,
    /// Large messages of all sessions that may be scrubbed at once, so that a processor is left for the others.
    pub(crate) scrub_turns: Arc<Semaphore>,
    grant_limits: Mutex<BTreeMap<Name, Arc<GrantLimits>>>,
    /// From the configuration at the start; they also apply to grants that a reload adds.
    grant_bounds: GrantBounds,
    /// Simulates the processes of every stdio server.
    #[cfg(test)]
    pub(crate) script: std::sync::OnceLock<cofferdam_servers::scripted::Script>,
}

/// The time in which an enrolment has links. It owns its secrets and its budget in the audit.
pub(crate) struct Session {
    pub(crate) id: Arc<str>,
    pub(crate) grant: Name,
    /// `None` on the shared socket.
    pub(crate) enrolment: Option<Enrolled>,
    pub(crate) credentials: Arc<Credentials>,
    /// Large messages of this session that may be scrubbed at once: one.
    pub(crate) scrub_turn: Arc<Semaphore>,
    /// The session's token and leases in Vault. `None` if the sidecar has no Vault.
    pub(crate) vault: Option<SessionVault>,
    pub(crate) budget: Budget,
    pub(crate) grant_limits: Arc<GrantLimits>,
    /// Its permit to search the audit.
    lookup: Arc<SandboxPermit>,
    pub(crate) began: SystemTime,
    pub(crate) expires: Instant,
    pub(crate) context: Arc<Context>,
}

impl Context {
    pub(crate) fn new(
        config: Config,
        audit: Audit,
        files: FileStore,
        log: Arc<SharedValues>,
    ) -> Result<Self, AccessError> {
        let tasks = TaskTracker::new();
        let access = |vault| Access::start(vault, &config.state_dir, &tasks);
        let vault = config.vault.as_ref().map(access).transpose()?;
        if let Some(access) = vault.clone() {
            let audit = audit.clone();
            tasks.spawn(async move {
                let record_alert = |alert: &str| {
                    let record = EventRecord { detail: Some(alert), ..EventRecord::new(Event::Alert) };
                    if let Err(error) = audit.event(&record) {
                        tracing::error!(%error, "an alert about the Vault login was not recorded");
                    }
                };
                access.forward_alerts(record_alert).await;
            });
        }
        Ok(Self {
            grant_bounds: (&config.limits).into(),
            config: ArcSwap::from_pointee(config),
            audit,
            tasks,
            files,
            log,
            vault,
            changes: Changes::new(),
            lookups: LookupPermits::new(),
            scrub_turns: Arc::new(Semaphore::new(scrub_workers())),
            grant_limits: Mutex::default(),
            #[cfg(test)]
            script: std::sync::OnceLock::new(),
        })
    }

    /// The number of running processes of stdio servers.
    pub(crate) fn processes(&self) -> usize {
        let grants = self.grant_limits.lock().expect("no holder of this lock panics");
        grants.values().map(|limits| limits.processes()).sum()
    }

    /// The limits of a grant. They are shared by its sessions and outlive them, so that a sandbox cannot reset its
    /// counters by reconnecting.
    pub(crate) fn grant_limits(&self, grant: &Name) -> Arc<GrantLimits> {
        let mut grants = self.grant_limits.lock().expect("no holder of this lock panics");
        Arc::clone(
            grants.entry(grant.clone()).or_insert_with(|| Arc::new(GrantLimits::new(self.grant_bounds))),
        )
    }
}

/// Half of the processors: large messages of some sessions must not take those that serve the others.
fn scrub_workers() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| (processors.get() / 2).max(1))
}

impl Session {
    pub(crate) fn new(context: &Arc<Context>, principal: &Principal) -> Self {
        let config = context.config.load();
        let grant = &principal.grant;
        let expires = match &principal.enrolment {
            Some(enrolled) => enrolled.expires,
            None => {
                let ttl = config.grants.get(grant).map(|grant| grant.ttl).unwrap_or_default();
                Instant::now() + ttl
            }
        };
        let id: Arc<str> = cofferdam_base::random::id("s").into();
        let vault = context.vault.as_ref().map(|access| {
            let owner = TokenOwner {
                session: id.to_string(),
                sandbox: principal
                    .enrolment
                    .as_ref()
                    .map_or("shared socket".into(), |enrolled| enrolled.name.to_string()),
                grant: grant.to_string(),
                policies: config
                    .grants
                    .get(grant)
                    .map(|grant| grant.vault_policies.clone())
                    .unwrap_or_default(),
                until: expires,
            };
            SessionVault::new(Arc::clone(access), owner)
        });
        Self {
            id,
            grant: grant.clone(),
            enrolment: principal.enrolment.clone(),
            scrub_turn: Arc::new(Semaphore::new(1)),
            credentials: Arc::new(Credentials::new(
                Arc::clone(&context.log),
                vault.clone().map(|vault| Arc::new(vault) as Arc<dyn Source>),
                context.tasks.clone(),
            )),
            vault,
            budget: Budget::new(BudgetLimits {
                bytes: config.limits.audit_session_bytes,
                records_per_second: config.limits.audit_session_records_per_second,
            }),
            grant_limits: context.grant_limits(grant),
            lookup: match &principal.enrolment {
                Some(_) => Arc::new(SandboxPermit::new()),
                None => context.lookups.shared(),
            },
            began: cofferdam_base::clock::now(),
            expires,
            context: Arc::clone(context),
        }
    }

    /// Publishes a change of this session, or of one of its links.
    pub(crate) fn publish(&self, event: ChangeKind, link: Option<&str>, reason: Option<&str>) {
        self.context.changes.publish(|| Change {
            enrolment: self.enrolment.as_ref().map(|enrolled| enrolled.id.to_string()),
            name: self.enrolment.as_ref().map(|enrolled| enrolled.name.to_string()),
            session: Some(self.id.to_string()),
            link: link.map(str::to_owned),
            reason: reason.map(str::to_owned),
            ..Change::new(event, &self.grant)
        });
    }

    /// Waits until this session may search the audit. Cancel-safe.
    pub(crate) async fn lookup_permit(&self) -> Option<LookupPermit> {
        self.context.lookups.acquire(&self.lookup).await
    }
}
