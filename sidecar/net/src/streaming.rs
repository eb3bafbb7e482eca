//! One request on a connection of its own, with bodies that are sent and read piece by piece.
//!
//! What must stay true: no request is sent twice and no redirect is followed; no more than a few pieces are in memory; the
//! connection closes when its response, or the future that waits for it, is dropped. There is no deadline here, because a
//! stream may last for days: the caller sets timeouts for its waits.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use crate::dial::{Dialer, Endpoint, RequestBody};
use crate::one_shot::{OneShotError, collect, expected_length};

/// A body whose pieces come from a [`BodySender`]; it ends when that is dropped and all pieces were read. The
/// `Channel` of `http-body-util` may lose the last piece if its sender is dropped at once.
pub struct ChannelBody(mpsc::Receiver<Bytes>);

/// Sends the pieces of a [`ChannelBody`].
pub struct BodySender(mpsc::Sender<Bytes>);

/// The exchange has ended, so that its body is not read any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the body is not read any more")]
pub struct BodyEnded;

/// A body of which at most this many pieces wait to be read: few, so that a slow peer slows down the sender.
pub fn channel_body(queued_pieces: usize) -> (BodySender, ChannelBody) {
    let (sender, receiver) = mpsc::channel(queued_pieces);
    (BodySender(sender), ChannelBody(receiver))
}

impl BodySender {
    /// Sends a piece once there is room for it.
    pub async fn send_data(&self, piece: Bytes) -> Result<(), BodyEnded> {
        self.0.send(piece).await.map_err(|_| BodyEnded)
    }

    /// Waits until the body is not read any more.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
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
