//! A port that the host dials, by TCP or by vsock, and the handshakes in progress on it.
//!
//! Must stay true: a connection is returned only after its peer proved the pinned key; the number of
//! handshakes in progress is limited, and a further one aborts the oldest.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use relay_carriage::identity::Identity;
use relay_carriage::inbound::{self, InboundError};
use relay_carriage::tls::StreamProtocol;
use relay_carriage::{BoxedStream, vsock};
use relay_proto::address::ListenAddress;
use relay_proto::key::PublicKey;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// How an accepted connection is authenticated, and what it carries.
#[derive(Clone, Debug)]
pub(crate) struct HandshakeConfig {
    pub(crate) protocol: StreamProtocol,
    /// Generated for this process: the host identifies the sandbox by the address that it dialled.
    pub(crate) identity: Identity,
    /// The sidecar's key.
    pub(crate) pin: PublicKey,
}

#[derive(Debug)]
pub(crate) struct InboundListener {
    listener: Listener,
    config: HandshakeConfig,
    handshakes: JoinSet<Result<BoxedStream, InboundError>>,
    /// The handles of the handshakes in progress, the oldest first.
    abort_handles: VecDeque<AbortHandle>,
}

impl InboundListener {
    pub(crate) async fn open(endpoint: &ListenAddress, config: HandshakeConfig) -> io::Result<Self> {
        let listener = match endpoint {
            ListenAddress::Tcp(endpoint) => Listener::Tcp(TcpListener::bind(endpoint.to_string()).await?),
            ListenAddress::Vsock { port } => Listener::Vsock(vsock::Listener::bind(*port)?),
        };
        Ok(Self { listener, config, handshakes: JoinSet::new(), abort_handles: VecDeque::new() })
    }

    /// The next connection whose peer proved the pinned key, or the failure of one that did not. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<BoxedStream, InboundError> {
        loop {
            tokio::select! {
                Some(entered) = self.handshakes.join_next() => {
                    // An aborted handshake made room for a newer one.
                    if let Ok(entered) = entered {
                        return entered;
                    }
                }
                accepted = self.listener.accept() => match accepted {
                    Ok(stream) => self.start_handshake(stream),
                    // Most likely out of descriptors: some will be closed soon.
                    Err(_) => sleep(ACCEPT_RETRY).await,
                },
            }
        }
    }

    fn start_handshake(&mut self, stream: BoxedStream) {
        self.abort_handles.retain(|handshake| !handshake.is_finished());
        if self.abort_handles.len() >= MAX_HANDSHAKES
            && let Some(oldest) = self.abort_handles.pop_front()
        {
            oldest.abort();
        }
        let HandshakeConfig { protocol, identity, pin } = self.config.clone();
        self.abort_handles.push_back(self.handshakes.spawn(async move {
            let handshake = inbound::accept_inbound_for(protocol, stream, &identity, &pin);
            timeout(HANDSHAKE_TIMEOUT, handshake).await.map_err(io::Error::from)?
        }));
    }
}

/// What to do about a port that could not be opened.
pub(crate) fn advice(endpoint: &ListenAddress, error: &io::Error) -> &'static str {
    match endpoint {
        ListenAddress::Tcp(_) => {
            "check that no other program uses the port and that the address belongs to this machine"
        }
        ListenAddress::Vsock { .. } => vsock::listen_advice(error),
    }
}

/// The sidecar needs one handshake at a time; the others leave room for peers that stall.
const MAX_HANDSHAKES: usize = 8;
/// A handshake takes a round trip or two.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Vsock(vsock::Listener),
}

impl Listener {
    async fn accept(&self) -> io::Result<BoxedStream> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                Box::new(stream)
            }
            Self::Vsock(listener) => Box::new(listener.accept().await?),
        })
    }
}
