//! Slots for connections whose Hello is awaited.
//!
//! Connections are accepted at a limited rate: each costs work, and leaves the others on this listener less time for
//! their Hello. There are few slots, and a connection that sends nothing holds one. So when all slots are in use and
//! another connection arrives, the connection that has been silent longest is closed: silent connections never keep a
//! shim waiting.
//!
//! What must stay true: other tasks run between two accepted connections; a connection whose Hello has arrived is never
//! closed to free its slot; a connection that lost its slot gets no link, whatever it sends afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub(crate) struct HandshakeSlots {
    /// When the next connection would be accepted at the sustained rate, without a burst.
    due: Mutex<Instant>,
    free: Arc<Semaphore>,
    awaiting: Arc<AwaitingHello>,
    stop: CancellationToken,
}

/// The time between two connections at the sustained rate, two thousand a second. At this rate 64 slots are reused
/// within 32 ms, and a full accept queue of the kernel (1024) is emptied in half a second.
const ACCEPT_INTERVAL: Duration = Duration::from_micros(500);
/// Connections accepted at once before the rate applies: more than the sandboxes of one host, which all reconnect after
/// a restart of the sidecar.
const BURST: u32 = 256;

/// Connections that have sent no Hello yet, oldest first.
#[derive(Default)]
struct AwaitingHello(Mutex<ByAge>);

#[derive(Default)]
struct ByAge {
    next: u64,
    by_age: BTreeMap<u64, CancellationToken>,
}

/// The slot of one connection, released on drop.
pub(crate) struct HandshakeSlot {
    number: u64,
    lost: CancellationToken,
    awaiting: Arc<AwaitingHello>,
    _permit: OwnedSemaphorePermit,
}

/// The slot was given to another connection, or the sidecar stops.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SlotLost;

impl HandshakeSlots {
    pub(crate) fn new(count: usize, stop: CancellationToken) -> Self {
        Self {
            due: Mutex::new(Instant::now()),
            free: Arc::new(Semaphore::new(count)),
            awaiting: Arc::default(),
            stop,
        }
    }

    /// Waits for a slot for a connection that was just accepted; closes the longest silent connection if all are in
    /// use.
    pub(crate) async fn take(&self) -> HandshakeSlot {
        self.await_rate_limit().await;
        let permit = match Arc::clone(&self.free).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                // If no connection is silent, the handshakes in progress end by their own timeouts.
                if let Some((_, oldest)) = self.awaiting.lock().by_age.pop_first() {
                    oldest.cancel();
                }
                Arc::clone(&self.free).acquire_owned().await.expect("the semaphore is never closed")
            }
        };
        let slot = self.awaiting.register(self.stop.child_token(), permit);
        // Lets other tasks run even when connections arrive without a pause.
        tokio::task::yield_now().await;
        slot
    }

    async fn await_rate_limit(&self) {
        let now = Instant::now();
        let turn = {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = *due;
            *due = turn.max(now) + ACCEPT_INTERVAL;
            turn
        };
        let wait = turn.saturating_duration_since(now + ACCEPT_INTERVAL * BURST);
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}

impl HandshakeSlot {
    /// Runs `work` that precedes the Hello, such as a TLS handshake. The slot can be lost meanwhile.
    pub(crate) async fn until_hello<T>(&self, work: impl Future<Output = T>) -> Result<T, SlotLost> {
        self.lost.run_until_cancelled(work).await.ok_or(SlotLost)
    }

    /// Waits for the Hello. After it has arrived, the slot cannot be lost.
    pub(super) async fn await_hello<T>(&self, hello: impl Future<Output = T>) -> Result<T, SlotLost> {
        let hello = self.lost.run_until_cancelled(hello).await.ok_or(SlotLost)?;
        self.awaiting.lock().by_age.remove(&self.number).map(|_| hello).ok_or(SlotLost)
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.awaiting.lock().by_age.remove(&self.number);
    }
}

impl AwaitingHello {
    fn register(self: &Arc<Self>, lost: CancellationToken, permit: OwnedSemaphorePermit) -> HandshakeSlot {
        let mut waiting = self.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.by_age.insert(number, lost.clone());
        HandshakeSlot { number, lost, awaiting: Arc::clone(self), _permit: permit }
    }

    fn lock(&self) -> MutexGuard<'_, ByAge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt as _;

    use super::*;
    use crate::turn_counter::TurnCounter;

    #[tokio::test]
    async fn the_longest_silent_connection_loses_its_slot() {
        let slots = HandshakeSlots::new(2, CancellationToken::new());
        let (first, second) = (slots.take().await, slots.take().await);
        let mut third = Box::pin(slots.take());
        assert!(
            third.as_mut().now_or_never().is_none(),
            "the third got a slot before the first released its own"
        );
        assert_eq!(first.await_hello(pending::<()>()).now_or_never(), Some(Err(SlotLost)));
        assert_eq!(first.await_hello(ready(())).await, Err(SlotLost), "a Hello after the loss was accepted");
        drop(first);
        third.await;
        assert_eq!(second.await_hello(ready("hello")).await, Ok("hello"));
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_accepted_in_a_burst_and_then_at_a_limited_rate() {
        let slots = HandshakeSlots::new(1, CancellationToken::new());
        let begin = Instant::now();
        for _ in 0..BURST {
            drop(slots.take().await);
        }
        assert_eq!(begin.elapsed(), Duration::ZERO);
        for _ in 0..2_000 {
            drop(slots.take().await);
        }
        let took = begin.elapsed();
        assert!((990..1_010).contains(&took.as_millis()), "{took:?}");
        tokio::time::advance(ACCEPT_INTERVAL * BURST).await;
        let again = Instant::now();
        for _ in 0..BURST - 2 {
            drop(slots.take().await);
        }
        assert_eq!(again.elapsed(), Duration::ZERO, "after a quiet time a burst must be accepted again");
    }

    #[tokio::test]
    async fn other_tasks_run_between_two_connections() {
        const CONNECTIONS: usize = 100;
        let slots = HandshakeSlots::new(CONNECTIONS, CancellationToken::new());
        let others = TurnCounter::new();
        let mut taken = Vec::new();
        for _ in 0..CONNECTIONS {
            taken.push(slots.take().await);
        }
        let turns = others.turns();
        assert!(turns >= CONNECTIONS / 2, "other tasks ran only {turns} times");
    }

    #[tokio::test]
    async fn a_connection_whose_hello_arrived_keeps_its_slot() {
        let slots = HandshakeSlots::new(2, CancellationToken::new());
        let (ready_slot, silent) = (slots.take().await, slots.take().await);
        ready_slot.await_hello(ready(())).await.unwrap();
        let mut third = Box::pin(slots.take());
        assert!(third.as_mut().now_or_never().is_none());
        assert!(!ready_slot.lost.is_cancelled());
        assert!(silent.lost.is_cancelled());
    }

    #[tokio::test]
    async fn work_before_the_hello_does_not_secure_the_slot() {
        let slots = HandshakeSlots::new(1, CancellationToken::new());
        let busy = slots.take().await;
        busy.until_hello(ready(())).await.unwrap();
        let mut second = Box::pin(slots.take());
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(busy.until_hello(pending::<()>()).now_or_never(), Some(Err(SlotLost)));
        assert_eq!(busy.await_hello(ready(())).await, Err(SlotLost));
    }

    #[tokio::test]
    async fn silent_connections_lose_their_slots_when_the_sidecar_stops() {
        let stop = CancellationToken::new();
        let slots = HandshakeSlots::new(1, stop.clone());
        let slot = slots.take().await;
        stop.cancel();
        assert_eq!(slot.await_hello(pending::<()>()).now_or_never(), Some(Err(SlotLost)));
    }
}
