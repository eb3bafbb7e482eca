//! Sessions and their links: where a harness's message becomes a decided, recorded call.
//!
//! | module | what it holds |
//! |---|---|
//! | [`answers`] | from the server back to the harness: matched, scrubbed, recorded |
//! | [`attach`] | a shim that comes back |
//! | [`calls`] | what waits for an answer |
//! | [`command`] | what others may ask of a link |
//! | [`connection`] | frames over one byte stream |
//! | [`credential`] | what a session has of a secret of Vault's, for people |
//! | [`dispatch`] | what follows from a decision |
//! | [`ending`] | the end of a link |
//! | [`hints`] | what may be done twice |
//! | [`link`] | the one task that owns a link: connection, server, timers |
//! | [`message`] | one message of the harness's, and what is decided about it |
//! | [`outcomes`] | what became of calls, written down |
//! | [`pulse`] | heartbeats, deadlines, credit |
//! | [`registry`] | all links, by id; who may open one, who ends one |
//! | [`replacement`] | while the server's process is replaced |
//! | [`repeats`] | requests that may have run, and may run once more |
//! | [`requests`] | from the harness to the server: read, decided, recorded, carried out |
//! | [`searches`] | who may search the audit, and how many at once |
//! | [`server_requests`] | what the server asks of the harness |
//! | [`tasks`] | what a server works on after its answer |
//! | [`tokens`] | resume tokens that turn |
//! | [`tools`] | what of a server's tools the harness is shown |
//! | [`used_secrets`] | which secrets a call is made with |
//! | [`visitor`] | who comes, and what holds their links together |

mod answers;
mod attach;
mod calls;
pub(crate) mod command;
pub(crate) mod connection;
pub(crate) mod credential;
mod dispatch;
mod ending;
#[cfg(test)]
mod fixture;
mod hints;
pub(crate) mod link;
mod message;
#[cfg(test)]
mod model;
mod outcomes;
mod pulse;
pub(crate) mod registry;
mod repeats;
mod replacement;
mod requests;
mod searches;
mod server_requests;
mod tasks;
mod tokens;
mod tools;
mod used_secrets;
pub(crate) mod visitor;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use relay_proto::name::Name;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::audit::{Audit, Budget, BudgetLimits, Event, EventRecord};
use crate::config::Config;
use crate::inject::credentials::Credentials;
use crate::inject::files::FileStore;
use crate::inject::log_scrubber::LogScrubber;
use crate::servers::gate::{Gate, GateLimits};
use crate::vault::access::{Access, AccessError};
use crate::vault::session::{SessionVault, Whose};
use searches::{Searches, Turn};
use visitor::{Enrolled, Visitor};

/// What all sessions share.
pub(crate) struct Context {
    pub(crate) config: ArcSwap<Config>,
    pub(crate) audit: Audit,
    pub(crate) tasks: TaskTracker,
    pub(crate) files: FileStore,
    pub(crate) log: Arc<LogScrubber>,
    /// None where the configuration of the start has no [vault].
    pub(crate) vault: Option<Arc<Access>>,
    searches: Searches,
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
    pub(crate) budget: Budget,
    pub(crate) gate: Arc<Gate>,
    /// Its turn to search the audit.
    searching: Arc<Turn>,
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
                let tell = |alert: &str| {
                    let record = EventRecord { detail: Some(alert), ..EventRecord::new(Event::Alert) };
                    if let Err(error) = audit.event(&record) {
                        tracing::error!(%error, "an alert of the login at Vault is not recorded");
                    }
                };
                access.tell_alerts(tell).await;
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
            searches: Searches::new(),
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
    fn gate(&self, grant: &Name) -> Arc<Gate> {
        let mut gates = self.gates.lock().expect("no holder of this lock panics");
        Arc::clone(gates.entry(grant.clone()).or_insert_with(|| Arc::new(Gate::new(self.gate_limits))))
    }
}

impl Session {
    pub(crate) fn new(context: &Arc<Context>, visitor: &Visitor) -> Self {
        let config = context.config.load();
        let grant = &visitor.grant;
        let expires = match &visitor.enrolment {
            Some(enrolled) => enrolled.expires,
            None => {
                let ttl = config.grants.get(grant).map(|grant| grant.ttl).unwrap_or_default();
                Instant::now() + ttl
            }
        };
        let id: Arc<str> = crate::random::id("s").into();
        let vault = context.vault.as_ref().map(|access| {
            let whose = Whose {
                session: id.to_string(),
                sandbox: visitor
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
            SessionVault::new(Arc::clone(access), whose)
        });
        Self {
            id,
            grant: grant.clone(),
            enrolment: visitor.enrolment.clone(),
            credentials: Arc::new(Credentials::new(Arc::clone(&context.log), vault)),
            budget: Budget::new(BudgetLimits {
                bytes: config.limits.audit_session_bytes,
                records_per_second: config.limits.audit_session_records_per_second,
            }),
            gate: context.gate(grant),
            searching: match &visitor.enrolment {
                Some(_) => Arc::new(Turn::new()),
                None => context.searches.shared(),
            },
            began: crate::clock::now(),
            expires,
            context: Arc::clone(context),
        }
    }
}
