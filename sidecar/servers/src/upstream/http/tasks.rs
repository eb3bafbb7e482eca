//! What the tasks of one upstream share, and how they start and end.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use cofferdam_base::memory::MemoryCharge;
use cofferdam_net::{Dialer, Endpoint, Pool};
use http::Method;
use relay_proto::envelope::IdValue;
use relay_proto::mcp;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::era::{Era, Session};
use super::exchange::{Dispatch, Exchange, RequestError};
use super::headers::{self, RequestTarget};
use super::headers::{Credentials, RequestCredentials};
use super::message::{AwaitedId, Outline};
use super::stream::BodyMemory;
use super::tool_headers::{Page, ToolHeaders};
use super::{Event, Failure, HttpLimits, HttpTarget, OutboundKind, QueuedEvent, listen};

pub(super) struct Shared {
    pub(super) pool: Arc<Pool>,
    pub(super) target: RequestTarget,
    pub(super) limits: HttpLimits,
    pub(super) era: Mutex<Era>,
    /// Those of the latest message outside of any scope: for requests that this transport sends by itself.
    pub(super) credentials: Mutex<Option<Arc<dyn Credentials>>>,
    pub(super) tool_headers: Mutex<ToolHeaders>,
    pub(super) events: mpsc::Sender<QueuedEvent>,
    /// Memory for bodies of responses.
    pub(super) bodies: BodyMemory,
    /// Bytes of messages that are still held.
    pub(super) queued: Arc<AtomicUsize>,
    pub(super) tasks: TaskTracker,
    /// Ends everything, including connections.
    pub(super) stop: CancellationToken,
    /// Ends exchanges and streams.
    pub(super) work: CancellationToken,
    pending: Mutex<HashMap<IdValue, CancellationToken>>,
    posts: Arc<Semaphore>,
    /// Cancelled when `notifications/initialized` was sent, or failed: later messages wait for that, so that they do
    /// not overtake it.
    gate: Mutex<CancellationToken>,
}

impl Shared {
    pub(super) fn new(
        server: &HttpTarget,
        limits: HttpLimits,
        dialer: Dialer,
        events: mpsc::Sender<QueuedEvent>,
    ) -> Self {
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let gate = CancellationToken::new();
        gate.cancel();
        let endpoint = Endpoint::new(&server.url, server.addresses);
        let pool = Pool::new(endpoint, dialer, limits.connect_timeout, tasks.clone(), stop.clone());
        Self {
            pool: Arc::new(pool),
            target: RequestTarget::new(&server.url),
            era: Mutex::default(),
            credentials: Mutex::default(),
            tool_headers: Mutex::default(),
            events,
            bodies: BodyMemory::new(&limits),
            queued: Arc::default(),
            tasks,
            work: stop.child_token(),
            stop,
            pending: Mutex::default(),
            posts: Arc::new(Semaphore::new(limits.requests_in_flight)),
            gate: Mutex::new(gate),
            limits,
        }
    }

    /// Decides how a message of the stateless era is sent.
    pub(super) fn stateless_dispatch(
        &self,
        version: &str,
        kind: &OutboundKind,
        outline: &Outline<'_>,
    ) -> Result<Dispatch, &'static str> {
        let headers = match kind {
            OutboundKind::Request { method, name, .. } => {
                let mirrored = match (method.as_str(), name) {
                    (mcp::TOOLS_CALL, Some(tool)) => lock(&self.tool_headers).headers(tool, outline),
                    _ => Vec::new(),
                };
                let task = outline.text(&["taskId"]).filter(|_| method.starts_with("tasks/"));
                headers::stateless_headers(version, method, name.as_deref().or(task.as_deref()), mirrored)?
            }
            OutboundKind::Notification { method } => {
                headers::stateless_headers(version, method, None, Vec::new())?
            }
            OutboundKind::Response => {
                return Err("the stateless revisions of MCP have no responses from the harness");
            }
        };
        let page = match outline.at(&["cursor"]) {
            Some(_) => Page::Later,
            None => Page::First,
        };
        Ok(Dispatch::Stateless { headers, page })
    }

    pub(super) fn start_request(
        self: &Arc<Self>,
        id: IdValue,
        mut exchange: Exchange,
        awaited: AwaitedId,
    ) -> Result<(), &'static str> {
        let cancelled = self.work.child_token();
        {
            let mut pending = lock(&self.pending);
            if pending.len() >= self.limits.requests_in_flight || pending.contains_key(&id) {
                return Err("too many requests to this server are pending, or one with this id is");
            }
            pending.insert(id.clone(), cancelled.clone());
        }
        let gate = lock(&self.gate).clone();
        let shared = self.clone();
        self.tasks.spawn(cancelled.clone().run_until_cancelled_owned(async move {
            gate.cancelled().await;
            match exchange.request(&awaited).await {
                Ok(tail) => {
                    shared.release_id(&id, &cancelled);
                    drop(exchange);
                    tail.finish().await;
                }
                Err(RequestError::Failed(failure)) => {
                    shared.release_id(&id, &cancelled);
                    shared.emit(Event::Failed { id, failure }).await;
                }
                Err(RequestError::SessionLost(session)) => {
                    shared.release_id(&id, &cancelled);
                    shared.session_lost(&session, Some(exchange.into_returned_event(id))).await;
                }
            }
        }));
        Ok(())
    }

    /// Sends a notification or a response, neither of which gets a response.
    pub(super) fn start_post(self: &Arc<Self>, exchange: Exchange) -> Result<(), &'static str> {
        let Ok(permit) = self.posts.clone().try_acquire_owned() else {
            return Err("too many notifications and responses are being sent to this server");
        };
        let initialized = exchange.is_initialized();
        let (before, after) = {
            let mut gate = lock(&self.gate);
            let before = gate.clone();
            if initialized {
                *gate = CancellationToken::new();
            }
            (before, gate.clone())
        };
        // The gate opens even if sending fails: a lost notification must not block later messages.
        let opens = initialized.then(|| after.drop_guard());
        let shared = self.clone();
        self.tasks.spawn(self.work.clone().run_until_cancelled_owned(async move {
            before.cancelled().await;
            let accepted = exchange.post().await;
            drop((opens, permit));
            if let (true, Some(session)) = (initialized, accepted) {
                listen::listen(shared, session).await;
            }
        }));
        Ok(())
    }

    pub(super) fn cancel(&self, id: &IdValue) {
        if let Some(token) = lock(&self.pending).remove(id) {
            token.cancel();
        }
    }

    /// The server has lost this session. Emits `cause`, the event of the request that found out, and then one
    /// [`Event::SessionLost`].
    pub(super) async fn session_lost(&self, session: &Session, cause: Option<Event>) {
        // Room for both is reserved first: a request that is cancelled while it waits here must not lose an event.
        let Ok(mut permits) = self.events.reserve_many(2).await else { return };
        let lost = lock(&self.era).lose(session).then_some(Event::SessionLost);
        for (event, permit) in cause.into_iter().chain(lost).zip(&mut permits) {
            permit.send(QueuedEvent { event, charge: None });
        }
    }

    pub(super) async fn emit(&self, event: Event) {
        // Fails only when the owner of the upstream is gone.
        let _ = self.events.send(QueuedEvent { event, charge: None }).await;
    }

    /// Emits a message, with the charge for it.
    pub(super) async fn emit_message(&self, message: Vec<u8>, charge: MemoryCharge) {
        let event = QueuedEvent { event: Event::Message(message), charge: Some(charge) };
        // Fails only when the owner of the upstream is gone.
        let _ = self.events.send(event).await;
    }

    /// Ends the session at the server, where there is one.
    pub(super) async fn end_session(&self) {
        let session = lock(&self.era).session();
        if session.id.is_some() {
            // Credentials in memory only: ending a session must not start a read.
            let Some(credentials) = lock(&self.credentials).as_ref().and_then(|source| source.held()) else {
                return;
            };
            let request = headers::request(
                &self.target,
                Method::DELETE,
                credentials.headers(),
                session.headers(),
                Bytes::new(),
            );
            // Servers may refuse this; the session then ends by its own timeout.
            let _ = self.pool.send(request).await;
        }
    }

    /// The newest credentials, for a request that this transport sends by itself.
    pub(super) async fn own_credentials(&self) -> Result<Arc<dyn RequestCredentials>, Failure> {
        let source = lock(&self.credentials).clone();
        let none = || Failure::NoCredential { why: "nothing was sent to the server yet".into() };
        let filled = source.ok_or_else(none)?.current().await;
        filled.map_err(|why| Failure::NoCredential { why })
    }

    /// Frees the id of a finished request, unless a later request already uses it.
    fn release_id(&self, id: &IdValue, cancelled: &CancellationToken) {
        if !cancelled.is_cancelled() {
            lock(&self.pending).remove(id);
        }
    }
}

/// Ignores poisoning: no holder of these locks can panic halfway through a change.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
