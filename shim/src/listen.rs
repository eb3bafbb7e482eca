//! `listen:HOST:PORT`: the host dials in, and nobody else gets anything.
//!
//! Must stay true: whoever connects proves the pinned key before it takes a connection's place; strangers who stall hold
//! one of few places, and the oldest of them gives it up; a stranger never ends the connection that is there.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use relay_carriage::BoxedStream;
use relay_carriage::entrance::{self, EntranceError};
use relay_proto::address::{Address, HostPort};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::carry::Keys;
use crate::link::ConnectError;
use crate::stream::Stream;

/// A port that stays open between connections.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    place: HostPort,
    keys: Keys,
    /// None while somebody waits at it, and before the first time.
    open: Arc<Mutex<Option<Open>>>,
}

#[derive(Debug)]
struct Open {
    listener: TcpListener,
    entering: JoinSet<Result<BoxedStream, EntranceError>>,
    /// Those who are entering, the oldest first.
    oldest: VecDeque<AbortHandle>,
}

impl Port {
    pub(crate) fn new(place: HostPort, keys: Keys) -> Self {
        Self { place, keys, open: Arc::default() }
    }

    /// The next connection whose peer has proved the pinned key.
    pub(crate) async fn next(self) -> Result<Stream, ConnectError> {
        let failed = |source| ConnectError::Listen { address: Address::Listen(self.place.clone()), source };
        let kept = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut open = match kept {
            Some(open) => open,
            None => Open::new(&self.place).await.map_err(failed)?,
        };
        let stream = open.next(&self.keys).await;
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(open);
        Ok(Stream::carried(stream))
    }
}

impl Open {
    async fn new(place: &HostPort) -> io::Result<Self> {
        let listener = TcpListener::bind(place.to_string()).await?;
        Ok(Self { listener, entering: JoinSet::new(), oldest: VecDeque::new() })
    }

    async fn next(&mut self, keys: &Keys) -> BoxedStream {
        loop {
            tokio::select! {
                Some(entered) = self.entering.join_next() => match entered {
                    Ok(Ok(stream)) => return stream,
                    Ok(Err(error)) => crate::say(&format!("{error}")),
                    Err(_dropped_for_another) => {}
                },
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let _ = stream.set_nodelay(true);
                        self.make_room();
                        let keys = keys.clone();
                        let entered = self.entering.spawn(async move {
                            let entering = entrance::enter(stream, &keys.identity, &keys.pin);
                            timeout(LIMIT, entering).await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
                        });
                        self.oldest.push_back(entered);
                    }
                    // Out of descriptors, most likely.
                    Err(_) => sleep(Duration::from_millis(100)).await,
                },
            }
        }
    }

    fn make_room(&mut self) {
        self.oldest.retain(|entering| !entering.is_finished());
        if self.oldest.len() >= MAX_ENTERING
            && let Some(oldest) = self.oldest.pop_front()
        {
            oldest.abort();
        }
    }
}

/// The sidecar is one; the others are strangers.
const MAX_ENTERING: usize = 8;
/// A handshake takes a round trip or two.
const LIMIT: Duration = Duration::from_secs(10);
