//! Opens connections to one server: name, address, TCP, TLS, HTTP/1.1.
//!
//! What must stay true: only an address that was checked is dialled, the certificate must be for the URL's own
//! host, and proxies from the environment are not asked. An error here means that no byte of a request went out.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http::uri::PathAndQuery;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;

use super::address::{AddressError, Host, Resolve, SystemResolver};
use crate::config::Addresses;

/// The head of a response: far above what servers send, far below what would hurt.
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 128;
/// One address that does not answer leaves time for the next one.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the server is, taken apart once.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) host: Host,
    pub(super) path: PathAndQuery,
    /// What the `Host` header says; user information in the URL is not part of it.
    pub(super) authority: Option<HeaderValue>,
    pub(super) scheme: Scheme,
    spelled_host: String,
    port: u16,
    allowed: Addresses,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Scheme {
    Http,
    Https,
}

/// What lies outside: names and trust. A seam for tests.
#[derive(Clone)]
pub(super) struct Network {
    pub(super) resolver: Arc<dyn Resolve>,
    pub(super) trust: Trust,
}

#[derive(Clone)]
pub(super) enum Trust {
    #[cfg_attr(not(test), expect(dead_code, reason = "tests bring their own certificate authority"))]
    Given(Arc<ClientConfig>),
    /// The system's roots, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    System,
}

pub(super) type Sender = http1::SendRequest<Full<Bytes>>;
pub(super) type Connection = http1::Connection<TokioIo<Box<dyn Duplex>>, Full<Bytes>>;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("connect to the server")]
    Dial(#[source] io::Error),
    #[error("open HTTP to the server")]
    Http(#[source] hyper::Error),
    #[error("the host of the URL is no name for a certificate")]
    Name,
    #[error("load the system's certificate authorities")]
    Roots(#[source] io::Error),
    #[error("connecting took longer than {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("agree on TLS with the server")]
    Tls(#[source] io::Error),
}

impl Endpoint {
    pub(super) fn read(url: &http::Uri, allowed: Addresses) -> Self {
        // What is not plainly http is held to the stricter scheme.
        let scheme = match url.scheme_str() {
            Some("http") => Scheme::Http,
            _ => Scheme::Https,
        };
        let spelled_host = url.host().unwrap_or_default().to_owned();
        let authority = match url.port_u16() {
            Some(port) => format!("{spelled_host}:{port}"),
            None => spelled_host.clone(),
        };
        Self {
            host: Host::read(&spelled_host),
            path: url.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")),
            authority: HeaderValue::from_str(&authority).ok(),
            port: url.port_u16().unwrap_or(match scheme {
                Scheme::Http => 80,
                Scheme::Https => 443,
            }),
            scheme,
            spelled_host,
            allowed,
        }
    }
}

impl Network {
    pub(super) fn system() -> Self {
        Self { resolver: Arc::new(SystemResolver), trust: Trust::System }
    }

    pub(super) async fn connect(
        &self,
        endpoint: &Endpoint,
        limit: Duration,
    ) -> Result<(Sender, Connection), ConnectError> {
        tokio::time::timeout(limit, self.connect_at_leisure(endpoint))
            .await
            .map_err(|_| ConnectError::TimedOut(limit))?
    }

    async fn connect_at_leisure(&self, endpoint: &Endpoint) -> Result<(Sender, Connection), ConnectError> {
        let addresses =
            endpoint.host.addresses(endpoint.port, endpoint.allowed, self.resolver.as_ref()).await?;
        let socket = dial(&addresses).await.map_err(ConnectError::Dial)?;
        // A small request must not wait for a delayed acknowledgement.
        socket.set_nodelay(true).map_err(ConnectError::Dial)?;
        let stream: Box<dyn Duplex> = match endpoint.scheme {
            Scheme::Http => Box::new(socket),
            Scheme::Https => {
                let name = match &endpoint.host {
                    Host::Address(address) => ServerName::from(*address),
                    Host::Localhost | Host::Name(_) => {
                        ServerName::try_from(endpoint.spelled_host.clone()).map_err(|_| ConnectError::Name)?
                    }
                };
                let connector = TlsConnector::from(self.trust.configuration().await?);
                Box::new(connector.connect(name, socket).await.map_err(ConnectError::Tls)?)
            }
        };
        http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(ConnectError::Http)
    }
}

impl Trust {
    async fn configuration(&self) -> Result<Arc<ClientConfig>, ConnectError> {
        /// Hundreds of certificates: read once, by the first that needs them.
        static SYSTEM: OnceCell<Arc<ClientConfig>> = OnceCell::const_new();
        match self {
            Self::Given(configuration) => Ok(configuration.clone()),
            Self::System => SYSTEM
                .get_or_try_init(|| async {
                    let roots = tokio::task::spawn_blocking(system_roots)
                        .await
                        .map_err(io::Error::other)
                        .and_then(|roots| roots)
                        .map_err(ConnectError::Roots)?;
                    Ok(client_configuration(roots))
                })
                .await
                .cloned(),
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

pub(super) fn client_configuration(roots: RootCertStore) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut configuration = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider speaks the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    configuration.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(configuration)
}

fn system_roots() -> io::Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // One odd certificate in a system's store does not spoil the others.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    match (added, found.errors.into_iter().next()) {
        (0, Some(error)) => Err(io::Error::other(error)),
        (0, None) => Err(io::Error::new(io::ErrorKind::NotFound, "there are none")),
        _ => Ok(roots),
    }
}

async fn dial(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match tokio::time::timeout(ADDRESS_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failure)
}
