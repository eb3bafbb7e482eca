//! HTTP CONNECT, for networks that can be left only through a proxy.
//!
//! Must stay true: neither user nor password is in any error, log or `Debug`.

mod settings;

use std::io;

use relay_proto::address::HostPort;
use tokio::io::AsyncWriteExt as _;

use crate::Stream;
use crate::head::{self, HeadError, base64_encode};
use crate::rewound::Rewound;
pub use settings::{InvalidProxy, Proxies, Proxy};

/// Each message names the proxy's address, which may come from an environment variable that the user did not set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    #[error(
        "the proxy {proxy} closed the connection without a response; is it an HTTP proxy that supports CONNECT?"
    )]
    Closed { proxy: HostPort },
    #[error(
        "the proxy {proxy} does not allow connections to {target} (status 403); allow them there, or use another proxy \
         with `--proxy`"
    )]
    Forbidden { proxy: HostPort, target: HostPort },
    #[error("the connection to the proxy {proxy} failed: {source}")]
    Io { proxy: HostPort, source: io::Error },
    #[error(
        "the proxy {proxy} requires a user and a password (status 407); put them into its URL: \
         `http://USER:PASSWORD@HOST:PORT`, with special characters percent-encoded"
    )]
    NeedsPassword { proxy: HostPort },
    #[error(
        "{proxy} does not respond like an HTTP proxy; correct `HTTPS_PROXY`, or use another proxy with `--proxy`"
    )]
    NotHttp { proxy: HostPort },
    #[error(
        "the proxy {proxy} responded to CONNECT {target} with status {status}; is {target} up, and can the proxy reach it?"
    )]
    Status { proxy: HostPort, target: HostPort, status: u16 },
    #[error(
        "the proxy {proxy} rejected the user and the password in its URL (status 407); correct them there"
    )]
    WrongPassword { proxy: HostPort },
}

/// Requests a connection to `target` from `proxy`, at the other end of `stream`. Has no timeout.
pub async fn connect<S: Stream>(
    mut stream: S,
    proxy: &Proxy,
    target: &HostPort,
) -> Result<impl Stream + use<S>, ProxyError> {
    let address = || proxy.address.clone();
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => ProxyError::Closed { proxy: address() },
        _ => ProxyError::Io { proxy: address(), source },
    };
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
    if let Some(credentials) = &proxy.credentials {
        request += &format!("Proxy-Authorization: Basic {}\r\n", base64_encode(credentials.0.as_bytes()));
    }
    request += "\r\n";
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let head = head::read(&mut stream, b"HTTP/1.").await;
    let response = head.and_then(|head| Ok((head.parse_response()?.status, head.rest)));
    match response {
        // Bytes after the head already come from the target.
        Ok((200..=299, rest)) => Ok(Rewound::new(rest, stream)),
        Ok((403, _)) => Err(ProxyError::Forbidden { proxy: address(), target: target.clone() }),
        Ok((407, _)) if proxy.credentials.is_some() => Err(ProxyError::WrongPassword { proxy: address() }),
        Ok((407, _)) => Err(ProxyError::NeedsPassword { proxy: address() }),
        Ok((status, _)) => Err(ProxyError::Status { proxy: address(), target: target.clone(), status }),
        Err(HeadError::Closed) => Err(ProxyError::Closed { proxy: address() }),
        Err(HeadError::Io(error)) => Err(failed(error)),
        Err(HeadError::NotHttp | HeadError::TooLong) => Err(ProxyError::NotHttp { proxy: address() }),
    }
}
