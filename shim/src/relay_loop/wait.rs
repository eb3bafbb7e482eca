//! Waits for events: bytes to read, room to write, a new connection, a deadline, or `stop`.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;

use tokio::time::{Instant, Sleep};

use super::Relay;
use crate::connection::{ConnectError, Connection, OpenedConnection};
use crate::stream::Stream;

/// The events of one iteration; there is at least one.
pub(super) struct Events {
    pub(super) stop: bool,
    pub(super) sent_to_sidecar: Option<io::Result<usize>>,
    pub(super) sent_to_harness: Option<io::Result<usize>>,
    /// Bytes read from the sidecar.
    pub(super) frames: Option<io::Result<usize>>,
    /// Bytes read from the harness.
    pub(super) lines: Option<io::Result<usize>>,
    pub(super) alarm: bool,
    pub(super) connected: Option<Result<OpenedConnection, ConnectError>>,
}

impl Relay {
    pub(super) async fn wait(
        &mut self,
        mut stop: Pin<&mut impl Future<Output = ()>>,
        mut alarm: Pin<&mut Sleep>,
        deadline: Option<Instant>,
    ) -> Events {
        let (accepts_lines, accepts_frames) =
            (self.state.harness.accepts_lines(), self.state.harness.accepts_frames());
        let Self { state, lines, attempt, connection, input, output, .. } = self;
        let to_sidecar = &state.sidecar.output;
        let to_harness = &state.harness.output;
        let (reader, writer) = match connection {
            Some(Connection { stream, decoder }) => (Some((&*stream, decoder)), Some(&*stream)),
            None => (None, None),
        };
        let writes = !to_sidecar.is_empty() || writer.is_some_and(Stream::has_unsent);
        // Bytes are left only if `Relay::write` found no room, which is rare.
        let mut send = pin!(async {
            match writer {
                Some(stream) => stream.write(to_sidecar.waiting()).await,
                None => std::future::pending().await,
            }
        });
        let mut write_lines = pin!(output.write(to_harness.waiting()));
        let has_lines = !to_harness.is_empty();
        let mut reader = reader.filter(|_| accepts_frames);
        // Everything that is ready is handled in one iteration, so that a source that is always ready starves no other.
        poll_fn(|context| {
            let events = Events {
                stop: stop.as_mut().poll(context).is_ready(),
                sent_to_sidecar: ready_if(writes, || send.as_mut().poll(context)),
                sent_to_harness: ready_if(has_lines, || write_lines.as_mut().poll(context)),
                frames: match &mut reader {
                    Some((stream, decoder)) => ready(stream.poll_read(context, decoder.spare())),
                    None => None,
                },
                lines: ready_if(accepts_lines, || input.poll_read(context, lines.spare())),
                alarm: deadline.is_some() && alarm.as_mut().poll(context).is_ready(),
                connected: attempt.as_mut().and_then(|attempt| ready(attempt.as_mut().poll(context))),
            };
            if events.is_empty() { Poll::Pending } else { Poll::Ready(events) }
        })
        .await
    }
}

impl Events {
    fn is_empty(&self) -> bool {
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
