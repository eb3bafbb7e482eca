//! What the pipeline does while a server's process is replaced by one with a newer credential.
//!
//! What must stay true: every request goes to the process that it is about, and a response of the harness to the process
//! that asked; a process is kept for as long as a request or task waits for it, within its limit; what became of a
//! replacement is in the log and the audit.

use cofferdam_audit::{self as audit, EventRecord};
use cofferdam_base::metrics::{self, Outcome};
use cofferdam_servers::{
    Notice, Outbound, Outgoing, ProcessId, ReplacementOutcome, Role, ServerSet, Target, WhenNotReady,
};
use relay_proto::{mcp, notice};
use tokio::time::Instant;

use super::reply::ServerTurn;
use super::{CallerContext, Pipeline};

impl Pipeline {
    /// Does what is due about the processes of this link's server.
    pub(crate) fn tend(&mut self, servers: &mut ServerSet, now: Instant) {
        if !servers.is_changing() {
            return;
        }
        let Self { caller, in_flight, tasks, server_requests, lister, .. } = &*self;
        let config = caller.session.context.config.load_full();
        let is_busy = |process: ProcessId| {
            lister.is_some()
                || in_flight.occupy(process)
                || tasks.occupy(process)
                || server_requests.occupy(process)
        };
        let launcher = || caller.launcher(&config);
        for (slot, notice) in servers.tend(&is_busy, &launcher) {
            let mut turn = ServerTurn { pipeline: self, servers, slot, from: ProcessId::NONE, now };
            match notice {
                Notice::Cut { process, why } => {
                    turn.from = process;
                    turn.on_exit(&why);
                }
                Notice::HandedOver(process) => {
                    turn.from = process;
                    turn.move_listeners();
                    // What waited for the old process did not run, and goes to the next one.
                    self.sending(servers, now).send_parked(slot);
                }
                Notice::Over(process) => {
                    turn.from = process;
                    turn.withdraw_requests();
                    // Only late responses, which cannot come any more.
                    self.in_flight.drain(process);
                    self.tasks.forget_process(process);
                }
                Notice::Report(outcome, detail) => report(&self.caller, outcome, &detail),
            }
        }
    }
}

impl ServerTurn<'_> {
    /// Listeners of a process that gets no new calls are opened again elsewhere.
    fn move_listeners(&mut self) {
        for call in self.pipeline.in_flight.listening_on(self.from) {
            let cancelled = notice::cancelled(call.id.as_bytes(), "another process listens from now on");
            let cancelled = Outgoing::Kept(Outbound::notification(cancelled, mcp::CANCELLED));
            self.servers.send(Target::Process(self.from), cancelled, WhenNotReady::Return);
            let why = "the server's process was replaced; listen again";
            self.pipeline.retry_or_fail(self.servers, call, why, self.now);
        }
    }
}

/// Whether the harness gets this notification of a process.
pub(super) fn forwards_notification(servers: &mut ServerSet, from: ProcessId, method: &str) -> bool {
    match servers.role(from) {
        Role::Current => {
            if method == mcp::TOOLS_CHANGED {
                servers.tools_changed(from);
            }
            true
        }
        // What concerns the server as a whole, the process that replaces it says too.
        Role::Draining => !mcp::lookup(method).is_some_and(|method| method.server_wide),
        // The harness has asked it nothing yet.
        Role::Successor => false,
    }
}

/// Puts what became of a replacement into the log, the metrics and the audit.
fn report(caller: &CallerContext, replaced: ReplacementOutcome, detail: &str) {
    let CallerContext { server, link, session, .. } = caller;
    let (what, counted) = match replaced {
        ReplacementOutcome::Failed => ("not replaced", Some(Outcome::Failed)),
        ReplacementOutcome::Reloaded => ("reloaded", Some(Outcome::Done)),
        ReplacementOutcome::Replaced => ("replaced", Some(Outcome::Done)),
        ReplacementOutcome::Retired => ("retired", None),
    };
    if let Some(outcome) = counted {
        metrics::replacement(outcome);
    }
    match replaced {
        ReplacementOutcome::Failed => {
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
