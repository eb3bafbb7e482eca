//! Waiting for something to happen: bytes, room for bytes, a connection, a deadline, the end.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;

use tokio::time::{Instant, Sleep};

use super::Relay;
use crate::connection::{ConnectError, Connection, Opened};
use crate::stream::Stream;

/// What has happened since the last turn: at least one of these.
pub(super) struct Happened {
    pub(super) stop: bool,
    pub(super) sent_to_sidecar: Option<io::Result<usize>>,
    pub(super) sent_to_harness: Option<io::Result<usize>>,
    pub(super) frames: Option<io::Result<usize>>,
    pub(super) lines: Option<io::Result<usize>>,
    pub(super) alarm: bool,
    pub(super) connected: Option<Result<Opened, ConnectError>>,
}

impl Relay {
    /// Waits until something has happened.
    pub(super) async fn wait(
        &mut self,
        mut stop: Pin<&mut impl Future<Output = ()>>,
        mut alarm: Pin<&mut Sleep>,
        deadline: Option<Instant>,
    ) -> Happened {
        let (wants_lines, wants_frames) =
            (self.state.harness.wants_lines(), self.state.harness.wants_frames());
        let Self { state, lines, attempt, connection, input, output, .. } = self;
        let to_sidecar = &state.sidecar.output;
        let to_harness = &state.harness.output;
        let (reader, writer) = match connection {
            Some(Connection { stream, decoder }) => (Some((&*stream, decoder)), Some(&*stream)),
            None => (None, None),
        };
        let writes = !to_sidecar.is_empty() || writer.is_some_and(Stream::has_unsent);
        // Waiting for room to write is rare.
        let mut send = pin!(async {
            match writer {
                Some(stream) => stream.write(to_sidecar.waiting()).await,
                None => std::future::pending().await,
            }
        });
        let mut write_lines = pin!(output.write(to_harness.waiting()));
        let has_lines = !to_harness.is_empty();
        let mut reader = reader.filter(|_| wants_frames);
        // Everything that is ready is taken in one turn, so that a source that is always ready starves no other.
        poll_fn(|context| {
            let happened = Happened {
                stop: stop.as_mut().poll(context).is_ready(),
                sent_to_sidecar: ready_if(writes, || send.as_mut().poll(context)),
                sent_to_harness: ready_if(has_lines, || write_lines.as_mut().poll(context)),
                frames: match &mut reader {
                    Some((stream, decoder)) => ready(stream.poll_read(context, decoder.spare())),
                    None => None,
                },
                lines: ready_if(wants_lines, || input.poll_read(context, lines.spare())),
                alarm: deadline.is_some() && alarm.as_mut().poll(context).is_ready(),
                connected: attempt.as_mut().and_then(|attempt| ready(attempt.as_mut().poll(context))),
            };
            if happened.is_nothing() { Poll::Pending } else { Poll::Ready(happened) }
        })
        .await
    }
}

impl Happened {
    fn is_nothing(&self) -> bool {
        !self.stop
            && self.sent_to_sidecar.is_none()
            && self.sent_to_harness.is_none()
            && self.frames.is_none()
            && self.lines.is_none()
            && !self.alarm
            && self.connected.is_none()
    }
}

fn ready<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Pending => None,
        Poll::Ready(result) => Some(result),
    }
}

fn ready_if<T>(wanted: bool, poll: impl FnOnce() -> Poll<T>) -> Option<T> {
    if wanted { ready(poll()) } else { None }
}
