//! A stream socket, read and written without waiting and without changing its flags.
//!
//! The open file description may be shared with the harness, so `O_NONBLOCK` must not be set: each call passes
//! `MSG_DONTWAIT`.
//!
//! The socket is watched for reading only. A watch for writing would wake the shim each time the peer has read something,
//! which is as often as a message is sent. So writability is watched only after a write found no room.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::task::{Context, Poll, ready};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket that the runtime watches.
#[derive(Debug)]
pub(crate) struct Socket {
    watched: AsyncFd<Descriptor>,
}

/// A descriptor that this process closes, or an inherited descriptor, which it does not close.
#[derive(Debug)]
pub(crate) enum Descriptor {
    Inherited(RawFd),
    Owned(OwnedFd),
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Inherited(number) => *number,
            Self::Owned(descriptor) => descriptor.as_raw_fd(),
        }
    }
}

/// The parent process may still hold an inherited socket, so that the peer would not notice that it is closed: it is shut
/// down instead. Bytes that were written before still arrive.
impl Drop for Socket {
    fn drop(&mut self) {
        if let Descriptor::Inherited(_) = self.watched.get_ref() {
            // It may be shut down already.
            let _ = shutdown(&self.watched, Shutdown::Both);
        }
    }
}

impl Socket {
    pub(crate) fn new(descriptor: Descriptor) -> io::Result<Self> {
        Ok(Self { watched: watch(descriptor, Interest::READABLE)? })
    }

    /// Waits for bytes; 0 means end of file. `Pending` means that nothing was read.
    pub(crate) fn poll_read(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.watched.poll_read_ready(context))?;
            match retry_on_intr(|| recv(&self.watched, &mut *buffer, RecvFlags::DONTWAIT)) {
                Ok((count, _)) => {
                    // A short read means that nothing is left: the next bytes wake the task again.
                    if count < buffer.len() {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Writes what fits now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match retry_on_intr(|| send(&self.watched, bytes, flags)) {
            Err(Errno::AGAIN) => Ok(0),
            result => Ok(result?),
        }
    }

    /// Waits until something fits, and writes it.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.try_write(bytes)? {
            0 => {}
            count => return Ok(count),
        }
        // A separate descriptor, because the runtime watches each for one interest.
        let watched = watch(self.watched.as_fd().try_clone_to_owned()?, Interest::WRITABLE)?;
        loop {
            let mut guard = watched.writable().await?;
            match self.try_write(bytes)? {
                0 => guard.clear_ready(),
                count => return Ok(count),
            }
        }
    }
}

/// Registers a descriptor with the runtime.
#[expect(
    deprecated,
    reason = "its replacement is unsafe, which this crate forbids; the descriptor stays open and the same, as required"
)]
pub(crate) fn watch<T: AsRawFd>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, interest)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_end_of_an_inherited_socket_is_seen_while_other_processes_hold_it() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        let socket = Socket::new(Descriptor::Inherited(ours.as_raw_fd())).unwrap();
        assert_eq!(socket.try_write(b"last").unwrap(), 4);
        drop(socket);
        let mut text = String::new();
        theirs.read_to_string(&mut text).unwrap();
        assert_eq!(text, "last");
        drop(ours);
    }
}
