//! A pipe or a terminal, read and written without waiting and without changing its flags.
//!
//! `O_NONBLOCK` would be the harness's too, and a pipe has no `MSG_DONTWAIT`. Since Linux 6.4 a pipe takes
//! `RWF_NOWAIT`: one call a message. Everywhere else `poll` is asked before each call, and no more is written than a
//! pipe that polls writable is sure to take.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use relay_proto::limits::KEEP;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2, read, retry_on_intr, write};
use rustix::pipe::{fcntl_setpipe_size, pipe};
use tokio::io::unix::AsyncFd;

/// One end of a pipe, or a terminal.
#[derive(Debug)]
pub(crate) struct Pipe {
    watched: AsyncFd<OwnedFd>,
    kind: Kind,
    way: Cell<Way>,
    size: Cell<Size>,
}

#[derive(Debug, Eq, PartialEq)]
enum Kind {
    Pipe,
    /// A short read does not mean that it is empty.
    Terminal,
}

/// How a call is kept from blocking.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    Nowait,
    Polled,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Size {
    AsItCame,
    Grown,
}

impl Pipe {
    pub(crate) fn new(watched: AsyncFd<OwnedFd>) -> Self {
        let way = if flags_are_heeded() { Way::Nowait } else { Way::Polled };
        Self { watched, kind: Kind::Pipe, way: way.into(), size: Size::AsItCame.into() }
    }

    pub(crate) fn terminal(watched: AsyncFd<OwnedFd>) -> Self {
        Self { watched, kind: Kind::Terminal, way: Way::Polled.into(), size: Size::AsItCame.into() }
    }

    /// Waits for bytes; 0 is the end. Where it is pending, none were taken.
    pub(crate) fn poll_read(&self, context: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.watched.poll_read_ready(context))?;
            match self.try_read(room) {
                Err(Errno::AGAIN) => guard.clear_ready(),
                Ok(count) if count < room.len() && self.kind == Kind::Pipe => {
                    guard.clear_ready();
                    return Poll::Ready(Ok(count));
                }
                result => return Poll::Ready(Ok(result?)),
            }
        }
    }

    /// Writes what fits now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > KEEP && self.kind == Kind::Pipe && self.size.replace(Size::Grown) == Size::AsItCame {
            // So that the harness need not wake us for each 64 KiB. Where it is not allowed it goes as before.
            let _ = fcntl_setpipe_size(&self.watched, GROWN);
        }
        let slices = [IoSlice::new(bytes)];
        let nowait = || pwritev2(&self.watched, &slices, HERE, ReadWriteFlags::NOWAIT);
        match self.unless_refused(nowait).unwrap_or_else(|| self.write_polled(bytes)) {
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

    fn try_read(&self, room: &mut [u8]) -> Result<usize, Errno> {
        let nowait = || preadv2(&self.watched, &mut [IoSliceMut::new(room)], HERE, ReadWriteFlags::NOWAIT);
        match self.unless_refused(nowait) {
            Some(result) => result,
            None if self.is_ready(PollFlags::IN)? => retry_on_intr(|| read(&self.watched, &mut *room)),
            None => Err(Errno::AGAIN),
        }
    }

    /// What a call with `RWF_NOWAIT` gives; none where it cannot be made, which then stays so.
    fn unless_refused(&self, call: impl FnMut() -> Result<usize, Errno>) -> Option<Result<usize, Errno>> {
        if self.way.get() == Way::Polled {
            return None;
        }
        match retry_on_intr(call) {
            // The last two are what filters of system calls say.
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM) => {
                self.way.set(Way::Polled);
                None
            }
            result => Some(result),
        }
    }

    fn write_polled(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut written = 0;
        while written < bytes.len() && self.is_ready(PollFlags::OUT)? {
            let chunk = &bytes[written..bytes.len().min(written + CHUNK)];
            match retry_on_intr(|| write(&self.watched, chunk)) {
                Ok(count) => written += count,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    /// Whether the next call returns at once; that it returns an error counts too.
    fn is_ready(&self, what: PollFlags) -> Result<bool, Errno> {
        let mut polled = [PollFd::new(&self.watched, what)];
        retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())))?;
        Ok(!polled[0].revents().is_empty())
    }
}

/// A pipe that polls writable takes this much without blocking (`PIPE_BUF`).
const CHUNK: usize = 4096;
/// What anybody may grow a pipe to, where nothing else is configured.
const GROWN: usize = 1024 * 1024;
/// No offset: a pipe has none.
const HERE: u64 = u64::MAX;

/// Whether this kernel looks at the flags of a call on a pipe. gVisor does not, and would block where it is told not
/// to. A flag that nobody knows tells them apart: it is refused, or the byte that waits is read.
fn flags_are_heeded() -> bool {
    let Ok((reader, writer)) = pipe() else { return false };
    let unknown = ReadWriteFlags::from_bits_retain(1 << 31);
    write(writer, b"x").is_ok()
        && preadv2(reader, &mut [IoSliceMut::new(&mut [0])], HERE, unknown) == Err(Errno::OPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::pipe::fcntl_getpipe_size;
    use tokio::io::Interest;

    use super::*;
    use crate::socket::watch;

    fn ends() -> (Pipe, Pipe) {
        let (reader, writer) = pipe().unwrap();
        let input = Pipe::new(watch(reader, Interest::READABLE).unwrap());
        (input, Pipe::new(watch(writer, Interest::WRITABLE).unwrap()))
    }

    async fn read(input: &Pipe, room: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| input.poll_read(context, room)).await
    }

    /// On a kernel before 6.4 this says so and the rest of the test still holds.
    #[tokio::test]
    async fn both_ways_of_not_waiting_carry_the_same() {
        for way in [Way::Nowait, Way::Polled] {
            let (input, output) = ends();
            input.way.set(way);
            output.way.set(way);
            let mut room = vec![0; 200_000];
            assert_eq!(input.try_read(&mut room), Err(Errno::AGAIN), "an empty pipe does not block");
            let full = output.try_write(&[7; 60_000]).unwrap() + output.try_write(&[7; 60_000]).unwrap();
            assert_eq!(output.try_write(b"x").unwrap(), 0, "nor does a full one");
            assert_eq!(read(&input, &mut room).await.unwrap(), full);
            assert!(room[..full].iter().all(|byte| *byte == 7));
            drop(output);
            assert_eq!(read(&input, &mut room).await.unwrap(), 0, "the end");
        }
    }

    #[tokio::test]
    async fn what_is_refused_once_is_not_asked_again() {
        let (_input, output) = ends();
        output.way.set(Way::Nowait);
        let mut asked = 0;
        for refusal in [Errno::OPNOTSUPP, Errno::INVAL, Errno::NOSYS, Errno::PERM] {
            output.way.set(Way::Nowait);
            for _ in 0..3 {
                let refused = output.unless_refused(|| {
                    asked += 1;
                    Err(refusal)
                });
                assert_eq!(refused, None);
            }
        }
        assert_eq!(asked, 4);
        assert_eq!(output.try_write(b"abc").unwrap(), 3);
    }

    #[tokio::test]
    async fn a_pipe_grows_for_much_and_not_for_little() {
        let (input, output) = ends();
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
