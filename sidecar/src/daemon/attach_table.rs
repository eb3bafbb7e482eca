//! The sandboxes that are attached, or were and may be again: the holder of each of them, and its pipe.
//!
//! What must stay true: a sandbox has one enrolment, whichever pipe leads to it, so its links resume through the next
//! one; of two pipes to one sandbox the newer is used, and the older has ended before anything from the newer is read;
//! an enrolment without a holder ends after the grace of its links.

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
    pub(super) by_sandbox: HashMap<Sandbox, Attached>,
    pub(super) holds: u64,
}

/// What identifies a sandbox to `cofferdam attach`.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Sandbox {
    pub(super) grant: Name,
    pub(super) name: String,
}

pub(super) struct Attached {
    pub(super) enrolment: Arc<str>,
    pub(super) holder: Option<Holder>,
    /// The number of the hold: a grace period that began after an earlier hold does not apply to a later one.
    pub(super) hold_number: u64,
    pub(super) pipe: Option<PipeEnd>,
    pub(super) pipe_state: PipeState,
}

/// What was last reported about the pipe.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum PipeState {
    /// It ended or could not be established, for this reason.
    Lost(String),
    NotYetOpen,
    /// The other end has proven its key.
    Open,
}

pub(super) struct Holder {
    pub(super) events: mpsc::Sender<AttachEvent>,
    pub(super) ended: CancellationToken,
}

/// Ends a pipe from outside its task.
#[derive(Clone)]
pub(super) struct PipeEnd {
    pub(super) socket: Arc<UnixStream>,
    /// Asks the pipe's task to tell the hub that the pipe ends, and then to end it.
    pub(super) closing: CancellationToken,
    pub(super) gone: CancellationToken,
}

/// What the holder of a sandbox is sent, one JSON line each.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "news", rename_all = "kebab-case")]
pub(crate) enum AttachEvent {
    /// The pipe leads to a hub or a shim that has proven this key.
    Attached { key: String },
    /// This pipe ended or could not be established.
    Lost { why: String },
    /// The enrolment ended: no further pipe is accepted.
    Over { why: String },
}

/// After the links have ended and their goodbyes are queued: how long the last bytes may take to be sent.
pub(super) const LAST_BYTES: Duration = Duration::from_millis(100);
/// For telling a hub that its pipe ends: a pipe that does not take these few bytes is dead.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Events that are queued for a holder that does not read; further ones are dropped.
pub(super) const MAX_EVENTS: usize = 16;
/// A pipe whose socket is shut ends at once; the timeout guards against a bug.
const END_TIMEOUT: Duration = Duration::from_secs(5);

impl AttachTable {
    /// The enrolment has ended: ends its pipe and notifies its holder.
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

    /// The enrolment has ended, and its links have sent their goodbyes: ends the pipe when those had time to be sent. The
    /// hub is told, because a platform may keep its stdin open after the pipe is gone; only then the holder is told, which
    /// ends the command that carries the pipe.
    pub(super) async fn end_after_goodbyes(&self, enrolment: &str, stop: &CancellationToken) {
        let closed = async {
            sleep(LAST_BYTES).await;
            let pipe = self.lock().attached(enrolment).and_then(|attached| attached.pipe.clone());
            if let Some(pipe) = pipe {
                pipe.closing.cancel();
                let _ = timeout(CLOSE_TIMEOUT * 2, pipe.gone.cancelled()).await;
            }
        };
        // At a stop, the pipes themselves wait for the last bytes.
        let _ = stop.run_until_cancelled(closed).await;
        self.end(enrolment);
    }

    /// Records the state of the pipe, and queues an event for the holder of this sandbox, without waiting. Returns the
    /// sandbox, if it is still known.
    pub(super) fn notify(&self, enrolment: &str, event: AttachEvent) -> Option<Sandbox> {
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

    /// A new pipe to a sandbox that is held. The previous one has ended when this returns.
    pub(super) async fn replace_pipe(&self, enrolment: &str, socket: UnixStream) -> Option<PipeEnd> {
        let end = PipeEnd {
            socket: Arc::new(socket),
            closing: CancellationToken::new(),
            gone: CancellationToken::new(),
        };
        let before = {
            let mut table = self.lock();
            let attached = table.attached_mut(enrolment).filter(|attached| attached.holder.is_some())?;
            attached.pipe.replace(end.clone())
        };
        if let Some(before) = before {
            before.shut();
            let _ = timeout(END_TIMEOUT, before.gone.cancelled()).await;
        }
        Some(end)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    pub(super) fn attached(&self, enrolment: &str) -> Option<&Attached> {
        self.by_sandbox.values().find(|attached| *attached.enrolment == *enrolment)
    }

    pub(super) fn attached_mut(&mut self, enrolment: &str) -> Option<&mut Attached> {
        self.by_sandbox.values_mut().find(|attached| *attached.enrolment == *enrolment)
    }

    pub(super) fn sandbox_of(&self, enrolment: &str) -> Option<Sandbox> {
        let mut all = self.by_sandbox.iter();
        all.find(|(_, attached)| *attached.enrolment == *enrolment).map(|(sandbox, _)| sandbox.clone())
    }
}

impl Attached {
    pub(super) fn new(enrolment: Arc<str>) -> Self {
        Self { enrolment, holder: None, hold_number: 0, pipe: None, pipe_state: PipeState::NotYetOpen }
    }

    pub(super) fn end_pipe(&self) {
        if let Some(pipe) = &self.pipe {
            pipe.shut();
        }
    }
}

impl Sandbox {
    pub(super) fn of(enrolment: &Enrolment) -> Self {
        let name = enrolment.name.clone().unwrap_or_else(|| enrolment.id.to_string());
        Self { grant: enrolment.grant.clone(), name }
    }
}

impl PipeEnd {
    /// Shuts both directions down, also for duplicates of the descriptor.
    pub(super) fn shut(&self) {
        // Fails only if it is shut already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
