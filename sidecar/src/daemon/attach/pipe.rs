//! One pipe into a sandbox, from its handshake to its end.
//!
//! At its other end is a hub with many links, or a shim with one; the sidecar is the TLS server and proves the key that
//! they pin. Whatever comes out of it is that sandbox, and is greeted like everybody else: nothing here trusts it.

use std::sync::Arc;
use std::time::Duration;

use relay_carriage::tls::{self, Inside, TlsError};
use relay_carriage::trunk::{self, MAX_LOCAL, Side, Silence, Substream, Trunk, TrunkError};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::last_user::LastUser;
use crate::daemon::admission::Door;
use crate::daemon::attach_table::{LAST_BYTES, News, PipeEnd};
use crate::daemon::handshake::{self, Arrival};
use crate::daemon::handshake_slots::Places;
use crate::daemon::state::App;
use crate::session::connection::Transport;

#[derive(Debug, thiserror::Error)]
enum PipeError {
    #[error("the command ended before the hub in the sandbox said anything; what it said is above")]
    Nothing,
    #[error(transparent)]
    Silent(#[from] Silence),
    #[error("the sidecar is stopping")]
    Stopping,
    #[error("the hub began to prove its key and did not go on for {} seconds", HANDSHAKE.as_secs())]
    TimedOut,
    #[error("prove keys with the hub in the sandbox: {source}{}", advice(.source))]
    Tls {
        #[from]
        source: TlsError,
    },
    #[error(transparent)]
    Trunk(#[from] TrunkError),
    #[error("use the pipe: {0}")]
    Io(#[from] std::io::Error),
}

/// From the hub's first byte on. Before it somebody may have to type a password.
const HANDSHAKE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// A command that was killed may leave its hub running in the sandbox, with a pipe that has not ended; only silence tells
/// it, and until then it keeps the next hub out. So pipes beat more often than links: a call waits a minute for its
/// link, and three of these, with the time to attach again, are well under that.
const LONGEST_BEAT: Duration = Duration::from_secs(5);

impl App {
    /// Whether there is such a sandbox to make a pipe to.
    pub(crate) fn is_held(&self, enrolment: &str) -> bool {
        self.attaches.lock().attached(enrolment).is_some_and(|attached| attached.holder.is_some())
    }

    /// Carries what comes through this connection until it is over.
    pub(crate) async fn carry_pipe(self: Arc<Self>, enrolment: String, stream: UnixStream) {
        let (stream, end) = match self.begin(&enrolment, stream).await {
            Ok(Some(begun)) => begun,
            // Nobody holds the sandbox any more.
            Ok(None) => return,
            Err(error) => return tracing::error!(%error, enrolment, "begin a pipe"),
        };
        let _gone = end.gone.clone().drop_guard();
        let over = match self.carry(&enrolment, stream, &end).await {
            Ok(()) => return,
            Err(error) => error,
        };
        // The table has a copy of the socket: whoever is at the other end would wait for its end in vain.
        end.shut();
        tracing::info!(enrolment, why = %over, "pipe lost");
        self.attaches.tell(&enrolment, News::Lost { why: over.to_string() });
    }

    async fn begin(
        &self,
        enrolment: &str,
        stream: UnixStream,
    ) -> std::io::Result<Option<(UnixStream, PipeEnd)>> {
        let stream = stream.into_std()?;
        let end = self.attaches.replace_pipe(enrolment, stream.try_clone()?).await;
        let stream = UnixStream::from_std(stream)?;
        Ok(end.map(|end| (stream, end)))
    }

    /// Ends without an error where the pipe was one link's, which has it now.
    async fn carry(
        self: &Arc<Self>,
        enrolment: &str,
        stream: UnixStream,
        end: &PipeEnd,
    ) -> Result<(), PipeError> {
        let first = self.stop.run_until_cancelled(stream.readable()).await.ok_or(PipeError::Stopping)?;
        first?;
        let mut room = [0];
        if matches!(peek(&stream, &mut room), Ok(0)) {
            return Err(PipeError::Nothing);
        }
        let accepting = timeout(HANDSHAKE, tls::accept_pipe(stream, &self.identity));
        let accepted = self.stop.run_until_cancelled(accepting).await.ok_or(PipeError::Stopping)?;
        let (stream, key, inside) = accepted.map_err(|_| PipeError::TimedOut)??;
        tracing::info!(enrolment, %key, ?inside, "pipe attached");
        self.attaches.tell(enrolment, News::Attached { key: key.to_string() });
        match inside {
            Inside::Hub => self.carry_hub(enrolment.into(), Box::new(stream)).await,
            Inside::Link => {
                let places = Places::new(1, self.stop.clone());
                let arrival = Arrival {
                    stream: Box::new(LastUser::new(stream, end.clone())),
                    door: Door::Attached { enrolment: enrolment.into() },
                };
                handshake::greet(self, arrival, places.take().await).await;
                Ok(())
            }
        }
    }

    async fn carry_hub(
        self: &Arc<Self>,
        enrolment: Arc<str>,
        stream: Box<dyn Transport>,
    ) -> Result<(), PipeError> {
        let (heartbeat, waiting) = {
            let config = self.context.config.load();
            (config.relay.heartbeat.min(LONGEST_BEAT), config.limits.greeting_connections.min(MAX_LOCAL))
        };
        let mut trunk = Trunk::new(stream, Side::Sidecar);
        let beats = trunk.open().await?;
        let mut pulse = std::pin::pin!(trunk::beat(beats, trunk.last_received(), heartbeat));
        let mut stopped = std::pin::pin!(self.links_are_over());
        // Of its own: a hub that opens and says nothing is in the way of its own links only.
        let places = Arc::new(Places::new(waiting, self.stop.clone()));
        loop {
            tokio::select! {
                substream = trunk.next() => self.receive(&enrolment, substream?, &places),
                silence = pulse.as_mut() => return Err(silence.into()),
                () = stopped.as_mut() => return Err(PipeError::Stopping),
            }
        }
    }

    fn receive(self: &Arc<Self>, enrolment: &Arc<str>, substream: Substream, places: &Arc<Places>) {
        let arrival = Arrival {
            stream: Box::new(substream),
            door: Door::Attached { enrolment: Arc::clone(enrolment) },
        };
        let (app, places) = (Arc::clone(self), Arc::clone(places));
        self.context.tasks.spawn(async move {
            let Some(place) = app.stop.run_until_cancelled(places.take()).await else { return };
            handshake::greet(&app, arrival, place).await;
        });
    }

    async fn links_are_over(&self) {
        self.stop.cancelled().await;
        while !self.context.tasks.is_closed() {
            sleep(PAUSE).await;
        }
        sleep(LAST_BYTES).await;
    }
}

/// What waits to be read, without taking it.
fn peek(stream: &UnixStream, room: &mut [u8]) -> nix::Result<usize> {
    use std::os::fd::AsRawFd as _;
    nix::sys::socket::recv(stream.as_raw_fd(), room, nix::sys::socket::MsgFlags::MSG_PEEK)
}

/// The pipe carries whatever the command prints, so most often it printed something.
fn advice(error: &TlsError) -> &'static str {
    match error {
        TlsError::NotTls => {
            "; the command printed something else into the pipe: nothing but the hub may write to its stdout"
        }
        TlsError::Closed | TlsError::Refused(_) => {
            "; does the hub pin this sidecar's key, which `cofferdam key` prints and {pin} stands for?"
        }
        _ => "",
    }
}
