//! Heartbeats on a trunk, which detect a dead pipe that was not closed.
//!
//! The sidecar opens a substream, sends the heartbeat interval in milliseconds as four bytes (big-endian), and then one
//! byte with every heartbeat, which the hub sends back. Any byte on the pipe counts as a sign of life; after three
//! heartbeats without any byte the pipe is considered dead.

use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf, WriteHalf, split};
use tokio::time::{Instant, sleep, sleep_until};

use crate::Stream;

/// After this many heartbeats without a byte the pipe is dead.
const MAX_SILENT_HEARTBEATS: u32 = 3;
/// A shorter interval is raised to this one, so that a sidecar cannot keep a hub busy.
const MIN_INTERVAL: Duration = Duration::from_millis(20);
const MAX_INTERVAL: Duration = Duration::from_secs(3600);
const HEARTBEAT: &[u8] = b".";

/// When the last byte was received.
#[derive(Clone, Debug)]
pub struct LastReceived(Arc<Mutex<Instant>>);

/// No byte was received for this long.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("nothing came through the pipe for {} seconds, though it has not ended", .0.as_secs_f32())]
pub struct Silence(pub Duration);

impl LastReceived {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn set_now(&self) {
        *self.lock() = Instant::now();
    }

    fn instant(&self) -> Instant {
        *self.lock()
    }

    /// Waits until no byte was received for this long.
    async fn wait_for_silence(&self, length: Duration) -> Silence {
        loop {
            let end = self.instant() + length;
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

/// Sends the sidecar's heartbeats until the pipe is dead. A closed pipe is reported by [`super::Trunk::next`].
pub async fn send_heartbeats<S: Stream>(
    stream: S,
    last_received: LastReceived,
    interval: Duration,
) -> Silence {
    let interval = interval.clamp(MIN_INTERVAL, MAX_INTERVAL);
    let (reading, mut writing) = split(stream);
    let beats = async {
        let milliseconds = u32::try_from(interval.as_millis()).unwrap_or(u32::MAX);
        send_or_wait(&mut writing, &milliseconds.to_be_bytes()).await;
        loop {
            sleep(interval).await;
            send_or_wait(&mut writing, HEARTBEAT).await;
        }
    };
    tokio::select! {
        silence = last_received.wait_for_silence(interval * MAX_SILENT_HEARTBEATS) => silence,
        () = beats => unreachable!("heartbeats do not end"),
        never = discard(reading) => never,
    }
}

/// Sends heartbeats back, on the hub's side, until the pipe is dead. `interval_timeout` is the timeout for the arrival of
/// the sidecar's interval.
pub async fn echo_heartbeats<S: Stream>(
    stream: S,
    last_received: LastReceived,
    interval_timeout: Duration,
) -> Silence {
    let (mut reading, mut writing) = split(stream);
    let interval = async {
        match reading.read_u32().await {
            Ok(milliseconds) => Duration::from_millis(milliseconds.into()).clamp(MIN_INTERVAL, MAX_INTERVAL),
            Err(_) => pending().await,
        }
    };
    let interval = tokio::select! {
        interval = interval => interval,
        silence = last_received.wait_for_silence(interval_timeout) => return silence,
    };
    let echoes = async {
        let mut buffer = [0; 16];
        loop {
            match reading.read(&mut buffer).await {
                Ok(count @ 1..) => send_or_wait(&mut writing, &buffer[..count]).await,
                // No more heartbeats arrive, so `wait_for_silence` below returns.
                Ok(0) | Err(_) => pending().await,
            }
        }
    };
    tokio::select! {
        silence = last_received.wait_for_silence(interval * MAX_SILENT_HEARTBEATS) => silence,
        () = echoes => unreachable!("the echoes do not end"),
    }
}

/// Writes the bytes. If that fails, waits forever: the silence that follows ends the pipe.
async fn send_or_wait<S: Stream>(writing: &mut WriteHalf<S>, bytes: &[u8]) {
    let written = async {
        writing.write_all(bytes).await?;
        writing.flush().await
    };
    if written.await.is_err() {
        pending().await
    }
}

async fn discard<T>(mut reading: impl AsyncRead + Unpin) -> T {
    let mut buffer = [0; 16];
    while matches!(reading.read(&mut buffer).await, Ok(1..)) {}
    pending().await
}

/// A stream that records when bytes are received.
pub(super) struct TimestampedStream<S> {
    stream: S,
    last_received: LastReceived,
}

impl<S> TimestampedStream<S> {
    pub(super) fn new(stream: S, last_received: LastReceived) -> Self {
        Self { stream, last_received }
    }
}

impl<S: Stream> AsyncRead for TimestampedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.last_received.set_now();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for TimestampedStream<S> {
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
