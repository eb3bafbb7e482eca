//! Whether a peer that showed an outdated credential disconnects by itself.
//!
//! A Hello that was delayed in the network can arrive after a later one and look like a copied key. Its sender
//! disconnects soon, so an alert is raised only about a peer that stays.
//!
//! What must stay true: a watched peer holds no handshake slot, and few peers are watched at a time, so that an
//! outdated key cannot be used to block a listener.

use tokio::sync::{Semaphore, SemaphorePermit};

use super::handshake_slots::HandshakeSlot;
use crate::link::connection::{Connection, LATE_CLOSE_TIME};

/// Peers that are watched at a time, in the whole sidecar; any more are refused at once.
const MAX_WATCHED: usize = 32;

pub(super) struct DisconnectWatch(Semaphore);

/// The handshake slot or watch permit that a refused peer holds until its refusal is sent.
pub(super) struct StillConnected<'a> {
    _slot: Option<HandshakeSlot>,
    _permit: Option<SemaphorePermit<'a>>,
}

impl DisconnectWatch {
    pub(super) fn new() -> Self {
        Self(Semaphore::new(MAX_WATCHED))
    }

    /// Waits up to [`LATE_CLOSE_TIME`] for the peer to disconnect by itself, unless too many peers are watched. `None`
    /// if it disconnected.
    pub(super) async fn still_connected(
        &self,
        connection: &mut Connection,
        slot: HandshakeSlot,
    ) -> Option<StillConnected<'_>> {
        let Ok(permit) = self.0.try_acquire() else {
            return Some(slot.into());
        };
        drop(slot);
        let disconnected = connection.closes_within(LATE_CLOSE_TIME).await;
        (!disconnected).then_some(StillConnected { _slot: None, _permit: Some(permit) })
    }
}

impl From<HandshakeSlot> for StillConnected<'_> {
    fn from(slot: HandshakeSlot) -> Self {
        Self { _slot: Some(slot), _permit: None }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::time::Duration;

    use tokio::io::{DuplexStream, duplex};
    use tokio::time::{Instant, timeout};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::daemon::handshake_slots::HandshakeSlots;

    fn connected() -> (Connection, DuplexStream) {
        let (near, far) = duplex(64);
        (Connection::new(Box::new(near)), far)
    }

    #[tokio::test(start_paused = true)]
    async fn a_watched_peer_holds_no_slot() {
        let (disconnect_watch, slots) =
            (DisconnectWatch::new(), HandshakeSlots::new(1, CancellationToken::new()));
        let slot = slots.take().await;
        assert_eq!(slot.await_hello(ready(())).await, Ok(()));
        let (mut connection, far) = connected();
        let mut watching = std::pin::pin!(disconnect_watch.still_connected(&mut connection, slot));
        assert!(futures_util::poll!(&mut watching).is_pending());
        let next = timeout(LATE_CLOSE_TIME / 2, slots.take()).await;
        assert!(next.is_ok(), "the next connection did not get the slot");
        drop(far);
        assert!(watching.await.is_none(), "the disconnect was not seen");
    }

    #[tokio::test(start_paused = true)]
    async fn few_peers_are_watched_at_a_time() {
        let (disconnect_watch, slots) =
            (DisconnectWatch::new(), HandshakeSlots::new(2 * MAX_WATCHED, CancellationToken::new()));
        let mut ends = Vec::new();
        let mut watching = Vec::new();
        for _ in 0..MAX_WATCHED {
            let (mut connection, far) = connected();
            let (slot, disconnect_watch) = (slots.take().await, &disconnect_watch);
            watching
                .push(Box::pin(async move { disconnect_watch.still_connected(&mut connection, slot).await }));
            ends.push(far);
            assert!(futures_util::poll!(watching.last_mut().expect("it was just pushed")).is_pending());
        }
        let began = Instant::now();
        let (mut connection, _far) = connected();
        let staying = disconnect_watch.still_connected(&mut connection, slots.take().await).await;
        assert!(staying.is_some(), "one peer too many was watched until it disconnected");
        assert_eq!(began.elapsed(), Duration::ZERO, "a peer that is not watched must be refused at once");
    }
}
