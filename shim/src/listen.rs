//! `listen:HOST:PORT`: the host dials in, and nobody else gets anything.
//!
//! Must stay true: whoever connects proves the pinned key before it takes a connection's place; strangers who stall hold
//! one of few places, and the oldest of them gives it up; a stranger never ends the connection that is there.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use relay_carriage::BoxedStream;
use relay_carriage::entrance::{self, EntranceError};
use relay_carriage::identity::Identity;
use relay_proto::address::{Address, HostPort};
use relay_proto::control::Proof;
use relay_proto::decoder::Decoder;
use relay_proto::key::PublicKey;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::link::{ConnectError, Connection, Opened};
use crate::network::Network;
use crate::stream::Stream;

/// A port that stays open between connections.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    place: HostPort,
    /// A key of this process alone will do: the host knows whom it dials.
    identity: Identity,
    pin: PublicKey,
    /// None while somebody waits at it, and before the first time.
    open: Arc<Mutex<Option<Open>>>,
}

#[derive(Debug)]
struct Open {
    listener: TcpListener,
    entering: JoinSet<Result<BoxedStream, EntranceError>>,
    /// Those who are entering, the oldest first.
    oldest: VecDeque<AbortHandle>,
}

impl Port {
    /// The port that there was, or a new one.
    pub(crate) fn reopen(
        before: Option<Self>,
        place: HostPort,
        network: &Network,
    ) -> Result<Self, ConnectError> {
        if let Some(port) = before {
            return Ok(port);
        }
        let address = Address::Listen(place.clone());
        let failed = |source| ConnectError::Listen { address: address.clone(), source };
        let pin = network.pin.ok_or_else(|| ConnectError::NotKnown(address.clone()))?;
        let identity = Identity::generate().map_err(|error| failed(io::Error::other(error)))?;
        Ok(Self { place, identity, pin, open: Arc::default() })
    }

    /// The next connection whose peer has proved the pinned key, or a stranger who did not.
    pub(crate) async fn next(self) -> Result<Opened, ConnectError> {
        let address = Address::Listen(self.place.clone());
        let kept = self.kept().take();
        let mut open = match kept {
            Some(open) => open,
            None => match Open::new(&self.place).await {
                Ok(open) => open,
                Err(source) => {
                    // Whoever listens asks again at once.
                    sleep(PORT_PAUSE).await;
                    return Err(ConnectError::Listen { address, source });
                }
            },
        };
        let entered = open.next(&self).await;
        *self.kept() = Some(open);
        match entered {
            Ok(stream) => {
                let connection = Connection { stream: Stream::carried(stream), decoder: Decoder::new() };
                Ok(Opened { connection, address, proof: Proof::Socket, held: None })
            }
            Err(source) => Err(ConnectError::Stranger { address, source: Box::new(source) }),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    async fn new(place: &HostPort) -> io::Result<Self> {
        let listener = TcpListener::bind(place.to_string()).await?;
        Ok(Self { listener, entering: JoinSet::new(), oldest: VecDeque::new() })
    }

    async fn next(&mut self, port: &Port) -> Result<BoxedStream, EntranceError> {
        loop {
            tokio::select! {
                Some(entered) = self.entering.join_next() => {
                    // The others were dropped for somebody else.
                    if let Ok(entered) = entered {
                        return entered;
                    }
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let _ = stream.set_nodelay(true);
                        self.make_room();
                        let (identity, pin) = (port.identity.clone(), port.pin);
                        self.oldest.push_back(self.entering.spawn(async move {
                            match timeout(LIMIT, entrance::enter(stream, &identity, &pin)).await {
                                Ok(entered) => entered,
                                Err(late) => Err(io::Error::from(late).into()),
                            }
                        }));
                    }
                    // Out of descriptors, most likely: some will be closed soon.
                    Err(_) => sleep(Duration::from_millis(100)).await,
                },
            }
        }
    }

    fn make_room(&mut self) {
        self.oldest.retain(|entering| !entering.is_finished());
        if self.oldest.len() >= MAX_ENTERING
            && let Some(oldest) = self.oldest.pop_front()
        {
            oldest.abort();
        }
    }
}

/// A port that another has is tried again after so long.
const PORT_PAUSE: Duration = Duration::from_secs(1);
/// The sidecar is one; the others are strangers.
const MAX_ENTERING: usize = 8;
/// A handshake takes a round trip or two.
const LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_port_that_another_has_is_not_tried_without_end() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place: HostPort = taken.local_addr().unwrap().to_string().parse().unwrap();
        let pin = Identity::generate().unwrap().public();
        let network = Network { pin: Some(pin), ..Network::default() };
        let port = Port::reopen(None, place, &network).unwrap();
        let began = Instant::now();
        assert!(matches!(port.next().await, Err(ConnectError::Listen { .. })));
        assert!(began.elapsed() >= PORT_PAUSE, "the loop comes back at once");
    }
}
