//! Opening a connection to the sidecar.
//!
//! An attempt is a future that owns all it needs, so that the loop goes on while it takes its time.

use std::future::{Future, ready};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::time::Duration;

use relay_proto::address::Address;
use relay_proto::control::{Epoch, Proof};
use relay_proto::decoder::Decoder;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::loopback;
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

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// It came from outside, once.
    #[error("the link was the inherited descriptor {0}, which ended and cannot be opened again")]
    CannotReopen(i32),
    #[error("connect to {address}: {source}")]
    Connect { address: Address, source: io::Error },
    #[error("this version cannot connect to {0}")]
    NotKnown(Address),
}

/// Where to connect, and whether that can be done again.
#[derive(Debug)]
pub(crate) struct Dialer {
    address: Address,
    used: bool,
}

impl Dialer {
    pub(crate) fn new(address: Address) -> Self {
        Self { address, used: false }
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
            Address::Hub(_) => Box::pin(hub(self.address.clone())),
            other => Box::pin(ready(Err(ConnectError::NotKnown(other.clone())))),
        }
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

/// The key that it shows is the hub's affair; the sidecar knows the pipe.
async fn hub(address: Address) -> Result<Opened, ConnectError> {
    let Address::Hub(file) = &address else { return Err(ConnectError::NotKnown(address)) };
    let connected = timeout(CONNECT, loopback::connect(file)).await;
    let failed = |source| ConnectError::Connect { address: address.clone(), source };
    socket(&address, Descriptor::Owned(connected.map_err(io::Error::from).flatten().map_err(failed)?))
}

/// A plain socket is its own proof.
fn socket(address: &Address, descriptor: Descriptor) -> Result<Opened, ConnectError> {
    let socket = Socket::new(descriptor, Interest::READABLE | Interest::WRITABLE)
        .map_err(|source| ConnectError::Connect { address: address.clone(), source })?;
    let connection = Connection { stream: Stream::Socket(socket), decoder: Decoder::new() };
    Ok(Opened { connection, proof: Proof::Socket })
}

const CONNECT: Duration = Duration::from_secs(1);
