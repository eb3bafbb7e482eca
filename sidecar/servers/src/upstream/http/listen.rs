//! The stream for messages that a server of the older era sends by itself: requests, notifications, log lines.
//!
//! What must stay true: a server without such a stream gets one request for it; a stream that keeps breaking is reopened with
//! backoff; the stream ends with its session.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::{Backoff, PacedLines};
use http::{HeaderValue, StatusCode};

use super::era::Session;
use super::exchange::{MAX_RESUME_DELAY, MIN_RESUME_DELAY, open_stream};
use super::sse::SseReader;
use super::stream::{self, ContentType, MessageStream, Next};
use super::tasks::Shared;

/// Before the first reconnect, unless the server sends `retry:`.
const FIRST_DELAY: Duration = Duration::from_secs(1);

/// Listens until the session ends or the server has no such stream.
pub(super) async fn listen(shared: Arc<Shared>, session: Session) {
    let ended = session.ended.clone();
    ended.run_until_cancelled(listen_on(&shared, &session)).await;
}

async fn listen_on(shared: &Shared, session: &Session) {
    let mut reader = SseReader::new(shared.limits.message_bytes);
    let mut backoff = Backoff::new(FIRST_DELAY, MAX_RESUME_DELAY);
    loop {
        let last_event = reader.last_event_id().and_then(|id| HeaderValue::from_str(id).ok());
        if let Ok(credentials) = shared.own_credentials().await
            && let Ok(reply) = open_stream(shared, session, &*credentials, last_event.as_ref()).await
        {
            match reply.response.status() {
                StatusCode::OK if matches!(stream::content_type(&reply), Ok(ContentType::Events)) => {
                    let stream = MessageStream::new(reply, reader.resumed(), shared.bodies.clone());
                    let received;
                    (reader, received) = relay(shared, stream).await;
                    if received == Received::Messages {
                        backoff = Backoff::new(FIRST_DELAY, MAX_RESUME_DELAY);
                    }
                    if let Some(requested) = reader.retry() {
                        backoff = Backoff::new(
                            requested.clamp(MIN_RESUME_DELAY, MAX_RESUME_DELAY),
                            MAX_RESUME_DELAY,
                        );
                    }
                }
                StatusCode::NOT_FOUND if session.id.is_some() => {
                    return shared.session_lost(session, None).await;
                }
                // The next attempt uses the newest credential.
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {}
                StatusCode::TOO_MANY_REQUESTS => {}
                status if status.is_server_error() => {}
                // 405: the server has no such stream. Other refusals are final too.
                _ => return,
            }
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Received {
    Messages,
    Nothing,
}

/// A server can cause these lines as fast as it sends messages.
static OVERSIZE_LINES: PacedLines = PacedLines::new("dropped a message from the server that is too large");

async fn relay(shared: &Shared, mut stream: MessageStream) -> (SseReader, Received) {
    let mut received = Received::Nothing;
    loop {
        match stream.next().await {
            Next::Message(message, charge) => {
                received = Received::Messages;
                shared.emit_message(message, charge).await;
            }
            Next::Oversize => {
                if let Some(left_out) = OVERSIZE_LINES.admit() {
                    tracing::warn!(left_out, "dropped a message from the server that is too large");
                }
            }
            // The stream is opened again, later.
            Next::NoMemory => return (stream.into_reader(), Received::Nothing),
            Next::End | Next::Broken => return (stream.into_reader(), received),
        }
    }
}
