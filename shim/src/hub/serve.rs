//! One pipe after its handshake, to its end.
//!
//! One task drives the multiplexer; each local connection has a task that copies bytes, and waits while the other side
//! does not take them.

use std::fmt;
use std::time::Duration;

use relay_carriage::BoxedStream;
use relay_carriage::trunk::{self, MAX_LOCAL_CONNECTIONS, Side, Silence, Substream, Trunk, TrunkError};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Stop;
use super::local::{Arrival, Local};
use crate::stderr_log::StderrLog;

/// Why a pipe is over.
#[derive(Debug)]
pub(super) enum End {
    Lost(TrunkError),
    Silent(Silence),
    Stopped,
}

/// A local connection has this long to send the hub's key.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout for the first heartbeat: the sidecar opens the substream for heartbeats at once.
const FIRST_BEAT: Duration = Duration::from_secs(30);
/// The copy buffer of one direction of a local connection.
const COPY_BUFFER: usize = trunk::MAX_FRAME;

/// Carries local connections until the pipe is over; then they are all closed.
pub(super) async fn serve(pipe: BoxedStream, local: &Local, mut stop: Stop<'_>) -> End {
    let mut trunk = Trunk::new(pipe, Side::Hub);
    let last_received = trunk.last_received();
    let mut tasks = JoinSet::new();
    let mut log = StderrLog::new();
    // The heartbeat substream must arrive in time: without heartbeats a dead pipe would go unnoticed.
    let (beats, mut substream) = tokio::sync::oneshot::channel::<Substream>();
    let mut beats = Some(beats);
    let mut heartbeats = std::pin::pin!(async {
        match timeout(FIRST_BEAT, &mut substream).await {
            Ok(Ok(stream)) => trunk::echo_heartbeats(stream, last_received, FIRST_BEAT).await,
            _ => Silence(FIRST_BEAT),
        }
    });
    loop {
        tokio::select! {
            () = stop.as_mut() => return End::Stopped,
            silence = heartbeats.as_mut() => return End::Silent(silence),
            opened = trunk.next() => match opened {
                // The first is for heartbeats; a sidecar opens no other.
                Ok(stream) => drop(beats.take().map(|beats| beats.send(stream))),
                Err(error) => return End::Lost(error),
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
            Some(done) = tasks.join_next() => if let Ok(Done::Admitted(stream)) = done {
                match trunk.open().await {
                    Ok(substream) => drop(tasks.spawn(carry(stream, substream))),
                    // Closed substreams are still being removed: the shim will retry.
                    Err(TrunkError::Full) => {}
                    Err(error) => return End::Lost(error),
                }
            },
        }
    }
}

/// The result of a task.
enum Done {
    Admitted(BoxedStream),
    Over,
}

async fn admit(arrival: Arrival) -> Done {
    match timeout(AUTHENTICATION_TIMEOUT, arrival.authenticated()).await {
        Ok(Some(stream)) => Done::Admitted(stream),
        Ok(None) | Err(_) => Done::Over,
    }
}

/// Copies in both directions; the end of either side is forwarded after its last bytes.
async fn carry(mut local: BoxedStream, mut substream: Substream) -> Done {
    let _ = copy_bidirectional_with_sizes(&mut local, &mut substream, COPY_BUFFER, COPY_BUFFER).await;
    Done::Over
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(error) => write!(f, "{error}"),
            Self::Silent(silence) => write!(f, "{silence}"),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}
