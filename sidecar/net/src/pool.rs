//! The connections to one server: a few idle ones stay open, and an error says whether the request may have been sent.
//!
//! What must stay true: a request that may have reached the server is never sent twice. Only a request that hyper returns
//! unsent is retried, once, on a new connection.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::dial::{ConnectError, Dialer, Endpoint, Sender};

/// Enough, because a harness sends bursts of a few requests to one server.
const MAX_IDLE: usize = 4;
/// Node closes idle connections after 5 s. A request that crosses with such a close has an unknown outcome, so an idle
/// connection is closed before the server would close it.
const MAX_IDLE_AGE: Duration = Duration::from_secs(4);
/// How long a connection may take to become ready again after its response was read.
const READY_TIMEOUT: Duration = Duration::from_secs(1);

pub struct Pool {
    endpoint: Endpoint,
    dialer: Dialer,
    connect_timeout: Duration,
    idle: Mutex<Vec<IdleConnection>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A response whose connection closes when this is dropped; [`Self::give_back`] returns it to the pool instead.
pub struct PooledResponse {
    pub response: Response<Incoming>,
    connection: PooledConnection,
    pool: Arc<Pool>,
}

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The request may have reached the server.
    #[error("the connection broke before a response arrived")]
    MaybeSent(#[source] hyper::Error),
    /// No byte of the request was sent: the connection closed first.
    #[error("the connection closed before the request was sent")]
    NotSent(#[source] hyper::Error),
    /// No byte of the request was sent: there is no connection.
    #[error("the server cannot be reached")]
    Unreachable(#[source] ConnectError),
}

struct IdleConnection {
    connection: PooledConnection,
    since: Instant,
}

struct PooledConnection {
    sender: Sender,
    /// When dropped, ends the connection's task, which closes the socket.
    _closer: DropGuard,
}

impl Pool {
    /// Connections are driven by tasks in `tasks`, until `stop` is cancelled.
    pub fn new(
        endpoint: Endpoint,
        dialer: Dialer,
        connect_timeout: Duration,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self { endpoint, dialer, connect_timeout, idle: Mutex::default(), tasks, stop }
    }

    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends one request and waits for the head of its response. Dropping the future closes the connection.
    pub async fn send(self: &Arc<Self>, request: Request<Full<Bytes>>) -> Result<PooledResponse, SendError> {
        let mut request = request;
        if let Some(connection) = self.take_idle() {
            request = match self.try_send(connection, request).await {
                Ok(response) => return Ok(response),
                Err(FailedSend::Returned(request, _)) => *request,
                Err(FailedSend::MaybeSent(error)) => return Err(SendError::MaybeSent(error)),
            };
        }
        let connection = self.open().await?;
        self.try_send(connection, request).await.map_err(|failed| match failed {
            FailedSend::MaybeSent(error) => SendError::MaybeSent(error),
            FailedSend::Returned(_, error) => SendError::NotSent(error),
        })
    }

    /// The number of idle connections, including those that the server closed.
    pub fn idle_connections(&self) -> usize {
        self.lock_idle().len()
    }

    /// The number of idle connections that the server has not closed.
    pub fn live_connections(&self) -> usize {
        self.lock_idle().iter().filter(|idle| !idle.connection.sender.is_closed()).count()
    }

    async fn try_send(
        self: &Arc<Self>,
        mut connection: PooledConnection,
        request: Request<Full<Bytes>>,
    ) -> Result<PooledResponse, FailedSend> {
        match connection.sender.try_send_request(request).await {
            Ok(response) => Ok(PooledResponse { response, connection, pool: self.clone() }),
            Err(mut error) => Err(match error.take_message() {
                Some(request) => FailedSend::Returned(Box::new(request), error.into_error()),
                None => FailedSend::MaybeSent(error.into_error()),
            }),
        }
    }

    async fn open(&self) -> Result<PooledConnection, SendError> {
        let (sender, connection) = self
            .dialer
            .connect(&self.endpoint, self.connect_timeout)
            .await
            .map_err(SendError::Unreachable)?;
        let closed = self.stop.child_token();
        let closer = closed.clone().drop_guard();
        self.tasks.spawn(async move {
            // A request that waits for a response on this connection gets the same error.
            let _ = closed.run_until_cancelled(connection).await;
        });
        Ok(PooledConnection { sender, _closer: closer })
    }

    fn take_idle(&self) -> Option<PooledConnection> {
        let mut idle = self.lock_idle();
        idle.retain(|idle| idle.since.elapsed() < MAX_IDLE_AGE && !idle.connection.sender.is_closed());
        let position = idle.iter().rposition(|idle| idle.connection.sender.is_ready())?;
        Some(idle.swap_remove(position).connection)
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<IdleConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PooledResponse {
    /// Returns the connection to the pool for another request. To be called only after the body was read to its end.
    pub async fn give_back(self) {
        let Self { response, mut connection, pool } = self;
        drop(response);
        if !matches!(tokio::time::timeout(READY_TIMEOUT, connection.sender.ready()).await, Ok(Ok(()))) {
            return;
        }
        let mut idle = pool.lock_idle();
        if idle.len() < MAX_IDLE {
            idle.push(IdleConnection { connection, since: Instant::now() });
        }
    }
}

enum FailedSend {
    /// The request may have reached the server.
    MaybeSent(hyper::Error),
    /// The request was not sent, and is returned.
    Returned(Box<Request<Full<Bytes>>>, hyper::Error),
}
