//! The sandbox's side of a port that the host dials, and the preamble that the host sends.
//!
//! The sandbox is the TLS client here too, so it would send first; but on platforms that expose ports as WebSockets the
//! host sends first. So the host always sends first: an upgrade request, or [`PREAMBLE`].
//!
//! What must stay true: a peer without the sidecar's key gets no frame and no name of a server; a peer that sends neither
//! the preamble nor an HTTP request gets no byte at all.

use std::io;

use relay_proto::key::PublicKey;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::identity::Identity;
use crate::rewound::Rewound;
use crate::tls::{self, StreamProtocol, TlsError};
use crate::websocket::{self, UpgradeError};
use crate::{BoxedStream, Stream};

/// The host's preamble on a plain TCP or vsock connection.
pub const PREAMBLE: &[u8] = b"cofferdam-dial/1\n";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboundError {
    #[error("the connection of a peer failed: {0}")]
    Io(#[from] io::Error),
    #[error("the peer that connected is not a sidecar: it sent neither the preamble nor a WebSocket upgrade")]
    NoPreamble,
    #[error("a peer connected and did not prove the sidecar's key: {0}")]
    Tls(#[from] TlsError),
    #[error("a peer connected and did not open a WebSocket: {0}")]
    Upgrade(#[from] UpgradeError),
}

/// Accepts, on the sandbox's side, a connection of the peer with the key `pin`, and no other. Has no timeout.
pub async fn accept_inbound<S: Stream + 'static>(
    stream: S,
    identity: &Identity,
    pin: &PublicKey,
) -> Result<BoxedStream, InboundError> {
    accept_inbound_for(StreamProtocol::Link, stream, identity, pin).await
}

/// Like [`accept_inbound`], for a link or a hub.
pub async fn accept_inbound_for<S: Stream + 'static>(
    protocol: StreamProtocol,
    stream: S,
    identity: &Identity,
    pin: &PublicKey,
) -> Result<BoxedStream, InboundError> {
    let (first, mut stream) = Rewound::peek(stream).await?;
    if first == b'G' {
        let stream = websocket::accept(stream).await?;
        return Ok(Box::new(tls::connect_for(protocol, stream, identity, pin).await?));
    }
    for expected in PREAMBLE {
        if stream.read_u8().await? != *expected {
            return Err(InboundError::NoPreamble);
        }
    }
    Ok(Box::new(tls::connect_for(protocol, stream, identity, pin).await?))
}

/// Sends the preamble on a plain TCP or vsock connection; [`tls::accept_pipe`] comes next.
pub async fn send_preamble<S: Stream>(stream: &mut S) -> io::Result<()> {
    stream.write_all(PREAMBLE).await?;
    stream.flush().await
}
