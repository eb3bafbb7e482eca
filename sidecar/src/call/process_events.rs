//! What the pipeline does while a server's process is replaced by one with a newer credential.
//!
//! What must stay true: every request goes to the process that it is about, and a response of the harness to the process
//! that asked; a process is kept for as long as a request or task waits for it, within its limit; what became of a
//! replacement is in the log and the audit.

use std::sync::Arc;

use relay_proto::{mcp, notice};
use tokio::time::Instant;

use super::reply::ServerTurn;
use super::{CallerContext, Pipeline};
use crate::audit::{self, EventRecord};
use crate::config::{Config, Server};
use crate::metrics::{self, Outcome};
use crate::servers::instance::{Note, Role};
use crate::servers::renewal::Told;
use crate::servers::scoped::{Lane, Process, Servers};
use crate::servers::start::Starter;
use crate::session::Session;
use crate::upstream::outbound::Outbound;

impl Pipeline {
    /// Does what is due about the processes of this link's server.
    pub(crate) fn tend(&mut self, servers: &mut Servers, now: Instant) {
        if !servers.are_changing() {
            return;
        }
        let Self { caller, in_flight, tasks, server_requests, lister, .. } = &*self;
        let CallerContext { session, server, link, .. } = caller;
        let config = session.context.config.load_full();
        let is_busy = |process: Process| {
            lister.is_some()
                || in_flight.occupy(process)
                || tasks.occupy(process)
                || server_requests.occupy(process)
        };
        let starter = || {
            let granted = config.grants.get(&session.grant)?.servers.contains(server);
            let server = config.servers.get(server).filter(|_| granted)?;
            Some(Starter::of(session, &config, server, link))
        };
        for (lane, note) in servers.attend(is_busy, starter) {
            match note {
                Note::Cut { from, why } => {
                    let from = Process { lane, incarnation: from };
                    ServerTurn { pipeline: self, servers, from, now }.on_gone(&why);
                }
                Note::HandedOver { from } => {
                    let from = Process { lane, incarnation: from };
                    for call in self.in_flight.listening_on(from) {
                        let cancelled =
                            notice::cancelled(call.id.as_bytes(), "another process listens from now on");
                        servers.tell_to(from, Outbound::notification(cancelled, mcp::CANCELLED));
                        let why = "the server's process was replaced; listen again";
                        self.retry_or_fail(servers, call, why, now);
                    }
                }
                Note::Over(gone) => {
                    let from = Process { lane, incarnation: gone };
                    // Only late responses, which cannot come any more.
                    self.in_flight.drain(from);
                    self.tasks.forget_process(from);
                    ServerTurn { pipeline: self, servers, from, now }.withdraw_requests();
                }
                Note::Told(told, detail) => report(&self.caller, told, &detail),
            }
        }
    }

    /// Ends servers that were given up and have finished what they had.
    pub(crate) fn end_given_up(&mut self, servers: &mut Servers, now: Instant) {
        let done = |lane: &Lane| !self.in_flight.are_run_by(*lane) && !self.tasks.occupy_lane(*lane);
        let Some(lane) = servers.given_up().find(done) else { return };
        let CallerContext { server, link, .. } = &self.caller;
        tracing::info!(%server, %link, "a process is ended that had other credentials than it should");
        self.on_process_exit(servers, lane);
        // Only listeners: they are opened again.
        for call in self.in_flight.drain_lane(lane) {
            self.retry_or_fail(servers, call, "the server's process was given up", now);
        }
        let shown = self.server_requests.left_by_lane(lane);
        self.withdraw(shown);
        servers.dismiss(lane);
    }
}

/// Whether the harness gets this notification of a process.
pub(super) fn forwards_notification(servers: &mut Servers, from: Process, method: &str) -> bool {
    match servers.role(from) {
        Role::Current => {
            if method == mcp::TOOLS_CHANGED {
                servers.tools_changed(from);
            }
            true
        }
        // What concerns the server as a whole, the process that replaces it says too.
        Role::Draining => !mcp::lookup(method).is_some_and(|method| method.server_wide),
        // It has not been asked anything yet.
        Role::Successor => false,
    }
}

/// Puts what became of a replacement into the log, the metrics and the audit.
fn report(caller: &CallerContext, told: Told, detail: &str) {
    let CallerContext { server, link, session, .. } = caller;
    let (what, counted) = match told {
        Told::Failed => ("not replaced", Some(Outcome::Failed)),
        Told::Reloaded => ("reloaded", Some(Outcome::Done)),
        Told::Replaced => ("replaced", Some(Outcome::Done)),
        Told::Retired => ("retired", None),
    };
    if let Some(outcome) = counted {
        metrics::replacement(outcome);
    }
    match told {
        Told::Failed => {
            tracing::warn!(%server, %link, why = detail, "the server's process was not replaced")
        }
        _ => tracing::info!(%server, %link, detail, "credentials changed: {what}"),
    }
    let detail = format!("{what}: {detail}");
    let record = EventRecord {
        session: Some(&session.id),
        link: Some(link),
        server: Some(server.as_str()),
        detail: Some(&detail),
        ..EventRecord::new(audit::Event::Replacement)
    };
    if let Err(error) = session.context.audit.event(&record) {
        tracing::error!(%error, "a replacement was not recorded");
    }
}

impl Starter {
    pub(super) fn of(session: &Session, config: &Arc<Config>, server: &Arc<Server>, link: &Arc<str>) -> Self {
        Self {
            secrets: Arc::clone(&config.secrets),
            limits: (&config.limits).into(),
            server: Arc::clone(server),
            scope: None,
            credentials: Arc::clone(&session.credentials),
            gate: Arc::clone(&session.gate),
            files: session.context.files.clone(),
            tasks: session.context.tasks.clone(),
            link: Arc::clone(link),
            #[cfg(test)]
            script: session.context.script.get().cloned(),
        }
    }
}
