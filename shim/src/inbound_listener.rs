//! A port that the host dials, by TCP or by vsock, and those who are at it.
//!
//! Must stay true: whoever connects proves the pinned key before anybody hears of it; those who stall hold one of few
//! places, and when one more comes, whoever has been at it longest goes.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use relay_carriage::entrance::{self, EntranceError};
use relay_carriage::identity::Identity;
use relay_carriage::tls::Inside;
use relay_carriage::{BoxedStream, vsock};
use relay_proto::address::ListenPlace;
use relay_proto::key::PublicKey;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// Who may come in, for what, and as whom we meet them.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) inside: Inside,
    /// A key of this process alone will do: the host knows whom it dials.
    pub(crate) identity: Identity,
    /// The sidecar's.
    pub(crate) pin: PublicKey,
}

#[derive(Debug)]
pub(crate) struct InboundListener {
    listener: Listener,
    entry: Entry,
    entering: JoinSet<Result<BoxedStream, EntranceError>>,
    /// Those who are entering, the oldest first.
    oldest: VecDeque<AbortHandle>,
}

impl InboundListener {
    pub(crate) async fn open(place: &ListenPlace, entry: Entry) -> io::Result<Self> {
        let listener = match place {
            ListenPlace::Tcp(place) => Listener::Tcp(TcpListener::bind(place.to_string()).await?),
            ListenPlace::Vsock { port } => Listener::Vsock(vsock::Listener::bind(*port)?),
        };
        Ok(Self { listener, entry, entering: JoinSet::new(), oldest: VecDeque::new() })
    }

    /// The next connection whose peer has proved the pinned key, or a stranger who did not. Can be dropped at any time.
    pub(crate) async fn next(&mut self) -> Result<BoxedStream, EntranceError> {
        loop {
            tokio::select! {
                Some(entered) = self.entering.join_next() => {
                    // The others were dropped for somebody else.
                    if let Ok(entered) = entered {
                        return entered;
                    }
                }
                accepted = self.listener.accept() => match accepted {
                    Ok(stream) => self.let_in(stream),
                    // Out of descriptors, most likely: some will be closed soon.
                    Err(_) => sleep(PAUSE).await,
                },
            }
        }
    }

    fn let_in(&mut self, stream: BoxedStream) {
        self.oldest.retain(|entering| !entering.is_finished());
        if self.oldest.len() >= MAX_ENTERING
            && let Some(oldest) = self.oldest.pop_front()
        {
            oldest.abort();
        }
        let Entry { inside, identity, pin } = self.entry.clone();
        self.oldest.push_back(self.entering.spawn(async move {
            let entering = entrance::enter_for(inside, stream, &identity, &pin);
            timeout(LIMIT, entering).await.map_err(io::Error::from)?
        }));
    }
}

/// What to do about a port that could not be opened.
pub(crate) fn advice(place: &ListenPlace, error: &io::Error) -> &'static str {
    match place {
        ListenPlace::Tcp(_) => {
            "is another program there, and is the address this machine's? else choose another port"
        }
        ListenPlace::Vsock { .. } => vsock::listen_advice(error),
    }
}

/// The sidecar is one; the others are strangers.
const MAX_ENTERING: usize = 8;
/// A handshake takes a round trip or two.
const LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Vsock(vsock::Listener),
}

impl Listener {
    async fn accept(&self) -> io::Result<BoxedStream> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                Box::new(stream)
            }
            Self::Vsock(listener) => Box::new(listener.accept().await?),
        })
    }
}
