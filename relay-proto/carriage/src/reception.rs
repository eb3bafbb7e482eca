//! The sidecar's side of its one port, to which every sandbox that dials out connects.
//!
//! | the connection begins with | it is |
//! |---|---|
//! | TLS that offers the relay protocol | the inner TLS |
//! | other TLS | the outer TLS, with a WebSocket in it and the inner TLS in the WebSocket |
//! | `GET` | a WebSocket whose outer TLS was terminated by a proxy, with the inner TLS in it |
//!
//! Must stay true: only streams whose peer proved a key are returned.

use std::io;
use std::sync::Arc;

use relay_proto::key::PublicKey;
use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio_rustls::LazyConfigAcceptor;

use crate::identity::Identity;
use crate::outer::{self, CertificateError};
use crate::rewound::Rewound;
use crate::tls::{self, ALPN, TlsError};
use crate::websocket::{self, UpgradeError};
use crate::{BoxedStream, Stream};

/// Accepts connections; holds the TLS configurations, which are made once.
#[derive(Clone, Debug)]
pub struct Reception {
    inner: Arc<ServerConfig>,
    outer: Arc<ServerConfig>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceptionError {
    /// A port scan, or a client that disconnected.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("the peer speaks neither TLS nor HTTP")]
    UnknownProtocol,
    #[error("in the TLS around the WebSocket: {0}")]
    Outer(#[source] TlsError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
}

impl Reception {
    pub fn new(identity: &Identity) -> Result<Self, CertificateError> {
        Ok(Self { inner: tls::server_config(identity), outer: outer::server_config()? })
    }

    /// Accepts one connection; returns its stream and the key that the peer proved. Has no timeout.
    pub async fn receive<S: Stream + 'static>(
        &self,
        stream: S,
    ) -> Result<(BoxedStream, PublicKey), ReceptionError> {
        let (first, stream) = Rewound::peek(stream).await?;
        match first {
            TLS_HANDSHAKE => self.receive_tls(stream).await,
            b'G' => self.receive_web_socket(stream).await,
            _ => Err(ReceptionError::UnknownProtocol),
        }
    }

    async fn receive_tls<S: Stream + 'static>(
        &self,
        stream: S,
    ) -> Result<(BoxedStream, PublicKey), ReceptionError> {
        let started =
            LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(TlsError::from_io)?;
        let direct =
            started.client_hello().alpn().is_some_and(|mut offered| offered.any(|name| name == ALPN));
        if direct {
            let stream = started.into_stream(Arc::clone(&self.inner)).await.map_err(TlsError::from_io)?;
            let key = tls::link_peer_key(stream.get_ref().1)?;
            return Ok((Box::new(stream), key));
        }
        let outer = started.into_stream(Arc::clone(&self.outer)).await;
        self.receive_web_socket(outer.map_err(|error| ReceptionError::Outer(TlsError::from_outer_io(error)))?)
            .await
    }

    async fn receive_web_socket<S: Stream + 'static>(
        &self,
        stream: S,
    ) -> Result<(BoxedStream, PublicKey), ReceptionError> {
        let stream = websocket::accept(stream).await?;
        let (stream, key) = tls::accept_with(Arc::clone(&self.inner), stream).await?;
        Ok((Box::new(stream), key))
    }
}

/// The first byte of a TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;
