//! One connection of a link: frames in, frames out, over any byte stream.
//!
//! Reading and writing both happen in [`Connection::next`]. It is cancel-safe: bytes that were read are in the decoder,
//! bytes to be written are in `out`.
//!
//! While a peer always has more to send, the reading task yields after [`FRAMES_IN_A_ROW`] frames, or one batch.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use relay_proto::decoder::Decoder;
use relay_proto::frame::{DecodeError, Frame, FrameView, PREFACE};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout};

use super::turn;

/// Any ordered byte stream that can carry a link.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

pub(crate) struct Connection {
    stream: Box<dyn Transport>,
    decoder: Decoder,
    out: Vec<u8>,
    written: usize,
    stream_buffer: StreamBuffer,
    /// When the last byte of the peer arrived.
    pub(crate) last_received: Instant,
    /// When this side last wrote a byte.
    pub(crate) last_sent: Instant,
    /// Pings sent on this connection, and Pongs received.
    pings: u64,
    pongs: u64,
    /// Frames returned since the last time that none was ready.
    frames_in_a_row: usize,
}

/// Whether the stream may hold written bytes in a buffer of its own, as TLS and WebSockets do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum StreamBuffer {
    Flushed,
    MaybeUnflushed,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer broke the protocol: {0}")]
    Protocol(#[from] DecodeError),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// Frames after which the task yields: one read can bring thousands, and other tasks do not run meanwhile.
const FRAMES_IN_A_ROW: usize = 32;
/// How long a connection with an outdated token may take to close. A shim whose Hello was delayed closes the abandoned
/// connection soon.
pub(crate) const LATE_CLOSE_TIME: Duration = Duration::from_secs(1);

/// Buffers larger than this are freed once they are empty.
const KEPT_BUFFER: usize = 64 * 1024;

impl Connection {
    /// Wraps an accepted stream; the sidecar's preface is written first.
    pub(crate) fn new(stream: Box<dyn Transport>) -> Self {
        let now = Instant::now();
        Self {
            stream,
            decoder: Decoder::new(),
            out: PREFACE.to_vec(),
            written: 0,
            pings: 0,
            pongs: 0,
            frames_in_a_row: 0,
            stream_buffer: StreamBuffer::Flushed,
            last_received: now,
            last_sent: now,
        }
    }

    pub(crate) fn push(&mut self, frame: &Frame) {
        frame.encode(&mut self.out);
    }

    /// Queues a Ping and returns its number.
    pub(crate) fn ping(&mut self) -> u64 {
        self.push(&Frame::Ping);
        self.pings += 1;
        self.pings
    }

    /// The peer answered a Ping.
    pub(crate) fn on_pong(&mut self) {
        self.pongs = self.pings.min(self.pongs + 1);
    }

    /// Whether the Ping with this number, and so all before it, was answered. Other bytes do not count: they may have
    /// been sent before the Ping arrived.
    pub(crate) fn has_answered(&self, ping: u64) -> bool {
        self.pongs >= ping
    }

    /// The buffer of bytes to be written, to append message frames to.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// The last time that a byte was received or sent, or that a Ping was queued (`pinged`).
    pub(crate) fn quiet_since(&self, pinged: Instant) -> Instant {
        self.last_received.max(self.last_sent).max(pinged)
    }

    /// The number of bytes in the buffer that are not written yet.
    pub(crate) fn unwritten(&self) -> usize {
        self.out.len() - self.written
    }

    /// Writes the buffer and returns the next frame. Reading never pauses: credit bounds how much a peer may send.
    pub(crate) async fn next(&mut self) -> Result<Frame, Lost> {
        self.next_while_sending(|_| {}).await
    }

    /// The same, and whenever the buffer is written, `refill` appends the frames that are to be written next.
    pub(crate) async fn next_while_sending(
        &mut self,
        mut refill: impl FnMut(&mut Vec<u8>),
    ) -> Result<Frame, Lost> {
        loop {
            if self.frames_in_a_row >= FRAMES_IN_A_ROW && self.decoder.has_partial_frame() {
                // Reset before the await: a caller in a `select!` may drop this future, and must not yield again next
                // time.
                self.frames_in_a_row = 0;
                turn::let_others_run().await;
            }
            if let Some(frame) = poll_fn(|cx| self.poll_next(cx, &mut refill)).await? {
                return Ok(frame);
            }
        }
    }

    /// A frame that has arrived already. Errors in later bytes are reported by [`Self::next`].
    pub(crate) fn buffered(&mut self) -> Option<FrameView<'_>> {
        let Self { decoder, frames_in_a_row, .. } = self;
        decoder.next_view().ok().flatten().inspect(|_| *frames_in_a_row += 1)
    }

    /// Whether the peer closes the connection within this time, without having received an answer.
    ///
    /// A shim gives up on a delayed Hello and opens another connection, which rotates its token. If the first Hello
    /// arrives after all, its shim has closed that connection or will soon; a copy of the shim waits for the answer.
    pub(crate) async fn closes_within(&mut self, time: Duration) -> bool {
        let closed = async {
            loop {
                match self.next().await {
                    Ok(Frame::Goodbye(_)) | Err(_) => return true,
                    Ok(_) => {}
                }
            }
        };
        timeout(time, closed).await.unwrap_or(false)
    }

    /// Writes the whole buffer. The caller must set a timeout.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_write(cx, &mut |_| {})).await
    }

    /// Writes the buffer, then returns a decoded frame, or reads; none where it must be polled again.
    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        refill: &mut impl FnMut(&mut Vec<u8>),
    ) -> Poll<Result<Option<Frame>, Lost>> {
        if let Poll::Ready(Err(error)) = self.poll_write(cx, refill) {
            return Poll::Ready(Err(error.into()));
        }
        if let Some(frame) = self.decoder.next()? {
            self.frames_in_a_row += 1;
            return Poll::Ready(Ok(Some(frame)));
        }
        let mut space = ReadBuf::new(self.decoder.spare());
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, &mut space) else {
            self.frames_in_a_row = 0;
            return Poll::Pending;
        };
        read?;
        let count = space.filled().len();
        if count == 0 {
            return Poll::Ready(Err(Lost::Closed));
        }
        self.decoder.filled(count);
        self.last_received = Instant::now();
        Poll::Ready(Ok(None))
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        refill: &mut impl FnMut(&mut Vec<u8>),
    ) -> Poll<io::Result<()>> {
        loop {
            while self.written < self.out.len() {
                let count = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.out[self.written..]))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.written += count;
                self.stream_buffer = StreamBuffer::MaybeUnflushed;
                self.last_sent = Instant::now();
            }
            self.written = 0;
            self.out.clear();
            refill(&mut self.out);
            if self.out.is_empty() {
                break;
            }
        }
        if self.out.capacity() > KEPT_BUFFER {
            self.out = Vec::new();
        }
        if self.stream_buffer == StreamBuffer::MaybeUnflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.stream_buffer = StreamBuffer::Flushed;
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufStream, duplex};
    use tokio::time::timeout;

    use super::*;
    use crate::turn_counter::TurnCounter;

    #[tokio::test]
    async fn a_peer_that_always_has_more_to_send_does_not_starve_other_tasks() {
        const FRAMES: usize = 1_000; // fewer than one read brings
        let (near, mut far) = duplex(64 * 1024);
        let mut bytes = PREFACE.to_vec();
        (0..FRAMES).for_each(|_| Frame::Ping.encode(&mut bytes));
        far.write_all(&bytes).await.expect("the duplex has room");
        let other_tasks = TurnCounter::new();
        let mut connection = Connection::new(Box::new(near));
        let mut received = 0;
        while received < FRAMES {
            assert_eq!(connection.next().await.expect("the connection is open"), Frame::Ping);
            received += 1 + std::iter::from_fn(|| connection.buffered().map(drop)).take(20).count();
        }
        let turns = other_tasks.turns();
        assert!(turns >= FRAMES / 60, "other tasks had {turns} turns");
    }

    #[tokio::test]
    async fn the_buffer_is_refilled_whenever_the_peer_has_read_it() {
        let (near, mut far) = duplex(64);
        let mut connection = Connection::new(Box::new(near));
        let mut rest = 40_u8;
        let sending = connection.next_while_sending(|out| {
            out.extend(std::iter::repeat_n(rest, usize::from(rest)));
            rest = rest.saturating_sub(1);
        });
        let mut received = vec![0; PREFACE.len() + (1..=40).sum::<usize>()];
        tokio::select! {
            frame = sending => panic!("{frame:?}"),
            read = timeout(Duration::from_secs(10), far.read_exact(&mut received)) => {
                read.expect("not everything was sent in time").expect("the connection is open");
            }
        }
        let expected = (1..=40_u8).rev().flat_map(|rest| vec![rest; usize::from(rest)]);
        assert!(received[PREFACE.len()..].iter().copied().eq(expected));
    }

    /// TLS and WebSockets buffer written bytes; these must be flushed while the link waits for the peer.
    #[tokio::test]
    async fn bytes_that_a_stream_buffers_are_flushed() {
        let (near, mut far) = duplex(64 * 1024);
        let mut connection = Connection::new(Box::new(BufStream::new(near)));
        connection.push(&Frame::Ping);
        let mut preface = vec![0; PREFACE.len()];
        let received = async {
            far.read_exact(&mut preface).await.expect("the connection is open");
            preface
        };
        tokio::select! {
            frame = connection.next() => panic!("{frame:?}"),
            received = timeout(Duration::from_secs(10), received) => assert_eq!(received.expect("the bytes were not flushed in time"), PREFACE),
        }
    }
}
