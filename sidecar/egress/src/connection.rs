//! One connection from inside: find the host that it is meant for, dial it, pass the bytes.
//!
//! What must stay true: the name is resolved once, its addresses are checked, and only these are dialled. A refusal closes
//! the connection at once with a reset, so that the client fails instead of waiting. Each connection that is reported as
//! opened is reported as closed, or counted among those.

use cofferdam_base::text::error_chain;
use cofferdam_net::{AddressError, AddressPolicy, connect_to_first};
use tokio::net::TcpStream;

use crate::event::{Ending, Peer, Refusal, ThroughPrivate};
use crate::plan::Route;
use crate::relay::{Cut, Meter, relay};
use crate::shared::Shared;

/// Serves a connection to its end.
pub(crate) async fn serve_connection(mut client: TcpStream, shared: &Shared) {
    let route = match client.local_addr().map(|local| shared.route(local)) {
        Ok(Ok(route)) => route,
        Ok(Err(refusal)) => {
            shared.refused(refusal);
            return reset(client);
        }
        // The client is gone.
        Err(_) => return,
    };
    let peer = Peer { host: route.label.clone(), port: route.port };
    let mut host = match dial(&route, shared).await {
        Ok(host) => host,
        Err(failure) => {
            match failure {
                DialError::Failed(error) => shared.failed(peer, error),
                DialError::Refused(refusal) => shared.refused(refusal),
            }
            return reset(client);
        }
    };
    // A small request must not wait for a delayed acknowledgement. A failure shows in the transfer.
    let _ = (client.set_nodelay(true), host.set_nodelay(true));

    let mut report = OpenConnection::new(peer, shared);
    let cut = relay(&mut client, &mut host, &route, &report.meter).await;
    report.ending = match cut {
        Ok(()) => Ending::Finished,
        Err(Cut::Idle) => Ending::Idle,
        Err(Cut::Reset | Cut::Unwritable) => Ending::Reset,
        Err(Cut::Refused(refusal)) => {
            shared.refused(refusal);
            Ending::Refused
        }
    };
    if report.ending != Ending::Finished {
        reset(client);
        reset(host);
    }
}

/// Closes a connection so that the other side notices at once. Without this, it would read an ordinary end.
pub(crate) fn reset(stream: TcpStream) {
    // If it fails, the end is an ordinary one.
    let _ = stream.set_zero_linger();
}

enum DialError {
    Failed(String),
    Refused(Refusal),
}

async fn dial(route: &Route, shared: &Shared) -> Result<TcpStream, DialError> {
    let connect = async {
        let addresses = route
            .host
            .addresses(route.port, route.policy, &shared.lookups)
            .await
            .map_err(|error| address_failure(error, route))?;
        connect_to_first(&addresses)
            .await
            .map_err(|error| DialError::Failed(format!("cannot open a TCP connection: {error}")))
    };
    let limit = shared.limits.connect;
    tokio::time::timeout(limit, connect).await.unwrap_or_else(|_| {
        Err(DialError::Failed(format!("it was not connected within {} s", limit.as_secs_f32())))
    })
}

fn address_failure(error: AddressError, route: &Route) -> DialError {
    match error {
        AddressError::NotPermitted { address, .. } => {
            let through_private = match AddressPolicy::PrivateNetworks.permits(address) {
                true => ThroughPrivate::Allowed,
                false => ThroughPrivate::Never,
            };
            let (host, port) = (route.label.clone(), route.port);
            DialError::Refused(Refusal::PrivateAddress { host, port, address, through_private })
        }
        AddressError::Lookup { .. } | AddressError::NoAddress { .. } | AddressError::NotLoopback => {
            DialError::Failed(error_chain(&error))
        }
    }
}

/// Reports the connection as closed when it is dropped, in whatever way it ends.
struct OpenConnection<'a> {
    peer: Peer,
    shared: &'a Shared,
    meter: Meter<'a>,
    ending: Ending,
}

impl<'a> OpenConnection<'a> {
    fn new(peer: Peer, shared: &'a Shared) -> Self {
        shared.opened(peer.clone());
        Self { peer, shared, meter: Meter::new(shared), ending: Ending::NetworkEnded }
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        let (traffic, duration) = (self.meter.traffic(), self.meter.duration());
        self.shared.closed(self.peer.clone(), traffic, duration, self.ending);
    }
}
