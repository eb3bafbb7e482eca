//! Many links in one pipe, where a platform gives only one stream of bytes between a hub in the sandbox and the sidecar.
//!
//! The multiplexer is yamux. Each of the sandbox's connections is a substream that the hub opens; the sidecar opens one,
//! for heartbeats. A substream that is not read blocks only its sender.
//!
//! Must stay true: the memory that a peer can make this side use is bounded. There are at most [`MAX_SUBSTREAMS`] at a
//! time, each with at most [`WINDOW`] bytes received and not read, and a few frames of [`MAX_FRAME`] bytes to be sent.

mod heartbeat;

use std::future::poll_fn;
use std::io;

use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt as _, TokioAsyncReadCompatExt as _};
use yamux::{Config, Connection, ConnectionError, DEFAULT_CREDIT, FrameDecodeError, Mode};

use crate::Stream;
use heartbeat::TimestampedStream;
pub use heartbeat::{LastReceived, Silence, echo_heartbeats, send_heartbeats};

/// Open substreams of one trunk. A hub opens fewer: see [`MAX_LOCAL_CONNECTIONS`].
pub const MAX_SUBSTREAMS: usize = 160;
/// Local connections that a hub accepts at a time: the rest of [`MAX_SUBSTREAMS`] is for heartbeats and for substreams
/// that are closed on one side only.
pub const MAX_LOCAL_CONNECTIONS: usize = 128;
/// Bytes of a substream that were received and not read. It is yamux's initial window, which never grows.
pub const WINDOW: usize = DEFAULT_CREDIT as usize;
/// Bytes in one frame: small, so that a message of another substream never waits long behind a frame.
pub const MAX_FRAME: usize = 16 * 1024;

/// One pipe with many substreams in it.
pub struct Trunk<S> {
    connection: Connection<Compat<TimestampedStream<S>>>,
    last_received: LastReceived,
}

/// An ordered stream of bytes in a trunk.
pub type Substream = Compat<yamux::Stream>;

/// Which end of the pipe this is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    Hub,
    Sidecar,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrunkError {
    #[error("the other end closed the pipe")]
    Closed,
    #[error("the pipe carries its maximum number of connections already")]
    Full,
    #[error("the pipe failed: {0}")]
    Io(#[source] io::Error),
    #[error("the other end of the pipe violated the multiplexer's protocol: {0}")]
    Protocol(#[source] ConnectionError),
}

impl<S: Stream> Trunk<S> {
    pub fn new(stream: S, side: Side) -> Self {
        let mut config = Config::default();
        config.set_max_num_streams(MAX_SUBSTREAMS);
        // Space for the initial window of each substream and no more, so that no window ever grows.
        config.set_max_connection_receive_window(Some(MAX_SUBSTREAMS * WINDOW));
        config.set_split_send_size(MAX_FRAME);
        let mode = match side {
            Side::Hub => Mode::Client,
            Side::Sidecar => Mode::Server,
        };
        let last_received = LastReceived::new();
        let watched = TimestampedStream::new(stream, last_received.clone());
        Self { connection: Connection::new(watched.compat(), config, mode), last_received }
    }

    /// Drives all substreams, and returns the next one that the other end opens. No byte is sent or received unless this is
    /// polled. Cancel-safe.
    pub async fn next(&mut self) -> Result<Substream, TrunkError> {
        match poll_fn(|context| self.connection.poll_next_inbound(context)).await {
            None => Err(TrunkError::Closed),
            Some(result) => Ok(result?.compat()),
        }
    }

    /// Opens a substream. It is announced to the other end with the first byte written.
    pub async fn open(&mut self) -> Result<Substream, TrunkError> {
        Ok(poll_fn(|context| self.connection.poll_new_outbound(context)).await?.compat())
    }

    /// Closes all substreams and the connection, also in TLS, because the stream below may stay open at the other end.
    pub async fn close(&mut self) -> Result<(), TrunkError> {
        Ok(poll_fn(|context| self.connection.poll_close(context)).await?)
    }

    /// When the last byte was received.
    pub fn last_received(&self) -> LastReceived {
        self.last_received.clone()
    }
}

impl From<ConnectionError> for TrunkError {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::Closed => Self::Closed,
            ConnectionError::TooManyStreams => Self::Full,
            ConnectionError::Io(error) | ConnectionError::Decode(FrameDecodeError::Io(error)) => {
                match error.kind() {
                    io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::WriteZero => Self::Closed,
                    _ => Self::Io(error),
                }
            }
            other => Self::Protocol(other),
        }
    }
}

#[cfg(test)]
mod tests;
