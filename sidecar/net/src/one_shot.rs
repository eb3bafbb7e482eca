//! One request on a connection of its own.
//!
//! What must stay true: no request is sent twice and no redirect is followed; an error says whether the request may have
//! been sent; the size of the response is bounded, and its body is in memory that is wiped when it is dropped.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use crate::dial::{ConnectError, Connection, Dialer, Endpoint, Sender};

/// The limits of one exchange.
#[derive(Clone, Copy, Debug)]
pub struct OneShotLimits {
    /// The timeout for resolving, TCP and TLS together.
    pub connect: Duration,
    /// The last byte of the response must have arrived by then.
    pub deadline: Instant,
    /// The maximum length of the response's body.
    pub body_bytes: usize,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum OneShotError {
    /// The request may have reached the server.
    #[error("the length of the response is not a number")]
    BadLength,
    /// The request may have reached the server.
    #[error("the connection broke before the whole response arrived")]
    Broken(#[source] hyper::Error),
    /// No byte of the request was sent.
    #[error(transparent)]
    Connect(ConnectError),
    /// The request may have reached the server.
    #[error("the response did not arrive in time")]
    TimedOut,
    /// The request may have reached the server.
    #[error("the response has more than {limit} bytes")]
    TooLarge { limit: usize },
}

/// Sends `request` on a new connection and reads the whole response.
pub async fn send_once(
    dialer: &Dialer,
    endpoint: &Endpoint,
    request: Request<Full<Bytes>>,
    limits: OneShotLimits,
) -> Result<Response<Zeroizing<Vec<u8>>>, OneShotError> {
    let connect = limits.connect.min(limits.deadline.saturating_duration_since(Instant::now()));
    let (sender, connection) = dialer.connect(endpoint, connect).await.map_err(OneShotError::Connect)?;
    let exchange = drive(connection, exchange(sender, request, limits.body_bytes));
    timeout_at(limits.deadline, exchange).await.unwrap_or(Err(OneShotError::TimedOut))
}

/// Polls the connection while the exchange waits for its bytes.
async fn drive<T>(connection: Connection, exchange: impl Future<Output = T>) -> T {
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        biased;
        result = &mut exchange => return result,
        // The exchange fails with the same error.
        _ = connection => {}
    }
    exchange.await
}

async fn exchange(
    mut sender: Sender,
    request: Request<Full<Bytes>>,
    limit: usize,
) -> Result<Response<Zeroizing<Vec<u8>>>, OneShotError> {
    let response = sender.send_request(request).await.map_err(OneShotError::Broken)?;
    let (head, body) = response.into_parts();
    let body = collect(body, expected_length(&head.headers)?, limit).await?;
    Ok(Response::from_parts(head, body))
}

/// The Content-Length of the response; 0 if there is none.
pub(crate) fn expected_length(headers: &HeaderMap) -> Result<usize, OneShotError> {
    match headers.get(CONTENT_LENGTH).map(|length| length.to_str().ok()?.parse().ok()) {
        Some(Some(length)) => Ok(length),
        Some(None) => Err(OneShotError::BadLength),
        None => Ok(0),
    }
}

pub(crate) async fn collect(
    mut body: Incoming,
    expected: usize,
    limit: usize,
) -> Result<Zeroizing<Vec<u8>>, OneShotError> {
    if expected > limit {
        return Err(OneShotError::TooLarge { limit });
    }
    let mut collected = Zeroizing::new(Vec::with_capacity(expected));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(OneShotError::Broken)?;
        let Ok(data) = frame.into_data() else { continue };
        let needed = collected.len() + data.len();
        if needed > limit {
            return Err(OneShotError::TooLarge { limit });
        }
        if needed > collected.capacity() {
            // Copied to a new buffer: a `Vec` that grows leaves its old bytes in memory unwiped.
            let mut larger = Zeroizing::new(Vec::with_capacity((2 * needed).min(limit)));
            larger.extend_from_slice(&collected);
            collected = larger;
        }
        collected.extend_from_slice(&data);
    }
    Ok(collected)
}
