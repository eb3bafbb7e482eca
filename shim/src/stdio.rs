//! Standard input and output, which may be sockets, pipes, terminals or files.
//!
//! What must stay true: no call blocks the thread on a descriptor that is not ready, no flag of the shared open file
//! description is changed, and `/proc` is not needed.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use rustix::io::{Errno, read, retry_on_intr, write};
use tokio::io::Interest;

use crate::pipe::Pipe;
use crate::socket::{Descriptor, Socket, watch};

/// Standard input or output.
#[derive(Debug)]
pub(crate) enum Stdio {
    /// Always ready: a regular file or `/dev/null`, which epoll does not accept.
    File(OwnedFd),
    /// A pipe or a terminal.
    Pipe(Pipe),
    /// Used by harnesses on Node.js.
    Socket(Socket),
}

impl Stdio {
    pub(crate) fn input(descriptor: OwnedFd) -> io::Result<Self> {
        Self::new(descriptor, Interest::READABLE)
    }

    pub(crate) fn output(descriptor: OwnedFd) -> io::Result<Self> {
        Self::new(descriptor, Interest::WRITABLE)
    }

    fn new(descriptor: OwnedFd, interest: Interest) -> io::Result<Self> {
        let file = File::from(descriptor);
        let kind = file.metadata()?.file_type();
        if kind.is_socket() {
            return Ok(Self::Socket(Socket::new(Descriptor::Owned(file.into()))?));
        }
        let duplicate = file.try_clone()?.into();
        match watch(OwnedFd::from(file), interest) {
            Ok(watched) if kind.is_fifo() => Ok(Self::Pipe(Pipe::new(watched))),
            Ok(watched) => Ok(Self::Pipe(Pipe::terminal(watched))),
            Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                Ok(Self::File(duplicate))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for bytes; 0 means end of file. `Pending` means that nothing was read.
    pub(crate) fn poll_read(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::File(file) => {
                // A read of a file is never pending, so this yields to the runtime from time to time.
                ready!(pin!(tokio::task::consume_budget()).poll(context));
                Poll::Ready(Ok(retry_on_intr(|| read(file, &mut *buffer))?))
            }
            Self::Pipe(pipe) => pipe.poll_read(context, buffer),
            Self::Socket(socket) => socket.poll_read(context, buffer),
        }
    }

    /// Writes what fits now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => Ok(retry_on_intr(|| write(file, bytes))?),
            Self::Pipe(pipe) => pipe.try_write(bytes),
            Self::Socket(socket) => socket.try_write(bytes),
        }
    }

    /// Waits until something fits, and writes it.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(_) => {
                tokio::task::consume_budget().await;
                self.try_write(bytes)
            }
            Self::Pipe(pipe) => pipe.write(bytes).await,
            Self::Socket(socket) => socket.write(bytes).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use rustix::fs::{OFlags, fcntl_getfl};
    use rustix::pipe::pipe;

    use super::*;

    async fn read(input: &Stdio, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| input.poll_read(context, buffer)).await
    }

    /// Sends more than fits into the buffer through a pair of ends; asserts that all of it arrives and the flags are
    /// unchanged.
    async fn carries_everything(read_end: OwnedFd, write_end: OwnedFd) {
        let flags = |descriptor: &OwnedFd| fcntl_getfl(descriptor).unwrap() & OFlags::NONBLOCK;
        let (read_copy, write_copy) = (read_end.try_clone().unwrap(), write_end.try_clone().unwrap());
        let (input, output) = (Stdio::input(read_end).unwrap(), Stdio::output(write_end).unwrap());
        let sent: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
        let (mut received, mut written) = (Vec::new(), 0);
        let mut buffer = vec![0; 10_000];
        while received.len() < sent.len() {
            written += output.try_write(&sent[written..]).unwrap();
            tokio::select! {
                count = read(&input, &mut buffer) => received.extend_from_slice(&buffer[..count.unwrap()]),
                count = output.write(&sent[written..]), if written < sent.len() => written += count.unwrap(),
            }
        }
        assert!(received == sent);
        assert_eq!((flags(&read_copy), flags(&write_copy)), (OFlags::empty(), OFlags::empty()));
        drop((output, write_copy));
        assert_eq!(read(&input, &mut buffer).await.unwrap(), 0, "the end of file");
    }

    #[tokio::test]
    async fn a_pipe_carries_everything_and_never_blocks() {
        let (read_end, write_end) = pipe().unwrap();
        carries_everything(read_end, write_end).await;
    }

    #[tokio::test]
    async fn a_socket_carries_everything_and_never_blocks() {
        let (read_end, write_end) = UnixStream::pair().unwrap();
        carries_everything(read_end.into(), write_end.into()).await;
    }

    #[tokio::test]
    async fn a_file_is_always_ready() {
        let input = Stdio::input(File::open("/dev/null").unwrap().into()).unwrap();
        assert_eq!(read(&input, &mut [0; 10]).await.unwrap(), 0);
        let output = Stdio::output(File::create("/dev/null").unwrap().into()).unwrap();
        assert_eq!(output.write(b"abc").await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_is_an_error() {
        let (read_end, write_end) = pipe().unwrap();
        let output = Stdio::output(write_end).unwrap();
        drop(read_end);
        assert_eq!(output.try_write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_full_pipe_waits_until_it_is_read() {
        let (read_end, write_end) = pipe().unwrap();
        let output = Stdio::output(write_end.try_clone().unwrap()).unwrap();
        let full = output.try_write(&vec![1; 2_000_000]).unwrap();
        assert!(full < 2_000_000);
        assert_eq!(output.try_write(b"x").unwrap(), 0);
        let mut received = vec![0; full];
        File::from(read_end.try_clone().unwrap()).read_exact(&mut received).unwrap();
        assert_eq!(output.write(b"x").await.unwrap(), 1);
        File::from(write_end).flush().unwrap();
    }
}
