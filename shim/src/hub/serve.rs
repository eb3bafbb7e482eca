//! One pipe after its handshake, to its end.
//!
//! One task carries the trunk; each local connection has a task of its own that copies bytes, and waits where its other
//! side does not take them.

use std::fmt;
use std::time::Duration;

use relay_carriage::BoxedStream;
use relay_carriage::trunk::{self, MAX_LOCAL, Side, Silence, Substream, Trunk, TrunkError};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Stop;
use super::local::{Knocking, Local};
use crate::stderr_log::StderrLog;

/// Why a pipe is over.
#[derive(Debug)]
pub(super) enum End {
    Lost(TrunkError),
    Silent(Silence),
    Stopped,
}

/// A local connection has this long to show its key.
const SHOW: Duration = Duration::from_secs(5);
/// The sidecar opens the substream for heartbeats at once.
const FIRST_BEAT: Duration = Duration::from_secs(30);
/// Bytes of one direction of a local connection on their way.
const COPIED: usize = trunk::MAX_SENT;

/// Carries local connections until the pipe is over; then they are all closed.
pub(super) async fn serve(pipe: BoxedStream, local: &Local, mut stop: Stop<'_>) -> End {
    let mut trunk = Trunk::new(pipe, Side::Hub);
    let heard = trunk.heard();
    let mut tasks = JoinSet::new();
    let mut log = StderrLog::new();
    // Until it is there, its coming is waited for: a trunk without heartbeats could be dead for ever.
    let (beats, mut come) = tokio::sync::oneshot::channel::<Substream>();
    let mut beats = Some(beats);
    let mut pulse = std::pin::pin!(async {
        match timeout(FIRST_BEAT, &mut come).await {
            Ok(Ok(stream)) => trunk::answer_beats(stream, heard, FIRST_BEAT).await,
            _ => Silence(FIRST_BEAT),
        }
    });
    loop {
        tokio::select! {
            () = stop.as_mut() => return End::Stopped,
            silence = pulse.as_mut() => return End::Silent(silence),
            opened = trunk.next() => match opened {
                // The first is for heartbeats; a sidecar opens no other.
                Ok(stream) => drop(beats.take().map(|beats| beats.send(stream))),
                Err(error) => return End::Lost(error),
            },
            knocking = local.accept() => match tasks.len() < MAX_LOCAL {
                true => drop(tasks.spawn(admit(knocking))),
                false => {
                    let full = format!("hub: connections are closed: {MAX_LOCAL} at a time are carried");
                    log.warn_once(full);
                }
            },
            Some(done) = tasks.join_next() => if let Ok(Done::Admitted(stream)) = done {
                match trunk.open().await {
                    Ok(substream) => drop(tasks.spawn(carry(stream, substream))),
                    // Some that are over are not gone yet: this one comes again.
                    Err(TrunkError::Full) => {}
                    Err(error) => return End::Lost(error),
                }
            },
        }
    }
}

/// What became of a task.
enum Done {
    Admitted(BoxedStream),
    Over,
}

async fn admit(knocking: Knocking) -> Done {
    match timeout(SHOW, knocking.admitted()).await {
        Ok(Some(stream)) => Done::Admitted(stream),
        Ok(None) | Err(_) => Done::Over,
    }
}

/// Either side's end is passed on, and so is what came before it.
async fn carry(mut local: BoxedStream, mut substream: Substream) -> Done {
    let _ = copy_bidirectional_with_sizes(&mut local, &mut substream, COPIED, COPIED).await;
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
