//! The tasks of one server's network.
//!
//! What must stay true: every task ends with its [`Egress`] and takes its sockets with it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_net::Resolve;
use tokio::net::{TcpListener, UdpSocket};

use crate::connection::{reset, serve_connection};
use crate::event::{Observer, Refusal};
use crate::limits::Limits;
use crate::lookups::BoundedLookups;
use crate::plan::Plan;
use crate::resolver::answer_lookups;
use crate::shared::{Shared, Usage};
use crate::tasks::Tasks;

/// How long a listener that cannot accept waits: the sidecar may have too many open files for a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The network of one server while it is served. Dropped, it ends a moment later.
pub struct Egress {
    shared: Arc<Shared>,
    tasks: Tasks,
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{received} sockets of the server's network were received, but it has {planned}")]
    Count { planned: usize, received: usize },
    #[error("cannot serve the socket {planned} of the server's network")]
    Socket {
        planned: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("a socket of the server's network is at {found}, where {planned} was expected")]
    WrongAddress { planned: SocketAddr, found: SocketAddr },
}

/// Serves the sockets that were bound in the server's network as [`Plan::network`] says: the listeners in their order,
/// then the resolver's. Must be called in a tokio runtime.
pub fn serve(
    plan: Plan,
    sockets: Vec<OwnedFd>,
    limits: Limits,
    resolver: Arc<dyn Resolve>,
    observer: Arc<dyn Observer>,
) -> Result<Egress, ServeError> {
    let network = plan.network();
    if network.sockets() != sockets.len() {
        return Err(ServeError::Count { planned: network.sockets(), received: sockets.len() });
    }
    let mut sockets = sockets.into_iter();
    let listeners: Vec<TcpListener> = network
        .listeners
        .iter()
        .zip(sockets.by_ref())
        .map(|(planned, socket)| checked(*planned, listener(socket), TcpListener::local_addr))
        .collect::<Result<_, _>>()?;
    let lookups = network
        .resolver
        .zip(sockets.next())
        .map(|(planned, socket)| checked(planned, udp_socket(socket), UdpSocket::local_addr))
        .transpose()?;

    let tasks = Tasks::default();
    let real_lookups = BoundedLookups::new(resolver, tasks.clone());
    let shared = Arc::new(Shared::new(plan, limits, real_lookups, observer));
    for listener in listeners {
        tasks.spawn(accept(listener, shared.clone(), tasks.clone()));
    }
    if let Some(socket) = lookups {
        let shared = shared.clone();
        tasks.spawn(async move { answer_lookups(socket, &shared).await });
    }
    Ok(Egress { shared, tasks })
}

impl Egress {
    pub fn usage(&self) -> Usage {
        self.shared.usage()
    }

    /// Closes all connections and listeners. When it returns, no socket of the server's network is left.
    pub async fn end(self) {
        self.tasks.end().await;
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, tasks: Tasks) {
    let mut is_failing = false;
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                // Logged once, not twenty times a second.
                if !is_failing {
                    tracing::warn!(%error, "cannot accept a connection of a confined server; trying again");
                }
                is_failing = true;
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        is_failing = false;
        match shared.admit() {
            Ok(slot) => {
                let shared = shared.clone();
                tasks.spawn(async move {
                    serve_connection(client, &shared).await;
                    drop(slot);
                });
            }
            Err(limit) => {
                reset(client);
                shared.refused(Refusal::Limit { limit });
            }
        }
    }
}

/// A socket as tokio's, if it is where it was planned: sockets in another order would connect names to other hosts.
fn checked<T>(
    planned: SocketAddr,
    socket: io::Result<T>,
    local_address: impl Fn(&T) -> io::Result<SocketAddr>,
) -> Result<T, ServeError> {
    let address = |socket: T| local_address(&socket).map(|found| (socket, found));
    match socket.and_then(address) {
        Ok((socket, found)) if found == planned => Ok(socket),
        Ok((_, found)) => Err(ServeError::WrongAddress { planned, found }),
        Err(source) => Err(ServeError::Socket { planned, source }),
    }
}

fn listener(socket: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn udp_socket(socket: OwnedFd) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}
