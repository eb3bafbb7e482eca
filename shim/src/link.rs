//! Opening a connection to the sidecar.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use relay_proto::address::Address;
use relay_proto::decoder::Decoder;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::socket::{Descriptor, Socket};

/// One connection, and what has come in of a frame.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    pub(crate) decoder: Decoder,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// It came from outside, once.
    #[error("the link was the inherited descriptor {0}, which ended and cannot be opened again")]
    CannotReopen(i32),
    #[error("connect to {address}: {source}{}", hint(.address, .source))]
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

    pub(crate) async fn connect(&mut self) -> Result<Connection, ConnectError> {
        let failed = |source| ConnectError::Connect { address: self.address.clone(), source };
        let descriptor = match &self.address {
            Address::Unix(path) => {
                // A Unix socket connects at once or not at all; the limit is for what cannot happen.
                let connected = timeout(CONNECT, UnixStream::connect(path)).await;
                let stream = connected.map_err(io::Error::from).flatten().map_err(failed)?;
                Descriptor::Owned(OwnedFd::from(stream.into_std().map_err(failed)?))
            }
            Address::Fd(number) if self.used => return Err(ConnectError::CannotReopen(*number)),
            Address::Fd(number) => Descriptor::Inherited(*number),
            other => return Err(ConnectError::NotKnown(other.clone())),
        };
        let interest = Interest::READABLE | Interest::WRITABLE;
        let socket = Socket::new(descriptor, interest).map_err(failed)?;
        self.used = true;
        Ok(Connection { socket, decoder: Decoder::new() })
    }
}

const CONNECT: Duration = Duration::from_secs(1);

/// What a bare error number does not say: a filter of system calls forbids the kind of socket, whatever its path.
fn hint(address: &Address, source: &io::Error) -> &'static str {
    match (address, Errno::from_io_error(source)) {
        (Address::Unix(_), Some(Errno::PERM)) => {
            " (this sandbox forbids Unix sockets; it needs a tls:// or wss:// link, or gVisor's --host-uds=open)"
        }
        _ => "",
    }
}
