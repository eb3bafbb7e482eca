//! A stream whose first bytes were read already; reading returns them again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use crate::Stream;

#[derive(Debug)]
pub(crate) struct Rewound<S> {
    prefix: Bytes,
    stream: S,
}

impl<S: Stream> Rewound<S> {
    pub(crate) fn new(prefix: impl Into<Bytes>, stream: S) -> Self {
        Self { prefix: prefix.into(), stream }
    }

    /// Looks at the first byte without consuming it.
    pub(crate) async fn peek(mut stream: S) -> io::Result<(u8, Self)> {
        let first = stream.read_u8().await?;
        Ok((first, Self::new(vec![first], stream)))
    }
}

impl<S: Stream> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buf);
        }
        let count = self.prefix.len().min(buf.remaining());
        buf.put_slice(&self.prefix[..count]);
        self.prefix.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for Rewound<S> {
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
