//! Response bodies, bounded: one JSON message, or a stream of them.
//!
//! What must stay true: nothing larger than the limit is collected, and only a few large messages at a time, so that a server
//! with many streams cannot fill the memory with partial messages.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use cofferdam_net::PooledResponse;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Failure;
use super::sse::{Item, SseReader};

/// The maximum number of messages above [`LARGE_BYTES`] that are collected from one server at the same time.
pub(super) const MAX_LARGE_MESSAGES: usize = 4;
/// Messages up to this size need no permit.
const LARGE_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ContentType {
    Events,
    Json,
    /// Not a content type of MCP.
    Other,
}

/// The messages of an event stream.
pub(super) struct MessageStream {
    reply: PooledResponse,
    reader: SseReader,
    chunk: Bytes,
    large: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

pub(super) enum Next {
    Broken,
    End,
    Message(Vec<u8>),
    Oversize,
}

/// The content type of a response. A compressed response is an error, because none was requested.
pub(super) fn content_type(reply: &PooledResponse) -> Result<ContentType, Failure> {
    let headers = reply.response.headers();
    if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(Failure::MaybeRan {
            why: "the server sent a compressed response, which was not requested".into(),
        });
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    Ok(match essence {
        essence if essence.eq_ignore_ascii_case("application/json") => ContentType::Json,
        essence if essence.eq_ignore_ascii_case("text/event-stream") => ContentType::Events,
        _ => ContentType::Other,
    })
}

/// Reads a whole body; returns it with the permit that a large one needs. The connection can then be reused.
pub(super) async fn collect(
    reply: &mut PooledResponse,
    limit: usize,
    large: &Arc<Semaphore>,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), Failure> {
    let declared = reply.response.headers().get(CONTENT_LENGTH);
    let declared = declared.and_then(|length| length.to_str().ok()).and_then(|length| length.parse().ok());
    if declared.is_some_and(|length: usize| length > limit) {
        return Err(Failure::TooLarge);
    }
    let mut body = Vec::new();
    let mut permit = None;
    while let Some(frame) = reply.response.body_mut().frame().await {
        let frame = frame.map_err(|error| Failure::cut_off(&error))?;
        let Ok(data) = frame.into_data() else { continue };
        if body.len() + data.len() > limit {
            return Err(Failure::TooLarge);
        }
        if body.len() + data.len() > LARGE_BYTES && permit.is_none() {
            permit = acquire(large).await;
        }
        body.extend_from_slice(&data);
    }
    Ok((body, permit))
}

impl MessageStream {
    pub(super) fn new(reply: PooledResponse, reader: SseReader, large: Arc<Semaphore>) -> Self {
        Self { reply, reader, chunk: Bytes::new(), large, permit: None }
    }

    pub(super) async fn next(&mut self) -> Next {
        // The previous message has been delivered.
        self.permit = None;
        loop {
            let mut rest = &self.chunk[..];
            let item = self.reader.next(&mut rest);
            let used = self.chunk.len() - rest.len();
            self.chunk.advance(used);
            match item {
                Some(Item::Message(message)) => return Next::Message(message),
                Some(Item::Oversize) => return Next::Oversize,
                None => {}
            }
            if self.reader.buffered() > LARGE_BYTES && self.permit.is_none() {
                self.permit = acquire(&self.large).await;
            }
            match self.reply.response.body_mut().frame().await {
                Some(Ok(frame)) => self.chunk = frame.into_data().unwrap_or_default(),
                Some(Err(_)) => return Next::Broken,
                None => return Next::End,
            }
        }
    }

    /// The reader, for a stream that continues after this one. Closes the connection.
    pub(super) fn into_reader(self) -> SseReader {
        self.reader
    }

    /// Lets the connection go back to the pool; only after [`Next::End`].
    pub(super) async fn give_back(self) {
        self.reply.give_back().await;
    }
}

async fn acquire(large: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    // The semaphore is never closed.
    large.clone().acquire_owned().await.ok()
}
