//! A Unix stream that is watched for writing only while its peer's buffer is full.
//!
//! A Unix socket that is watched for writing wakes its task each time the peer has read something, which is as often as
//! a message is sent.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, Shutdown, recv, send, shutdown};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;

pub(super) struct QuietStream {
    readable: AsyncFd<OwnedFd>,
    /// Watched for writing while the peer's buffer is full. A second descriptor of the same socket, because the runtime
    /// watches a descriptor for the interest with which it was registered.
    writable: Option<AsyncFd<OwnedFd>>,
}

impl QuietStream {
    /// Takes over an accepted stream.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let descriptor = OwnedFd::from(stream.into_std()?);
        Ok(Self { readable: watch(descriptor, Interest::READABLE)?, writable: None })
    }

    fn try_write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        retry_interrupted(|| {
            send(self.readable.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT)
        })
    }
}

impl AsyncRead for QuietStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.readable.poll_read_ready(context))?;
            let unfilled = buf.initialize_unfilled();
            match retry_interrupted(|| recv(self.readable.as_raw_fd(), unfilled, MsgFlags::MSG_DONTWAIT)) {
                Ok(count) => {
                    // A short read means that nothing more has arrived: the next bytes wake the task again.
                    if count < unfilled.len() {
                        guard.clear_ready();
                    }
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::EAGAIN) => guard.clear_ready(),
                Err(errno) => return Poll::Ready(Err(errno.into())),
            }
        }
    }
}

impl AsyncWrite for QuietStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(writable) = &self.writable {
                let mut guard = ready!(writable.poll_write_ready(context))?;
                match self.try_write(bytes) {
                    Err(Errno::EAGAIN) => {
                        guard.clear_ready();
                        continue;
                    }
                    result => {
                        self.writable = None;
                        return Poll::Ready(result.map_err(io::Error::from));
                    }
                }
            }
            match self.try_write(bytes) {
                Err(Errno::EAGAIN) => {
                    let duplicate = self.readable.as_fd().try_clone_to_owned()?;
                    self.writable = Some(watch(duplicate, Interest::WRITABLE)?);
                }
                result => return Poll::Ready(result.map_err(io::Error::from)),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = shutdown(self.readable.as_raw_fd(), Shutdown::Write);
        Poll::Ready(result.map_err(io::Error::from))
    }
}

/// Registers a descriptor with the runtime. The result owns the descriptor and keeps it open.
#[expect(
    deprecated,
    reason = "its replacement is unsafe; the safety condition holds, because the descriptor is owned"
)]
fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, interest)
}

fn retry_interrupted(mut call: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_peer_that_reads_late_gets_everything() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut ours = QuietStream::new(ours).unwrap();
        let sent = vec![7; 4 * 1024 * 1024];
        let mut got = vec![0; sent.len()];
        let write = async {
            ours.write_all(&sent).await.unwrap();
            let mut reply = [0; 2];
            ours.read_exact(&mut reply).await.unwrap();
            assert_eq!(&reply, b"ok");
            assert_eq!(
                ours.read(&mut reply).await.unwrap(),
                0,
                "the stream must end when the peer closes it"
            );
        };
        let read = async {
            theirs.read_exact(&mut got).await.unwrap();
            theirs.write_all(b"ok").await.unwrap();
            drop(theirs);
        };
        tokio::join!(write, read);
        assert_eq!(got, sent);
    }
}
