//! The stream of changes that the caller may see, as server-sent events.
//!
//! What must stay true: a stream ends when its caller's right ends; a client that does not read is disconnected, and does
//! not delay anything else.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_net::{ChannelBody, channel_body};
use http::StatusCode;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::caller::Caller;
use super::error::ApiError;
use crate::daemon::state::Daemon;
use crate::session::changes::Change;

/// How many streams may be open at the same time.
pub(super) const MAX_WATCHERS: usize = 64;
/// How many events are queued for one connection.
const MAX_QUEUED: usize = 8;
/// A comment is sent after this time without a change, so that proxies keep the connection open.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// A client that reads nothing for this long is disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a stream. Cancels `close` if the client does not read.
pub(super) fn start(
    daemon: &Arc<Daemon>,
    caller: Caller,
    close: CancellationToken,
) -> Result<ChannelBody, ApiError> {
    let Ok(permit) = Arc::clone(&daemon.admin.watchers).try_acquire_owned() else {
        let message = format!("there are {MAX_WATCHERS} watching clients already");
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_watchers", message)
            .with_hint("end one of them, or poll `/v1/sessions`"));
    };
    let mut changes = daemon.context.changes.watch();
    let (events, body) = channel_body(MAX_QUEUED);
    let stop = daemon.stop.clone();
    daemon.context.tasks.spawn(async move {
        let _permit = permit;
        let mut ended = std::pin::pin!(caller.await_end());
        let mut text = Bytes::from_static(b"event: ready\ndata: {}\n\n");
        loop {
            match timeout(SEND_TIMEOUT, events.send_data(text)).await {
                Ok(Ok(())) => {}
                // The client has disconnected.
                Ok(Err(_)) => return,
                Err(_) => return close.cancel(),
            }
            text = tokio::select! {
                () = stop.cancelled() => return,
                () = ended.as_mut() => return,
                () = events.closed() => return,
                change = next_visible(&mut changes, &caller) => match change {
                    Ok(change) => encode_event(&change),
                    Err(RecvError::Lagged(_)) => Bytes::from_static(b"event: lagged\ndata: {}\n\n"),
                    Err(RecvError::Closed) => return,
                },
                () = sleep(HEARTBEAT) => Bytes::from_static(b":\n\n"),
            };
        }
    });
    Ok(body)
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

fn encode_event(change: &Change) -> Bytes {
    let data = serde_json::to_string(change).expect("a change is plain data");
    format!("event: {}\ndata: {data}\n\n", change.event.as_str()).into()
}
