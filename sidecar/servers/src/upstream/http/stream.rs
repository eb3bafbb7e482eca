//! Response bodies, bounded: one JSON message, or a stream of them.
//!
//! What must stay true: nothing larger than the limit is collected, only a few large messages at a time, and none without
//! a charge to its link's memory, so that a server with many streams cannot fill the memory with partial messages.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use cofferdam_base::memory::{MemoryAccount, MemoryCharge, MemoryExhausted};
use cofferdam_net::PooledResponse;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::sse::{Item, SseReader};
use super::{Failure, HttpLimits};
use crate::read_memory::MessageCost;

/// The maximum number of messages above [`LARGE_BYTES`] that are collected from one server at the same time.
pub(super) const MAX_LARGE_MESSAGES: usize = 4;
/// Messages up to this size need no permit.
const LARGE_BYTES: usize = 64 * 1024;
/// Messages up to this size are not charged: a link may receive many at once.
const FREE_BYTES: usize = 8 * 1024;

/// Where the bodies of one server's responses get their memory from.
#[derive(Clone)]
pub(super) struct BodyMemory {
    large: Arc<Semaphore>,
    account: Arc<MemoryAccount>,
    cost: MessageCost,
    /// How long a message waits for memory.
    patience: Duration,
}

/// The memory of one message that is being collected.
struct MessageMemory {
    permit: Option<OwnedSemaphorePermit>,
    charge: MemoryCharge,
}

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
    bodies: BodyMemory,
    memory: MessageMemory,
}

pub(super) enum Next {
    Broken,
    End,
    /// A message, and the charge for it.
    Message(Vec<u8>, MemoryCharge),
    NoMemory,
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

/// Reads a whole body; returns it with the charge for it. The connection can then be reused.
pub(super) async fn collect(
    reply: &mut PooledResponse,
    limit: usize,
    bodies: &BodyMemory,
) -> Result<(Vec<u8>, MemoryCharge), Failure> {
    let declared = reply.response.headers().get(CONTENT_LENGTH);
    let declared = declared.and_then(|length| length.to_str().ok()).and_then(|length| length.parse().ok());
    if declared.is_some_and(|length: usize| length > limit) {
        return Err(Failure::TooLarge);
    }
    let mut body = Vec::new();
    let mut memory = bodies.for_message();
    while let Some(frame) = reply.response.body_mut().frame().await {
        let frame = frame.map_err(|error| Failure::cut_off(&error))?;
        let Ok(data) = frame.into_data() else { continue };
        if body.len() + data.len() > limit {
            return Err(Failure::TooLarge);
        }
        bodies.grow(&mut memory, body.len() + data.len()).await.map_err(|_| Failure::NoMemory)?;
        body.extend_from_slice(&data);
    }
    Ok((body, memory.charge))
}

impl MessageStream {
    pub(super) fn new(reply: PooledResponse, reader: SseReader, bodies: BodyMemory) -> Self {
        let memory = bodies.for_message();
        Self { reply, reader, chunk: Bytes::new(), bodies, memory }
    }

    pub(super) async fn next(&mut self) -> Next {
        loop {
            let mut rest = &self.chunk[..];
            let item = self.reader.next(&mut rest);
            let used = self.chunk.len() - rest.len();
            self.chunk.advance(used);
            match item {
                Some(Item::Message(message)) => {
                    let memory = std::mem::replace(&mut self.memory, self.bodies.for_message());
                    return Next::Message(message, memory.charge);
                }
                Some(Item::Oversize) => return Next::Oversize,
                None => {}
            }
            if self.bodies.grow(&mut self.memory, self.reader.buffered()).await.is_err() {
                return Next::NoMemory;
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

impl BodyMemory {
    pub(super) fn new(limits: &HttpLimits) -> Self {
        Self {
            large: Arc::new(Semaphore::new(MAX_LARGE_MESSAGES)),
            account: Arc::clone(&limits.memory),
            cost: MessageCost { free_bytes: FREE_BYTES, max_bytes: limits.message_bytes },
            patience: limits.memory_wait,
        }
    }

    fn for_message(&self) -> MessageMemory {
        MessageMemory { permit: None, charge: self.account.empty_charge() }
    }

    /// Waits until there is memory for a message of this size; fails if there is none in time.
    async fn grow(&self, memory: &mut MessageMemory, bytes: usize) -> Result<(), MemoryExhausted> {
        if bytes > LARGE_BYTES && memory.permit.is_none() {
            // The semaphore is never closed.
            memory.permit = self.large.clone().acquire_owned().await.ok();
        }
        let needed = self.cost.of(bytes);
        if !memory.charge.try_grow_to(needed) {
            memory.charge.set(memory.charge.bytes().min(self.cost.while_waiting(bytes)));
            memory.charge.grow_to_within(needed, self.patience).await?;
        }
        Ok(())
    }
}
