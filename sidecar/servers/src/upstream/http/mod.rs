//! An MCP server behind streamable HTTP, in the era of MCP that the harness speaks.
//!
//! One [`HttpUpstream`] serves one link: [`HttpUpstream::send`] sends messages to the server, [`HttpUpstream::next`]
//! returns its events. What must stay true: bytes pass unchanged; a request gets one response or one [`Event::Failed`]
//! that says whether it may have run, and nothing after it was cancelled; credentials go to the configured host alone
//! (no redirect, no proxy, no unchecked address); every task ends with this value.
//!
//! | module | what it holds |
//! |---|---|
//! | `tasks` | what the tasks of one upstream share, and how they start and end |
//! | `headers`, `tool_headers` | the head of a request and its credentials; tool arguments repeated in it |
//! | `era` | the two eras of MCP, and the session of the older one |
//! | `exchange`, `listen` | one message to the server; the stream for messages that the server sends by itself |
//! | `stream`, `sse` | bounded bodies; the event stream format |
//! | `message`, `failure` | the parts of a message that are read; why a request fails |

mod era;
mod exchange;
mod failure;
mod headers;
mod listen;
mod message;
pub mod sse;
mod stream;
mod tasks;
#[cfg(test)]
mod tests;
mod tool_headers;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_base::memory::{MemoryAccount, MemoryCharge};
use http::Uri;
use relay_proto::envelope::IdValue;
use relay_proto::mcp;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

pub use self::failure::Failure;
pub use self::headers::{BoxFuture, CredentialResult, Credentials, RequestCredentials};
pub use crate::outbound::{Outbound, OutboundKind};

use self::era::Era;
use self::exchange::{Dispatch, Exchange};
use self::message::Outline;
use self::tasks::{Shared, lock};
use cofferdam_base::PacedLines;
use cofferdam_net::{AddressPolicy, Dialer, Trust};
use cofferdam_secrets::SecretReads;

/// Events that wait for the owner; a full queue makes the server's streams wait.
const MAX_WAITING_EVENTS: usize = 4;
/// The maximum number of large messages from a server that are in memory before the link handles one;
/// `limits.link-memory` counts them.
pub const QUEUED_MESSAGES: usize = MAX_WAITING_EVENTS + stream::MAX_LARGE_MESSAGES;
/// Bounds [`HttpUpstream::close`].
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// One link's connection to one HTTP server.
pub struct HttpUpstream {
    shared: Arc<Shared>,
    events: mpsc::Receiver<QueuedEvent>,
    /// The charge of the last message that was returned, until it has been handled.
    returned: Option<MemoryCharge>,
    /// Requests that failed before a task was started for them.
    refused: VecDeque<Event>,
    _stop: DropGuard,
}

/// Where a server is.
#[derive(Clone, Debug)]
pub struct HttpTarget {
    pub url: Uri,
    pub addresses: AddressPolicy,
}

#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// The largest message taken from the server.
    pub message_bytes: usize,
    /// For name resolution, connection and TLS handshake; also for the response head of everything but requests.
    pub connect_timeout: Duration,
    /// Requests that may wait for a response at a time; the same bound applies to notifications being sent.
    pub requests_in_flight: usize,
    /// The account that messages from the server are charged to.
    pub memory: Arc<MemoryAccount>,
    /// How long a message waits for memory.
    pub memory_wait: Duration,
}

/// An event that waits for the owner, with the charge for its message.
pub(crate) struct QueuedEvent {
    event: Event,
    charge: Option<MemoryCharge>,
}

/// An event of the upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// A request that will get no response.
    Failed { id: IdValue, failure: Failure },
    /// One JSON message, as the server wrote it (it may hold line breaks).
    Message(Vec<u8>),
    /// A request that did not run because the server has lost the session: to be sent again after a handshake.
    Returned(Outbound),
    /// A request is being sent with secrets that were read from Vault after the decision on the request was written to the
    /// audit. `reads` are these reads.
    SentWith { id: IdValue, reads: Arc<SecretReads> },
    /// The server has lost the session: the handshake must be replayed before anything else is sent.
    SessionLost,
}

/// A harness can cause these lines as fast as it sends notifications.
static UNSENT_LINES: PacedLines = PacedLines::new("a notification or response was not sent");

impl HttpUpstream {
    pub fn new(server: HttpTarget, limits: HttpLimits) -> Self {
        Self::with_dialer(server, limits, Dialer::trusting(Trust::System))
    }

    fn with_dialer(server: HttpTarget, limits: HttpLimits, dialer: Dialer) -> Self {
        let (sender, events) = mpsc::channel(MAX_WAITING_EVENTS);
        let shared = Arc::new(Shared::new(&server, limits, dialer, sender));
        Self {
            _stop: shared.stop.clone().drop_guard(),
            shared,
            events,
            returned: None,
            refused: VecDeque::new(),
        }
    }

    /// Sends one message. `credentials` fills the headers of this request; those of the latest message that is in no
    /// scope are also used for what this transport sends by itself (the listening stream, the end of a session).
    pub fn send(&mut self, message: Outbound, credentials: Arc<dyn Credentials>) {
        if let Err((id, why)) = self.dispatch(message, credentials) {
            match id {
                Some(id) => {
                    let failure = Failure::DidNotRun { why: why.to_owned() };
                    self.refused.push_back(Event::Failed { id, failure });
                }
                None => {
                    if let Some(left_out) = UNSENT_LINES.admit() {
                        tracing::warn!(why, left_out, "a notification or response was not sent");
                    }
                }
            }
        }
    }

    /// The next event. Cancel-safe: an event that was not returned is not lost.
    pub async fn next(&mut self) -> Event {
        if let Some(event) = self.refused.pop_front() {
            return event;
        }
        match self.events.recv().await {
            Some(QueuedEvent { event, charge }) => {
                self.returned = charge;
                event
            }
            // Unreachable while `shared` holds a sender.
            None => std::future::pending().await,
        }
    }

    /// The events that were returned have been handled: the memory of their messages is released.
    pub(crate) fn release_handled(&mut self) {
        self.returned = None;
    }

    /// Bytes of messages that have not been sent. Small requests count until the server begins to respond, because they are
    /// kept to be sent again.
    pub fn queued_bytes(&self) -> usize {
        self.shared.queued.load(Ordering::Relaxed)
    }

    /// Whether the session was lost and no handshake was made since.
    pub fn has_lost_its_session(&self) -> bool {
        lock(&self.shared.era).is_lost()
    }

    /// The harness has cancelled this request: its stream is closed, and it gets no further event (one that
    /// already waits in the queue may still come). In the older era the caller also sends
    /// `notifications/cancelled`; in the stateless one that notification does not exist, and is not sent.
    pub fn cancel(&mut self, id: &IdValue) {
        self.shared.cancel(id);
        self.refused.retain(|event| !matches!(event, Event::Failed { id: failed, .. } if failed == id));
    }

    /// Ends the session at the server, then all tasks. Takes at most [`CLOSE_TIMEOUT`].
    pub async fn close(self) {
        let shared = self.shared.clone();
        shared.work.cancel();
        let shutdown = async {
            shared.end_session().await;
            shared.stop.cancel();
            shared.tasks.close();
            shared.tasks.wait().await;
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, shutdown).await.is_err() {
            tracing::debug!("the session did not end in time");
        }
    }

    fn dispatch(
        &self,
        message: Outbound,
        credentials: Arc<dyn Credentials>,
    ) -> Result<(), (Option<IdValue>, &'static str)> {
        let id = match &message.kind {
            OutboundKind::Request { id, .. } => Some(id.clone()),
            OutboundKind::Notification { .. } | OutboundKind::Response => None,
        };
        let message = Outbound { bytes: counted(message.bytes, &self.shared.queued), ..message };
        let Some(outline) = Outline::read(&message.bytes) else {
            return Err((id, "the message is not valid JSON-RPC"));
        };
        let mut era = lock(&self.shared.era);
        let stateless = match &message.kind {
            OutboundKind::Request { .. } => outline.stateless_version().map(Cow::into_owned),
            OutboundKind::Notification { .. } | OutboundKind::Response => match &*era {
                Era::Stateless(version) => Some(version.clone()),
                Era::Legacy(_) | Era::Lost | Era::Undecided => None,
            },
        };
        if let (Some(version), Era::Lost | Era::Undecided | Era::Stateless(_)) = (&stateless, &*era) {
            *era = Era::Stateless(version.clone());
        }
        drop(era);
        let dispatch = match stateless {
            Some(_) if is_cancellation(&message.kind) => return Ok(()),
            Some(version) => self
                .shared
                .stateless_dispatch(&version, &message.kind, &outline)
                .map_err(|why| (id.clone(), why))?,
            None => Dispatch::legacy(&message.kind),
        };
        if message.scope.is_none() {
            *lock(&self.shared.credentials) = Some(Arc::clone(&credentials));
        }
        let awaited = outline.awaited_id();
        let exchange = Exchange { shared: self.shared.clone(), message, credentials, sent: None, dispatch };
        match (id, awaited) {
            (Some(id), Some(awaited)) => {
                self.shared.start_request(id.clone(), exchange, awaited).map_err(|why| (Some(id), why))
            }
            (Some(id), None) => Err((Some(id), "the message is not a request")),
            (None, _) => self.shared.start_post(exchange).map_err(|why| (None, why)),
        }
    }
}

/// The same bytes, counted in `queued` for as long as they are held.
fn counted(bytes: Bytes, queued: &Arc<AtomicUsize>) -> Bytes {
    struct Counted(Bytes, Arc<AtomicUsize>);
    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(self.0.len(), Ordering::Relaxed);
        }
    }
    queued.fetch_add(bytes.len(), Ordering::Relaxed);
    Bytes::from_owner(Counted(bytes, queued.clone()))
}

fn is_cancellation(kind: &OutboundKind) -> bool {
    matches!(kind, OutboundKind::Notification { method } if method == mcp::CANCELLED)
}
