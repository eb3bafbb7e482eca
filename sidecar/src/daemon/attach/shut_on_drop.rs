//! The stream of a pipe with a single link: when the link drops it, the pipe is shut down.
//!
//! The attach table has a duplicate of the descriptor, so closing ours would not end the connection, and the shim at the
//! other end would wait and never reconnect.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

use crate::daemon::attach_table::PipeHandle;

pub(super) struct ShutOnDrop<S> {
    stream: S,
    pipe: PipeHandle,
    /// Cancelled on drop.
    dropped: CancellationToken,
}

impl<S> ShutOnDrop<S> {
    pub(super) fn new(stream: S, pipe: PipeHandle, dropped: CancellationToken) -> Self {
        Self { stream, pipe, dropped }
    }
}

impl<S> Drop for ShutOnDrop<S> {
    fn drop(&mut self) {
        self.pipe.shut();
        self.dropped.cancel();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ShutOnDrop<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ShutOnDrop<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
