//! `listen:HOST:PORT` and `listen:vsock:PORT`: a port that the sidecar dials, with the pinned key.
//!
//! Must stay true: a peer that does not prove the key never ends the present connection.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use relay_carriage::identity::Identity;
use relay_carriage::tls::StreamProtocol;
use relay_proto::address::{Address, ListenAddress};
use relay_proto::control::Proof;
use relay_proto::decoder::Decoder;
use tokio::time::sleep;

use crate::connection::{ConnectError, Connection, Opened};
use crate::inbound_listener::{HandshakeConfig, InboundListener};
use crate::network::Network;
use crate::stream::Stream;

/// A port that stays open between connections.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    endpoint: ListenAddress,
    config: HandshakeConfig,
    /// `None` before the first use, and while a call to `next` waits at it.
    open: Arc<Mutex<Option<InboundListener>>>,
}

impl Port {
    /// The port that is open already, or a new one.
    pub(crate) fn reopen(
        before: Option<Self>,
        endpoint: ListenAddress,
        network: &Network,
    ) -> Result<Self, ConnectError> {
        if let Some(port) = before {
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
            open: Arc::default(),
        })
    }

    /// The next connection whose peer proved the pinned key, or the failure of one that did not.
    pub(crate) async fn next(self) -> Result<Opened, ConnectError> {
        let kept = self.kept().take();
        let mut open = match kept {
            Some(open) => open,
            None => match InboundListener::open(&self.endpoint, self.config.clone()).await {
                Ok(open) => open,
                Err(source) => {
                    // The loop itself does not pause before it retries.
                    sleep(PORT_RETRY).await;
                    return Err(ConnectError::Listen { endpoint: self.endpoint, source });
                }
            },
        };
        let entered = open.next().await;
        *self.kept() = Some(open);
        let address = Address::Listen(self.endpoint);
        match entered {
            Ok(stream) => {
                let connection = Connection { stream: Stream::from_async(stream), decoder: Decoder::new() };
                Ok(Opened { connection, address, proof: Proof::Socket, held: None })
            }
            Err(source) => Err(ConnectError::NotTheSidecar { address, source: Box::new(source) }),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Option<InboundListener>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pause before a port in use is tried again.
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
        let port = Port::reopen(None, endpoint, &network).unwrap();
        let began = Instant::now();
        assert!(matches!(port.next().await, Err(ConnectError::Listen { .. })));
        assert!(began.elapsed() >= PORT_RETRY, "the loop would retry at once");
    }
}
