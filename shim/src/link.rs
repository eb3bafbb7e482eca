//! Opening a connection to the sidecar.
//!
//! An attempt is a future that owns all it needs, so that the relay loop can poll it beside everything else.

use std::future::{Future, ready};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use relay_proto::address::Address;
use relay_proto::code::Code;
use relay_proto::control::{Epoch, Proof, Retry};
use relay_proto::decoder::Decoder;
use relay_proto::key::PublicKey;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::connection::{ConnectError, Connection, OpenedConnection};
use crate::default_socket::{self, SocketSearch};
use crate::enrolled_link;
#[cfg(feature = "tls")]
use crate::listen::ListenPort;
use crate::loopback;
use crate::network::Network;
use crate::options::Options;
use crate::socket::{Descriptor, Socket};
use crate::state::{EnrolmentState, HeldKey, OtherEnrolment};
use crate::stream::Stream;

/// One attempt to connect.
pub(crate) type Attempt = Pin<Box<dyn Future<Output = Result<OpenedConnection, ConnectError>> + Send>>;

/// Opens connections: the address, the enrolment and the network options to use.
#[derive(Debug)]
pub(crate) struct Dialer {
    /// `None`: the address in the enrolment, or else a default socket.
    address: Option<Address>,
    default_sockets: SocketSearch,
    state: EnrolmentState,
    network: Network,
    /// The port of a `listen:` link.
    #[cfg(feature = "tls")]
    port: Option<ListenPort>,
    /// Whether the inherited descriptor was used: it cannot be opened again.
    fd_used: bool,
    /// The lock on the key, during the handshake.
    held_key: Option<HeldKey>,
    /// The key of the current or the last connection.
    key: Option<PublicKey>,
    enrolment_wait: EnrolmentWait,
}

/// Whether the shim waits for another enrolment, because the sidecar refused the last one for good.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EnrolmentWait {
    No,
    Yes,
}

impl Dialer {
    pub(crate) fn new(options: Options) -> Self {
        let Options { relay, default_sockets, server: _, network, state, enrolment_sources } = options;
        Self {
            address: relay,
            default_sockets,
            state: EnrolmentState::new(state, enrolment_sources),
            network,
            #[cfg(feature = "tls")]
            port: None,
            fd_used: false,
            held_key: None,
            key: None,
            enrolment_wait: EnrolmentWait::No,
        }
    }

    /// Whether the sidecar dials this shim. It may do so while there is a connection, which is then replaced.
    pub(crate) fn listens(&self) -> bool {
        matches!(self.address, Some(Address::Listen(_)))
    }

    /// Starts to connect.
    pub(crate) fn attempt(&mut self) -> Attempt {
        match self.address.clone() {
            None => {
                let sockets = self.default_sockets.clone();
                Box::pin(connect_default(self.state.clone(), sockets, self.network.clone()))
            }
            Some(Address::Unix(path)) => Box::pin(connect_unix(Address::Unix(path))),
            Some(Address::Fd(number)) if self.fd_used => {
                Box::pin(ready(Err(ConnectError::CannotReopen(number))))
            }
            Some(address @ Address::Fd(number)) => {
                self.fd_used = true;
                Box::pin(ready(use_socket(address, Descriptor::Inherited(number))))
            }
            Some(Address::Hub(file)) => Box::pin(connect_hub(file)),
            Some(address @ (Address::Tls(_) | Address::WebSocket(_))) => {
                Box::pin(enrolled_link::connect(self.state.clone(), Some(address), self.network.clone()))
            }
            Some(address @ Address::Vsock { cid, port }) => Box::pin(connect_vsock(address, cid, port)),
            #[cfg(feature = "tls")]
            Some(Address::Listen(endpoint)) => {
                match ListenPort::existing_or_new(self.port.take(), endpoint, &self.network) {
                    Ok(port) => Box::pin(self.port.insert(port).clone().next()),
                    Err(error) => Box::pin(ready(Err(error))),
                }
            }
            #[cfg(not(feature = "tls"))]
            Some(address @ Address::Listen(_)) => Box::pin(ready(Err(ConnectError::NoTls(address)))),
            Some(other) => Box::pin(ready(Err(ConnectError::UnsupportedAddress(other)))),
        }
    }

    /// Records that the attempt succeeded; Hello is sent next.
    pub(crate) fn opened(&mut self, held_key: Option<HeldKey>) {
        self.key = held_key.as_ref().map(HeldKey::key);
        self.held_key = held_key;
        self.enrolment_wait = EnrolmentWait::No;
    }

    /// The sidecar accepted the shim. A new epoch is stored before this returns; only then may it be confirmed.
    pub(crate) fn welcomed(&mut self, epoch: Option<Epoch>) -> Result<(), String> {
        match (self.held_key.take(), epoch) {
            (Some(held), Some(epoch)) => held.store_epoch(epoch).map_err(|error| error.to_string()),
            _ => Ok(()),
        }
    }

    /// The sidecar refused the shim. If the enrolment is the reason and there is another enrolment, returns a retry
    /// with that.
    pub(crate) fn refused(&mut self, code: &str, retry: Retry) -> Retry {
        let enrolment = [Code::CloneRefused, Code::SessionEnded, Code::TicketRefused].map(Code::as_str);
        let Some(key) = self.key.filter(|_| retry == Retry::Never && enrolment.contains(&code)) else {
            return retry;
        };
        match self.state.refused(&key) {
            OtherEnrolment::None => {
                self.enrolment_wait = EnrolmentWait::Yes;
                Retry::Never
            }
            OtherEnrolment::Ready => Retry::AfterMs(0),
        }
    }

    pub(crate) fn enrolment_wait(&self) -> EnrolmentWait {
        self.enrolment_wait
    }

    /// Releases the lock that was held for the handshake: the connection is over, or the attempt failed.
    pub(crate) fn disconnected(&mut self) {
        self.held_key = None;
    }
}

/// Connects to the address in the enrolment, or without an enrolment to a default socket.
async fn connect_default(
    state: EnrolmentState,
    sockets: SocketSearch,
    network: Network,
) -> Result<OpenedConnection, ConnectError> {
    match enrolled_link::connect(state, None, network).await {
        Err(ConnectError::NoEnrolment(enrolment)) => connect_default_socket(&sockets)
            .await
            .map_err(|socket| ConnectError::NoDefault { socket: Box::new(socket), enrolment }),
        other => other,
    }
}

/// Connects to the first default socket that can be trusted and accepts a connection. If there is none, the error is about
/// the first socket that exists.
async fn connect_default_socket(sockets: &SocketSearch) -> Result<OpenedConnection, ConnectError> {
    let mut problem = None;
    for path in sockets.paths() {
        let failed = match default_socket::check(path) {
            Ok(()) => match connect_unix(Address::Unix(path.clone())).await {
                Ok(opened) => return Ok(opened),
                Err(error) => error,
            },
            Err(untrusted) if untrusted.is_absent() => continue,
            Err(source) => ConnectError::Untrusted { address: Address::Unix(path.clone()), source },
        };
        problem.get_or_insert(failed);
    }
    Err(problem.unwrap_or_else(|| ConnectError::NoSocket(sockets.clone())))
}

async fn connect_unix(address: Address) -> Result<OpenedConnection, ConnectError> {
    let Address::Unix(path) = &address else { return Err(ConnectError::UnsupportedAddress(address)) };
    let failed = |source| ConnectError::Connect { address: address.clone(), source };
    // A Unix socket connects at once or not at all; the timeout is a safeguard.
    let connected = timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await;
    let stream = connected.map_err(io::Error::from).flatten().map_err(failed)?;
    let descriptor = Descriptor::Owned(OwnedFd::from(stream.into_std().map_err(failed)?));
    use_socket(address, descriptor)
}

/// Connects to a hub on the loopback. The key in its file authenticates the shim to the hub; the sidecar authenticates
/// the hub's pipe.
async fn connect_hub(file: PathBuf) -> Result<OpenedConnection, ConnectError> {
    let connected =
        timeout(CONNECT_TIMEOUT, loopback::connect(&file)).await.map_err(io::Error::from).flatten();
    let address = Address::Hub(file);
    match connected {
        Ok(descriptor) => use_socket(address, Descriptor::Owned(descriptor)),
        Err(source) => Err(ConnectError::Connect { address, source }),
    }
}

/// Uses a connected socket. Hello needs no proof besides the socket itself.
fn use_socket(address: Address, descriptor: Descriptor) -> Result<OpenedConnection, ConnectError> {
    match Socket::new(descriptor) {
        Ok(socket) => {
            let connection = Connection { stream: Stream::Socket(socket), decoder: Decoder::new() };
            Ok(OpenedConnection { connection, address, proof: Proof::Socket, held_key: None })
        }
        Err(source) => Err(ConnectError::Connect { address, source }),
    }
}

async fn connect_vsock(address: Address, cid: u32, port: u32) -> Result<OpenedConnection, ConnectError> {
    let failed = |source| ConnectError::Vsock { address: address.clone(), source };
    let connected = timeout(VSOCK_TIMEOUT, relay_carriage::vsock::connect(cid, port)).await;
    let stream = connected.map_err(io::Error::from).flatten().map_err(failed)?;
    let descriptor = Descriptor::Owned(OwnedFd::from(stream.into_std().map_err(failed)?));
    use_socket(address, descriptor)
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The kernel's own timeout is two seconds.
const VSOCK_TIMEOUT: Duration = Duration::from_secs(5);
