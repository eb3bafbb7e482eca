//! What the pipeline does while a server's process is replaced by one with newer credentials.
//!
//! What must stay true: a request about a task goes to the process that runs the task, and a response of the harness to
//! the process that sent the request; a process is kept while a request or task needs it, up to its time limit; the
//! outcome of a replacement is in the log and the audit.

use cofferdam_audit::{self as audit, EventRecord};
use cofferdam_base::metrics::{self, Outcome};
use cofferdam_base::{PacedLines, RateLimiter};
use cofferdam_servers::{
    Notice, Outbound, OutboundCow, ProcessId, ReplacementOutcome, Role, ServerSet, Target, WhenNotReady,
};
use relay_proto::{mcp, notice};
use tokio::time::Instant;

use super::reply::ServerEventHandler;
use super::{CallerContext, Pipeline};

/// Credentials that change often, or a server that never starts with new ones, cause these lines again and again.
static NOT_REPLACED_LINES: PacedLines = PacedLines::new("the server process was not replaced");

impl Pipeline {
    /// Advances replacements of the processes of this link's server.
    pub(crate) fn advance_replacements(&mut self, servers: &mut ServerSet, now: Instant) {
        if !servers.has_replacement_work() {
            return;
        }
        let Self { caller, in_flight, tasks, server_requests, tool_listing, incoming, .. } = &*self;
        let config = caller.session.context.config.load_full();
        let is_busy = |process: ProcessId| {
            tool_listing.is_some()
                || in_flight.has_calls_on(process)
                || tasks.has_tasks_on(process)
                || server_requests.has_requests_of(process)
                || incoming.iter().any(|message| message.sending_process() == Some(process))
        };
        let launcher = || caller.launcher(&config);
        for (slot, notice) in servers.advance_replacements(&is_busy, &launcher) {
            let mut handler =
                ServerEventHandler { pipeline: self, servers, slot, from: ProcessId::NONE, now };
            match notice {
                Notice::CutOff { process, why } => {
                    handler.from = process;
                    handler.on_exit(&why);
                }
                Notice::HandedOver(process) => {
                    handler.from = process;
                    handler.move_listeners();
                    // Messages that were parked for the old process did not run, and are sent to the new one.
                    self.sending(servers, now).send_parked(slot);
                }
                Notice::Ended(process) => {
                    handler.from = process;
                    handler.withdraw_requests();
                    // No late response can arrive any more.
                    self.in_flight.drain(process);
                    self.tasks.forget_process(process);
                }
                Notice::Report(outcome, detail) => {
                    report(&self.caller, &mut self.failure_lines, outcome, &detail);
                }
            }
        }
    }
}

impl ServerEventHandler<'_> {
    /// Reopens the listeners of a draining process on its replacement.
    fn move_listeners(&mut self) {
        for call in self.pipeline.in_flight.take_listeners(self.from) {
            let cancelled =
                notice::cancelled(call.id.as_bytes(), "a new server process takes over this listener");
            let cancelled = OutboundCow::Owned(Outbound::notification(cancelled, mcp::CANCELLED));
            self.servers.send(Target::Process(self.from), cancelled, WhenNotReady::Return);
            let why = "the server's process was replaced; listen again";
            self.pipeline.retry_or_fail(self.servers, call, why, self.now);
        }
    }
}

/// Whether a notification of this process is relayed to the harness.
pub(super) fn should_forward_notification(servers: &mut ServerSet, from: ProcessId, method: &str) -> bool {
    match servers.role(from) {
        Some(Role::Current) => {
            if method == mcp::TOOLS_CHANGED {
                servers.tools_changed(from);
            }
            true
        }
        // The replacement process sends notifications about the server as a whole; the last messages of a process that is
        // gone are relayed like those of a draining one.
        Some(Role::Draining) | None => !mcp::lookup(method).is_some_and(|method| method.server_wide),
        // The harness has sent it no request yet.
        Some(Role::Successor) => false,
    }
}

/// Reports the outcome of a replacement in the log, the metrics and the audit.
fn report(
    caller: &CallerContext,
    failure_lines: &mut RateLimiter,
    outcome: ReplacementOutcome,
    detail: &str,
) {
    let CallerContext { server, link, session, .. } = caller;
    let (description, counted) = match outcome {
        ReplacementOutcome::Failed => ("not replaced", Some(Outcome::Failed)),
        ReplacementOutcome::Reloaded => ("reloaded", Some(Outcome::Done)),
        ReplacementOutcome::Replaced => ("replaced", Some(Outcome::Done)),
        ReplacementOutcome::Retired => ("retired", None),
    };
    if let Some(counted) = counted {
        metrics::count_replacement(counted);
    }
    match outcome {
        ReplacementOutcome::Failed => {
            if let Some(left_out) = NOT_REPLACED_LINES.admit_within(failure_lines) {
                tracing::warn!(%server, %link, left_out, why = detail, "the server process was not replaced");
            }
        }
        _ => tracing::info!(%server, %link, detail, "credentials changed: {description}"),
    }
    let detail = format!("{description}: {detail}");
    let record = EventRecord {
        session: Some(&session.id),
        link: Some(link),
        server: Some(server.as_str()),
        detail: Some(&detail),
        ..EventRecord::new(audit::Event::Replacement)
    };
    session.record_event(&record);
}
