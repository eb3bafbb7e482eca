//! Opening a connection to the sidecar.
//!
//! An attempt is a future that owns all it needs, so that the loop goes on while it takes its time.

use std::future::{Future, ready};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::time::Duration;

#[cfg(feature = "tls")]
use relay_carriage::identity::Identity;
use relay_proto::address::Address;
#[cfg(feature = "tls")]
use relay_proto::address::HostPort;
use relay_proto::control::{Epoch, Proof};
use relay_proto::decoder::Decoder;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;

#[cfg(feature = "tls")]
use crate::carry::Keys;
#[cfg(feature = "tls")]
use crate::listen::Port;
use crate::network::Network;
use crate::socket::{Descriptor, Socket};
use crate::stream::Stream;

/// One connection, and what has come in of a frame.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) decoder: Decoder,
}

/// A connection, and what to say on it about who we are.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    pub(crate) proof: Proof,
}

/// One attempt to connect.
pub(crate) type Attempt = Pin<Box<dyn Future<Output = Result<Opened, ConnectError>> + Send>>;

/// Why there is no connection. Each says what was being done, why it failed, and the next step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// It came from outside, once.
    #[error("the link was the inherited descriptor {0}, which ended and cannot be opened again")]
    CannotReopen(i32),
    #[error("connect to {address}: {source}")]
    Connect { address: Address, source: io::Error },
    #[cfg(feature = "tls")]
    #[error("connect to {address}: {source}")]
    Dial { address: Address, source: Box<relay_carriage::dial::DialError> },
    #[cfg(feature = "tls")]
    #[error("wait at {address}: {source}; is another shim there, and is the address this machine's?")]
    Listen { address: Address, source: io::Error },
    #[cfg(feature = "tls")]
    #[error("make a key for {address}: {source}")]
    NoKey { address: Address, source: relay_carriage::identity::IdentityError },
    #[error("this version cannot connect to {0}")]
    NotKnown(Address),
    #[cfg(not(feature = "tls"))]
    #[error(
        "connect to {0}: this build of cofferdam-shim has no TLS; use the usual build, or a `unix:` or `vsock:` link"
    )]
    NoTls(Address),
    #[cfg(feature = "tls")]
    #[error(
        "go out through the proxy in {variable}: {source}; correct it there, or give another with --proxy"
    )]
    Proxy { variable: &'static str, source: relay_carriage::proxy::InvalidProxy },
    #[cfg(feature = "tls")]
    #[error("connect to {0}: this sandbox is not enrolled; run `cofferdam enroll` on the host")]
    Unenrolled(Address),
    #[error(
        "connect to {address}: {source}; does this machine have a vsock device, and does the host listen on that port \
         (`relay.vsock-dir`)?"
    )]
    Vsock { address: Address, source: io::Error },
}

impl ConnectError {
    /// Whether another attempt could end otherwise.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::CannotReopen(_) | Self::NotKnown(_) => true,
            #[cfg(not(feature = "tls"))]
            Self::NoTls(_) => true,
            _ => false,
        }
    }
}

/// Where to connect, and whether that can be done again.
#[derive(Debug)]
pub(crate) struct Dialer {
    address: Address,
    used: bool,
    #[cfg(feature = "tls")]
    network: Network,
    /// The port of a `listen:` link.
    #[cfg(feature = "tls")]
    port: Option<Port>,
}

impl Dialer {
    pub(crate) fn new(address: Address, network: Network) -> Self {
        #[cfg(not(feature = "tls"))]
        let _ = network;
        Self {
            address,
            used: false,
            #[cfg(feature = "tls")]
            network,
            #[cfg(feature = "tls")]
            port: None,
        }
    }

    /// Whether the sidecar comes by itself, also while there is a connection: the newest is the one.
    pub(crate) fn listens(&self) -> bool {
        matches!(self.address, Address::Listen(_))
    }

    /// Begins to connect.
    pub(crate) fn attempt(&mut self) -> Attempt {
        match &self.address {
            Address::Unix(_) => Box::pin(unix(self.address.clone())),
            Address::Fd(number) if self.used => Box::pin(ready(Err(ConnectError::CannotReopen(*number)))),
            Address::Fd(number) => {
                self.used = true;
                Box::pin(ready(socket(&self.address, Descriptor::Inherited(*number))))
            }
            Address::Vsock { cid, port } => Box::pin(virtual_socket(self.address.clone(), *cid, *port)),
            #[cfg(feature = "tls")]
            Address::Listen(place) => match self.port.clone().map_or_else(|| self.open(place.clone()), Ok) {
                Ok(port) => {
                    self.port = Some(port.clone());
                    Box::pin(async { port.next().await.map(|stream| carried(stream, Proof::Socket)) })
                }
                Err(error) => Box::pin(ready(Err(error))),
            },
            #[cfg(feature = "tls")]
            Address::Tls(_) | Address::WebSocket(_) => {
                Box::pin(ready(Err(ConnectError::Unenrolled(self.address.clone()))))
            }
            #[cfg(not(feature = "tls"))]
            other @ (Address::Listen(_) | Address::Tls(_) | Address::WebSocket(_)) => {
                Box::pin(ready(Err(ConnectError::NoTls(other.clone()))))
            }
            other => Box::pin(ready(Err(ConnectError::NotKnown(other.clone())))),
        }
    }

    /// A key of this process alone will do: the host knows whom it dials.
    #[cfg(feature = "tls")]
    fn open(&self, place: HostPort) -> Result<Port, ConnectError> {
        let address = || self.address.clone();
        let pin = self.network.pin.ok_or_else(|| ConnectError::NotKnown(address()))?;
        let identity =
            Identity::generate().map_err(|source| ConnectError::NoKey { address: address(), source })?;
        Ok(Port::new(place, Keys { identity, pin }))
    }

    /// The sidecar took us. A new epoch is written down before this returns; only then may it be confirmed.
    pub(crate) fn welcomed(&mut self, _epoch: Option<Epoch>) -> io::Result<()> {
        Ok(())
    }

    /// The connection is over, or came to nothing: whatever was held for its handshake is let go.
    pub(crate) fn lost(&mut self) {}
}

async fn unix(address: Address) -> Result<Opened, ConnectError> {
    let Address::Unix(path) = &address else { return Err(ConnectError::NotKnown(address)) };
    let failed = |source| ConnectError::Connect { address: address.clone(), source };
    // A Unix socket connects at once or not at all; the limit is for what cannot happen.
    let connected = timeout(CONNECT, UnixStream::connect(path)).await;
    let stream = connected.map_err(io::Error::from).flatten().map_err(failed)?;
    let descriptor = Descriptor::Owned(OwnedFd::from(stream.into_std().map_err(failed)?));
    socket(&address, descriptor)
}

/// A plain socket is its own proof.
fn socket(address: &Address, descriptor: Descriptor) -> Result<Opened, ConnectError> {
    let socket = Socket::new(descriptor, Interest::READABLE | Interest::WRITABLE)
        .map_err(|source| ConnectError::Connect { address: address.clone(), source })?;
    let connection = Connection { stream: Stream::Socket(socket), decoder: Decoder::new() };
    Ok(Opened { connection, proof: Proof::Socket })
}

async fn virtual_socket(address: Address, cid: u32, port: u32) -> Result<Opened, ConnectError> {
    let failed = |source| ConnectError::Vsock { address: address.clone(), source };
    let connected = timeout(VSOCK, relay_carriage::vsock::connect(cid, port)).await;
    let stream = connected.map_err(io::Error::from).flatten().map_err(failed)?;
    socket(&address, Descriptor::Owned(OwnedFd::from(stream.into_std().map_err(failed)?)))
}

#[cfg(feature = "tls")]
fn carried(stream: Stream, proof: Proof) -> Opened {
    Opened { connection: Connection { stream, decoder: Decoder::new() }, proof }
}

const CONNECT: Duration = Duration::from_secs(1);
/// The kernel gives up by itself after two.
const VSOCK: Duration = Duration::from_secs(5);
