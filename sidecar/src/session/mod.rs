//! Sessions: the time in which an enrolment has links, with the secrets and the audit budget that its links share.
//!
//! | module | what it holds |
//! |---|---|
//! | [`audit_lookups`] | permits to search the audit |
//! | [`principal`] | what a connection is granted, and which enrolment it belongs to |

mod audit_lookups;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod principal;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use cofferdam_vault::{Access, AccessError, SessionVault, TokenOwner};
use relay_proto::name::Name;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::audit::{Audit, Budget, BudgetLimits, Event, EventRecord};
use crate::config::Config;
use crate::inject::files::FileStore;
use crate::inject::log_scrubber::LogScrubber;
use crate::secrets::Source;
use crate::secrets::credentials::Credentials;
use crate::servers::gate::{Gate, GateLimits};
use audit_lookups::{LookupPermit, LookupPermits, SandboxPermit};
use principal::{Enrolled, Principal};

/// What all sessions share.
pub(crate) struct Context {
    pub(crate) config: ArcSwap<Config>,
    pub(crate) audit: Audit,
    pub(crate) tasks: TaskTracker,
    pub(crate) files: FileStore,
    pub(crate) log: Arc<LogScrubber>,
    /// None where the configuration of the start has no [vault].
    pub(crate) vault: Option<Arc<Access>>,
    lookups: LookupPermits,
    gates: Mutex<BTreeMap<Name, Arc<Gate>>>,
    /// The limits of every gate, as they were at the start: a grant that comes later is treated as the others are.
    gate_limits: GateLimits,
    /// Plays the processes of every stdio server.
    #[cfg(test)]
    pub(crate) script: std::sync::OnceLock<crate::servers::scripted::Script>,
}

/// The time in which an enrolment has links. It owns its secrets and its budget in the audit.
pub(crate) struct Session {
    pub(crate) id: Arc<str>,
    pub(crate) grant: Name,
    /// None on the shared socket.
    pub(crate) enrolment: Option<Enrolled>,
    pub(crate) credentials: Arc<Credentials>,
    /// What the session has in Vault. None where the sidecar has no Vault.
    pub(crate) vault: Option<SessionVault>,
    pub(crate) budget: Budget,
    pub(crate) gate: Arc<Gate>,
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
        log: Arc<LogScrubber>,
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
                        tracing::error!(%error, "an alert of the login at Vault is not recorded");
                    }
                };
                access.forward_alerts(record_alert).await;
            });
        }
        Ok(Self {
            gate_limits: (&config.limits).into(),
            config: ArcSwap::from_pointee(config),
            audit,
            tasks,
            files,
            log,
            vault,
            lookups: LookupPermits::new(),
            gates: Mutex::default(),
            #[cfg(test)]
            script: std::sync::OnceLock::new(),
        })
    }

    /// Processes of stdio servers that there are now.
    pub(crate) fn processes(&self) -> usize {
        let gates = self.gates.lock().expect("no holder of this lock panics");
        gates.values().map(|gate| gate.processes()).sum()
    }

    /// The gate of a grant outlives its sessions: a sandbox that comes back finds its old starts counted.
    pub(crate) fn gate(&self, grant: &Name) -> Arc<Gate> {
        let mut gates = self.gates.lock().expect("no holder of this lock panics");
        Arc::clone(gates.entry(grant.clone()).or_insert_with(|| Arc::new(Gate::new(self.gate_limits))))
    }
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
        let id: Arc<str> = crate::random::id("s").into();
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
            gate: context.gate(grant),
            lookup: match &principal.enrolment {
                Some(_) => Arc::new(SandboxPermit::new()),
                None => context.lookups.shared(),
            },
            began: crate::clock::now(),
            expires,
            context: Arc::clone(context),
        }
    }

    /// Waits until this session may search the audit. Can be dropped at any time.
    pub(crate) async fn lookup_permit(&self) -> Option<LookupPermit> {
        self.context.lookups.acquire(&self.lookup).await
    }
}
