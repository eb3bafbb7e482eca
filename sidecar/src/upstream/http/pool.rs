//! The connections to one server: a few idle ones are kept, and each request learns whether it left.
//!
//! What must stay true: a request that may have reached the server is never sent twice. Only one that the HTTP
//! layer hands back untouched is tried again, once, on a fresh connection.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::Failure;
use super::connect::{Endpoint, Network, Sender};

/// A harness talks to one server in bursts of a few requests.
const MAX_IDLE: usize = 4;
/// Node closes idle connections after 5 s. A request that crosses with such a close has an unknown outcome, so
/// an idle connection is given up before the server would.
const MAX_IDLE_AGE: Duration = Duration::from_secs(4);
/// The wait for a connection to become free again after its response was read.
const READY_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Pool {
    pub(super) endpoint: Endpoint,
    network: Network,
    connect_timeout: Duration,
    idle: Mutex<Vec<Idle>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A response whose connection closes when this is dropped, unless it is given back.
pub(super) struct Reply {
    pub(super) response: Response<Incoming>,
    carrier: Carrier,
    pool: Arc<Pool>,
}

struct Idle {
    carrier: Carrier,
    since: Instant,
}

struct Carrier {
    sender: Sender,
    /// Ends the connection's task, and with it the socket.
    _closer: DropGuard,
}

impl Pool {
    pub(super) fn new(
        endpoint: Endpoint,
        network: Network,
        connect_timeout: Duration,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self { endpoint, network, connect_timeout, idle: Mutex::default(), tasks, stop }
    }

    /// Sends one request and waits for the head of its response. Dropping the future closes the connection.
    pub(super) async fn send(self: &Arc<Self>, request: Request<Full<Bytes>>) -> Result<Reply, Failure> {
        let mut request = request;
        if let Some(carrier) = self.take_idle() {
            request = match self.try_send(carrier, request).await {
                Ok(reply) => return Ok(reply),
                Err(Unsent::Handed(request, _)) => *request,
                Err(Unsent::Gone(failure)) => return Err(failure),
            };
        }
        let carrier = self.open().await?;
        self.try_send(carrier, request).await.map_err(|unsent| match unsent {
            Unsent::Gone(failure) => failure,
            Unsent::Handed(_, error) => {
                Failure::not_sent("the connection closed before the request was sent", &error)
            }
        })
    }

    #[cfg(test)]
    pub(super) fn idle_connections(&self) -> usize {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    #[cfg(test)]
    pub(super) fn live_connections(&self) -> usize {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter(|idle| !idle.carrier.sender.is_closed())
            .count()
    }

    async fn try_send(
        self: &Arc<Self>,
        mut carrier: Carrier,
        request: Request<Full<Bytes>>,
    ) -> Result<Reply, Unsent> {
        match carrier.sender.try_send_request(request).await {
            Ok(response) => Ok(Reply { response, carrier, pool: self.clone() }),
            Err(mut error) => Err(match error.take_message() {
                Some(request) => Unsent::Handed(Box::new(request), error.into_error()),
                None => Unsent::Gone(Failure::maybe_ran(
                    "the connection broke before an answer came",
                    &error.into_error(),
                )),
            }),
        }
    }

    async fn open(&self) -> Result<Carrier, Failure> {
        let (sender, connection) = self
            .network
            .connect(&self.endpoint, self.connect_timeout)
            .await
            .map_err(|error| Failure::not_sent("the server cannot be reached", &error))?;
        let closed = self.stop.child_token();
        let closer = closed.clone().drop_guard();
        self.tasks.spawn(async move {
            // Its end is seen by whoever waits for a response on it.
            let _ = closed.run_until_cancelled(connection).await;
        });
        Ok(Carrier { sender, _closer: closer })
    }

    fn take_idle(&self) -> Option<Carrier> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.since.elapsed() < MAX_IDLE_AGE && !idle.carrier.sender.is_closed());
        let position = idle.iter().rposition(|idle| idle.carrier.sender.is_ready())?;
        Some(idle.swap_remove(position).carrier)
    }
}

impl Reply {
    /// Keeps the connection for another request; only after the body was read to its end.
    pub(super) async fn give_back(self) {
        let Self { response, mut carrier, pool } = self;
        drop(response);
        if !matches!(tokio::time::timeout(READY_TIMEOUT, carrier.sender.ready()).await, Ok(Ok(()))) {
            return;
        }
        let mut idle = pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(Idle { carrier, since: Instant::now() });
        }
    }
}

enum Unsent {
    /// It may have reached the server.
    Gone(Failure),
    /// It never left, and here it is again.
    Handed(Box<Request<Full<Bytes>>>, hyper::Error),
}
