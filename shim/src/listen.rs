//! `listen:HOST:PORT` and `listen:vsock:PORT`: a port that the sidecar dials, where it must prove the pinned key.
//!
//! Must stay true: a peer that does not prove the key never ends the current connection.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use relay_carriage::identity::Identity;
use relay_carriage::tls::StreamProtocol;
use relay_proto::address::{Address, ListenAddress};
use relay_proto::control::Proof;
use relay_proto::decoder::Decoder;
use tokio::time::sleep;

use crate::connection::{ConnectError, Connection, OpenedConnection};
use crate::inbound_listener::{HandshakeConfig, InboundListener};
use crate::network::Network;
use crate::stream::Stream;

/// A port that stays open between connections.
#[derive(Clone, Debug)]
pub(crate) struct ListenPort {
    endpoint: ListenAddress,
    config: HandshakeConfig,
    /// `None` before the first use, and while a call to `next` uses it.
    listener: Arc<Mutex<Option<InboundListener>>>,
}

impl ListenPort {
    /// Returns the existing port, or creates one, which is opened at its first use.
    pub(crate) fn existing_or_new(
        existing: Option<Self>,
        endpoint: ListenAddress,
        network: &Network,
    ) -> Result<Self, ConnectError> {
        if let Some(port) = existing {
            return Ok(port);
        }
        let pin =
            network.pin.ok_or_else(|| ConnectError::UnsupportedAddress(Address::Listen(endpoint.clone())))?;
        let identity = Identity::generate().map_err(|error| ConnectError::Listen {
            endpoint: endpoint.clone(),
            source: io::Error::other(error),
        })?;
        Ok(Self {
            endpoint,
            config: HandshakeConfig { protocol: StreamProtocol::Link, identity, pin },
            listener: Arc::default(),
        })
    }

    /// The next connection whose peer proved the pinned key, or the failure of one that did not.
    pub(crate) async fn next(self) -> Result<OpenedConnection, ConnectError> {
        let existing = self.lock_listener().take();
        let mut listener = match existing {
            Some(listener) => listener,
            None => match InboundListener::open(&self.endpoint, self.config.clone()).await {
                Ok(listener) => listener,
                Err(source) => {
                    // The loop itself does not pause before it retries.
                    sleep(PORT_RETRY).await;
                    return Err(ConnectError::Listen { endpoint: self.endpoint, source });
                }
            },
        };
        let entered = listener.next().await;
        *self.lock_listener() = Some(listener);
        let address = Address::Listen(self.endpoint);
        match entered {
            Ok(stream) => {
                let connection = Connection { stream: Stream::from_async(stream), decoder: Decoder::new() };
                Ok(OpenedConnection { connection, address, proof: Proof::Socket, held_key: None })
            }
            Err(source) => Err(ConnectError::NotTheSidecar { address, source: Box::new(source) }),
        }
    }

    fn lock_listener(&self) -> MutexGuard<'_, Option<InboundListener>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pause after a port could not be opened.
const PORT_RETRY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_port_in_use_is_retried_after_a_pause() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint: ListenAddress = taken.local_addr().unwrap().to_string().parse().unwrap();
        let pin = Identity::generate().unwrap().public();
        let network = Network { pin: Some(pin), ..Network::default() };
        let port = ListenPort::existing_or_new(None, endpoint, &network).unwrap();
        let began = Instant::now();
        assert!(matches!(port.next().await, Err(ConnectError::Listen { .. })));
        assert!(began.elapsed() >= PORT_RETRY, "`next` must pause, because the loop retries at once");
    }
}
