//! One connection of a link: frames in, frames out, over any byte stream.
//!
//! [`Connection::next`] is the only place that waits, and it may be dropped at any await without losing a byte:
//! what was read is in the decoder, what is to be written is in `out`.
//!
//! A peer that always has more to send yields to other tasks after [`FRAMES_IN_A_ROW`] of its frames, or one batch.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use relay_proto::decoder::Decoder;
use relay_proto::frame::{DecodeError, Frame, FrameView, PREFACE};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout};

/// Any ordered byte stream that can carry a link.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

pub(crate) struct Connection {
    stream: Box<dyn Transport>,
    decoder: Decoder,
    out: Vec<u8>,
    written: usize,
    unsent: Unsent,
    /// When the peer last gave a sign of life: any byte counts.
    pub(crate) heard: Instant,
    /// When this side last wrote anything.
    pub(crate) spoke: Instant,
    /// Pings sent on this connection, and Pongs received.
    pings: u64,
    pongs: u64,
    /// Frames given since the peer last had none.
    in_a_row: usize,
}

/// Whether the stream keeps bytes for itself that it has taken, as TLS and WebSockets do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Unsent {
    No,
    Perhaps,
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer broke the protocol: {0}")]
    Protocol(#[from] DecodeError),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// Then other tasks run: the runtime polls nothing else meanwhile, and a read can bring thousands of frames.
const FRAMES_IN_A_ROW: usize = 32;
/// How long a connection with a former token is watched: that of a delayed Hello is closed by its shim soon after.
pub(crate) const LEAVING_TIME: Duration = Duration::from_secs(1);

/// Buffers above this are given back once they are empty.
const KEPT_BUFFER: usize = 64 * 1024;

impl Connection {
    /// Takes an accepted stream; our preface is the first thing to be written.
    pub(crate) fn new(stream: Box<dyn Transport>) -> Self {
        let now = Instant::now();
        Self {
            stream,
            decoder: Decoder::new(),
            out: PREFACE.to_vec(),
            written: 0,
            pings: 0,
            pongs: 0,
            in_a_row: 0,
            unsent: Unsent::No,
            heard: now,
            spoke: now,
        }
    }

    pub(crate) fn push(&mut self, frame: &Frame) {
        frame.encode(&mut self.out);
    }

    /// Sends a Ping and gives its number.
    pub(crate) fn ping(&mut self) -> u64 {
        self.push(&Frame::Ping);
        self.pings += 1;
        self.pings
    }

    /// The peer answered a Ping.
    pub(crate) fn ponged(&mut self) {
        self.pongs = self.pings.min(self.pongs + 1);
    }

    /// Whether the Ping with this number, and so all before it, was answered. Other bytes do not count: they may have been
    /// under way since before it was sent.
    pub(crate) fn has_answered(&self, ping: u64) -> bool {
        self.pongs >= ping
    }

    /// Where message frames are appended.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// When there was last a sign of life in either direction.
    pub(crate) fn quiet_since(&self, pinged: Instant) -> Instant {
        self.heard.max(self.spoke).max(pinged)
    }

    /// Bytes that the peer has not taken yet.
    pub(crate) fn waiting(&self) -> usize {
        self.out.len() - self.written
    }

    /// Writes what waits and gives the next frame. It always reads: what a peer may send is bounded by its credit.
    pub(crate) async fn next(&mut self) -> Result<Frame, Lost> {
        self.next_while_sending(|_| {}).await
    }

    /// The same, and whenever the peer has taken everything, `refill` appends the frames that are to be written next.
    pub(crate) async fn next_while_sending(
        &mut self,
        mut refill: impl FnMut(&mut Vec<u8>),
    ) -> Result<Frame, Lost> {
        loop {
            if self.in_a_row >= FRAMES_IN_A_ROW && self.decoder.is_midway() {
                // Before the wait, which may be dropped: a caller that selects over several must not start over.
                self.in_a_row = 0;
                tokio::task::yield_now().await;
            }
            if let Some(frame) = poll_fn(|cx| self.poll_next(cx, &mut refill)).await? {
                return Ok(frame);
            }
        }
    }

    /// A frame that has arrived already. What is wrong with the bytes after it is told by [`Self::next`].
    pub(crate) fn buffered(&mut self) -> Option<FrameView<'_>> {
        let Self { decoder, in_a_row, .. } = self;
        decoder.next_view().ok().flatten().inspect(|_| *in_a_row += 1)
    }

    /// Whether the peer closes the connection in this time, without an answer.
    ///
    /// A shim gives up on a Hello that is delayed and makes another connection, on which its token turns. Where the first
    /// Hello arrives after all, its shim closes that connection; the holder of a copy waits for the answer.
    pub(crate) async fn leaves_within(&mut self, time: Duration) -> bool {
        let left = async {
            loop {
                match self.next().await {
                    Ok(Frame::Goodbye(_)) | Err(_) => return true,
                    Ok(_) => {}
                }
            }
        };
        timeout(time, left).await.unwrap_or(false)
    }

    /// Writes everything that waits, for a goodbye. Bound it with a time-out.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_write(cx, &mut |_| {})).await
    }

    /// Writes what waits, and gives a frame that is here, or reads; none where it is to be asked again.
    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        refill: &mut impl FnMut(&mut Vec<u8>),
    ) -> Poll<Result<Option<Frame>, Lost>> {
        if let Poll::Ready(Err(error)) = self.poll_write(cx, refill) {
            return Poll::Ready(Err(error.into()));
        }
        if let Some(frame) = self.decoder.next()? {
            self.in_a_row += 1;
            return Poll::Ready(Ok(Some(frame)));
        }
        let mut space = ReadBuf::new(self.decoder.spare());
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, &mut space) else {
            self.in_a_row = 0;
            return Poll::Pending;
        };
        read?;
        let count = space.filled().len();
        if count == 0 {
            return Poll::Ready(Err(Lost::Closed));
        }
        self.decoder.filled(count);
        self.heard = Instant::now();
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
                self.unsent = Unsent::Perhaps;
                self.spoke = Instant::now();
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
        if self.unsent == Unsent::Perhaps {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unsent = Unsent::No;
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
        let others = TurnCounter::new();
        let mut connection = Connection::new(Box::new(near));
        let mut heard = 0;
        while heard < FRAMES {
            assert_eq!(connection.next().await.expect("the peer is there"), Frame::Ping);
            heard += 1 + std::iter::from_fn(|| connection.buffered().map(drop)).take(20).count();
        }
        let turns = others.turns();
        assert!(turns >= FRAMES / 60, "others had {turns} turns");
    }

    #[tokio::test]
    async fn what_follows_is_written_as_the_peer_takes_what_came_before() {
        let (near, mut far) = duplex(64);
        let mut connection = Connection::new(Box::new(near));
        let mut rest = 40_u8;
        let sending = connection.next_while_sending(|out| {
            out.extend(std::iter::repeat_n(rest, usize::from(rest)));
            rest = rest.saturating_sub(1);
        });
        let mut taken = vec![0; PREFACE.len() + (1..=40).sum::<usize>()];
        tokio::select! {
            frame = sending => panic!("{frame:?}"),
            read = timeout(Duration::from_secs(10), far.read_exact(&mut taken)) => {
                read.expect("all of it was sent").expect("the peer is there");
            }
        }
        let expected = (1..=40_u8).rev().flat_map(|rest| vec![rest; usize::from(rest)]);
        assert!(taken[PREFACE.len()..].iter().copied().eq(expected));
    }

    /// TLS and WebSockets buffer what they have taken; it must be flushed while the link waits for the peer.
    #[tokio::test]
    async fn bytes_that_a_stream_buffers_are_flushed() {
        let (near, mut far) = duplex(64 * 1024);
        let mut connection = Connection::new(Box::new(BufStream::new(near)));
        connection.push(&Frame::Ping);
        let mut preface = vec![0; PREFACE.len()];
        let heard = async {
            far.read_exact(&mut preface).await.expect("the peer is there");
            preface
        };
        tokio::select! {
            frame = connection.next() => panic!("{frame:?}"),
            heard = timeout(Duration::from_secs(10), heard) => assert_eq!(heard.expect("it was sent on"), PREFACE),
        }
    }
}
