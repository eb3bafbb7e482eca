//! The sandboxes that are attached, or were and may be again: the holder of each of them, and its pipe.
//!
//! What must stay true: a sandbox has one enrolment, whichever pipe leads to it, so its links can be resumed through
//! the next pipe; of two pipes to one sandbox the newer is used, and the older has ended before anything from the newer
//! is read; an enrolment without a holder ends after the resume grace of its links.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use relay_proto::name::Name;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::enrolment::Enrolment;

/// Every sandbox that is attached, or was and may be again.
#[derive(Default)]
pub(crate) struct AttachTable {
    pub(super) table: Mutex<Table>,
    /// Locked while an enrolment is created: of two requests for one sandbox, the second uses the first's enrolment.
    pub(super) creating: tokio::sync::Mutex<()>,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) by_sandbox: HashMap<SandboxKey, AttachedSandbox>,
    /// The number of the last hold.
    pub(super) last_hold: u64,
}

/// What identifies a sandbox to `cofferdam attach`.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct SandboxKey {
    pub(super) grant: Name,
    pub(super) name: String,
}

pub(super) struct AttachedSandbox {
    pub(super) enrolment: Arc<str>,
    pub(super) holder: Option<Holder>,
    /// The number of the latest hold. A grace period applies only to the hold after which it began.
    pub(super) hold_number: u64,
    pub(super) pipe: Option<PipeHandle>,
    pub(super) pipe_state: PipeState,
}

/// The state of a sandbox's pipe, as last reported.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum PipeState {
    /// The pipe ended or could not be established, for this reason.
    Lost(String),
    NotYetOpen,
    /// The hub or shim at the other end has proven its key.
    Open,
}

pub(super) struct Holder {
    pub(super) events: mpsc::Sender<AttachEvent>,
    pub(super) ended: CancellationToken,
}

/// Ends a pipe from outside its task.
#[derive(Clone)]
pub(super) struct PipeHandle {
    pub(super) socket: Arc<UnixStream>,
    /// Cancelled to make the pipe's task tell the hub that the pipe ends, and then end the pipe.
    pub(super) closing: CancellationToken,
    /// Cancelled when the pipe's task no longer uses the pipe.
    pub(super) gone: CancellationToken,
}

/// An event for the holder of a sandbox; `cofferdam attach` gets each as a JSON line.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "news", rename_all = "kebab-case")]
pub(crate) enum AttachEvent {
    /// The hub or shim at the other end of the pipe has proven this key.
    Attached { key: String },
    /// This pipe ended or could not be established.
    Lost { why: String },
    /// The enrolment ended: no further pipe is accepted.
    Over { why: String },
}

/// How long a pipe stays open after its links have ended, so that their queued goodbyes are sent.
pub(super) const LAST_BYTES: Duration = Duration::from_millis(100);
/// How long telling a hub that its pipe ends may take: a pipe that does not accept these few bytes is dead.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Events that are queued for a holder that does not read; further ones are dropped.
pub(super) const MAX_EVENTS: usize = 16;
/// A pipe whose socket is shut ends at once; the timeout guards against a bug.
const END_TIMEOUT: Duration = Duration::from_secs(5);

impl AttachTable {
    /// Ends the pipe of an enrolment that has ended, notifies its holder, and removes it from the table.
    pub(crate) fn end(&self, enrolment: &str) {
        let ended = {
            let mut table = self.lock();
            let sandbox = table.sandbox_of(enrolment);
            sandbox.and_then(|sandbox| table.by_sandbox.remove(&sandbox))
        };
        if let Some(attached) = ended {
            attached.end_pipe();
            if let Some(holder) = attached.holder {
                holder.ended.cancel();
            }
        }
    }

    /// Like [`Self::end`], for an enrolment whose links have queued their goodbyes: waits until these had time to be
    /// sent, then tells the hub that its pipe ends, because a platform may keep the hub's stdin open after the pipe is
    /// gone. The holder is notified last, because that ends the command that carries the pipe.
    pub(super) async fn end_after_goodbyes(&self, enrolment: &str, stop: &CancellationToken) {
        let closed = async {
            sleep(LAST_BYTES).await;
            let pipe = self.lock().find(enrolment).and_then(|attached| attached.pipe.clone());
            if let Some(pipe) = pipe {
                pipe.closing.cancel();
                let _ = timeout(CLOSE_TIMEOUT * 2, pipe.gone.cancelled()).await;
            }
        };
        // When the sidecar stops, the tasks of the pipes wait for the last bytes.
        let _ = stop.run_until_cancelled(closed).await;
        self.end(enrolment);
    }

    /// Records the state of the pipe, and queues an event for the holder of this sandbox, without waiting. Returns the
    /// sandbox, if it is still known.
    pub(super) fn notify(&self, enrolment: &str, event: AttachEvent) -> Option<SandboxKey> {
        let mut table = self.lock();
        let sandbox = table.sandbox_of(enrolment)?;
        let attached = table.by_sandbox.get_mut(&sandbox)?;
        match &event {
            AttachEvent::Attached { .. } => attached.pipe_state = PipeState::Open,
            AttachEvent::Lost { why } => attached.pipe_state = PipeState::Lost(why.clone()),
            AttachEvent::Over { .. } => {}
        }
        if let Some(holder) = &attached.holder {
            let _ = holder.events.try_send(event);
        }
        Some(sandbox)
    }

    /// Registers a new pipe to a sandbox; `None` if the sandbox is not held. The previous pipe has ended when this
    /// returns.
    pub(super) async fn replace_pipe(&self, enrolment: &str, socket: UnixStream) -> Option<PipeHandle> {
        let end = PipeHandle {
            socket: Arc::new(socket),
            closing: CancellationToken::new(),
            gone: CancellationToken::new(),
        };
        let previous = {
            let mut table = self.lock();
            let attached = table.find_mut(enrolment).filter(|attached| attached.holder.is_some())?;
            attached.pipe.replace(end.clone())
        };
        if let Some(previous) = previous {
            previous.shut();
            let _ = timeout(END_TIMEOUT, previous.gone.cancelled()).await;
        }
        Some(end)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    pub(super) fn find(&self, enrolment: &str) -> Option<&AttachedSandbox> {
        self.by_sandbox.values().find(|attached| *attached.enrolment == *enrolment)
    }

    pub(super) fn find_mut(&mut self, enrolment: &str) -> Option<&mut AttachedSandbox> {
        self.by_sandbox.values_mut().find(|attached| *attached.enrolment == *enrolment)
    }

    pub(super) fn sandbox_of(&self, enrolment: &str) -> Option<SandboxKey> {
        let mut all = self.by_sandbox.iter();
        all.find(|(_, attached)| *attached.enrolment == *enrolment).map(|(sandbox, _)| sandbox.clone())
    }
}

impl AttachedSandbox {
    pub(super) fn new(enrolment: Arc<str>) -> Self {
        Self { enrolment, holder: None, hold_number: 0, pipe: None, pipe_state: PipeState::NotYetOpen }
    }

    pub(super) fn end_pipe(&self) {
        if let Some(pipe) = &self.pipe {
            pipe.shut();
        }
    }
}

impl SandboxKey {
    pub(super) fn of(enrolment: &Enrolment) -> Self {
        let name = enrolment.name.clone().unwrap_or_else(|| enrolment.id.to_string());
        Self { grant: enrolment.grant.clone(), name }
    }
}

impl PipeHandle {
    /// Shuts down both directions of the socket, which also affects duplicates of the descriptor.
    pub(super) fn shut(&self) {
        // Fails only if the socket is shut down already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
