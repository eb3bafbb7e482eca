//! One request, one reply: the only way by which anything reaches Vault.
//!
//! What must stay true: each request has its own connection, so that "sent" and "not sent" are never in doubt and nothing
//! is sent twice; no redirect is followed; connecting, the whole exchange, the size of the answer and the number of
//! requests at once are bounded; the answer is in wiped memory.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ::http::header::{CONNECTION, CONTENT_LENGTH, DATE, HOST, HeaderValue, LOCATION, RETRY_AFTER};
use ::http::{Method, Response, Uri};
use arc_swap::ArcSwap;
use bytes::Bytes;
use cofferdam_base::text::{error_chain, is_unreserved, percent_encoded};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use super::address::{Address, Carriage, Host};
use super::body::Body;
use super::error::{Asked, Problem, Said, VaultError};
use super::token::Token;
use super::trust::{self, Identity, TrustError};

/// Names, TCP and TLS: a host that is there answers within this.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// From the call to the last byte of the answer.
const WHOLE_TIME: Duration = Duration::from_secs(5);
/// A secret is a few KB; a megabyte is no answer.
const MAX_ANSWER: usize = 1024 * 1024;
const MAX_HEAD: usize = 64 * 1024;
const MAX_HEADERS: usize = 128;
/// Vault's own default quota and our sockets stand more; two hundred sessions that start at once need no more.
const MAX_AT_ONCE: usize = 32;
/// What a server asks for beyond this is not believed.
const MAX_RETRY_AFTER: u64 = 3600;

pub(super) struct Transport {
    address: Address,
    namespace: Option<HeaderValue>,
    roots: Arc<RootCertStore>,
    /// Changes when a new client certificate is presented.
    tls: ArcSwap<ClientConfig>,
    places: Semaphore,
}

pub(super) struct Request<'a> {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) token: Option<&'a Token>,
    pub(super) body: Option<Body>,
}

/// Where a node says how it is.
pub(super) const HEALTH: &str = "sys/health";

pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
    /// Vault's own clock.
    pub(super) date: Option<SystemTime>,
    /// Where a redirect points.
    pub(super) host: Option<String>,
    pub(super) body: Zeroizing<Vec<u8>>,
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

type Sender = http1::SendRequest<Full<Bytes>>;
type Connection = http1::Connection<TokioIo<Box<dyn Duplex>>, Full<Bytes>>;

impl Transport {
    pub(super) fn new(
        address: Address,
        namespace: Option<HeaderValue>,
        roots: Arc<RootCertStore>,
    ) -> Result<Self, TrustError> {
        let tls = ArcSwap::new(trust::configuration(roots.clone(), None)?);
        Ok(Self { address, namespace, roots, tls, places: Semaphore::new(MAX_AT_ONCE) })
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Shows this certificate from now on.
    pub(super) fn present(&self, identity: Identity) -> Result<(), TrustError> {
        self.tls.store(trust::configuration(self.roots.clone(), Some(identity))?);
        Ok(())
    }

    pub(super) async fn send(&self, request: &Request<'_>) -> Result<Reply, VaultError> {
        let fail = |problem| VaultError { asked: request.asked(), problem };
        let deadline = Instant::now() + WHOLE_TIME;
        let unreachable = |why: String| fail(Problem::Unreachable { why });
        let message = self.message(request).ok_or_else(|| {
            fail(Problem::Status {
                status: 400,
                said: Said::ours("this is no path in Vault; nothing was sent"),
                retry_after: None,
            })
        })?;
        let _place = match timeout_at(deadline, self.places.acquire()).await {
            Ok(Ok(place)) => place,
            _ => return Err(unreachable(format!("{MAX_AT_ONCE} requests are waiting for it already"))),
        };
        let limit = deadline.min(Instant::now() + CONNECT_TIME);
        let (sender, connection) = timeout_at(limit, self.connect())
            .await
            .map_err(|_| unreachable(format!("connecting took longer than {} s", CONNECT_TIME.as_secs())))?
            .map_err(|error| unreachable(error_chain(&error)))?;
        let exchange = drive(connection, exchange(sender, message));
        timeout_at(deadline, exchange)
            .await
            .unwrap_or_else(|_| {
                Err(Problem::NoAnswer { why: format!("it took longer than {} s", WHOLE_TIME.as_secs()) })
            })
            .map_err(fail)
    }

    fn message(&self, request: &Request<'_>) -> Option<::http::Request<Full<Bytes>>> {
        let uri: Uri = format!("{}/v1/{}", self.address.prefix, encoded(&request.path)?).parse().ok()?;
        let mut builder = ::http::Request::builder()
            .method(request.method.clone())
            .uri(uri)
            .header(HOST, self.address.authority.as_str())
            .header(CONNECTION, "close")
            // Vault's own guard against requests that somebody made a browser send.
            .header("x-vault-request", "true");
        // A node is healthy or not whatever the namespace, and refuses to be asked within one.
        if let Some(namespace) = self.namespace.as_ref().filter(|_| request.path != HEALTH) {
            builder = builder.header("x-vault-namespace", namespace);
        }
        if let Some(token) = request.token {
            let bytes = Bytes::from_owner(Zeroizing::new(token.expose().as_bytes().to_vec()));
            let mut value = HeaderValue::from_maybe_shared(bytes).ok()?;
            value.set_sensitive(true);
            builder = builder.header("x-vault-token", value);
        }
        let body = match &request.body {
            Some(body) => {
                builder = builder.header("content-type", "application/json");
                Bytes::from_owner(body.encode())
            }
            None => Bytes::new(),
        };
        builder.body(Full::new(body)).ok()
    }

    async fn connect(&self) -> io::Result<(Sender, Connection)> {
        let socket = dial(&self.address).await?;
        // A small request must not wait for a delayed acknowledgement.
        socket.set_nodelay(true)?;
        let stream: Box<dyn Duplex> = match self.address.carriage {
            Carriage::Plain => Box::new(socket),
            Carriage::Tls => {
                let name = match &self.address.host {
                    Host::Address(address) => ServerName::from(*address),
                    Host::Localhost => ServerName::try_from("localhost").map_err(io::Error::other)?,
                    Host::Name(name) => ServerName::try_from(name.clone()).map_err(io::Error::other)?,
                };
                Box::new(TlsConnector::from(self.tls.load_full()).connect(name, socket).await?)
            }
        };
        http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)
    }
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

impl Request<'_> {
    pub(super) fn asked(&self) -> Asked {
        Asked { method: self.method.clone(), path: self.path.clone() }
    }

    /// What no error may repeat.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        let token = self.token.map(Token::expose);
        token.into_iter().chain(self.body.iter().flat_map(Body::secrets))
    }
}

/// The path as a URL has it; nothing if it could lead anywhere but where it says.
fn encoded(path: &str) -> Option<String> {
    let is_odd = |segment: &str| matches!(segment, "" | "." | "..");
    if path.split('/').any(is_odd) || path.chars().any(char::is_control) {
        return None;
    }
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'/' | b':' | b'@' | b'+' | b'=' | b',' => encoded.push(char::from(byte)),
            byte if is_unreserved(byte) => encoded.push(char::from(byte)),
            byte => encoded.extend(percent_encoded(byte).map(char::from)),
        }
    }
    Some(encoded)
}

async fn dial(address: &Address) -> io::Result<TcpStream> {
    let places = address.resolve().await?;
    // One that does not answer leaves time for the next.
    let each = CONNECT_TIME / u32::try_from(places.len()).unwrap_or(1);
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for place in places {
        match timeout(each, TcpStream::connect(place)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failure)
}

/// Moves the connection's bytes while the exchange waits for them.
async fn drive<T>(connection: Connection, exchange: impl Future<Output = T>) -> T {
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        biased;
        result = &mut exchange => return result,
        // Its end, good or bad, is seen by the exchange too.
        _ = connection => {}
    }
    exchange.await
}

async fn exchange(mut sender: Sender, message: ::http::Request<Full<Bytes>>) -> Result<Reply, Problem> {
    let response =
        sender.send_request(message).await.map_err(|error| Problem::NoAnswer { why: error_chain(&error) })?;
    let header = |name| response.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let retry_after = header(RETRY_AFTER)
        .and_then(|seconds| seconds.trim().parse().ok())
        .map(|seconds: u64| Duration::from_secs(seconds.min(MAX_RETRY_AFTER)));
    let host = header(LOCATION)
        .and_then(|location| location.parse::<Uri>().ok())
        .and_then(|location| location.host().map(str::to_owned));
    let date = header(DATE).and_then(|date| httpdate::parse_http_date(date).ok());
    let status = response.status().as_u16();
    Ok(Reply { status, retry_after, date, host, body: collect(response).await? })
}

async fn collect(response: Response<Incoming>) -> Result<Zeroizing<Vec<u8>>, Problem> {
    let too_large = || Problem::TooLarge { limit: MAX_ANSWER };
    let length = response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let expected: usize = match length.map(str::parse) {
        Some(Ok(length)) => length,
        Some(Err(_)) => return Err(Problem::Malformed { why: "its length is no number" }),
        None => 0,
    };
    if expected > MAX_ANSWER {
        return Err(too_large());
    }
    let mut collected = Zeroizing::new(Vec::with_capacity(expected));
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::NoAnswer { why: error_chain(&error) })?;
        let Ok(data) = frame.into_data() else { continue };
        let needed = collected.len() + data.len();
        if needed > MAX_ANSWER {
            return Err(too_large());
        }
        if needed > collected.capacity() {
            // By hand: growing in place would leave the old bytes behind unwiped.
            let mut larger = Zeroizing::new(Vec::with_capacity((2 * needed).min(MAX_ANSWER)));
            larger.extend_from_slice(&collected);
            collected = larger;
        }
        collected.extend_from_slice(&data);
    }
    Ok(collected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_where_it_says() {
        assert_eq!(
            encoded("secret/data/my app?x#y%2e").as_deref(),
            Some("secret/data/my%20app%3Fx%23y%252e")
        );
        assert_eq!(encoded("auth/userpass/login/ä").as_deref(), Some("auth/userpass/login/%C3%A4"));
        for bad in ["", "/", "/secret", "secret/", "secret//x", "secret/../sys/seal", "a/./b", "a\nb"] {
            assert_eq!(encoded(bad), None, "{bad:?}");
        }
    }
}
