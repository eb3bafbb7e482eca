//! The server of one link: a slot for the server itself, and one for each scope of its tools.
//!
//! A stdio server has a process of its own for each scope, started by the first call of one of its tools and sent the
//! same handshake and settings as the server's own process. An HTTP server has one connection, and each request carries
//! the headers of its scope.
//!
//! What must stay true: only calls of a scope's tools, and requests about their tasks, go to the process of that scope,
//! and they go nowhere else; when a reload changes the variables, files or headers of a server with scopes, or of a
//! scope, the processes that have the old ones get no further call; for a server without scopes, this costs one
//! comparison per request. [`ServerSet::next`] may be dropped at any await.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_confine::Standing;
use cofferdam_process::Ended;
use cofferdam_secrets::Secrets;
use futures_util::future::{join_all, select_all};
use relay_proto::envelope::{Id, IdValue, Outcome};
use relay_proto::json;
use relay_proto::replay::{OwnResponse, Replay};
use tokio::time::Instant;

use crate::event::{Event, ProcessId, Role, SlotKey};
use crate::generation::Generation;
use crate::launcher::Launcher;
use crate::outbound::{Outbound, OutboundCow};
use crate::replacement::Notice;
use crate::slot::{AdvanceContext, HandshakeStart, SendResult, Slot, SlotEvent, WhenNotReady};
use crate::spec::{Scope, ServerSpec};

/// Where a message goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Target {
    /// The process that serves in this slot.
    Slot(SlotKey),
    /// This process, even if it is draining.
    Process(ProcessId),
}

/// Which processes a notification goes to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Recipients {
    /// The current process of each slot.
    Current,
    /// Also those that drain or are to take over.
    Every,
}

/// A process of a scope, as `sessions` shows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScopeProcess {
    pub tools: String,
    pub pid: u32,
}

pub struct ServerSet {
    /// The first is the server's own.
    slots: Vec<Slot>,
    /// What the harness sent to the server, for processes that are started later.
    replay: Replay,
    /// The configuration at the last request.
    configured: Option<Arc<ServerSpec>>,
    last_key: u32,
    /// Which slot is polled first. It rotates, so that no slot starves the others.
    next_turn: usize,
}

/// Ids of requests that the sidecar makes by itself begin with this.
const OWN_ID_PREFIX: &str = "cofferdam-replay-";

impl Default for ServerSet {
    fn default() -> Self {
        Self {
            slots: vec![Slot::new(SlotKey::BASE, None)],
            replay: Replay::new(OWN_ID_PREFIX),
            configured: None,
            last_key: 0,
            next_turn: 0,
        }
    }
}

impl ServerSet {
    /// What the harness sent to the server.
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    pub fn replay_mut(&mut self) -> &mut Replay {
        &mut self.replay
    }

    /// The slot that a request goes to under the present configuration.
    pub fn slot(&mut self, server: &Arc<ServerSpec>, scope: Option<&Arc<Scope>>) -> SlotKey {
        if !self.configured.as_ref().is_some_and(|known| Arc::ptr_eq(known, server)) {
            self.adopt(server);
        }
        match scope {
            Some(scope) if server.kind.runs_processes() => self.slot_of_scope(scope),
            _ => SlotKey::BASE,
        }
    }

    /// The process that serves in a slot, or is starting there.
    pub fn current(&self, slot: SlotKey) -> Option<ProcessId> {
        let slot = self.slots.iter().find(|other| other.key == slot)?;
        slot.processes.current.as_ref().map(|current| current.id)
    }

    /// Sends one message, or returns why not. Bytes for a process are written in [`Self::flush`] and [`Self::next`].
    pub fn send(&mut self, target: Target, message: OutboundCow<'_>, when: WhenNotReady<'_>) -> SendResult {
        match target {
            Target::Slot(key) => match self.slots.iter_mut().find(|slot| slot.key == key) {
                Some(slot) => slot.send(message, when, &self.replay),
                None => SendResult::NoProcess,
            },
            Target::Process(process) => match self.find_mut(process) {
                Some(generation) => SendResult::of(process, generation.send(message)),
                None => SendResult::NoProcess,
            },
        }
    }

    /// Sends a notification to several processes. Returns the slots whose process is not ready for it.
    pub fn notify(&mut self, message: &Outbound, recipients: Recipients) -> Vec<SlotKey> {
        let mut not_ready = Vec::new();
        for slot in &mut self.slots {
            if recipients == Recipients::Every {
                slot.processes.send_to_roles(message, &[Role::Draining, Role::Successor]);
            }
            let sent = slot.send(OutboundCow::Owned(message.clone()), WhenNotReady::Return, &self.replay);
            if let SendResult::NotReady(_) = sent {
                not_ready.push(slot.key);
            }
        }
        not_ready
    }

    /// Copies a request that sets something in the server's own process to the processes of scopes and, where the
    /// method calls for it, to draining ones. The copies have ids of the sidecar. Returns those for slots that are not
    /// ready.
    pub fn copy_setting_to_others(
        &mut self,
        message: &[u8],
        id: &Id<'_>,
        method: &str,
    ) -> Vec<(SlotKey, Outbound)> {
        let mut not_ready = Vec::new();
        if !Replay::is_sent_to_siblings(method) {
            return not_ready;
        }
        let reaches_draining = Replay::is_sent_to_draining(method);
        for slot in &mut self.slots {
            let own = self.replay.next_id();
            let request = json::replace(message, id.span.clone(), own.to_string().as_bytes());
            let request = Outbound::request(request, own, method, None);
            if reaches_draining {
                slot.processes.send_to_roles(&request, &[Role::Draining]);
            }
            if slot.scope.is_none() {
                continue;
            }
            if let SendResult::NotReady(request) =
                slot.send(OutboundCow::Owned(request), WhenNotReady::Return, &self.replay)
            {
                not_ready.push((slot.key, request));
            }
        }
        not_ready
    }

    /// Writes as many queued bytes as the processes accept without waiting.
    pub fn flush(&mut self) {
        self.slots.iter_mut().for_each(Slot::flush);
    }

    /// Closes the HTTP stream of a request that the harness cancelled; does nothing to a stdio process.
    pub fn cancel(&mut self, process: ProcessId, id: &IdValue) {
        if let Some(generation) = self.find_mut(process) {
            generation.cancel(id);
        }
    }

    /// Opens the process or session after [`Event::Started`] or [`Event::SessionLost`]. `first` is the method of the
    /// first request that waits for the slot.
    pub fn begin_handshake(&mut self, slot: SlotKey, first: Option<&str>) -> HandshakeStart {
        match self.slots.iter_mut().find(|other| other.key == slot) {
            Some(slot) => slot.begin_handshake(first, &mut self.replay),
            None => HandshakeStart::NotNeeded,
        }
    }

    /// The next event of one of the processes. Cancel-safe.
    pub async fn next(&mut self) -> (SlotKey, ProcessId, Event) {
        loop {
            let (index, slot_event) = self.wait().await;
            let slot = &mut self.slots[index];
            if let Some((process, event)) = slot.handle(slot_event, &mut self.replay) {
                return (slot.key, process, event);
            }
        }
    }

    /// A message that has already arrived.
    pub fn buffered(&mut self, slot: SlotKey) -> Option<(ProcessId, Event)> {
        self.slots.iter_mut().find(|other| other.key == slot)?.buffered()
    }

    /// Records the response to a request of the harness that is replayed to later processes.
    pub fn record_response(
        &mut self,
        process: ProcessId,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) {
        let accepted = self.replay.record_response(id, outcome, message, body.clone());
        if let Some(accepted) = accepted {
            self.slots[0].on_accepted(process, accepted, message, body);
        }
    }

    /// Handles the response to a request of the sidecar itself.
    pub fn own_response(
        &mut self,
        slot: SlotKey,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> OwnResponse {
        match self.slots.iter_mut().find(|other| other.key == slot) {
            Some(slot) => slot.on_own_response(id, outcome, message, body, &mut self.replay),
            None => OwnResponse::Nothing,
        }
    }

    /// Handles `notifications/tools/list_changed` from a process.
    pub fn tools_changed(&mut self, process: ProcessId) {
        let mut slots = self.slots.iter_mut();
        if let Some(slot) = slots.find(|slot| slot.processes.role(process) == Some(Role::Current)) {
            slot.forget_tools();
        }
    }

    /// Keeps what a process printed that is not an MCP message: the explanation of its end names it. The excerpt is scrubbed.
    pub fn keep_stray_output(&mut self, process: ProcessId, excerpt: String) {
        if let Some(process) = self.find_mut(process).and_then(Generation::process_mut) {
            process.keep_stray_output(excerpt);
        }
    }

    /// The role of a process; none for one that is gone.
    pub fn role(&self, process: ProcessId) -> Option<Role> {
        self.slots.iter().find_map(|slot| slot.processes.role(process))
    }

    /// The secrets of the process that serves a scope, or of the server's own process.
    pub fn secrets(&self, scope: Option<&Arc<Scope>>) -> Option<Arc<Secrets>> {
        let serves = |slot: &&Slot| match (&slot.scope, scope) {
            (None, None) => true,
            (Some(own), Some(scope)) => own.has_same_templates(scope),
            (Some(_), None) | (None, Some(_)) => false,
        };
        self.slots.iter().find(serves)?.processes.secrets()
    }

    /// Sends no further calls to the processes of scopes: the harness made a new handshake, which they did not receive.
    pub fn retire_scopes(&mut self) {
        self.slots.iter_mut().skip(1).for_each(Slot::retire_current);
    }

    /// Whether [`Self::advance_replacements`] has something to do.
    pub fn has_replacement_work(&self) -> bool {
        self.slots.iter().any(Slot::has_replacement_work)
    }

    /// Takes the next steps of replacements. `is_busy` returns whether a process has open requests; `launcher` returns
    /// the launcher for a process that is started now, if one may be started.
    pub fn advance_replacements(
        &mut self,
        is_busy: &dyn Fn(ProcessId) -> bool,
        launcher: &dyn Fn() -> Option<Launcher>,
    ) -> Vec<(SlotKey, Notice)> {
        let now = Instant::now();
        let mut notices = Vec::new();
        for slot in &mut self.slots {
            let scope = slot.scope.clone();
            let launcher = || match &scope {
                Some(scope) => launcher()?.in_matching_scope(scope),
                None => launcher(),
            };
            let context = AdvanceContext { is_busy, launcher: &launcher, now };
            let key = slot.key;
            notices.extend(
                slot.advance_replacements(&context, &mut self.replay).into_iter().map(|notice| (key, notice)),
            );
        }
        notices
    }

    /// Whether a process reads so slowly that the link should stop reading.
    pub fn is_full(&self) -> bool {
        self.slots.iter().any(|slot| slot.processes.is_full())
    }

    /// Bytes that the processes have not read yet, and bytes of the messages that are recorded for replaying them.
    pub fn held_bytes(&self) -> usize {
        let slots = self.slots.iter().map(Slot::held_bytes);
        self.replay.recorded_bytes() + slots.sum::<usize>()
    }

    /// The events that were returned have been handled: the memory of their messages is released.
    pub fn release_handled(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.processes.release_handled());
    }

    /// The pid of the server's own process.
    pub fn pid(&self) -> Option<u32> {
        self.slots[0].processes.pid()
    }

    /// The configuration that the server's own process was started with.
    pub fn started_with(&self) -> Option<&Arc<ServerSpec>> {
        self.slots[0].processes.current.as_ref().map(|current| &current.spec)
    }

    /// The walls around the server's own process, if it is confined.
    pub fn standing(&self) -> Option<Arc<Standing>> {
        self.slots[0].processes.standing()
    }

    /// The progress of replacements, as `sessions` shows it.
    pub fn describe_replacement(&self) -> Option<String> {
        let parts: Vec<String> = self.slots.iter().filter_map(Slot::describe_replacement).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    pub fn scope_processes(&self) -> Vec<ScopeProcess> {
        let process = |slot: &Slot| {
            Some(ScopeProcess { tools: slot.scope.as_ref()?.to_string(), pid: slot.processes.pid()? })
        };
        self.slots.iter().filter_map(process).collect()
    }

    /// Ends all processes, and returns whether all of them are dead.
    pub async fn end(self, grace: Duration) -> Ended {
        let ends = join_all(self.slots.into_iter().map(|slot| slot.processes.end(grace))).await;
        match ends.into_iter().all(|ended| ended == Ended::All) {
            true => Ended::All,
            false => Ended::NotYet,
        }
    }

    async fn wait(&mut self) -> (usize, SlotEvent) {
        if let [only] = &mut self.slots[..] {
            return (0, only.wait().await);
        }
        let waits = self.slots.iter_mut().enumerate();
        let mut waits: Vec<_> =
            waits.map(|(index, slot)| Box::pin(async move { (index, slot.wait().await) })).collect();
        self.next_turn = (self.next_turn + 1) % waits.len();
        waits.rotate_left(self.next_turn);
        select_all(waits).await.0
    }

    /// Applies a new configuration of the server. Where it has scopes, processes that would now be started with other
    /// variables, files or headers get no further calls.
    #[cold]
    fn adopt(&mut self, server: &Arc<ServerSpec>) {
        self.configured = Some(Arc::clone(server));
        let is_configured = |slot: &Slot| match &slot.scope {
            Some(own) => server.scopes.iter().any(|scope| scope.has_same_templates(own)),
            None => true,
        };
        self.slots.retain(|slot| is_configured(slot) || !slot.processes.is_empty());
        for slot in self.slots.iter_mut().filter(|slot| !is_configured(slot)) {
            slot.retire_current();
        }
        let base = &mut self.slots[0];
        let Some(before) = base.processes.current.as_ref().map(|current| Arc::clone(&current.spec)) else {
            return;
        };
        let has_scopes = !server.scopes.is_empty() || !before.scopes.is_empty();
        // An HTTP connection uses the scopes that were configured when it was made.
        let is_connection = !server.kind.runs_processes();
        let differs = !before.has_same_templates(server) || is_connection && before.scopes != server.scopes;
        if has_scopes && differs {
            tracing::info!(server = %server.name, "the configuration of a process changed: it gets no further calls");
            base.retire_current();
        }
    }

    fn slot_of_scope(&mut self, scope: &Arc<Scope>) -> SlotKey {
        let has_same_templates =
            |slot: &&Slot| slot.scope.as_ref().is_some_and(|own| own.has_same_templates(scope));
        if let Some(slot) = self.slots.iter().find(has_same_templates) {
            return slot.key;
        }
        self.last_key += 1;
        let key = SlotKey(self.last_key);
        self.slots.push(Slot::new(key, Some(Arc::clone(scope))));
        key
    }

    fn find_mut(&mut self, process: ProcessId) -> Option<&mut Generation> {
        self.slots.iter_mut().find_map(|slot| slot.processes.find_mut(process))
    }
}
