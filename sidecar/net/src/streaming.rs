//! One request on a connection of its own, with bodies that are sent and read piece by piece.
//!
//! What must stay true: no request is sent twice and no redirect is followed; no more than a few pieces are in memory; the
//! connection closes when its response, or the future that waits for it, is dropped. There is no deadline here, because a
//! stream may last for days: the caller sets timeouts for its waits.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, response};
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender as ChannelSender};
use hyper::body::Incoming;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use crate::dial::{Dialer, Endpoint, RequestBody};
use crate::one_shot::{OneShotError, collect, expected_length};

/// Pieces that wait to be written. Few, so that a slow server slows down the sender.
const QUEUED_PIECES: usize = 2;

/// A request's body whose pieces come from a [`BodySender`]; it ends when that is dropped.
pub type ChannelBody = Channel<Bytes>;
pub type BodySender = ChannelSender<Bytes>;

pub fn channel_body() -> (BodySender, ChannelBody) {
    Channel::new(QUEUED_PIECES)
}

/// A response whose body is read piece by piece. Dropping it closes the connection.
pub struct StreamedResponse {
    pub head: response::Parts,
    body: Incoming,
    /// Drives the connection; aborted when this is dropped.
    _connection: JoinSet<()>,
}

/// Sends `request` on a new connection and waits for the head of the response. A server may send the head before
/// or after it has read the whole request.
pub async fn open_stream<B: RequestBody>(
    dialer: &Dialer,
    endpoint: &Endpoint,
    request: Request<B>,
    connect: Duration,
) -> Result<StreamedResponse, OneShotError> {
    let (mut sender, connection) =
        dialer.connect_for(endpoint, connect).await.map_err(OneShotError::Connect)?;
    let mut task = JoinSet::new();
    task.spawn(async move {
        // The request below fails with the same error.
        let _ = connection.await;
    });
    let response = sender.send_request(request).await.map_err(OneShotError::Broken)?;
    let (head, body) = response.into_parts();
    Ok(StreamedResponse { head, body, _connection: task })
}

impl StreamedResponse {
    /// The next piece of the body; `None` at its end. Cancel-safe.
    pub async fn next_piece(&mut self) -> Result<Option<Bytes>, OneShotError> {
        while let Some(frame) = self.body.frame().await {
            // Trailers are skipped.
            if let Ok(data) = frame.map_err(OneShotError::Broken)?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// The whole body, if it has at most `limit` bytes.
    pub async fn collect(self, limit: usize) -> Result<Zeroizing<Vec<u8>>, OneShotError> {
        collect(self.body, expected_length(&self.head.headers)?, limit).await
    }
}
