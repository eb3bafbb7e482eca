//! Sends messages of the pipeline to a process, parks them until the process is ready, or refuses them.
//!
//! What must stay true: a request of the harness is registered as in flight before it is sent; a request that could not
//! be sent is parked or answered, never both.

use std::sync::Arc;

use cofferdam_servers::spec::ServerSpec;
use cofferdam_servers::stderr_files::StderrSink;
use cofferdam_servers::{
    DID_NOT_RUN, HostResources, Launcher, Outbound, OutboundCow, SendResult, ServerSet, SlotKey, Target,
    WhenNotReady,
};
use relay_proto::code::Code;
use relay_proto::envelope::IdValue;
use tokio::time::Instant;

use super::in_flight::Call;
use super::parked::Unsent;
use super::{CallerContext, Pipeline};
use crate::config::Config;
use crate::session::NetworkAudit;

/// One of the sidecar's own requests was neither sent nor parked.
pub(super) struct OwnRequestNotSent;

const TOO_MUCH_PARKED: &str = "it did not run: the server is starting and too many messages wait for it";

/// Sends messages of the pipeline to its server processes.
pub(super) struct Sending<'a> {
    pipeline: &'a mut Pipeline,
    servers: &'a mut ServerSet,
    now: Instant,
}

impl Pipeline {
    pub(super) fn sending<'a>(&'a mut self, servers: &'a mut ServerSet, now: Instant) -> Sending<'a> {
        Sending { pipeline: self, servers, now }
    }
}

impl Sending<'_> {
    /// A registered call could not be sent: parks or answers it.
    pub(super) fn not_sent(&mut self, slot: SlotKey, id: IdValue, result: SendResult) {
        let Some(call) = self.pipeline.in_flight.take(&id) else { return };
        match result {
            SendResult::Sent { .. } => {}
            SendResult::NotReady(message) => {
                self.park(slot, Unsent { call: Some((id, call)), message });
            }
            SendResult::Refused { code, why } => {
                self.fail(call, code, &format!("{DID_NOT_RUN}{why}"));
            }
            SendResult::NoProcess => {
                let why = "it did not run: the server is not configured any more";
                self.fail(call, Code::ServerUnavailable, why);
            }
        }
    }

    /// Parks a message until its slot is ready. Where too much is parked already, a request is refused and a
    /// notification dropped.
    pub(super) fn park(&mut self, slot: SlotKey, unsent: Unsent) {
        let Err(unsent) = self.pipeline.parked.hold_unsent(slot, unsent, self.now) else { return };
        if let Some((_, call)) = unsent.call {
            self.fail(call, Code::ServerUnavailable, TOO_MUCH_PARKED);
        }
    }

    /// Sends the messages that are parked for a slot, in order.
    pub(super) fn send_parked(&mut self, slot: SlotKey) {
        let parked = self.pipeline.parked.take_for(slot);
        if parked.is_empty() {
            return;
        }
        let config = self.pipeline.caller.session.context.config.load_full();
        let launcher = self.pipeline.caller.launcher(&config);
        let start = || launcher.clone().expect("called only where there is a launcher");
        for Unsent { call, message } in parked {
            // No process is started for a notification alone.
            let when = match message.request_id().is_some() && launcher.is_some() {
                true => WhenNotReady::Start(&start),
                false => WhenNotReady::Return,
            };
            let id = call.map(|(id, call)| {
                self.pipeline.in_flight.insert(id.clone(), call);
                id
            });
            match (self.servers.send(Target::Slot(slot), OutboundCow::Owned(message), when), id) {
                (SendResult::Sent { on, reads_after_decision }, Some(id)) => {
                    self.pipeline.in_flight.set_sent(&id, on, reads_after_decision);
                }
                (result, Some(id)) => self.not_sent(slot, id, result),
                (SendResult::NotReady(message), None) => {
                    self.park(slot, Unsent { call: None, message });
                }
                (_, None) => {}
            }
        }
        self.servers.flush();
    }

    /// Sends one of the sidecar's own requests to the server's base process.
    pub(super) fn send_own(
        &mut self,
        config: &Arc<Config>,
        request: Outbound,
    ) -> Result<(), OwnRequestNotSent> {
        let launcher = self.pipeline.caller.launcher(config).ok_or(OwnRequestNotSent)?;
        let start = || launcher.clone();
        let (slot, request) = (SlotKey::BASE, OutboundCow::Owned(request));
        match self.servers.send(Target::Slot(slot), request, WhenNotReady::Start(&start)) {
            SendResult::Sent { .. } => Ok(()),
            SendResult::NotReady(message) => {
                let unsent = Unsent { call: None, message };
                self.pipeline.parked.hold_unsent(slot, unsent, self.now).map_err(|_| OwnRequestNotSent)
            }
            SendResult::NoProcess | SendResult::Refused { .. } => Err(OwnRequestNotSent),
        }
    }

    fn fail(&mut self, call: Call, code: Code, sentence: &str) {
        self.pipeline.fail(self.servers, call, code, sentence, self.now);
    }
}

impl CallerContext {
    /// The launcher for processes of this link's server; none where this configuration no longer grants the server.
    pub(super) fn launcher(&self, config: &Arc<Config>) -> Option<Launcher> {
        let granted = config.grants.get(&self.session.grant)?.servers.contains(&self.server);
        let server = config.servers.get(&self.server).filter(|_| granted)?;
        Some(self.launcher_for(config, server))
    }

    pub(super) fn launcher_for(&self, config: &Arc<Config>, server: &Arc<ServerSpec>) -> Launcher {
        let Self { session, link, memory, .. } = self;
        let host = HostResources {
            sandbox_limits: session.sandbox_limits.clone(),
            memory: Arc::clone(memory),
            files: session.context.files.clone(),
            tasks: session.context.tasks.clone(),
            working_directories: session.context.server_state.directories.clone(),
            stderr: StderrSink {
                files: session.context.server_state.stderr.clone(),
                session: Arc::clone(&session.id),
            },
            network_events: Arc::new(NetworkAudit { session: Arc::clone(session), link: Arc::clone(link) }),
            path_observer: None,
        };
        let launcher = Launcher::new(
            Arc::clone(server),
            (&config.limits).into(),
            Arc::clone(&config.secrets),
            Arc::clone(&session.credentials),
            host,
            Arc::clone(link),
        );
        #[cfg(test)]
        let launcher = launcher.scripted(session.context.script.get().cloned());
        launcher
    }
}
