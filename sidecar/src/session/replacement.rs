//! What a link does while its server's process is replaced by one with a newer credential.
//!
//! What must stay true: every request goes to the process that it is about, and an answer of the harness to the process
//! that asked; a process is kept for as long as somebody waits for it, within its limit; what became of a replacement is
//! in the log and the audit.

use std::sync::Arc;

use relay_proto::{mcp, notice};

use super::link::Link;
use crate::audit::{self, EventRecord};
use crate::metrics::{self, Outcome};
use crate::servers::instance::{Note, Role};
use crate::servers::renewal::Told;
use crate::servers::scoped::{Lane, Process};
use crate::servers::start::Starter;
use crate::upstream::outbound::Outbound;

impl Link {
    /// Does what is due about the processes of this link's server.
    pub(super) fn attend(&mut self) {
        if !self.servers.are_changing() {
            return;
        }
        let config = self.session.context.config.load_full();
        let Self { servers, calls, tasks, server_requests, repeats, session, id, server, .. } = self;
        let is_asked = repeats.deadline().is_some();
        let is_busy = |process: Process| {
            is_asked || calls.occupy(process) || tasks.occupy(process) || server_requests.occupy(process)
        };
        let starter = || {
            let granted = config.grants.get(&session.grant)?.servers.contains(server);
            let server = config.servers.get(server).filter(|_| granted)?;
            Some(Starter::of(session, &config, server, id))
        };
        for (lane, note) in servers.attend(is_busy, starter) {
            self.note(lane, note);
        }
    }

    /// Whether the harness hears this notification of a process.
    pub(super) fn is_heard(&mut self, from: Process, method: &str) -> bool {
        match self.servers.role(from) {
            Role::Current => {
                if method == mcp::TOOLS_CHANGED {
                    self.servers.tools_changed(from);
                }
                true
            }
            // What concerns the server as a whole, the process that replaces it says too.
            Role::Draining => !mcp::lookup(method).is_some_and(|method| method.server_wide),
            // Nobody has asked it anything yet.
            Role::Successor => false,
        }
    }

    fn note(&mut self, lane: Lane, note: Note) {
        let process = |incarnation| Process { lane, incarnation };
        match note {
            Note::Cut { from, why } => self.server_gone(process(from), &why),
            Note::HandedOver { from } => {
                let from = process(from);
                for call in self.calls.listening_on(from) {
                    let cancelled =
                        notice::cancelled(call.id.as_bytes(), "another process listens from now on");
                    self.servers.tell_to(from, Outbound::notification(cancelled, mcp::CANCELLED));
                    self.leave_behind(call, "the server's process was replaced; listen again");
                }
            }
            Note::Over(gone) => {
                let process = process(gone);
                // Nothing but late answers, which cannot come any more.
                self.calls.drain(process);
                self.tasks.forget_process(process);
                self.take_back_server_requests(process);
            }
            Note::Told(told, detail) => self.tell_of(told, &detail),
        }
    }

    fn tell_of(&self, told: Told, detail: &str) {
        let (server, link) = (&self.server, &self.id);
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
            session: Some(&self.session.id),
            link: Some(link),
            server: Some(server.as_str()),
            detail: Some(&detail),
            ..EventRecord::new(audit::Event::Replacement)
        };
        if let Err(error) = self.session.context.audit.event(&record) {
            tracing::error!(%error, "a replacement was not recorded");
        }
    }
}

impl Starter {
    pub(super) fn of(
        session: &super::Session,
        config: &Arc<crate::config::Config>,
        server: &Arc<crate::config::Server>,
        link: &Arc<str>,
    ) -> Self {
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
