//! The TLS port, for sandboxes that connect over the network: TLS first, then the handshake.
//!
//! What must stay true: one timeout covers everything from the accepted connection to the Hello, whatever layers (TLS,
//! WebSocket) are around it; a silent connection holds one of few slots, as on a socket; this port has its own slots, so
//! that a flood here does not block sandboxes that use a socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use relay_carriage::identity::Identity;
use relay_carriage::outer::CertificateError;
use relay_carriage::reception::{Reception, ReceptionError};
use relay_carriage::tls::TlsError;
use relay_carriage::websocket::UpgradeError;
use relay_proto::address::HostPort;
use relay_proto::code::Code;
use relay_proto::control::Retry;
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::daemon::admission::{ConnectionSource, refuse};
use crate::daemon::handshake::{self, Arrival};
use crate::daemon::handshake_slots::{HandshakeSlot, HandshakeSlots};
use crate::daemon::state::Daemon;

/// The port of `relay.tls`, bound.
#[derive(Debug)]
pub(in crate::daemon) struct RelayTlsPort {
    listener: TcpListener,
    reception: Reception,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayTlsError {
    #[error(
        "cannot listen on {address} for `relay.tls`: is the port in use, or does the address not belong to this host?"
    )]
    Bind {
        address: HostPort,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

impl RelayTlsPort {
    pub(in crate::daemon) async fn bind(
        address: &HostPort,
        identity: &Identity,
    ) -> Result<Self, RelayTlsError> {
        let listener = listen(address)
            .await
            .map_err(|source| RelayTlsError::Bind { address: address.clone(), source })?;
        Ok(Self { listener, reception: Reception::new(identity)? })
    }

    /// Accepts connections until the sidecar stops.
    pub(in crate::daemon) async fn run(self, daemon: Arc<Daemon>) {
        let count = daemon.context.config.load().limits.greeting_connections;
        let slots = HandshakeSlots::new(count, daemon.stop.clone());
        let reception = Arc::new(self.reception);
        loop {
            let Some(accepted) = daemon.stop.run_until_cancelled(self.listener.accept()).await else {
                return;
            };
            match accepted {
                Ok((stream, _)) => {
                    let Some(slot) = daemon.stop.run_until_cancelled(slots.take()).await else { return };
                    let (daemon, reception) = (Arc::clone(&daemon), Arc::clone(&reception));
                    daemon
                        .context
                        .tasks
                        .clone()
                        .spawn(async move { receive(&daemon, &reception, stream, slot).await });
                }
                Err(error) => {
                    tracing::error!(%error, "cannot accept a connection on the relay's port");
                    // Most likely out of file descriptors: some will be closed soon.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// Connections that may wait in the kernel until they are accepted, which takes half a second at most. With the default of
/// 128, a few hundred sandboxes that reconnect at the same time would find the queue full and wait for seconds.
const ACCEPT_QUEUE: u32 = 1024;

/// Listens on the first address of the name that can be bound.
async fn listen(name: &HostPort) -> io::Result<TcpListener> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host(name.to_string()).await? {
        match listen_on(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted sidecar must not wait until the connections of the old one have expired.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE)
}

async fn receive(daemon: &Daemon, reception: &Reception, stream: TcpStream, slot: HandshakeSlot) {
    let until = Instant::now() + daemon.context.config.load().limits.greeting_timeout;
    // Each message is written at once: delaying it to send fewer packets gains nothing.
    let _ = stream.set_nodelay(true);
    // Boxed, because the future of this handshake is large and would otherwise enlarge the task of the whole connection.
    let received = Box::pin(timeout_at(until, reception.receive(stream)));
    match slot.until_hello(received).await {
        Ok(Ok(Ok((stream, key)))) => {
            let arrival = Arrival { stream: Box::new(stream), source: ConnectionSource::Tls { key } };
            handshake::accept_until(daemon, arrival, slot, until).await;
        }
        Ok(Ok(Err(error))) if !is_a_probe(&error) => {
            let refusal =
                refuse(Code::MessageMalformed, &format!("on the relay's port: {error}"), Retry::Never);
            daemon.refusal_log.log(&refusal, &daemon.context.tasks, &daemon.stop);
        }
        // The handshake timed out, lost its slot, or was a probe: nothing is sent or logged.
        _ => {}
    }
}

/// RelayTlsPort scanners and health checks connect and disconnect: not worth a line in the log.
fn is_a_probe(error: &ReceptionError) -> bool {
    matches!(
        error,
        ReceptionError::Io(_)
            | ReceptionError::Outer(TlsError::Closed | TlsError::Io(_))
            | ReceptionError::Tls(TlsError::Closed | TlsError::Io(_))
            | ReceptionError::Upgrade(UpgradeError::Closed | UpgradeError::Io(_))
    )
}
