//! The HTTP upgrade to a WebSocket: one request, one response.

use std::io;

use relay_proto::address::{Host, WebSocket};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::io::AsyncWriteExt as _;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::WebSocketStream;
use crate::Stream;
use crate::head::{self, HeadError, HttpVersion, MAX_HEAD, base64_encode};

/// An additional header of the upgrade request, for platforms that require a token.
#[derive(Clone)]
pub struct Header {
    pub name: String,
    pub value: String,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpgradeError {
    #[error("the peer closed the connection during the WebSocket upgrade; see its log")]
    Closed,
    #[error(
        "the header `{0}` cannot be sent: a name has letters, digits and `-`, a value printable characters"
    )]
    Header(String),
    #[error("the connection failed during the WebSocket upgrade: {0}")]
    Io(#[source] io::Error),
    #[error("the peer does not speak HTTP; is this the port that `relay.advertise` names?")]
    NotHttp,
    /// On the sidecar's side: the request of a reverse proxy that must be configured.
    // Short: the log has room for 200 bytes.
    #[error(
        "a reverse proxy forwarded HTTP/1.0, which has no upgrades; make it use HTTP/1.1 (nginx: `proxy_http_version \
         1.1`) and forward the headers `Upgrade` and `Connection`"
    )]
    OldHttp,
    #[error(
        "a reverse proxy or an HTTP server in between does not forward WebSocket upgrades (status {status}); configure \
         it to forward this path with HTTP/1.1 and the headers `Upgrade` and `Connection`, as in \
         packaging/examples/proxies, or use a `tls://` address"
    )]
    Stripped { status: u16 },
    #[error(
        "the response to the WebSocket upgrade has HTTP status {0}; is the path of the relay's address correct, and does the \
         load balancer in front of the sidecar forward this path?"
    )]
    Status(u16),
    #[error("the head of the HTTP message has more than {MAX_HEAD} bytes")]
    TooLong,
}

/// Requests a WebSocket, as its client.
pub async fn connect<S: Stream>(
    mut stream: S,
    address: &WebSocket,
    headers: &[Header],
) -> Result<WebSocketStream<S>, UpgradeError> {
    let mut random = [0; 16];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| UpgradeError::Io(io::Error::other("no random bytes")))?;
    let key = base64_encode(&random);
    let authority = match (&address.host, address.port) {
        (host, 443) => host.to_string(),
        (host @ (Host::Ip(_) | Host::Name(_)), port) => format!("{host}:{port}"),
    };
    let mut request = format!(
        "GET {} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n",
        address.path
    );
    for Header { name, value } in headers {
        let is_valid_name =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_valid_name || !value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
            return Err(UpgradeError::Header(name.escape_debug().to_string()));
        }
        request += &format!("{name}: {value}\r\n");
    }
    request += "\r\n";
    send(&mut stream, request.as_bytes()).await?;
    let head = head::read(&mut stream, b"HTTP/1.").await?;
    let response = head.parse_response()?;
    match response.status {
        101 => {}
        status @ (200..=299 | 426) => return Err(UpgradeError::Stripped { status }),
        status => return Err(UpgradeError::Status(status)),
    }
    let upgraded =
        response.list_contains("upgrade", "websocket") && response.list_contains("connection", "upgrade");
    if !upgraded || response.single_value("sec-websocket-accept") != Some(&accept_value(&key)) {
        return Err(UpgradeError::Stripped { status: 101 });
    }
    Ok(WebSocketStream::new(stream, head.rest, Role::Client).await)
}

/// Accepts an upgrade request, as the server; any other request gets an error response.
pub async fn accept<S: Stream>(mut stream: S) -> Result<WebSocketStream<S>, UpgradeError> {
    let head = head::read(&mut stream, b"GET ").await?;
    let Ok(request) = head.parse_request() else {
        return refuse(stream, "400 Bad Request", UpgradeError::NotHttp).await;
    };
    if request.version == HttpVersion::Http10 {
        return refuse(stream, UPGRADE_REQUIRED, UpgradeError::OldHttp).await;
    }
    if !request.list_contains("upgrade", "websocket") || !request.list_contains("connection", "upgrade") {
        let why = UpgradeError::Stripped { status: 426 };
        return refuse(stream, UPGRADE_REQUIRED, why).await;
    }
    let key = request.single_value("sec-websocket-key").filter(|key| key.len() == 24);
    let (Some(key), Some("13")) = (key, request.single_value("sec-websocket-version")) else {
        return refuse(stream, "400 Bad Request", UpgradeError::Status(400)).await;
    };
    let response = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {}\r\n\r\n",
        accept_value(key)
    );
    send(&mut stream, response.as_bytes()).await?;
    Ok(WebSocketStream::new(stream, head.rest, Role::Server).await)
}

/// The status of a response to a request without an upgrade, with the header that such a response must have.
const UPGRADE_REQUIRED: &str = "426 Upgrade Required\r\nUpgrade: websocket";

impl From<HeadError> for UpgradeError {
    fn from(error: HeadError) -> Self {
        match error {
            HeadError::Closed => Self::Closed,
            HeadError::Io(error) => error.into(),
            HeadError::NotHttp => Self::NotHttp,
            HeadError::TooLong => Self::TooLong,
        }
    }
}

impl From<io::Error> for UpgradeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                Self::Closed
            }
            _ => Self::Io(error),
        }
    }
}

async fn send<S: Stream>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

async fn refuse<S: Stream, T>(mut stream: S, status: &str, why: UpgradeError) -> Result<T, UpgradeError> {
    let response = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    send(&mut stream, response.as_bytes()).await?;
    stream.shutdown().await?;
    Err(why)
}

/// The value of `Sec-WebSocket-Accept`, which proves that the response belongs to the request with this key.
pub(super) fn accept_value(key: &str) -> String {
    let key_and_guid = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    base64_encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, key_and_guid.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_value_is_that_of_rfc_6455() {
        assert_eq!(accept_value("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
