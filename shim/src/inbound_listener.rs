//! A port that the host dials, by TCP or by vsock, and the handshakes in progress on it.
//!
//! Must stay true: a connection is returned only after its peer proved the pinned key; handshakes in progress are
//! bounded, and one more aborts the oldest.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use relay_carriage::entrance::{self, EntranceError};
use relay_carriage::identity::Identity;
use relay_carriage::tls::Inside;
use relay_carriage::{BoxedStream, vsock};
use relay_proto::address::ListenAddress;
use relay_proto::key::PublicKey;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// Which peer is accepted, for what, and with which key of our own.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) inside: Inside,
    /// A key made for this process is enough: the host knows which address it dialled.
    pub(crate) identity: Identity,
    /// The sidecar's key.
    pub(crate) pin: PublicKey,
}

#[derive(Debug)]
pub(crate) struct InboundListener {
    listener: Listener,
    entry: Entry,
    handshakes: JoinSet<Result<BoxedStream, EntranceError>>,
    /// The handshakes in progress, the oldest first.
    oldest: VecDeque<AbortHandle>,
}

impl InboundListener {
    pub(crate) async fn open(endpoint: &ListenAddress, entry: Entry) -> io::Result<Self> {
        let listener = match endpoint {
            ListenAddress::Tcp(endpoint) => Listener::Tcp(TcpListener::bind(endpoint.to_string()).await?),
            ListenAddress::Vsock { port } => Listener::Vsock(vsock::Listener::bind(*port)?),
        };
        Ok(Self { listener, entry, handshakes: JoinSet::new(), oldest: VecDeque::new() })
    }

    /// The next connection whose peer proved the pinned key, or the failure of one that did not. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<BoxedStream, EntranceError> {
        loop {
            tokio::select! {
                Some(entered) = self.handshakes.join_next() => {
                    // An aborted one made room for another.
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
        self.oldest.retain(|handshake| !handshake.is_finished());
        if self.oldest.len() >= MAX_HANDSHAKES
            && let Some(oldest) = self.oldest.pop_front()
        {
            oldest.abort();
        }
        let Entry { inside, identity, pin } = self.entry.clone();
        self.oldest.push_back(self.handshakes.spawn(async move {
            let handshake = entrance::enter_for(inside, stream, &identity, &pin);
            timeout(HANDSHAKE_TIMEOUT, handshake).await.map_err(io::Error::from)?
        }));
    }
}

/// What to do about a port that could not be opened.
pub(crate) fn advice(endpoint: &ListenAddress, error: &io::Error) -> &'static str {
    match endpoint {
        ListenAddress::Tcp(_) => {
            "is another program there, and is the address this machine's? else choose another port"
        }
        ListenAddress::Vsock { .. } => vsock::listen_advice(error),
    }
}

/// The sidecar needs one; the rest leaves room for peers that stall.
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
