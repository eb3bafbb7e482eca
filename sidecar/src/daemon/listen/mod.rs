//! The listeners for sandboxes: the shared Unix socket, sockets for one sandbox each, and the TLS port.
//!
//! | module | what it holds |
//! |---|---|
//! | [`own`] | sockets of single sandboxes |
//! | [`tls_port`] | the TLS port |
//! | [`unix_stream`] | a Unix stream that is watched for writing only while its peer's buffer is full |

mod own;
mod tls_port;
mod unix_stream;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use super::admission::ConnectionSource;
use super::handshake::{self, Arrival};
use super::handshake_slots::HandshakeSlots;
use super::state::Daemon;
pub(crate) use own::own_socket_path;
pub(super) use tls_port::{RelayTlsError, RelayTlsPort};
use unix_stream::QuietStream;

/// Which sandboxes connect to a socket: the one of an enrolment, or all.
pub(super) enum SocketKind {
    Own(Arc<str>),
    Shared,
}

impl SocketKind {
    fn source(&self, uid: Option<u32>) -> ConnectionSource {
        match self {
            Self::Own(enrolment) => ConnectionSource::OwnSocket { enrolment: Arc::clone(enrolment), uid },
            Self::Shared => ConnectionSource::SharedSocket { uid },
        }
    }
}

/// Accepts connections until `stop` is cancelled.
pub(super) async fn accept(
    daemon: Arc<Daemon>,
    listener: Arc<UnixListener>,
    kind: SocketKind,
    stop: CancellationToken,
) {
    let count = daemon.context.config.load().limits.greeting_connections;
    let slots = HandshakeSlots::new(count, stop.clone());
    loop {
        let Some(accepted) = stop.run_until_cancelled(listener.accept()).await else { return };
        match accepted {
            Ok((stream, _)) => {
                let Some(slot) = stop.run_until_cancelled(slots.take()).await else { return };
                let source = kind.source(stream.peer_cred().ok().map(|peer| peer.uid()));
                let Ok(stream) = QuietStream::new(stream) else { continue };
                let arrival = Arrival { stream: Box::new(stream), source };
                let daemon = Arc::clone(&daemon);
                daemon
                    .context
                    .tasks
                    .clone()
                    .spawn(async move { handshake::accept(&daemon, arrival, slot).await });
            }
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection on the relay socket");
                // Most likely out of file descriptors: some will be closed soon.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
