//! Places for connections that have not been led anywhere yet.
//!
//! There are few, and whoever connects and says nothing holds one. So when all are taken and somebody else knocks, the
//! one that has been silent longest gives its place up: silence never keeps an honest shim waiting.
//!
//! Must stay true: a connection that has said its Hello is never dropped for another, and whoever was dropped is led
//! nowhere, whatever it says afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

pub(crate) struct Places {
    free: Arc<Semaphore>,
    silent: Arc<Silent>,
    stop: CancellationToken,
}

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
pub(super) struct Dropped;

impl Places {
    pub(crate) fn new(count: usize, stop: CancellationToken) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), silent: Arc::default(), stop }
    }

    /// A place for a connection that is there already.
    pub(crate) async fn take(&self) -> Place {
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
        let dropped = self.stop.child_token();
        let mut silent = self.silent.lock();
        let number = silent.next;
        silent.next += 1;
        silent.by_age.insert(number, dropped.clone());
        Place { number, dropped, silent: Arc::clone(&self.silent), _permit: permit }
    }
}

impl Place {
    /// Does what comes before any words, such as a handshake. It does not keep the place from others.
    pub(super) async fn before_words<T>(&self, work: impl Future<Output = T>) -> Result<T, Dropped> {
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
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt as _;

    use super::*;

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
