//! A byte stream in binary WebSocket messages.
//!
//! Each write becomes one message of at most [`MAX_FRAME`] bytes; message boundaries mean nothing to the reader. Must
//! stay true: a longer frame or message is refused at its header, before memory is allocated for it; and pings are
//! answered, because load balancers close connections on which no pong arrives.

mod keep_alive;
mod upgrade;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use futures_util::{Sink as _, Stream as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::error::{CapacityError, Error};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::Stream;
pub use keep_alive::KeepAlive;
pub use upgrade::{Header, UpgradeError, accept, connect};

/// In bytes, the limit of a WebSocket frame and of a message: the largest frame of the relay protocol fits.
pub const MAX_FRAME: usize = 64 * 1024 + 256;

/// A stream of bytes in WebSocket messages over `S`.
#[derive(Debug)]
pub struct WebSocketStream<S> {
    messages: tokio_tungstenite::WebSocketStream<S>,
    /// The rest of the message that is being read.
    unread: Bytes,
}

impl<S: Stream> WebSocketStream<S> {
    async fn new(stream: S, already_read: Bytes, role: Role) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(INITIAL_READ_BUFFER)
            .write_buffer_size(0)
            .max_write_buffer_size(2 * MAX_FRAME)
            .max_message_size(Some(MAX_FRAME))
            .max_frame_size(Some(MAX_FRAME));
        let messages = tokio_tungstenite::WebSocketStream::from_partially_read(
            stream,
            already_read.into(),
            role,
            Some(config),
        )
        .await;
        Self { messages, unread: Bytes::new() }
    }

    /// Sends a ping, unless an earlier message still waits to be written, which keeps the connection alive too.
    fn poll_ping(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match Pin::new(&mut self.messages).poll_ready(context) {
            Poll::Ready(ready) => ready.map_err(to_io)?,
            Poll::Pending => return Ok(()),
        }
        Pin::new(&mut self.messages).start_send(Message::Ping(Bytes::new())).map_err(to_io)?;
        match Pin::new(&mut self.messages).poll_flush(context) {
            Poll::Ready(flushed) => flushed.map_err(to_io),
            // The next read or write continues the flush.
            Poll::Pending => Ok(()),
        }
    }
}

impl<S: Stream> AsyncRead for WebSocketStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match ready!(Pin::new(&mut self.messages).poll_next(context)) {
                Some(Ok(Message::Binary(bytes))) => self.unread = bytes,
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Ok(Message::Text(_))) => {
                    let why =
                        "the peer sent a text message in the WebSocket; a link uses binary messages only";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
                }
                Some(Err(error)) => return Poll::Ready(Err(to_io(error))),
            }
        }
        let count = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread[..count]);
        self.unread.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for WebSocketStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Not ready means that an earlier message is still in the buffer, which holds one message at most.
        ready!(Pin::new(&mut self.messages).poll_ready(context)).map_err(to_io)?;
        let count = bytes.len().min(MAX_FRAME);
        let message = Message::Binary(Bytes::copy_from_slice(&bytes[..count]));
        Pin::new(&mut self.messages).start_send(message).map_err(to_io)?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.messages).poll_flush(context).map_err(to_io)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.messages).poll_close(context).map_err(to_io)
    }
}

/// In bytes. Allocated for every WebSocket, so it is small; the buffer grows for a larger message.
const INITIAL_READ_BUFFER: usize = 4 * 1024;

fn to_io(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        Error::Capacity(CapacityError::MessageTooLong { size, max_size }) => {
            let why = format!(
                "the peer sent {size} bytes in one WebSocket message; a link accepts at most {max_size}"
            );
            io::Error::new(io::ErrorKind::InvalidData, why)
        }
        error => io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the peer violated the WebSocket protocol: {error}"),
        ),
    }
}
