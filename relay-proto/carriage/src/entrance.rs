//! The sandbox's side of a port that the host dials, and the host's knock at it.
//!
//! The sandbox is the TLS client there too, so it would speak first; but platforms expose ports as WebSockets, and then the
//! host speaks first. So the host always does: with a request for a WebSocket, or with [`KNOCK`].
//!
//! Must stay true: whoever does not have the sidecar's key gets nothing: not a frame, not the name of a server; and who
//! does not knock does not get a byte.

use std::io;

use relay_proto::key::PublicKey;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::identity::Identity;
use crate::rewound::Rewound;
use crate::tls::{self, Inside, TlsError};
use crate::websocket::{self, UpgradeError};
use crate::{BoxedStream, Stream};

/// What the host says first on a plain TCP connection.
pub const KNOCK: &[u8] = b"cofferdam-dial/1\n";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntranceError {
    #[error("somebody connected and left: {0}")]
    Io(#[from] io::Error),
    #[error("somebody connected who is no sidecar: it neither knocked nor asked for a WebSocket")]
    NoKnock,
    #[error("somebody connected and did not prove the sidecar's key: {0}")]
    Tls(#[from] TlsError),
    #[error("somebody connected and did not open a WebSocket: {0}")]
    Upgrade(#[from] UpgradeError),
}

/// The sandbox's side: lets in whoever has the key `pin`. Bound it with a time-out.
pub async fn enter<S: Stream + 'static>(
    stream: S,
    identity: &Identity,
    pin: &PublicKey,
) -> Result<BoxedStream, EntranceError> {
    enter_for(Inside::Link, stream, identity, pin).await
}

/// The same, for whatever is inside.
pub async fn enter_for<S: Stream + 'static>(
    inside: Inside,
    stream: S,
    identity: &Identity,
    pin: &PublicKey,
) -> Result<BoxedStream, EntranceError> {
    let (first, mut stream) = Rewound::peek(stream).await?;
    if first == b'G' {
        let stream = websocket::server(stream).await?;
        return Ok(Box::new(tls::connect_for(inside, stream, identity, pin).await?));
    }
    for expected in KNOCK {
        if stream.read_u8().await? != *expected {
            return Err(EntranceError::NoKnock);
        }
    }
    Ok(Box::new(tls::connect_for(inside, stream, identity, pin).await?))
}

/// The host's side on a plain TCP connection; [`tls::accept_pipe`] comes next.
pub async fn knock<S: Stream>(stream: &mut S) -> io::Result<()> {
    stream.write_all(KNOCK).await?;
    stream.flush().await
}
