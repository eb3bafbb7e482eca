//! Serves one pipe, from the end of its handshake until the pipe ends.
//!
//! One task drives the multiplexer; each local connection has a task that copies bytes, and waits while the other side
//! does not accept them.

use std::fmt;
use std::time::Duration;

use relay_carriage::BoxedStream;
use relay_carriage::trunk::{self, MAX_LOCAL_CONNECTIONS, Side, Silence, Substream, Trunk, TrunkError};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Stop;
use super::local::{Arrival, LocalEndpoint};
use crate::stderr_log::StderrLog;

/// Why a pipe ended.
#[derive(Debug)]
pub(super) enum PipeEnd {
    Lost(TrunkError),
    Silent(Silence),
    Stopped,
}

/// A local connection has this long to send the hub's key.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(5);
/// For the heartbeat substream, which the sidecar opens at once, and then for the first heartbeat on it.
const FIRST_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(30);
/// The copy buffer of one direction of a local connection.
const COPY_BUFFER_BYTES: usize = trunk::MAX_FRAME;

/// Carries local connections until the pipe ends; then they are all closed.
pub(super) async fn serve(pipe: BoxedStream, local: &LocalEndpoint, mut stop: Stop<'_>) -> PipeEnd {
    let mut trunk = Trunk::new(pipe, Side::Hub);
    let last_received = trunk.last_received();
    let mut tasks = JoinSet::new();
    let mut log = StderrLog::new();
    // The heartbeat substream must arrive in time: without heartbeats a dead pipe would go unnoticed.
    let (heartbeat_sender, mut heartbeat_receiver) = tokio::sync::oneshot::channel::<Substream>();
    let mut heartbeat_sender = Some(heartbeat_sender);
    let mut heartbeats = std::pin::pin!(async {
        match timeout(FIRST_HEARTBEAT_TIMEOUT, &mut heartbeat_receiver).await {
            Ok(Ok(stream)) => trunk::echo_heartbeats(stream, last_received, FIRST_HEARTBEAT_TIMEOUT).await,
            _ => Silence(FIRST_HEARTBEAT_TIMEOUT),
        }
    });
    loop {
        tokio::select! {
            () = stop.as_mut() => return PipeEnd::Stopped,
            silence = heartbeats.as_mut() => return PipeEnd::Silent(silence),
            opened = trunk.next() => match opened {
                // The first substream is for heartbeats; a sidecar opens no other.
                Ok(stream) => drop(heartbeat_sender.take().map(|sender| sender.send(stream))),
                Err(error) => return PipeEnd::Lost(error),
            },
            arrival = local.accept() => match tasks.len() < MAX_LOCAL_CONNECTIONS {
                true => drop(tasks.spawn(admit(arrival))),
                false => {
                    let full = format!(
                        "hub: a connection was closed: at most {MAX_LOCAL_CONNECTIONS} are carried at a time"
                    );
                    log.warn_once(full);
                }
            },
            Some(done) = tasks.join_next() => if let Ok(TaskResult::Admitted(stream)) = done {
                match trunk.open().await {
                    Ok(substream) => drop(tasks.spawn(carry(stream, substream))),
                    // Closed substreams are still being removed: the shim will retry.
                    Err(TrunkError::Full) => {}
                    Err(error) => return PipeEnd::Lost(error),
                }
            },
        }
    }
}

/// The result of a task.
enum TaskResult {
    Admitted(BoxedStream),
    Over,
}

async fn admit(arrival: Arrival) -> TaskResult {
    match timeout(AUTHENTICATION_TIMEOUT, arrival.authenticate()).await {
        Ok(Some(stream)) => TaskResult::Admitted(stream),
        Ok(None) | Err(_) => TaskResult::Over,
    }
}

/// Copies in both directions; the end of either side is forwarded after its last bytes.
async fn carry(mut local: BoxedStream, mut substream: Substream) -> TaskResult {
    let _ =
        copy_bidirectional_with_sizes(&mut local, &mut substream, COPY_BUFFER_BYTES, COPY_BUFFER_BYTES).await;
    TaskResult::Over
}

impl fmt::Display for PipeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(error) => write!(f, "{error}"),
            Self::Silent(silence) => write!(f, "{silence}"),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}
