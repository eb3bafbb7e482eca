//! Memory for messages that are being received from servers, charged before it is taken.
//!
//! A message above a small size is charged several times: for the buffer that it is collected in, and for the copies that
//! exist for a moment while the pipeline scrubs and queues it. Charges grow in few large steps, each for all that a message
//! of that size needs: if they grew byte by byte, many messages that were received in part would take all memory, and none
//! could be completed. Where a ceiling allows no more, the server is not read for a while; then the message is discarded
//! and its request gets an error.
//!
//! What must stay true: the charge lasts until the pipeline has handled the message; while a message waits for memory, no
//! more than its buffer is charged; no message waits for ever.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use cofferdam_base::memory::{MEMORY_RETRY_DELAY, MemoryAccount, MemoryCharge, MemoryExhausted};
use tokio::time::{Instant, Sleep, sleep};

/// What messages of one server cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageCost {
    /// Messages up to this size are not charged.
    pub(crate) free_bytes: usize,
    /// The largest message.
    pub(crate) max_bytes: usize,
}

/// The charge for what was read from a process and is not handled yet.
pub(crate) struct InputMemory {
    charge: MemoryCharge,
    cost: MessageCost,
    patience: Duration,
    waiting: Option<Waiting>,
}

struct Waiting {
    deadline: Instant,
    retry: Pin<Box<Sleep>>,
}

/// Why a response was discarded, for a model.
pub const NO_MEMORY: &str = "the call ran, but its response is not relayed: this sandbox uses all the memory of the sidecar that `limits.enrolment-memory` or `limits.total-memory` allows; read outstanding responses, or ask for less at a time";
/// A line of a process up to this size is not charged: the charge of its link includes it.
const FREE_LINE_BYTES: usize = 64 * 1024;
/// The buffer, which may be twice as large as the message, and three copies: scrubbed, queued, and framed for the shim.
const COPIES: usize = 5;
/// The buffer alone.
const BUFFER_COPIES: usize = 2;
/// The sizes of messages for which charges grow; above the last one, they grow to that of the largest message.
const STEPS: [usize; 3] = [64 * 1024, 256 * 1024, 1280 * 1024];

impl MessageCost {
    /// What is charged for a message of which this much has been received.
    pub(crate) fn of(self, bytes: usize) -> usize {
        if bytes <= self.free_bytes {
            return 0;
        }
        let step = STEPS.into_iter().find(|step| bytes <= *step);
        COPIES * step.unwrap_or(self.max_bytes).min(self.max_bytes).max(bytes)
    }

    /// What is charged for a message of which this much has been received, while it waits for memory.
    pub(crate) fn while_waiting(self, bytes: usize) -> usize {
        match bytes <= self.free_bytes {
            true => 0,
            false => BUFFER_COPIES * bytes,
        }
    }
}

impl InputMemory {
    /// For lines up to `max_line` bytes; `patience` is how long a line waits for memory.
    pub(crate) fn new(account: &Arc<MemoryAccount>, max_line: usize, patience: Duration) -> Self {
        let cost = MessageCost { free_bytes: FREE_LINE_BYTES, max_bytes: max_line };
        Self { charge: account.empty_charge(), cost, patience, waiting: None }
    }

    /// Waits until there is memory for a line of this size; fails if there is none in time.
    pub(crate) fn poll_grow(
        &mut self,
        cx: &mut Context<'_>,
        bytes: usize,
    ) -> Poll<Result<(), MemoryExhausted>> {
        let needed = self.cost.of(bytes);
        loop {
            if self.charge.try_grow_to(needed) {
                self.waiting = None;
                return Poll::Ready(Ok(()));
            }
            let now = Instant::now();
            self.shrink_charge_to(self.cost.while_waiting(bytes));
            let waiting = self.waiting.get_or_insert_with(|| Waiting {
                deadline: now + self.patience,
                retry: Box::pin(sleep(MEMORY_RETRY_DELAY)),
            });
            if now >= waiting.deadline {
                self.waiting = None;
                return Poll::Ready(Err(MemoryExhausted));
            }
            ready!(waiting.retry.as_mut().poll(cx));
            waiting.retry.as_mut().reset(now + MEMORY_RETRY_DELAY);
        }
    }

    /// Releases what a line of this size does not need.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        self.shrink_charge_to(self.cost.of(bytes));
    }

    fn shrink_charge_to(&mut self, charged: usize) {
        if charged < self.charge.bytes() {
            self.charge.set(charged);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_cover_the_copies_of_a_message_and_grow_in_few_steps() {
        const MIB: usize = 1024 * 1024;
        for max_bytes in [MIB / 8, MIB, 10 * MIB] {
            let cost = MessageCost { free_bytes: 8 * 1024, max_bytes };
            assert_eq!(cost.of(8 * 1024), 0);
            let charges = (1..=max_bytes / 1024).map(|kib| cost.of(kib * 1024));
            let mut distinct: Vec<usize> = charges.collect();
            assert!(distinct.iter().zip(1..).skip(8).all(|(charge, kib)| *charge >= COPIES * kib * 1024));
            distinct.dedup();
            assert!(distinct.len() <= 5, "{distinct:?}");
            assert_eq!(distinct.last(), Some(&(COPIES * max_bytes)));
            assert_eq!(cost.while_waiting(max_bytes), 2 * max_bytes);
        }
    }
}
