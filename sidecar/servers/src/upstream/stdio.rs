//! A server that is a child process: one message per line on its stdin and stdout.
//!
//! [`StdioUpstream::next`] is the only place that waits for the pipes, and it is cancel-safe: no byte is lost. What
//! must stay true: a line over the limit is discarded as it arrives, and only its id is kept. A process that has closed
//! its stdin counts as ended, whatever it still writes; requests of which it received no byte are reported as unsent
//! before that.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use cofferdam_process::{Ended, Exit, ProcessHandle};
use futures_util::FutureExt;
use relay_proto::envelope::{self, IdValue, Kind, Strictness};
use relay_proto::oversize::{IdSearch, MessageKind};
use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;
use tokio_util::io::poll_read_buf;

/// What the process sent, or that its pipes are closed.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum StdioEvent {
    /// The process's stdin or stdout is closed: it can answer no further request.
    Closed,
    /// One line, without its line end.
    Line(BytesMut),
    /// A line longer than the limit was discarded. Its JSON-RPC id is kept where exactly one was found.
    Oversize { id: Option<Box<[u8]>> },
    /// A request of which the process received no byte: it did not run.
    Unsent { id: IdValue },
}

pub(crate) struct StdioUpstream {
    process: ProcessHandle,
    pipes: Pipes,
}

/// The sidecar's ends of the process's stdin and stdout.
struct Pipes {
    /// `None` after it was closed by either side.
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    /// Lines to be written to stdin.
    queue: BytesMut,
    /// Whether the last line that reached the pipe was written whole: if not, `queue` begins with the rest of it.
    last_line: LineProgress,
    /// Requests that were still in the queue when stdin closed.
    unsent: VecDeque<IdValue>,
    /// How many bytes are still read after stdin closed.
    final_read_bytes: usize,
    /// Bytes that were read and are not yet a whole line; there is no newline in the first `scanned` of them.
    input: BytesMut,
    scanned: usize,
    oversize: Option<IdSearch>,
    max_line: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LineProgress {
    Partial,
    Whole,
}

/// Room for one read: a small response fits, and long lines double the buffer as they grow.
const READ_BYTES: usize = 8 * 1024;
/// The most that a pipe can hold, so that everything written before stdin closed is read, and no endless output after it.
const FINAL_READ_BYTES: usize = 1024 * 1024;
/// An empty buffer larger than this is freed.
const MAX_IDLE_BUFFER: usize = 64 * 1024;

impl StdioUpstream {
    pub(crate) fn new(
        process: ProcessHandle,
        stdin: pipe::Sender,
        stdout: pipe::Receiver,
        max_line: usize,
    ) -> Self {
        Self { process, pipes: Pipes::new(stdin, stdout, max_line) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Queues one message. The caller guarantees that the message contains no character that any language runtime
    /// treats as a line end.
    pub(crate) fn send(&mut self, message: &[u8]) {
        self.pipes.send(message);
    }

    /// Writes as much as the pipe accepts without waiting. Errors are reported by [`Self::next`].
    pub(crate) fn write_now(&mut self) {
        self.pipes.write_now();
    }

    /// Bytes that have not been written yet.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.pipes.queue.len()
    }

    /// A line that has already been read.
    pub(crate) fn buffered(&mut self) -> Option<StdioEvent> {
        self.pipes.take_line()
    }

    /// Writes what is queued and waits for the next event. Cancel-safe.
    pub(crate) async fn next(&mut self) -> StdioEvent {
        poll_fn(|cx| self.pipes.poll_next(cx)).await
    }

    /// How the process exited, if it has.
    pub(crate) fn exit(&mut self) -> Option<Exit> {
        self.exited().now_or_never()
    }

    /// Waits until the main process exits. Cancel-safe.
    pub(crate) async fn exited(&mut self) -> Exit {
        self.process.exited().await
    }

    /// Sends SIGHUP: the files of the process have changed.
    pub(crate) fn send_sighup(&self) {
        self.process.hang_up();
    }

    /// Closes stdin, then ends the process and all its descendants.
    pub(crate) async fn end(mut self, grace: Duration) -> Ended {
        self.pipes.stdin = None;
        self.process.end(grace).await
    }
}

impl Pipes {
    fn new(stdin: pipe::Sender, stdout: pipe::Receiver, max_line: usize) -> Self {
        Self {
            stdin: Some(stdin),
            stdout,
            queue: BytesMut::new(),
            last_line: LineProgress::Whole,
            unsent: VecDeque::new(),
            final_read_bytes: FINAL_READ_BYTES,
            input: BytesMut::new(),
            scanned: 0,
            oversize: None,
            max_line,
        }
    }

    fn send(&mut self, message: &[u8]) {
        self.queue.reserve(message.len() + 1);
        self.queue.extend_from_slice(message);
        self.queue.extend_from_slice(b"\n");
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<StdioEvent> {
        if let Poll::Ready(Err(_)) = self.poll_write(cx) {
            self.stop_writing();
        }
        loop {
            if let Some(event) = self.take_line() {
                return Poll::Ready(event);
            }
            if self.input.is_empty() && self.input.capacity() > MAX_IDLE_BUFFER {
                self.input = BytesMut::new();
            }
            self.input.reserve(READ_BYTES);
            let read = match self.stdin {
                Some(_) => ready!(poll_read_buf(Pin::new(&mut self.stdout), cx, &mut self.input)),
                None => self.read_available(),
            };
            if !matches!(read, Ok(1..)) {
                self.stop_writing();
                return Poll::Ready(match self.unsent.pop_front() {
                    Some(id) => StdioEvent::Unsent { id },
                    None => StdioEvent::Closed,
                });
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(stdin) = &mut self.stdin else { return Poll::Ready(Ok(())) };
        while !self.queue.is_empty() {
            let count = ready!(Pin::new(&mut *stdin).poll_write(cx, &self.queue))?;
            remove_written(&mut self.queue, &mut self.last_line, count);
        }
        if self.queue.capacity() > MAX_IDLE_BUFFER {
            self.queue = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }

    fn write_now(&mut self) {
        if !self.queue.is_empty()
            && let Some(stdin) = &self.stdin
            && let Ok(count) = stdin.try_write(&self.queue)
        {
            remove_written(&mut self.queue, &mut self.last_line, count);
        }
    }

    /// Closes stdin. Queued requests are reported as unsent, except one that was partly written: that may have run.
    fn stop_writing(&mut self) {
        self.stdin = None;
        let queue = std::mem::take(&mut self.queue);
        let begun = usize::from(self.last_line == LineProgress::Partial);
        self.last_line = LineProgress::Whole;
        let ids =
            queue[..].split(|byte| *byte == b'\n').skip(begun).filter_map(|line| {
                match envelope::read(line, Strictness::Envelope).ok()?.kind {
                    Kind::Request { id, .. } => Some(id.value()),
                    Kind::Notification { .. } | Kind::Response { .. } => None,
                }
            });
        self.unsent.extend(ids);
    }

    /// Reads without the reactor, which may not have reported the last output yet.
    fn read_available(&mut self) -> io::Result<usize> {
        let mut bytes = [0; READ_BYTES];
        let room = self.final_read_bytes.min(READ_BYTES);
        loop {
            match nix::unistd::read(&self.stdout, &mut bytes[..room]) {
                Ok(count) => {
                    self.final_read_bytes -= count;
                    self.input.extend_from_slice(&bytes[..count]);
                    return Ok(count);
                }
                Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Takes one line out of the bytes that were read. `None` where none is complete.
    fn take_line(&mut self) -> Option<StdioEvent> {
        loop {
            let end = memchr::memchr(b'\n', &self.input[self.scanned..]).map(|at| self.scanned + at);
            match (end, &mut self.oversize) {
                (Some(end), None) => {
                    let mut line = self.input.split_to(end + 1);
                    self.scanned = 0;
                    line.truncate(end);
                    if line.last() == Some(&b'\r') {
                        line.truncate(end - 1);
                    }
                    match line.is_empty() {
                        true => continue,
                        false => return Some(StdioEvent::Line(line)),
                    }
                }
                (Some(end), Some(search)) => {
                    search.feed(&self.input[..end]);
                    let id = self.oversize.take().and_then(|search| search.finish(MessageKind::Response));
                    drop(self.input.split_to(end + 1));
                    self.scanned = 0;
                    return Some(StdioEvent::Oversize { id });
                }
                (None, None) => {
                    self.scanned = self.input.len();
                    if self.input.len() <= self.max_line {
                        return None;
                    }
                    let mut search = IdSearch::default();
                    search.feed(&self.input);
                    self.oversize = Some(search);
                    self.input = BytesMut::new();
                    self.scanned = 0;
                }
                (None, Some(search)) => {
                    search.feed(&self.input);
                    self.input.clear();
                    self.scanned = 0;
                    return None;
                }
            }
        }
    }
}

/// Removes `count` written bytes from the queue.
fn remove_written(queue: &mut BytesMut, last_line: &mut LineProgress, count: usize) {
    *last_line = match queue[..count].last() {
        Some(b'\n') => LineProgress::Whole,
        Some(_) => LineProgress::Partial,
        None => *last_line,
    };
    queue.advance(count);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sidecar's ends of a process's pipes, and the process's own.
    fn pipes() -> (Pipes, Option<io::PipeReader>, io::PipeWriter) {
        let (their_stdin, stdin) = io::pipe().unwrap();
        let (stdout, their_stdout) = io::pipe().unwrap();
        let stdin = pipe::Sender::from_owned_fd(stdin.into()).unwrap();
        let stdout = pipe::Receiver::from_owned_fd(stdout.into()).unwrap();
        (Pipes::new(stdin, stdout, 1024), Some(their_stdin), their_stdout)
    }

    async fn next(pipes: &mut Pipes) -> StdioEvent {
        let event = poll_fn(|cx| pipes.poll_next(cx));
        tokio::time::timeout(Duration::from_secs(30), event).await.expect("it took longer than 30 s")
    }

    fn line(text: &str) -> StdioEvent {
        StdioEvent::Line(text.into())
    }

    fn unsent(id: u32) -> StdioEvent {
        StdioEvent::Unsent { id: IdValue::Integer(id.to_string().into()) }
    }

    fn call(id: u32, padding: usize) -> Vec<u8> {
        format!(r#"{{"id":{id},"method":"m","params":"{}"}}"#, "x".repeat(padding)).into_bytes()
    }

    #[tokio::test]
    async fn output_from_before_stdin_closed_is_read_and_then_the_process_counts_as_ended() {
        use std::io::Write;
        let (mut pipes, mut stdin, mut stdout) = pipes();
        // The first line registers the pipe with the reactor, which has not reported the last line when that is read.
        stdout.write_all(b"first\n").unwrap();
        assert_eq!(next(&mut pipes).await, line("first"));
        drop(stdin.take());
        stdout.write_all(b"last\nhalf").unwrap();
        pipes.send(&call(1, 0));
        pipes.send(br#"{"method":"notifications/x"}"#);
        assert_eq!(next(&mut pipes).await, line("last"));
        assert_eq!(next(&mut pipes).await, unsent(1));
        // Sent after stdin was closed.
        pipes.send(&call(2, 0));
        assert_eq!(next(&mut pipes).await, unsent(2));
        assert_eq!(next(&mut pipes).await, StdioEvent::Closed);
    }

    #[tokio::test]
    async fn endless_output_after_stdin_closed_does_not_keep_a_process_alive() {
        use std::io::Write;
        let (mut pipes, mut stdin, mut stdout) = pipes();
        drop(stdin.take());
        pipes.send(&call(1, 0));
        let writer = std::thread::spawn(move || while stdout.write_all(b"more output\n").is_ok() {});
        while matches!(next(&mut pipes).await, StdioEvent::Line(_)) {}
        assert_eq!(next(&mut pipes).await, StdioEvent::Closed);
        drop(pipes);
        writer.join().unwrap();
    }

    #[tokio::test]
    async fn a_partly_written_request_may_have_run_and_later_ones_did_not() {
        let (mut pipes, mut stdin, stdout) = pipes();
        // More than the pipe's capacity.
        pipes.send(&call(1, 200 * 1024));
        pipes.send(&call(2, 0));
        while pipes.last_line == LineProgress::Whole {
            assert!(poll_fn(|cx| Poll::Ready(pipes.poll_next(cx).is_pending())).await);
            tokio::task::yield_now().await;
        }
        drop(stdin.take());
        assert_eq!(next(&mut pipes).await, unsent(2));
        assert_eq!(next(&mut pipes).await, StdioEvent::Closed);
        drop(stdout);
    }

    #[tokio::test]
    async fn bytes_written_by_write_now_are_not_written_again() {
        use std::io::{Read, Write};
        let (mut pipes, stdin, mut stdout) = pipes();
        pipes.stdin.as_ref().unwrap().writable().await.unwrap();
        pipes.send(&call(1, 0));
        pipes.write_now();
        assert!(pipes.queue.is_empty(), "the pipe has room");
        pipes.send(&call(2, 0));
        stdout.write_all(b"answer\n").unwrap();
        assert_eq!(next(&mut pipes).await, line("answer"));
        drop(pipes);
        let mut received = Vec::new();
        stdin.unwrap().read_to_end(&mut received).unwrap();
        assert_eq!(received, [call(1, 0), call(2, 0)].map(|call| [call, b"\n".to_vec()].concat()).concat());
    }

    #[tokio::test]
    async fn a_closed_stdout_reports_unsent_requests() {
        let (mut pipes, stdin, stdout) = pipes();
        pipes.send(&call(1, 200 * 1024));
        pipes.send(&call(2, 0));
        drop(stdout);
        // Whether writing the first one has begun depends on the reactor.
        let first = next(&mut pipes).await;
        assert!([unsent(1), unsent(2)].contains(&first), "{first:?}");
        if first == unsent(1) {
            assert_eq!(next(&mut pipes).await, unsent(2));
        }
        assert_eq!(next(&mut pipes).await, StdioEvent::Closed);
        drop(stdin);
    }
}
