//! The sandboxes that are attached, or were and may be again: who holds each of them, and its pipe.
//!
//! Must stay true: a sandbox has one enrolment, whichever pipe leads to it, so its links resume through the next one;
//! of two pipes to one sandbox the newer counts, and the older is over before anything of the newer is heard; an
//! enrolment that nobody holds any more ends when its links' grace is over.

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
pub(crate) struct Attaches {
    pub(super) table: Mutex<Table>,
    /// Whoever makes an enrolment for a sandbox: of two who want the same one, the second finds the first one's.
    pub(super) making: tokio::sync::Mutex<()>,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) by_sandbox: HashMap<Sandbox, Attached>,
    pub(super) holds: u64,
}

/// By what a sandbox is known to whoever attaches it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Sandbox {
    pub(super) grant: Name,
    pub(super) name: String,
}

pub(super) struct Attached {
    pub(super) enrolment: Arc<str>,
    pub(super) holder: Option<Holder>,
    /// How often it was held: a time of grace that began in an earlier hold means nothing in a later one.
    pub(super) holds: u64,
    pub(super) pipe: Option<PipeEnd>,
}

pub(super) struct Holder {
    pub(super) news: mpsc::Sender<News>,
    pub(super) over: CancellationToken,
}

/// By which a pipe is ended from outside.
#[derive(Clone)]
pub(super) struct PipeEnd {
    pub(super) socket: Arc<UnixStream>,
    pub(super) gone: CancellationToken,
}

/// What whoever holds a sandbox is told, one JSON line each.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "news", rename_all = "kebab-case")]
pub(crate) enum News {
    /// The pipe leads to a hub or a shim that has proven this key.
    Attached { key: String },
    /// This pipe is over, or never was one.
    Lost { why: String },
    /// There will be no other.
    Over { why: String },
}

/// Links have said their goodbyes when the registry has ended them; this is the last bytes' way out.
pub(super) const LAST_BYTES: Duration = Duration::from_millis(100);
/// News that may wait for somebody who does not read them; more are dropped.
pub(super) const MAX_NEWS: usize = 16;
/// A pipe whose socket is shut is over at once; the limit is for what cannot happen.
const END_TIME: Duration = Duration::from_secs(5);

impl Attaches {
    /// The enrolment is over for good: its pipe and whoever holds it are told so.
    pub(crate) fn end(&self, enrolment: &str) {
        let ended = {
            let mut table = self.lock();
            let sandbox = table.sandbox_of(enrolment);
            sandbox.and_then(|sandbox| table.by_sandbox.remove(&sandbox))
        };
        if let Some(attached) = ended {
            attached.end_pipe();
            if let Some(holder) = attached.holder {
                holder.over.cancel();
            }
        }
    }

    /// The enrolment is over, and its links have said their goodbyes: when those are through the pipe, so is the pipe.
    pub(super) async fn end_after_goodbyes(&self, enrolment: &str, stop: &CancellationToken) {
        // At the stop, all pipes have this time.
        let _ = stop.run_until_cancelled(sleep(LAST_BYTES)).await;
        self.end(enrolment);
    }

    /// Whoever holds this sandbox is told; nobody waits for it.
    pub(super) fn tell(&self, enrolment: &str, news: News) {
        let table = self.lock();
        if let Some(holder) = table.attached(enrolment).and_then(|attached| attached.holder.as_ref()) {
            let _ = holder.news.try_send(news);
        }
    }

    /// A new pipe to a sandbox that somebody holds. The one before it is over when this returns.
    pub(super) async fn replace_pipe(&self, enrolment: &str, socket: UnixStream) -> Option<PipeEnd> {
        let end = PipeEnd { socket: Arc::new(socket), gone: CancellationToken::new() };
        let before = {
            let mut table = self.lock();
            let attached = table.attached_mut(enrolment).filter(|attached| attached.holder.is_some())?;
            attached.pipe.replace(end.clone())
        };
        if let Some(before) = before {
            before.shut();
            let _ = timeout(END_TIME, before.gone.cancelled()).await;
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
        Self { enrolment, holder: None, holds: 0, pipe: None }
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
    /// Both directions end, whoever else has the socket.
    pub(super) fn shut(&self) {
        // One that is shut already is what was wanted.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
