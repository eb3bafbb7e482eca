//! An open connection to the sidecar, and the reasons why there is none.

use std::io;

use relay_proto::address::Address;
#[cfg(feature = "tls")]
use relay_proto::address::ListenAddress;
use relay_proto::control::Proof;
use relay_proto::decoder::Decoder;
use rustix::io::Errno;

use crate::default_socket::{SocketSearch, UntrustedSocket};
#[cfg(feature = "tls")]
use crate::inbound_listener;
use crate::state::HeldKey;
use crate::stream::Stream;

/// One connection, with the decoder of what was received on it.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) decoder: Decoder,
}

/// A new connection, and the proof to send in Hello.
pub(crate) struct OpenedConnection {
    pub(crate) connection: Connection,
    /// The sidecar's address.
    pub(crate) address: Address,
    pub(crate) proof: Proof,
    /// The lock on the sandbox's key, which is held until the Welcome's epoch is stored; `None` without a key.
    pub(crate) held_key: Option<HeldKey>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("the connection was the inherited file descriptor {0}, which was closed and cannot be reopened")]
    CannotReopen(i32),
    #[error("connect to {address}: {source}{}", hint(.address, .source))]
    Connect { address: Address, source: io::Error },
    #[cfg(feature = "tls")]
    #[error("connect to {address}: {source}")]
    Dial { address: Address, source: Box<relay_carriage::dial::DialError> },
    #[cfg(feature = "tls")]
    #[error("listen on {endpoint}: {source}; {}", inbound_listener::advice(.endpoint, .source))]
    Listen { endpoint: ListenAddress, source: io::Error },
    #[error("{0}")]
    NoEnrolment(String),
    /// No address was given, and neither default works: the socket and the enrolment.
    #[error("{socket}; and {enrolment}")]
    NoDefault { socket: Box<Self>, enrolment: String },
    /// No address was given, and no default socket exists.
    #[error("connect to the sidecar or a hub: there is no socket at {}", list_paths(.0))]
    NoSocket(SocketSearch),
    #[error(
        "connect to {address}: {source}; if this is the intended socket, give its address with --relay or COFFERDAM_RELAY"
    )]
    Untrusted { address: Address, source: UntrustedSocket },
    #[error("this version cannot connect to {0}")]
    UnsupportedAddress(Address),
    #[cfg(not(feature = "tls"))]
    #[error(
        "connect to {0}: this build of cofferdam-shim has no TLS; use the default build, or a `unix:` or `vsock:` link"
    )]
    NoTls(Address),
    #[cfg(feature = "tls")]
    #[error(
        "connect through the proxy in {variable}: {source}; correct it there, or give another with --proxy"
    )]
    Proxy { variable: &'static str, source: relay_carriage::proxy::InvalidProxy },
    #[cfg(feature = "tls")]
    #[error("{0}")]
    State(String),
    /// A peer at the port is not the sidecar.
    #[cfg(feature = "tls")]
    #[error("accept at {address}: {source}")]
    NotTheSidecar { address: Address, source: Box<relay_carriage::inbound::InboundError> },
    #[error(
        "connect to {address}: {source}; does this machine have a vsock device, and does the host listen on that port \
         (`relay.vsock-dir`)?"
    )]
    Vsock { address: Address, source: io::Error },
}

impl ConnectError {
    /// Whether a retry cannot succeed.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::CannotReopen(_) | Self::UnsupportedAddress(_) => true,
            #[cfg(not(feature = "tls"))]
            Self::NoTls(_) => true,
            _ => false,
        }
    }
}

fn list_paths(sockets: &SocketSearch) -> String {
    let paths: Vec<String> = sockets.paths().iter().map(|path| format!("unix:{}", path.display())).collect();
    paths.join(", ")
}

/// A reason that the error number does not give: a seccomp filter forbids Unix sockets, whatever their path.
fn hint(address: &Address, source: &io::Error) -> &'static str {
    match (address, Errno::from_io_error(source)) {
        (Address::Unix(_), Some(Errno::PERM)) => {
            " (this sandbox forbids Unix sockets; it needs a tls:// or wss:// link, or gVisor's --host-uds=open)"
        }
        _ => "",
    }
}
