//! Opens connections: name, checked address, TCP, TLS, HTTP/1.1.
//!
//! What must stay true: only an address that was checked is dialled; the certificate must be valid for the URL's host;
//! proxies from the environment are not used; the head of a response is bounded. A [`ConnectError`] means that no byte of a
//! request was sent.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper::body::Body;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::InvalidDnsNameError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::address::{AddressError, AddressPolicy, Host, Resolve, SystemResolver};
use crate::tls::Trust;

/// The limit for the head of a response: far above what servers send, far below what would exhaust memory.
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 128;
/// The longest time for one address.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an address is waited for before the next is tried as well: the delay that RFC 8305 recommends.
const HEAD_START: Duration = Duration::from_millis(250);

/// Where to connect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Endpoint {
    pub scheme: Scheme,
    pub host: Host,
    pub port: u16,
    pub policy: AddressPolicy,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scheme {
    Http,
    Https,
}

/// Opens connections with one resolver and one set of trusted authorities.
#[derive(Clone)]
pub struct Dialer {
    resolver: Arc<dyn Resolve>,
    trust: Trust,
}

pub type Sender<B = Full<Bytes>> = http1::SendRequest<B>;
/// Must be polled for the [`Sender`] to make progress.
pub type Connection<B = Full<Bytes>> = http1::Connection<TokioIo<Box<dyn Duplex>>, B>;

pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A body that cannot fail: it is in memory, or comes from a channel.
pub trait RequestBody: Body<Data = Bytes, Error = Infallible> + Send + 'static {}

impl<T: Body<Data = Bytes, Error = Infallible> + Send + 'static> RequestBody for T {}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("cannot start HTTP")]
    Http(#[source] hyper::Error),
    #[error("the host of the URL is not a name that a certificate can contain")]
    Name(#[from] InvalidDnsNameError),
    #[error("cannot load the system's certificate authorities")]
    Roots(#[source] io::Error),
    #[error("cannot open a TCP connection")]
    Tcp(#[source] io::Error),
    #[error("connecting took longer than {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("the TLS handshake failed")]
    Tls(#[source] io::Error),
}

impl Endpoint {
    pub fn new(url: &Uri, policy: AddressPolicy) -> Self {
        // Anything but `http` counts as the stricter scheme.
        let scheme = match url.scheme_str() {
            Some("http") => Scheme::Http,
            _ => Scheme::Https,
        };
        let port = url.port_u16().unwrap_or(match scheme {
            Scheme::Http => 80,
            Scheme::Https => 443,
        });
        Self { scheme, host: Host::parse(url.host().unwrap_or_default()), port, policy }
    }

    /// Whether requests cross a network unencrypted.
    pub fn is_plain_text_to_another_host(&self) -> bool {
        self.scheme == Scheme::Http && !self.host.is_loopback()
    }
}

impl Dialer {
    pub fn new(resolver: Arc<dyn Resolve>, trust: Trust) -> Self {
        Self { resolver, trust }
    }

    /// A dialer with the system's resolver.
    pub fn trusting(trust: Trust) -> Self {
        Self::new(Arc::new(SystemResolver), trust)
    }

    pub async fn connect(
        &self,
        endpoint: &Endpoint,
        limit: Duration,
    ) -> Result<(Sender, Connection), ConnectError> {
        self.connect_for(endpoint, limit).await
    }

    /// Like [`Self::connect`], for requests with any kind of body.
    pub(crate) async fn connect_for<B: RequestBody>(
        &self,
        endpoint: &Endpoint,
        limit: Duration,
    ) -> Result<(Sender<B>, Connection<B>), ConnectError> {
        tokio::time::timeout(limit, self.connect_unbounded(endpoint))
            .await
            .map_err(|_| ConnectError::TimedOut(limit))?
    }

    /// Opens a stream for a protocol that starts as HTTP/1.1 and is upgraded; encrypted if the scheme is `https`.
    pub async fn open(&self, endpoint: &Endpoint, limit: Duration) -> Result<Box<dyn Duplex>, ConnectError> {
        tokio::time::timeout(limit, self.open_unbounded(endpoint))
            .await
            .map_err(|_| ConnectError::TimedOut(limit))?
    }

    /// The first permitted address of a host that accepts a connection, for a program that connects by itself. A host with
    /// one address is not tried.
    pub async fn reachable_address(
        &self,
        host: &Host,
        port: u16,
        policy: AddressPolicy,
        limit: Duration,
    ) -> Result<SocketAddr, ConnectError> {
        let find = async {
            let addresses = host.addresses(port, policy, self.resolver.as_ref()).await?;
            match addresses[..] {
                [only] => Ok(only),
                _ => {
                    let socket = connect_to_first(&addresses).await.map_err(ConnectError::Tcp)?;
                    socket.peer_addr().map_err(ConnectError::Tcp)
                }
            }
        };
        tokio::time::timeout(limit, find).await.map_err(|_| ConnectError::TimedOut(limit))?
    }

    async fn connect_unbounded<B: RequestBody>(
        &self,
        endpoint: &Endpoint,
    ) -> Result<(Sender<B>, Connection<B>), ConnectError> {
        let stream = self.open_unbounded(endpoint).await?;
        http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(ConnectError::Http)
    }

    async fn open_unbounded(&self, endpoint: &Endpoint) -> Result<Box<dyn Duplex>, ConnectError> {
        let Endpoint { scheme, host, port, policy } = endpoint;
        let addresses = host.addresses(*port, *policy, self.resolver.as_ref()).await?;
        let socket = connect_to_first(&addresses).await.map_err(ConnectError::Tcp)?;
        // A small request must not wait for a delayed acknowledgement.
        socket.set_nodelay(true).map_err(ConnectError::Tcp)?;
        match scheme {
            Scheme::Http => Ok(Box::new(socket)),
            Scheme::Https => {
                let name = host.server_name()?;
                let config = self.trust.client_config().await.map_err(ConnectError::Roots)?;
                let stream = TlsConnector::from(config).connect(name, socket).await;
                Ok(Box::new(stream.map_err(ConnectError::Tls)?))
            }
        }
    }
}

/// Opens a connection to the first of these addresses that accepts one. The next is tried beside the others when one has
/// failed, or has not answered for a moment.
pub async fn connect_to_first(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    let mut untried = addresses.iter().copied();
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        if let Some(address) = untried.next() {
            attempts.spawn(tokio::time::timeout(ADDRESS_TIMEOUT, TcpStream::connect(address)));
        }
        let finished = match untried.len() {
            0 => attempts.join_next().await,
            _ => match tokio::time::timeout(HEAD_START, attempts.join_next()).await {
                Ok(finished) => finished,
                Err(_) => continue,
            },
        };
        failure = match finished {
            Some(Ok(Ok(Ok(socket)))) => return Ok(socket),
            Some(Ok(Ok(Err(error)))) => error,
            Some(Ok(Err(_))) => io::ErrorKind::TimedOut.into(),
            Some(Err(panicked)) => io::Error::other(panicked),
            None => return Err(failure),
        };
    }
}
