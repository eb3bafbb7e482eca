//! Stdin and stdout as one stream to the host, used by one hub alone.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::{Errno, read, retry_on_intr};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use super::HubError;
use crate::socket::watch;
use crate::stdio::Stdio;

/// The pipe's two ends as one stream.
#[derive(Debug)]
pub(super) struct Duplex {
    input: Stdio,
    output: Stdio,
    /// Readiness for writing, since a socket is otherwise watched for reading only.
    writable: Option<AsyncFd<OwnedFd>>,
    /// A POSIX lock ends when any descriptor of the file is closed, so this one is kept as long as the others.
    _lock: File,
}

impl Duplex {
    pub(super) fn open() -> Result<Self, HubError> {
        if io::stdin().is_terminal() || io::stdout().is_terminal() {
            return Err(HubError::Terminal);
        }
        Self::new(duplicate(&io::stdin())?, duplicate(&io::stdout())?)
    }

    fn new(input: OwnedFd, output: OwnedFd) -> Result<Self, HubError> {
        let lock = File::from(duplicate(&output)?);
        let writable = match lock.metadata()?.file_type().is_socket() {
            true => Some(watch(duplicate(&output)?, Interest::WRITABLE)?),
            false => None,
        };
        let (input, output) = (Stdio::input(input)?, Stdio::output(output)?);
        // Two hubs that inherited one pipe can detect each other only by this lock.
        match fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN | Errno::ACCESS) => Err(HubError::PipeInUse),
            // If it cannot be locked, TLS fails later on interleaved bytes.
            _ => Ok(Self { input, output, writable, _lock: lock }),
        }
    }
}

impl AsyncRead for Duplex {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let space = buffer.initialize_unfilled();
        let count = ready!(match &self.input {
            Stdio::File(file) =>
                Poll::Ready(retry_on_intr(|| read(file, &mut *space)).map_err(io::Error::from)),
            Stdio::Pipe(pipe) => pipe.poll_read(context, space),
            Stdio::Socket(socket) => socket.poll_read(context, space),
        })?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Stdio::Pipe(pipe) = &self.output {
            return pipe.poll_write(context, bytes);
        }
        loop {
            match (self.output.try_write(bytes)?, &self.writable) {
                (0, Some(writable)) if !bytes.is_empty() => {
                    ready!(writable.poll_write_ready(context))?.clear_ready();
                }
                (count, _) => return Poll::Ready(Ok(count)),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The other end sees the close when this process exits.
    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn duplicate(descriptor: &impl AsFd) -> io::Result<OwnedFd> {
    descriptor.as_fd().try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::pipe::pipe;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};

    use super::*;

    /// Sends much more than fits into the buffers, both ways at once.
    async fn carries_everything(one: Duplex, other: Duplex) {
        let sent: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
        let ((mut read_one, mut write_one), (mut read_other, mut write_other)) = (split(one), split(other));
        let (mut here, mut there) = (vec![0; sent.len()], vec![0; sent.len()]);
        let (first, second, third, fourth) = tokio::join!(
            write_one.write_all(&sent),
            write_other.write_all(&sent),
            read_one.read_exact(&mut here),
            read_other.read_exact(&mut there),
        );
        first.and(second).unwrap();
        third.and(fourth).unwrap();
        assert!(here == sent && there == sent);
    }

    #[tokio::test]
    async fn sockets_and_pipes_carry_everything() {
        let (one, other) = UnixStream::pair().unwrap();
        let duplex = |socket: UnixStream| Duplex::new(duplicate(&socket).unwrap(), socket.into()).unwrap();
        carries_everything(duplex(one), duplex(other)).await;
        let ((read_one, write_one), (read_other, write_other)) = (pipe().unwrap(), pipe().unwrap());
        let one = Duplex::new(read_one, write_other).unwrap();
        carries_everything(one, Duplex::new(read_other, write_one).unwrap()).await;
    }
}
