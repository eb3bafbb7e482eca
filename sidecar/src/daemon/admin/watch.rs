//! The stream of changes: server-sent events, for what the caller may see.
//!
//! What must stay true: a stream ends with its caller's right; a client that does not read is disconnected, and delays
//! nothing else.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use hyper::body::{Body, Frame};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::caller::Caller;
use super::error::ApiError;
use crate::daemon::state::Daemon;
use crate::session::changes::Change;

/// Streams at the same time.
pub(super) const MAX_WATCHERS: usize = 64;
/// Events that are queued for the connection.
const MAX_QUEUED: usize = 8;
/// A comment is sent after this time without a change, so that proxies keep the connection open.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// A client that reads nothing for so long is disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The body of the response.
pub(super) struct EventBody(mpsc::Receiver<Bytes>);

/// Starts a stream. `cut` is cancelled if the client does not read.
pub(super) fn start(
    daemon: &Arc<Daemon>,
    caller: Caller,
    cut: CancellationToken,
) -> Result<EventBody, ApiError> {
    let Ok(permit) = Arc::clone(&daemon.admin.watchers).try_acquire_owned() else {
        let message = format!("{MAX_WATCHERS} clients watch already");
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_watchers", message)
            .hint("end one of them, or ask `/v1/sessions` from time to time"));
    };
    let mut changes = daemon.context.changes.watch();
    let (events, body) = mpsc::channel(MAX_QUEUED);
    let stop = daemon.stop.clone();
    daemon.context.tasks.spawn(async move {
        let _permit = permit;
        let mut ended = std::pin::pin!(caller.ended());
        let mut text = Bytes::from_static(b"event: ready\ndata: {}\n\n");
        loop {
            match timeout(SEND_TIMEOUT, events.send(text)).await {
                Ok(Ok(())) => {}
                // The client has disconnected.
                Ok(Err(_)) => return,
                Err(_) => return cut.cancel(),
            }
            text = tokio::select! {
                () = stop.cancelled() => return,
                () = ended.as_mut() => return,
                () = events.closed() => return,
                change = next_visible(&mut changes, &caller) => match change {
                    Ok(change) => event(&change),
                    Err(RecvError::Lagged(_)) => Bytes::from_static(b"event: lagged\ndata: {}\n\n"),
                    Err(RecvError::Closed) => return,
                },
                () = sleep(HEARTBEAT) => Bytes::from_static(b":\n\n"),
            };
        }
    });
    Ok(EventBody(body))
}

async fn next_visible(
    changes: &mut tokio::sync::broadcast::Receiver<Change>,
    caller: &Caller,
) -> Result<Change, RecvError> {
    loop {
        let change = changes.recv().await?;
        if caller.may_use(&change.grant) {
            return Ok(change);
        }
    }
}

fn event(change: &Change) -> Bytes {
    let data = serde_json::to_string(change).expect("a change is plain data");
    format!("event: {}\ndata: {data}\n\n", change.event.as_str()).into()
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}
