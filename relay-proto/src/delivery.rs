//! Sequence numbers, acknowledgements, credit and retransmission, without I/O.
//!
//! Each direction of a link has an [`Outbox`] at the sender and an [`Inbox`] at the receiver. They outlive
//! connections: after a resume the outbox sends again every frame that the peer has not received, and the
//! inbox drops frames that it received before, so each sequence number is delivered once.
//!
//! Credit counts whole `Message` frames, headers included, so that a flood of empty parts is not free. A sender with
//! nothing in flight may always send one frame if the window is not zero, so a small window is slow, never stuck.

use std::borrow::Cow;
use std::collections::VecDeque;

use crate::frame::{Ack, MaybeRan, More, PART_OVERHEAD, Part, PartFlags, PartView, encode_part, part_length};
use crate::limits::{MAX_IDLE_BUFFER, MAX_MESSAGE_PART, MAX_WINDOW};

/// The frames that wait for credit or for an acknowledgement. Sequence numbers begin at 1.
#[derive(Debug)]
pub struct Outbox {
    /// Encoded frames back to back, the first at `head`: sending copies them to the connection, sending again copies
    /// them once more.
    log: Vec<u8>,
    /// Where the oldest unacknowledged frame begins.
    head: usize,
    /// The lengths of the frames in `log`, oldest first; the oldest is number `acked + 1`.
    lengths: VecDeque<u32>,
    /// How many of `lengths` were handed out on this connection, and their bytes.
    sent: usize,
    sent_bytes: usize,
    acked: u64,
    /// The highest number handed out on any connection of this link.
    handed_out: u64,
    window: u64,
}

/// A misbehaving peer: the link must end.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DeliveryError {
    #[error("the peer acknowledged {acked}, but only {sent} was sent")]
    AckFromTheFuture { acked: u64, sent: u64 },
    #[error("the peer acknowledged {acked}, after it had acknowledged {before}")]
    AckWentBack { acked: u64, before: u64 },
    #[error("frame {got} came instead of {expected}")]
    Gap { expected: u64, got: u64 },
    #[error("the message is larger than {max} bytes")]
    TooLarge { max: usize },
    #[error("the peer sent more than its credit of {window} bytes")]
    OverCredit { window: u64 },
}

impl Outbox {
    pub fn new(window: u64) -> Self {
        Self {
            log: Vec::new(),
            head: 0,
            lengths: VecDeque::new(),
            sent: 0,
            sent_bytes: 0,
            acked: 0,
            handed_out: 0,
            window: window.min(MAX_WINDOW),
        }
    }

    /// Splits a message into parts and stores them until they are acknowledged. Returns the sequence number of its
    /// first part. Always accepts; callers stop producing while [`Self::is_full`].
    pub fn push(&mut self, message: &[u8], maybe_ran: MaybeRan) -> u64 {
        let first = self.last() + 1;
        let mut rest = message;
        let mut maybe_ran = maybe_ran;
        // Reserved for all parts together: growing part by part would move a large message several times.
        self.log.reserve(message.len() + (message.len() / MAX_MESSAGE_PART + 1) * PART_OVERHEAD);
        loop {
            let (bytes, after) = rest.split_at(rest.len().min(MAX_MESSAGE_PART));
            let more = if after.is_empty() { More::Last } else { More::Follows };
            // Only the first part carries `maybe_ran`.
            let flags = PartFlags { more, maybe_ran: std::mem::take(&mut maybe_ran) };
            encode_part(self.last() + 1, &flags, bytes, &mut self.log);
            self.lengths.push_back(part_length(&flags, bytes) as u32);
            rest = after;
            if rest.is_empty() {
                return first;
            }
        }
    }

    /// The sequence number of the last part pushed on this link; 0 before the first.
    pub fn last(&self) -> u64 {
        self.acked + self.lengths.len() as u64
    }

    /// The highest sequence number ever handed out on this link: what is above it cannot have reached the peer.
    pub fn handed_out(&self) -> u64 {
        self.handed_out
    }

    /// Appends to `out` the frames that credit allows and that were not yet handed out on this connection.
    pub fn take_ready(&mut self, out: &mut Vec<u8>) {
        self.take_ready_up_to(usize::MAX, out);
    }

    /// Like [`Self::take_ready`], but stops after the frame that brings the appended bytes to `enough` or more.
    pub fn take_ready_up_to(&mut self, enough: usize, out: &mut Vec<u8>) {
        let start = self.head + self.sent_bytes;
        let mut ready = 0;
        for length in self.lengths.range(self.sent..) {
            let in_flight = (self.sent_bytes + ready + *length as usize) as u64;
            let is_alone = self.sent == 0 && ready == 0 && self.window > 0;
            if ready >= enough || in_flight > self.window && !is_alone {
                break;
            }
            ready += *length as usize;
            self.sent += 1;
        }
        out.extend_from_slice(&self.log[start..start + ready]);
        self.sent_bytes += ready;
        self.handed_out = self.handed_out.max(self.acked + self.sent as u64);
    }

    /// Whether the stored frames, sent or not, exceed the window: the caller should stop producing.
    pub fn is_full(&self) -> bool {
        self.stored_bytes() as u64 > self.window
    }

    /// The memory of the stored frames.
    pub fn allocated_bytes(&self) -> usize {
        self.log.capacity()
    }

    /// Whether nothing waits for an acknowledgement or for credit.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    pub fn acknowledge(&mut self, ack: Ack) -> Result<(), DeliveryError> {
        let sent = self.acked + self.sent as u64;
        if ack.seq > sent {
            return Err(DeliveryError::AckFromTheFuture { acked: ack.seq, sent });
        }
        self.discard_up_to(ack.seq)?;
        self.window = ack.window.min(MAX_WINDOW);
        Ok(())
    }

    /// A new connection of the same link: the peer has everything up to `received`; the rest is handed out again.
    pub fn resume(&mut self, received: u64, window: u64) -> Result<(), DeliveryError> {
        if received > self.handed_out {
            return Err(DeliveryError::AckFromTheFuture { acked: received, sent: self.handed_out });
        }
        self.discard_up_to(received)?;
        (self.sent, self.sent_bytes) = (0, 0);
        self.window = window.min(MAX_WINDOW);
        Ok(())
    }

    /// A new link: discards all frames, and sequence numbers start over.
    pub fn restart(&mut self, window: u64) {
        *self = Self::new(window);
    }

    fn stored_bytes(&self) -> usize {
        self.log.len() - self.head
    }

    fn discard_up_to(&mut self, seq: u64) -> Result<(), DeliveryError> {
        if seq < self.acked {
            return Err(DeliveryError::AckWentBack { acked: seq, before: self.acked });
        }
        while self.acked < seq
            && let Some(length) = self.lengths.pop_front()
        {
            self.head += length as usize;
            self.sent_bytes = self.sent_bytes.saturating_sub(length as usize);
            self.sent = self.sent.saturating_sub(1);
            self.acked += 1;
        }
        self.free_acknowledged();
        Ok(())
    }

    /// Moves bytes only after at least as many were acknowledged, so that the cost per byte stays constant.
    fn free_acknowledged(&mut self) {
        if self.head == self.log.len() {
            self.log.clear();
            self.head = 0;
        } else if self.head > MAX_IDLE_BUFFER && self.head >= self.stored_bytes() {
            self.log.drain(..self.head);
            self.head = 0;
        }
        if self.log.capacity() > MAX_IDLE_BUFFER && self.log.len() < self.log.capacity() / 4 {
            self.log.shrink_to(MAX_IDLE_BUFFER.max(self.log.len()));
        }
    }
}

/// What has been received, and the message being assembled.
#[derive(Debug)]
pub struct Inbox {
    max_message: usize,
    window: u64,
    received: u64,
    /// Bytes and number of frames received and not yet acknowledged.
    unacknowledged_bytes: u64,
    unacknowledged_frames: u64,
    partial: Option<Received>,
    /// A buffer for the next message in parts.
    spare_buffer: Vec<u8>,
}

#[derive(Eq, PartialEq)]
enum PartStatus {
    Duplicate,
    New,
}

/// One whole message out of an [`Inbox`].
#[derive(Debug, Eq, PartialEq)]
pub struct Received<B = Vec<u8>> {
    /// The sequence number of its first part, which identifies it in the audit.
    pub seq: u64,
    pub maybe_ran: MaybeRan,
    pub bytes: B,
}

impl Received<Cow<'_, [u8]>> {
    /// Copies the bytes if they are borrowed.
    pub fn into_owned(self) -> Received {
        let Self { seq, maybe_ran, bytes } = self;
        Received { seq, maybe_ran, bytes: bytes.into_owned() }
    }
}

impl Inbox {
    /// `max_message` bounds an assembled message; `window` is the credit this side grants.
    pub fn new(max_message: usize, window: u64) -> Self {
        let window = window.min(MAX_WINDOW);
        Self {
            max_message,
            window,
            received: 0,
            unacknowledged_bytes: 0,
            unacknowledged_frames: 0,
            partial: None,
            spare_buffer: Vec::new(),
        }
    }

    /// Adds a part and returns the message that it completes, if any. Parts received before are dropped.
    pub fn accept(&mut self, part: Part) -> Result<Option<Received>, DeliveryError> {
        let Part { seq, flags, bytes } = part;
        if self.check_and_count(seq, &flags, &bytes)? == PartStatus::Duplicate {
            return Ok(None);
        }
        let message = match self.partial.take() {
            Some(mut partial) => {
                append_within(&mut partial.bytes, &bytes, self.max_message);
                partial
            }
            None => Received { seq, maybe_ran: flags.maybe_ran, bytes },
        };
        Ok(self.finish_or_store(message, flags.more))
    }

    /// Like [`Self::accept`], for a part that borrows its bytes. A message in one part is not copied, a message in several
    /// parts once.
    pub fn accept_view<'a>(
        &mut self,
        part: PartView<'a>,
    ) -> Result<Option<Received<Cow<'a, [u8]>>>, DeliveryError> {
        let PartView { seq, flags, bytes } = part;
        if self.check_and_count(seq, &flags, bytes)? == PartStatus::Duplicate {
            return Ok(None);
        }
        let mut message = match (self.partial.take(), flags.more) {
            (None, More::Last) => {
                return Ok(Some(Received { seq, maybe_ran: flags.maybe_ran, bytes: Cow::Borrowed(bytes) }));
            }
            (None, More::Follows) => {
                Received { seq, maybe_ran: flags.maybe_ran, bytes: std::mem::take(&mut self.spare_buffer) }
            }
            (Some(partial), _) => partial,
        };
        append_within(&mut message.bytes, bytes, self.max_message);
        let whole = self.finish_or_store(message, flags.more);
        Ok(whole.map(|Received { seq, maybe_ran, bytes }| Received { seq, maybe_ran, bytes: bytes.into() }))
    }

    /// Lends a buffer for the next message in parts, which is returned in its [`Received`]. Its content is lost.
    pub fn lend(&mut self, mut spare_buffer: Vec<u8>) {
        spare_buffer.clear();
        self.spare_buffer = spare_buffer;
    }

    /// Checks whether a part may be accepted, before its bytes are copied, and counts it.
    fn check_and_count(
        &mut self,
        seq: u64,
        flags: &PartFlags,
        bytes: &[u8],
    ) -> Result<PartStatus, DeliveryError> {
        if seq <= self.received {
            return Ok(PartStatus::Duplicate);
        }
        if seq != self.received + 1 {
            return Err(DeliveryError::Gap { expected: self.received + 1, got: seq });
        }
        let unacknowledged = self.unacknowledged_bytes + part_length(flags, bytes) as u64;
        if unacknowledged > self.window && self.unacknowledged_frames > 0 {
            return Err(DeliveryError::OverCredit { window: self.window });
        }
        let so_far = self.partial.as_ref().map_or(0, |partial| partial.bytes.len());
        if so_far + bytes.len() > self.max_message {
            return Err(DeliveryError::TooLarge { max: self.max_message });
        }
        self.received = seq;
        self.unacknowledged_bytes = unacknowledged;
        self.unacknowledged_frames += 1;
        Ok(PartStatus::New)
    }

    /// Returns the message after its last part, otherwise stores it.
    fn finish_or_store(&mut self, message: Received, more: More) -> Option<Received> {
        match more {
            More::Follows => {
                self.partial = Some(message);
                None
            }
            More::Last => Some(message),
        }
    }

    /// Whether a message is incomplete.
    pub fn has_partial_message(&self) -> bool {
        self.partial.is_some()
    }

    /// How much more memory an incomplete message may need.
    pub fn expected_bytes(&self) -> usize {
        let allocated = self.partial_message_allocated_bytes();
        allocated.map_or(0, |allocated| self.max_message.saturating_sub(allocated))
    }

    /// The memory of an incomplete message; at most that of the largest message.
    pub fn partial_message_allocated_bytes(&self) -> Option<usize> {
        self.partial.as_ref().map(|partial| partial.bytes.capacity())
    }

    /// The last sequence number received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether an acknowledgement should be sent by itself: a quarter of the window was received since the last one.
    pub fn ack_due(&self) -> bool {
        self.unacknowledged_frames > 0 && self.unacknowledged_bytes >= self.window / 4
    }

    /// Whether anything was received since the last acknowledgement.
    pub fn has_pending_ack(&self) -> bool {
        self.unacknowledged_frames > 0
    }

    /// The acknowledgement to append to the next write, if anything was received since the last one.
    pub fn take_ack(&mut self) -> Option<Ack> {
        if self.unacknowledged_frames == 0 {
            return None;
        }
        self.reset_unacknowledged();
        Some(Ack { seq: self.received, window: self.window })
    }

    /// A new connection of the same link, whose handshake contained [`Self::received`]: that counts as an acknowledgement.
    /// An incomplete message is kept, and continues with its next part.
    pub fn resume(&mut self) {
        self.reset_unacknowledged();
    }

    /// A new link: sequence numbers start over, an incomplete message is dropped.
    pub fn restart(&mut self) {
        *self = Self::new(self.max_message, self.window);
    }

    fn reset_unacknowledged(&mut self) {
        (self.unacknowledged_bytes, self.unacknowledged_frames) = (0, 0);
    }
}

/// Appends to a message of at most `max` bytes. Its buffer doubles as it grows, but does not exceed `max`.
fn append_within(message: &mut Vec<u8>, bytes: &[u8], max: usize) {
    let length = message.len() + bytes.len();
    if length > message.capacity() {
        let capacity = length.max((2 * message.capacity()).min(max));
        message.reserve_exact(capacity - message.len());
    }
    message.extend_from_slice(bytes);
}

/// The memory of an [`Outbox`]; `tests/delivery.rs` tests everything that a caller can observe.
#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &[u8] = &[7; 32 * 1024];

    fn outbox_that_sent(messages: u64) -> Outbox {
        let mut outbox = Outbox::new(MAX_WINDOW);
        (0..messages).for_each(|_| _ = outbox.push(MESSAGE, MaybeRan::No));
        outbox.take_ready(&mut Vec::new());
        outbox
    }

    #[test]
    fn the_memory_of_stored_frames_and_of_an_incomplete_message_is_known() {
        let outbox = outbox_that_sent(3);
        assert!(
            outbox.allocated_bytes() >= outbox.stored_bytes() && outbox.stored_bytes() > 3 * MESSAGE.len()
        );
        let mut inbox = Inbox::new(100, MAX_WINDOW);
        assert_eq!((inbox.partial_message_allocated_bytes(), inbox.expected_bytes()), (None, 0));
        let part = |seq| {
            let flags = PartFlags { more: More::Follows, maybe_ran: MaybeRan::No };
            PartView { seq, flags, bytes: &[7; 30] }
        };
        for (seq, allocated) in [(1, 30), (2, 60), (3, 100)] {
            assert!(inbox.accept_view(part(seq)).unwrap().is_none());
            assert_eq!(inbox.partial_message_allocated_bytes(), Some(allocated), "after {seq} parts");
            assert_eq!(inbox.expected_bytes(), 100 - allocated, "after {seq} parts");
        }
        assert!(inbox.accept_view(part(4)).is_err(), "it is too large");
    }

    #[test]
    fn acknowledged_frames_are_freed_and_their_successors_are_moved_at_most_once() {
        let mut outbox = outbox_that_sent(64);
        let total = outbox.stored_bytes();
        let mut moved = 0;
        for seq in 1..=63 {
            let head = outbox.head;
            outbox.acknowledge(Ack { seq, window: MAX_WINDOW }).unwrap();
            let stored = outbox.stored_bytes();
            moved += if outbox.head < head { stored } else { 0 };
            assert!(outbox.head < stored.max(MAX_IDLE_BUFFER + 1), "{} freed bytes are kept", outbox.head);
        }
        assert!((1..=total).contains(&moved), "{moved} bytes of {total} were moved");
    }

    #[test]
    fn the_memory_of_a_large_message_is_given_back_while_a_small_one_waits() {
        let mut outbox = outbox_that_sent(64);
        outbox.push(b"small", MaybeRan::No);
        assert!(outbox.log.capacity() > 64 * MESSAGE.len());
        outbox.acknowledge(Ack { seq: 64, window: MAX_WINDOW }).unwrap();
        assert!(outbox.log.capacity() <= MAX_IDLE_BUFFER, "{} bytes are kept", outbox.log.capacity());
    }

    #[test]
    fn a_buffer_that_is_in_use_keeps_its_capacity() {
        let mut outbox = outbox_that_sent(12);
        let capacity = outbox.log.capacity();
        assert!(capacity > outbox.log.len(), "the test needs a buffer that could be shrunk");
        outbox.acknowledge(Ack { seq: 1, window: MAX_WINDOW }).unwrap();
        assert_eq!(outbox.log.capacity(), capacity);
    }
}
