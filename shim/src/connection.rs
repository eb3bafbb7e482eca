//! An open connection to the sidecar, and the reasons why there is none.

use std::io;

use relay_proto::address::Address;
#[cfg(feature = "tls")]
use relay_proto::address::ListenPlace;
use relay_proto::control::Proof;
use relay_proto::decoder::Decoder;
use rustix::io::Errno;

#[cfg(feature = "tls")]
use crate::inbound_listener;
use crate::state::Held;
use crate::stream::Stream;

/// One connection, and what has come in of a frame.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) decoder: Decoder,
}

/// A connection, and what to say on it about who we are.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    /// Where it leads.
    pub(crate) address: Address,
    pub(crate) proof: Proof,
    /// The turn of a shim with a key; it ends with what the Welcome brought being written down.
    pub(crate) held: Option<Held>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// It came from outside, once.
    #[error("the link was the inherited descriptor {0}, which ended and cannot be opened again")]
    CannotReopen(i32),
    #[error("connect to {address}: {source}{}", hint(.address, .source))]
    Connect { address: Address, source: io::Error },
    #[cfg(feature = "tls")]
    #[error("connect to {address}: {source}")]
    Dial { address: Address, source: Box<relay_carriage::dial::DialError> },
    #[cfg(feature = "tls")]
    #[error("wait at listen:{place}: {source}; {}", inbound_listener::advice(.place, .source))]
    Listen { place: ListenPlace, source: io::Error },
    #[error("{0}")]
    NoEnrolment(String),
    /// Neither of the ways that are tried by themselves.
    #[error("{socket}; and {enrolment}")]
    Nowhere { socket: Box<Self>, enrolment: String },
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
    #[error("{0}")]
    State(String),
    /// Somebody was at the port, and it was not the sidecar.
    #[cfg(feature = "tls")]
    #[error("wait at {address}: {source}")]
    Stranger { address: Address, source: Box<relay_carriage::entrance::EntranceError> },
    #[error(
        "connect to {address}: {source}; does this machine have a vsock device, and does the host listen on that port \
         (`relay.vsock-dir`)?"
    )]
    Vsock { address: Address, source: io::Error },
}

impl ConnectError {
    /// Trying again makes no sense.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::CannotReopen(_) | Self::NotKnown(_) => true,
            #[cfg(not(feature = "tls"))]
            Self::NoTls(_) => true,
            _ => false,
        }
    }
}

/// What a bare error number does not say: a filter of system calls forbids the kind of socket, whatever its path.
fn hint(address: &Address, source: &io::Error) -> &'static str {
    match (address, Errno::from_io_error(source)) {
        (Address::Unix(_), Some(Errno::PERM)) => {
            " (this sandbox forbids Unix sockets; it needs a tls:// or wss:// link, or gVisor's --host-uds=open)"
        }
        _ => "",
    }
}
