//! Signs of life on a trunk: a pipe can be dead without having ended.
//!
//! The sidecar opens a substream, says on it in four bytes (big-endian) how many milliseconds a heartbeat is, and then
//! one byte with every heartbeat, which the hub sends back. Any byte on the pipe is a sign of life; three heartbeats
//! without one, and the pipe is over.

use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf, WriteHalf, split};
use tokio::time::{Instant, sleep, sleep_until};

use crate::Stream;

/// Silence of this many heartbeats means that the pipe is dead.
const SILENT_HEARTBEATS: u32 = 3;
/// A sidecar may not ask for more, nor for so little that a hub would be kept busy.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(3600);
const BEAT: &[u8] = b".";

/// When a byte last came in.
#[derive(Clone, Debug)]
pub struct Heard(Arc<Mutex<Instant>>);

/// Nothing was heard for as long as this.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("nothing came through the pipe for {} seconds, though it has not ended", .0.as_secs_f32())]
pub struct Silence(pub Duration);

impl Heard {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn now(&self) {
        *self.lock() = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.lock()
    }

    /// Waits until nothing was heard for this long.
    async fn silence(&self, length: Duration) -> Silence {
        loop {
            let end = self.last() + length;
            if end <= Instant::now() {
                return Silence(length);
            }
            sleep_until(end).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sidecar's heartbeats. Ends when the pipe is dead; a trunk that ends is found out by whoever carries it.
pub async fn beat<S: Stream>(stream: S, heard: Heard, every: Duration) -> Silence {
    let every = every.clamp(SHORTEST, LONGEST);
    let (reading, mut writing) = split(stream);
    let beats = async {
        let milliseconds = u32::try_from(every.as_millis()).unwrap_or(u32::MAX);
        said(&mut writing, &milliseconds.to_be_bytes()).await;
        loop {
            sleep(every).await;
            said(&mut writing, BEAT).await;
        }
    };
    tokio::select! {
        silence = heard.silence(every * SILENT_HEARTBEATS) => silence,
        () = beats => unreachable!("beats go on"),
        never = swallowed(reading) => never,
    }
}

/// The hub's answers to them. `first` is how long it waits for the sidecar to say how long a heartbeat is.
pub async fn answer_beats<S: Stream>(stream: S, heard: Heard, first: Duration) -> Silence {
    let (mut reading, mut writing) = split(stream);
    let told = async {
        match reading.read_u32().await {
            Ok(milliseconds) => Duration::from_millis(milliseconds.into()).clamp(SHORTEST, LONGEST),
            Err(_) => pending().await,
        }
    };
    let every = tokio::select! {
        every = told => every,
        silence = heard.silence(first) => return silence,
    };
    let answers = async {
        let mut room = [0; 16];
        loop {
            match reading.read(&mut room).await {
                Ok(count @ 1..) => said(&mut writing, &room[..count]).await,
                // Without beats it is the silence that tells.
                Ok(0) | Err(_) => pending().await,
            }
        }
    };
    tokio::select! {
        silence = heard.silence(every * SILENT_HEARTBEATS) => silence,
        () = answers => unreachable!("answers go on"),
    }
}

/// Writes, or waits for the silence that follows from its not being possible.
async fn said<S: Stream>(writing: &mut WriteHalf<S>, bytes: &[u8]) {
    let written = async {
        writing.write_all(bytes).await?;
        writing.flush().await
    };
    if written.await.is_err() {
        pending().await
    }
}

async fn swallowed<T>(mut reading: impl AsyncRead + Unpin) -> T {
    let mut room = [0; 16];
    while matches!(reading.read(&mut room).await, Ok(1..)) {}
    pending().await
}

/// A stream that notes when something comes in.
pub(super) struct Watched<S> {
    stream: S,
    heard: Heard,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, heard: Heard) -> Self {
        Self { stream, heard }
    }
}

impl<S: Stream> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = room.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, room))?;
        if room.filled().len() > before {
            self.heard.now();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
