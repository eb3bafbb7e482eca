//! The byte stream to the sidecar, with one interface for every transport.
//!
//! A plain socket is read and written directly, which is fastest. Every other transport (TLS, WebSocket, …) is a tokio
//! stream.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::socket::Socket;

/// The transport of a link.
pub(crate) enum Stream {
    Async(AsyncStream),
    Socket(Socket),
}

/// Any ordered byte stream.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A tokio stream. One task reads and writes it by shared references, so the lock is never contended.
pub(crate) struct AsyncStream(Mutex<Buffered>);

struct Buffered {
    stream: Box<dyn ByteStream>,
    unsent: Unsent,
}

/// Whether the stream has buffered bytes that it has not sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Unsent {
    No,
    Perhaps,
}

impl Stream {
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "without TLS every link is a socket"))]
    pub(crate) fn from_async(stream: impl ByteStream + 'static) -> Self {
        Self::Async(AsyncStream(Mutex::new(Buffered { stream: Box::new(stream), unsent: Unsent::No })))
    }

    /// Waits for bytes; 0 means end of file. `Pending` means that nothing was read.
    pub(crate) fn poll_read(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Async(stream) => stream.lock().poll_read(context, buffer),
            Self::Socket(socket) => socket.poll_read(context, buffer),
        }
    }

    /// Writes what fits now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Async(stream) => {
                match stream.lock().poll_write(&mut Context::from_waker(Waker::noop()), bytes) {
                    Poll::Pending => Ok(0),
                    Poll::Ready(result) => result,
                }
            }
            Self::Socket(socket) => socket.try_write(bytes),
        }
    }

    /// Waits until something fits, and writes it. With no bytes: waits until buffered bytes are sent.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Async(stream) => poll_fn(|context| stream.lock().poll_write(context, bytes)).await,
            Self::Socket(_) if bytes.is_empty() => Ok(0),
            Self::Socket(socket) => socket.write(bytes).await,
        }
    }

    /// Whether the stream has buffered bytes that only another [`Self::write`] sends.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Async(stream) => stream.lock().unsent == Unsent::Perhaps,
            Self::Socket(_) => false,
        }
    }
}

impl AsyncStream {
    fn lock(&self) -> MutexGuard<'_, Buffered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffered {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(context))?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let count = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.unsent = Unsent::Perhaps;
        match self.poll_flush(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending | Poll::Ready(Ok(())) => Poll::Ready(Ok(count)),
        }
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unsent == Unsent::Perhaps {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.unsent = Unsent::No;
        }
        Poll::Ready(Ok(()))
    }
}
