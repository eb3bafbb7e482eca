//! A pipe or a terminal, read and written without waiting and without changing its flags.
//!
//! `O_NONBLOCK` would affect the harness too, and a pipe has no `MSG_DONTWAIT`. Since Linux 6.4 a pipe supports
//! `RWF_NOWAIT`: one call per message. Elsewhere `poll` precedes each call, and no more is written than a pipe that
//! polls writable is sure to accept.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use relay_proto::limits::MAX_IDLE_BUFFER;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2, read, retry_on_intr, write};
use rustix::pipe::{fcntl_setpipe_size, pipe};
use tokio::io::unix::AsyncFd;

/// One end of a pipe, or a terminal.
#[derive(Debug)]
pub(crate) struct Pipe {
    watched: AsyncFd<OwnedFd>,
    kind: Kind,
    method: Cell<NonBlocking>,
    size: Cell<Size>,
}

#[derive(Debug, Eq, PartialEq)]
enum Kind {
    Pipe,
    /// After a short read, a terminal may have more bytes.
    Terminal,
}

/// How a call is kept from blocking.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum NonBlocking {
    Nowait,
    Polled,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Size {
    Original,
    Grown,
}

impl Pipe {
    pub(crate) fn new(watched: AsyncFd<OwnedFd>) -> Self {
        let method = if honours_nowait() { NonBlocking::Nowait } else { NonBlocking::Polled };
        Self { watched, kind: Kind::Pipe, method: method.into(), size: Size::Original.into() }
    }

    pub(crate) fn terminal(watched: AsyncFd<OwnedFd>) -> Self {
        Self {
            watched,
            kind: Kind::Terminal,
            method: NonBlocking::Polled.into(),
            size: Size::Original.into(),
        }
    }

    /// Waits for bytes; 0 means end of file. `Pending` means that nothing was read.
    pub(crate) fn poll_read(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.watched.poll_read_ready(context))?;
            match self.try_read(buffer) {
                Err(Errno::AGAIN) => guard.clear_ready(),
                Ok(count) if count < buffer.len() && self.kind == Kind::Pipe => {
                    guard.clear_ready();
                    return Poll::Ready(Ok(count));
                }
                result => return Poll::Ready(Ok(result?)),
            }
        }
    }

    /// Writes what fits now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_IDLE_BUFFER
            && self.kind == Kind::Pipe
            && self.size.replace(Size::Grown) == Size::Original
        {
            // Fewer wake-ups for long messages. If it is not permitted, the size stays.
            let _ = fcntl_setpipe_size(&self.watched, GROWN_BYTES);
        }
        let slices = [IoSlice::new(bytes)];
        let nowait = || pwritev2(&self.watched, &slices, NO_OFFSET, ReadWriteFlags::NOWAIT);
        match self.try_nowait(nowait).unwrap_or_else(|| self.write_polled(bytes)) {
            Err(Errno::AGAIN) => Ok(0),
            result => Ok(result?),
        }
    }

    /// Waits until something fits, and writes it.
    pub(crate) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| self.poll_write(context, bytes)).await
    }

    pub(crate) fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.watched.poll_write_ready(context))?;
            match self.try_write(bytes)? {
                0 => guard.clear_ready(),
                count => return Poll::Ready(Ok(count)),
            }
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let nowait =
            || preadv2(&self.watched, &mut [IoSliceMut::new(buffer)], NO_OFFSET, ReadWriteFlags::NOWAIT);
        match self.try_nowait(nowait) {
            Some(result) => result,
            None if self.is_ready(PollFlags::IN)? => retry_on_intr(|| read(&self.watched, &mut *buffer)),
            None => Err(Errno::AGAIN),
        }
    }

    /// The result of a call with `RWF_NOWAIT`; `None` if that is not supported, which is then remembered.
    fn try_nowait(&self, call: impl FnMut() -> Result<usize, Errno>) -> Option<Result<usize, Errno>> {
        if self.method.get() == NonBlocking::Polled {
            return None;
        }
        match retry_on_intr(call) {
            // The last two come from seccomp filters.
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM) => {
                self.method.set(NonBlocking::Polled);
                None
            }
            result => Some(result),
        }
    }

    fn write_polled(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut written = 0;
        while written < bytes.len() && self.is_ready(PollFlags::OUT)? {
            let chunk = &bytes[written..bytes.len().min(written + CHUNK_BYTES)];
            match retry_on_intr(|| write(&self.watched, chunk)) {
                Ok(count) => written += count,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    /// Whether the next call returns at once, possibly with an error.
    fn is_ready(&self, direction: PollFlags) -> Result<bool, Errno> {
        let mut polled = [PollFd::new(&self.watched, direction)];
        retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())))?;
        Ok(!polled[0].revents().is_empty())
    }
}

/// A pipe that polls writable takes this much without blocking (`PIPE_BUF`).
const CHUNK_BYTES: usize = 4096;
/// The kernel's default limit for a pipe of an unprivileged user.
const GROWN_BYTES: usize = 1024 * 1024;
/// A pipe has no offset.
const NO_OFFSET: u64 = u64::MAX;

/// Whether this kernel honours the flags of a call on a pipe. gVisor ignores them, and would block. An undefined flag
/// shows it: a kernel that honours flags refuses the call, another one reads the byte.
fn honours_nowait() -> bool {
    let Ok((reader, writer)) = pipe() else { return false };
    let unknown = ReadWriteFlags::from_bits_retain(1 << 31);
    write(writer, b"x").is_ok()
        && preadv2(reader, &mut [IoSliceMut::new(&mut [0])], NO_OFFSET, unknown) == Err(Errno::OPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::pipe::fcntl_getpipe_size;
    use tokio::io::Interest;

    use super::*;
    use crate::socket::watch;

    fn pipe_ends() -> (Pipe, Pipe) {
        let (reader, writer) = pipe().unwrap();
        let input = Pipe::new(watch(reader, Interest::READABLE).unwrap());
        (input, Pipe::new(watch(writer, Interest::WRITABLE).unwrap()))
    }

    async fn read(input: &Pipe, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| input.poll_read(context, buffer)).await
    }

    /// A kernel before 6.4 falls back to polling, for which the rest of the test holds too.
    #[tokio::test]
    async fn both_methods_carry_the_same_bytes() {
        for method in [NonBlocking::Nowait, NonBlocking::Polled] {
            let (input, output) = pipe_ends();
            input.method.set(method);
            output.method.set(method);
            let mut buffer = vec![0; 200_000];
            assert_eq!(input.try_read(&mut buffer), Err(Errno::AGAIN), "an empty pipe does not block");
            let full = output.try_write(&[7; 60_000]).unwrap() + output.try_write(&[7; 60_000]).unwrap();
            assert_eq!(output.try_write(b"x").unwrap(), 0, "a full pipe does not block");
            assert_eq!(read(&input, &mut buffer).await.unwrap(), full);
            assert!(buffer[..full].iter().all(|byte| *byte == 7));
            drop(output);
            assert_eq!(read(&input, &mut buffer).await.unwrap(), 0, "the end of file");
        }
    }

    #[tokio::test]
    async fn an_unsupported_call_is_not_tried_again() {
        let (_input, output) = pipe_ends();
        output.method.set(NonBlocking::Nowait);
        let mut calls = 0;
        for refusal in [Errno::OPNOTSUPP, Errno::INVAL, Errno::NOSYS, Errno::PERM] {
            output.method.set(NonBlocking::Nowait);
            for _ in 0..3 {
                let refused = output.try_nowait(|| {
                    calls += 1;
                    Err(refusal)
                });
                assert_eq!(refused, None);
            }
        }
        assert_eq!(calls, 4);
        assert_eq!(output.try_write(b"abc").unwrap(), 3);
    }

    #[tokio::test]
    async fn a_pipe_is_enlarged_for_long_messages_only() {
        let (input, output) = pipe_ends();
        let size = || fcntl_getpipe_size(&output.watched).unwrap();
        let before = size();
        assert_eq!(output.try_write(&[1; 100]).unwrap(), 100);
        assert_eq!(size(), before);
        let count = output.try_write(&vec![1; 300_000]).unwrap();
        assert!(size() >= before);
        if size() > before {
            assert_eq!(count, 300_000, "one call takes all of it");
        }
        let mut all = vec![0; 100 + count];
        std::fs::File::from(input.watched.into_inner()).read_exact(&mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 1));
    }
}
