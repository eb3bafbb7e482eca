//! Accepts connections on the admin socket.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;

use super::caller::Peer;
use super::connection;
use crate::daemon::handshake_slots::HandshakeSlots;
use crate::daemon::state::Daemon;

/// How many requests are served at the same time.
const MAX_REQUESTS: usize = 16;

/// Serves requests until the sidecar stops.
pub(crate) async fn run(daemon: Arc<Daemon>, listener: Arc<UnixListener>) {
    let slots = HandshakeSlots::new(MAX_REQUESTS, daemon.stop.clone());
    loop {
        match daemon.stop.run_until_cancelled(listener.accept()).await {
            None => return,
            Some(Ok((stream, _))) => {
                let Some(slot) = daemon.stop.run_until_cancelled(slots.take()).await else { return };
                let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                let serving = connection::serve(Arc::clone(&daemon), stream, Peer::Socket { uid }, slot);
                daemon.context.tasks.spawn(serving);
            }
            Some(Err(error)) => {
                tracing::error!(%error, "cannot accept a connection on the admin socket");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
