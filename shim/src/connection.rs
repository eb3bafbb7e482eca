//! An open connection to the sidecar, and the reasons why there is none.

use std::io;

use relay_proto::address::Address;
#[cfg(feature = "tls")]
use relay_proto::address::ListenAddress;
use relay_proto::control::Proof;
use relay_proto::decoder::Decoder;
use rustix::io::Errno;
use rustix::process::geteuid;

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
    /// No address was given, there is no enrolment, and no default socket exists.
    #[error(
        "connect to the sidecar or a hub: there is no socket at {}; is `cofferdam serve` running on the host, and the relay's \
         directory mounted here? Or, for a link over the network: {enrolment}",
        list_paths(.sockets)
    )]
    NoDefault { sockets: SocketSearch, enrolment: String },
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

/// The likely cause of a failed connection, and the next step.
fn hint(address: &Address, source: &io::Error) -> String {
    match (address, Errno::from_io_error(source)) {
        // A seccomp filter forbids Unix sockets, whatever their path.
        (Address::Unix(_), Some(Errno::PERM)) => {
            " (this sandbox forbids Unix sockets; it needs a tls:// or wss:// link, or gVisor's --host-uds=open)".into()
        }
        (Address::Unix(_), Some(Errno::ACCESS)) => {
            let uid = geteuid().as_raw();
            format!(
                "; this socket does not admit user {uid}: on the host add {uid} (or the user id that it has there) to `unix-uids` \
                 under [relay], and restart the sidecar"
            )
        }
        (Address::Unix(_), Some(Errno::CONNREFUSED)) => {
            "; is `cofferdam serve` running on the host (or the hub in this sandbox)? A socket file that was mounted instead of its \
             directory is dead after a restart"
                .into()
        }
        (Address::Unix(_), Some(Errno::NOENT)) => {
            "; is `cofferdam serve` running on the host (or the hub in this sandbox), and the relay's directory mounted here?".into()
        }
        (Address::Hub(_), Some(Errno::CONNREFUSED | Errno::NOENT)) => "; is the hub running in this sandbox?".into(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_fits_the_cause_and_does_not_suggest_to_enrol() {
        let unix = Address::Unix("/run/cofferdam/relay/relay.sock".into());
        let text =
            |errno: Errno| ConnectError::Connect { address: unix.clone(), source: errno.into() }.to_string();
        let uid = geteuid().as_raw();
        for (errno, expected) in [
            (Errno::CONNREFUSED, "is `cofferdam serve` running"),
            (Errno::NOENT, "the relay's directory mounted here?"),
            (Errno::ACCESS, format!("add {uid} (or").as_str()),
            (Errno::PERM, "forbids Unix sockets"),
        ] {
            let text = text(errno);
            assert!(text.contains(expected) && !text.contains("enrol"), "{errno}: {text}");
        }
    }
}
