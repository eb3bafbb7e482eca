//! Sessions: the period in which an enrolment has links, with the secrets that its links share.
//!
//! | module | what it holds |
//! |---|---|
//! | [`audit_budgets`] | the audit budgets of all sandboxes |
//! | [`audit_lookups`] | permits to search the audit |
//! | [`changes`] | the changes that clients of the admin API can watch |
//! | [`per_sandbox`] | what the sessions of one sandbox share |
//! | [`sandbox_memory`] | the memory that the links of each sandbox use |
//! | [`principal`] | what a connection is granted, and which enrolment it belongs to |

mod audit_budgets;
mod audit_lookups;
pub(crate) mod changes;
#[cfg(test)]
pub(crate) mod fixture;
mod network_audit;
mod per_sandbox;
pub(crate) mod principal;
mod sandbox_memory;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use cofferdam_audit::{
    Audit, AuditError, Budget, BudgetLimits, Event, EventRecord, EventReservation, NoSpace,
};
use cofferdam_base::PacedLines;
use cofferdam_base::memory::{MemoryAccount, MemoryCharge};
use cofferdam_scrub::OwnCredentials;
use cofferdam_scrub::shared::SharedValues;
use cofferdam_secrets::Source;
use cofferdam_secrets::credentials::Credentials;
use cofferdam_secrets::files::FileStore;
use cofferdam_servers::WorkingDirectories;
use cofferdam_servers::grant_limits::{GrantBounds, GrantLimits, SandboxLimits};
use cofferdam_servers::stderr_files::StderrFiles;
use cofferdam_vault::{Access, AccessError, RemainingLinks, SessionVault, TokenOwner};
use relay_proto::name::Name;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::config::{Config, Limits};
use audit_budgets::AuditBudgets;
use audit_lookups::{LookupPermit, LookupPermits, SandboxPermit};
use changes::{Change, ChangeKind, Changes};
use per_sandbox::PerSandbox;
use principal::{Enrolled, Principal};
use sandbox_memory::SandboxMemory;

pub(crate) use network_audit::NetworkAudit;

/// What all sessions share.
pub(crate) struct Context {
    pub(crate) config: ArcSwap<Config>,
    pub(crate) audit: Audit,
    pub(crate) tasks: TaskTracker,
    pub(crate) files: FileStore,
    pub(crate) server_state: ServerState,
    /// The sidecar's own credentials, among the values that all links search for.
    pub(crate) own_credentials: Arc<OwnCredentials>,
    /// `None` if the configuration at the start had no `[vault]`.
    pub(crate) vault: Option<Arc<Access>>,
    pub(crate) changes: Changes,
    lookups: LookupPermits,
    pub(crate) scrub_turns: ScrubTurns,
    audit_budgets: AuditBudgets,
    memory: SandboxMemory,
    grant_limits: Mutex<BTreeMap<Name, Arc<GrantLimits>>>,
    /// From the configuration at the start; they also apply to grants that a reload adds.
    grant_bounds: GrantBounds,
    /// Simulates the processes of every stdio server.
    #[cfg(test)]
    pub(crate) script: std::sync::OnceLock<cofferdam_servers::scripted::Script>,
}

/// What servers leave in the state directory.
pub(crate) struct ServerState {
    /// Where they start.
    pub(crate) directories: WorkingDirectories,
    pub(crate) stderr: StderrFiles,
}

/// Which large messages may be scrubbed now.
pub(crate) struct ScrubTurns {
    /// Those of all sandboxes, so that a processor is left for the others.
    pub(crate) of_all: Arc<Semaphore>,
    of_sandboxes: PerSandbox<Semaphore>,
}

/// The period in which an enrolment has links. It owns its secrets.
pub(crate) struct Session {
    pub(crate) id: Arc<str>,
    pub(crate) grant: Name,
    /// `None` on the shared socket.
    pub(crate) enrolment: Option<Enrolled>,
    pub(crate) credentials: Arc<Credentials>,
    /// Large messages of this session's sandbox that may be scrubbed at once: one.
    pub(crate) scrub_turn: Arc<Semaphore>,
    /// The session's token and leases in Vault. `None` if the sidecar has no Vault.
    pub(crate) vault: Option<SessionVault>,
    /// The sandbox's budget in the audit, shared with its earlier sessions.
    pub(crate) budget: Budget,
    /// The limits of the grant, as they apply to this sandbox.
    pub(crate) sandbox_limits: SandboxLimits,
    /// The sandbox's permit to search the audit.
    sandbox_permit: Arc<SandboxPermit>,
    /// Links that have begun and not ended; [`SessionVault`] counts them where there is a Vault.
    links: AtomicUsize,
    pub(crate) began: SystemTime,
    pub(crate) expires: Instant,
    pub(crate) context: Arc<Context>,
}

impl Context {
    pub(crate) fn new(
        config: Config,
        audit: Audit,
        files: FileStore,
        own_credentials: Arc<OwnCredentials>,
    ) -> Result<Self, AccessError> {
        let tasks = TaskTracker::new();
        let memory_ceilings = config.limits.memory_ceilings();
        let access = |vault| Access::start(vault, &config.state_dir, &own_credentials, &tasks);
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
            server_state: ServerState {
                directories: WorkingDirectories::in_state(&config.state_dir),
                stderr: StderrFiles::in_state(&config.state_dir, config.limits.stderr_log_bytes),
            },
            config: ArcSwap::from_pointee(config),
            audit,
            tasks,
            files,
            own_credentials,
            vault,
            changes: Changes::new(),
            lookups: LookupPermits::new(),
            scrub_turns: ScrubTurns {
                of_all: Arc::new(Semaphore::new(scrub_workers())),
                of_sandboxes: PerSandbox::default(),
            },
            audit_budgets: AuditBudgets::default(),
            memory: SandboxMemory::new(memory_ceilings),
            grant_limits: Mutex::default(),
            #[cfg(test)]
            script: std::sync::OnceLock::new(),
        })
    }

    /// The values that the log and every link search for.
    pub(crate) fn values(&self) -> &Arc<SharedValues> {
        self.own_credentials.values()
    }

    /// The number of running processes of stdio servers.
    pub(crate) fn processes(&self) -> usize {
        let grants = self.grant_limits.lock().expect("no holder of this lock panics");
        grants.values().map(|limits| limits.processes()).sum()
    }

    /// The sidecar's memory that is charged to links.
    pub(crate) fn memory_used(&self) -> usize {
        self.memory.used()
    }

    /// A charge for the memory that scrubbing takes.
    pub(crate) fn scrubbing_memory(&self) -> MemoryCharge {
        self.memory.for_scrubbing()
    }

    /// The account of the memory that the links of the principal's sandbox use.
    pub(crate) fn sandbox_memory(&self, principal: &Principal) -> Arc<MemoryAccount> {
        self.memory.of(principal.limit_owner(), self.config.load().limits.memory_ceilings())
    }

    /// Reserves space for so many events in the audit budget of the principal's sandbox. Does not wait for the disk.
    pub(crate) fn reserve_events(
        &self,
        principal: &Principal,
        events: u32,
    ) -> Result<EventReservation, NoSpace> {
        let sandbox = match (&principal.enrolment, principal.uid) {
            (Some(enrolled), _) => format!("sandbox {}", enrolled.name),
            (None, Some(uid)) => format!("user {uid} of the shared socket"),
            (None, None) => "the shared socket".to_owned(),
        };
        self.audit.reserve_events(&self.audit_budget(principal), &sandbox, events)
    }

    fn audit_budget(&self, principal: &Principal) -> Budget {
        self.audit_budgets.of(principal, audit_budget_limits(&self.config.load().limits))
    }

    /// The limits of the principal's grant, as they apply to its sandbox. The counters outlive sessions, so that a
    /// sandbox cannot reset them by reconnecting.
    pub(crate) fn sandbox_limits(&self, principal: &Principal) -> SandboxLimits {
        let mut grants = self.grant_limits.lock().expect("no holder of this lock panics");
        let grant = grants
            .entry(principal.grant.clone())
            .or_insert_with(|| Arc::new(GrantLimits::new(self.grant_bounds)));
        grant.of_sandbox(principal.limit_owner())
    }
}

/// Half of the processors: large messages of some sandboxes must not take those that serve the others.
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
            scrub_turn: context
                .scrub_turns
                .of_sandboxes
                .of(principal.limit_owner(), || Arc::new(Semaphore::new(1))),
            credentials: Arc::new(Credentials::new(
                Arc::clone(context.values()),
                vault.clone().map(|vault| Arc::new(vault) as Arc<dyn Source>),
                context.tasks.clone(),
            )),
            vault,
            budget: context.audit_budget(principal),
            sandbox_limits: context.sandbox_limits(principal),
            sandbox_permit: match &principal.enrolment {
                Some(_) => Arc::new(SandboxPermit::new()),
                None => context.lookups.shared(),
            },
            links: AtomicUsize::new(0),
            began: cofferdam_base::clock::now(),
            expires,
            context: Arc::clone(context),
        }
    }

    /// A link begins.
    pub(crate) fn enter(&self) {
        match &self.vault {
            Some(vault) => vault.enter(),
            None => drop(self.links.fetch_add(1, Ordering::AcqRel)),
        }
    }

    /// A link has ended, and the processes of its server too. After the last link, the session's Vault tokens are
    /// withdrawn, and the caller has to call [`SessionVault::end`].
    pub(crate) fn leave(&self) -> RemainingLinks {
        match &self.vault {
            Some(vault) => vault.leave(),
            None => self.leave_without_vault(),
        }
    }

    /// A link has failed: like [`Self::leave`], and tokens are revoked without a report.
    pub(crate) fn abandon(&self) -> RemainingLinks {
        match &self.vault {
            Some(vault) => vault.abandon(),
            None => self.leave_without_vault(),
        }
    }

    fn leave_without_vault(&self) -> RemainingLinks {
        match self.links.fetch_sub(1, Ordering::AcqRel) {
            1 => RemainingLinks::None,
            _ => RemainingLinks::Some,
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

    /// Records an event of this session or of one of its links, unless the sandbox's budget is used up.
    pub(crate) fn record_event(&self, event: &EventRecord<'_>) {
        self.log_unrecorded(event, self.context.audit.sandbox_event(&self.budget, event));
    }

    /// Records an event for which space was reserved.
    pub(crate) fn record_reserved_event(&self, space: &mut EventReservation, event: &EventRecord<'_>) {
        self.log_unrecorded(event, self.context.audit.reserved_event(space, event));
    }

    /// Records an alert about this session, also if the sandbox's budget is used up; at most a few within a minute.
    pub(crate) fn record_alert(&self, alert: &EventRecord<'_>) {
        self.log_unrecorded(alert, self.context.audit.alert(&self.budget, alert));
    }

    fn log_unrecorded(&self, event: &EventRecord<'_>, recorded: Result<(), AuditError>) {
        if let Err(error) = recorded
            && let Some(left_out) = UNRECORDED_LINES.admit()
        {
            let kind = event.event.as_str();
            tracing::error!(%error, kind, session = %self.id, left_out, "an audit event was not recorded");
        }
    }

    /// Waits until this session may search the audit. Cancel-safe.
    pub(crate) async fn acquire_lookup_permit(&self) -> Option<LookupPermit> {
        self.context.lookups.acquire(&self.sandbox_permit).await
    }
}

/// With a full disk every event causes such a line.
static UNRECORDED_LINES: PacedLines = PacedLines::new("an audit event was not recorded");

fn audit_budget_limits(limits: &Limits) -> BudgetLimits {
    BudgetLimits {
        bytes: limits.audit_session_bytes,
        refill_time: limits.audit_refill_time,
        records_per_second: limits.audit_session_records_per_second,
    }
}
