//! Those who show what was good before: it is seen whether they leave by themselves before anybody is told of them.
//!
//! Must stay true: whoever is looked at keeps nobody else from a place, and few are looked at, so that a key which was
//! left behind cannot be used to close a door.

use tokio::sync::{Semaphore, SemaphorePermit};

use super::handshake_slots::Place;
use crate::session::connection::{Connection, LEAVING_TIME};

/// How many are looked at in the whole sidecar; another is told its refusal at once.
const AT_ONCE: usize = 32;

pub(super) struct Leaving(Semaphore);

/// What is kept until its refusal is said.
pub(super) struct Staying<'a> {
    _place: Option<Place>,
    _turn: Option<SemaphorePermit<'a>>,
}

impl Leaving {
    pub(super) fn new() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }

    /// Waits whether whoever it is leaves by itself; none where it has.
    pub(super) async fn look(&self, connection: &mut Connection, place: Place) -> Option<Staying<'_>> {
        let Ok(turn) = self.0.try_acquire() else {
            return Some(place.into());
        };
        drop(place);
        let left = connection.leaves_within(LEAVING_TIME).await;
        (!left).then_some(Staying { _place: None, _turn: Some(turn) })
    }
}

impl From<Place> for Staying<'_> {
    fn from(place: Place) -> Self {
        Self { _place: Some(place), _turn: None }
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
    use crate::daemon::handshake_slots::Places;

    fn connected() -> (Connection, DuplexStream) {
        let (near, far) = duplex(64);
        (Connection::new(Box::new(near)), far)
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_looked_at_keeps_nobody_from_a_place() {
        let (leaving, places) = (Leaving::new(), Places::new(1, CancellationToken::new()));
        let place = places.take().await;
        assert_eq!(place.hear(ready(())).await, Ok(()));
        let (mut connection, far) = connected();
        let mut looking = std::pin::pin!(leaving.look(&mut connection, place));
        assert!(futures_util::poll!(&mut looking).is_pending());
        let next = timeout(LEAVING_TIME / 2, places.take()).await;
        assert!(next.is_ok(), "there is a place for the next one");
        drop(far);
        assert!(looking.await.is_none(), "it has left");
    }

    #[tokio::test(start_paused = true)]
    async fn few_are_looked_at() {
        let (leaving, places) = (Leaving::new(), Places::new(2 * AT_ONCE, CancellationToken::new()));
        let mut ends = Vec::new();
        let mut looking = Vec::new();
        for _ in 0..AT_ONCE {
            let (mut connection, far) = connected();
            let (place, leaving) = (places.take().await, &leaving);
            looking.push(Box::pin(async move { leaving.look(&mut connection, place).await }));
            ends.push(far);
            assert!(futures_util::poll!(looking.last_mut().expect("it was just pushed")).is_pending());
        }
        let began = Instant::now();
        let (mut connection, _far) = connected();
        let staying = leaving.look(&mut connection, places.take().await).await;
        assert!(staying.is_some(), "nobody waits whether it leaves");
        assert_eq!(began.elapsed(), Duration::ZERO, "at once");
    }
}
