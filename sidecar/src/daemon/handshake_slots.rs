//! Places for connections that have not been led anywhere yet.
//!
//! Whoever knocks without end is let in at a pace: each costs the sidecar some work, and leaves the others of this door
//! the less time to say their Hello. There are few places, and whoever connects and says nothing holds one. So when all
//! are taken and somebody else knocks, the one that has been silent longest gives its place up: silence never keeps an
//! honest shim waiting.
//!
//! Must stay true: everybody else has a turn between two who knock; a connection that has said its Hello is never dropped
//! for another, and whoever was dropped is led nowhere, whatever it says afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub(crate) struct Places {
    /// When the next one would come, had all come at the sustained pace.
    due: Mutex<Instant>,
    free: Arc<Semaphore>,
    silent: Arc<Silent>,
    stop: CancellationToken,
}

/// The sustained pace: two thousand a second. All places then change hands in 32 ms, and the kernel's queue in half a
/// second.
const PACE: Duration = Duration::from_micros(500);
/// So many come at once before the pace counts: more than a host's sandboxes after a restart.
const BURST: u32 = 256;

/// Those who have said nothing yet, in the order in which they came.
#[derive(Default)]
struct Silent(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    next: u64,
    by_age: BTreeMap<u64, CancellationToken>,
}

/// One connection's place; given back when it is dropped.
pub(crate) struct Place {
    number: u64,
    dropped: CancellationToken,
    silent: Arc<Silent>,
    _permit: OwnedSemaphorePermit,
}

/// This place was given to somebody else, or the sidecar stops.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Dropped;

impl Places {
    pub(crate) fn new(count: usize, stop: CancellationToken) -> Self {
        Self {
            due: Mutex::new(Instant::now()),
            free: Arc::new(Semaphore::new(count)),
            silent: Arc::default(),
            stop,
        }
    }

    /// A place for a connection that is there already.
    pub(crate) async fn take(&self) -> Place {
        self.keep_pace().await;
        let permit = match Arc::clone(&self.free).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                // Where nobody is silent, all are being led somewhere, which has its own bounds in time.
                if let Some((_, oldest)) = self.silent.lock().by_age.pop_first() {
                    oldest.cancel();
                }
                Arc::clone(&self.free).acquire_owned().await.expect("the semaphore is never closed")
            }
        };
        let place = self.silent.seat(self.stop.child_token(), permit);
        // Whoever knocks without end keeps nobody's events from being looked for in between.
        tokio::task::yield_now().await;
        place
    }

    async fn keep_pace(&self) {
        let now = Instant::now();
        let turn = {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = *due;
            *due = turn.max(now) + PACE;
            turn
        };
        let wait = turn.saturating_duration_since(now + PACE * BURST);
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}

impl Place {
    /// Does what comes before any words, such as a handshake. It does not keep the place from others.
    pub(crate) async fn before_words<T>(&self, work: impl Future<Output = T>) -> Result<T, Dropped> {
        self.dropped.run_until_cancelled(work).await.ok_or(Dropped)
    }

    /// Waits for the first words. Once they are here, nobody else gets this place.
    pub(super) async fn hear<T>(&self, words: impl Future<Output = T>) -> Result<T, Dropped> {
        let words = self.dropped.run_until_cancelled(words).await.ok_or(Dropped)?;
        self.silent.lock().by_age.remove(&self.number).map(|_| words).ok_or(Dropped)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.silent.lock().by_age.remove(&self.number);
    }
}

impl Silent {
    fn seat(self: &Arc<Self>, dropped: CancellationToken, permit: OwnedSemaphorePermit) -> Place {
        let mut waiting = self.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.by_age.insert(number, dropped.clone());
        Place { number, dropped, silent: Arc::clone(self), _permit: permit }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
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
    async fn the_longest_silent_gives_its_place_up() {
        let places = Places::new(2, CancellationToken::new());
        let (first, second) = (places.take().await, places.take().await);
        let mut third = Box::pin(places.take());
        assert!(third.as_mut().now_or_never().is_none(), "the first still holds its place");
        assert_eq!(first.hear(pending::<()>()).now_or_never(), Some(Err(Dropped)));
        assert_eq!(first.hear(ready(())).await, Err(Dropped), "whatever it says afterwards");
        drop(first);
        third.await;
        assert_eq!(second.hear(ready("hello")).await, Ok("hello"));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_knocks_without_end_is_let_in_at_a_pace_and_a_burst_at_once() {
        let places = Places::new(1, CancellationToken::new());
        let begin = Instant::now();
        for _ in 0..BURST {
            drop(places.take().await);
        }
        assert_eq!(begin.elapsed(), Duration::ZERO);
        for _ in 0..2_000 {
            drop(places.take().await);
        }
        let took = begin.elapsed();
        assert!((990..1_010).contains(&took.as_millis()), "{took:?}");
        tokio::time::advance(PACE * BURST).await;
        let again = Instant::now();
        for _ in 0..BURST - 2 {
            drop(places.take().await);
        }
        assert_eq!(again.elapsed(), Duration::ZERO, "quiet times earn the burst again");
    }

    #[tokio::test]
    async fn between_two_who_knock_everybody_else_has_a_turn() {
        const KNOCKS: usize = 100;
        let places = Places::new(KNOCKS, CancellationToken::new());
        let others = TurnCounter::new();
        let mut taken = Vec::new();
        for _ in 0..KNOCKS {
            taken.push(places.take().await);
        }
        let turns = others.turns();
        assert!(turns >= KNOCKS / 2, "others had {turns} turns");
    }

    #[tokio::test]
    async fn whoever_was_heard_keeps_its_place() {
        let places = Places::new(2, CancellationToken::new());
        let (heard, silent) = (places.take().await, places.take().await);
        heard.hear(ready(())).await.unwrap();
        let mut third = Box::pin(places.take());
        assert!(third.as_mut().now_or_never().is_none());
        assert!(!heard.dropped.is_cancelled());
        assert!(silent.dropped.is_cancelled());
    }

    #[tokio::test]
    async fn what_comes_before_words_keeps_no_place() {
        let places = Places::new(1, CancellationToken::new());
        let busy = places.take().await;
        busy.before_words(ready(())).await.unwrap();
        let mut second = Box::pin(places.take());
        assert!(second.as_mut().now_or_never().is_none());
        assert_eq!(busy.before_words(pending::<()>()).now_or_never(), Some(Err(Dropped)));
        assert_eq!(busy.hear(ready(())).await, Err(Dropped));
    }

    #[tokio::test]
    async fn nobody_stays_silent_past_the_stop() {
        let stop = CancellationToken::new();
        let places = Places::new(1, stop.clone());
        let place = places.take().await;
        stop.cancel();
        assert_eq!(place.hear(pending::<()>()).now_or_never(), Some(Err(Dropped)));
    }
}
