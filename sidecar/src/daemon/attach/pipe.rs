//! One pipe into a sandbox, from its handshake to its end.
//!
//! At its other end is a hub with many links, or a shim with one. The sidecar is the TLS server and proves the key that
//! they pin. Each link from the pipe belongs to that sandbox and goes through the same handshake as any connection:
//! nothing here trusts the other end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use relay_carriage::tls::{self, StreamProtocol, TlsError};
use relay_carriage::trunk::{self, MAX_LOCAL_CONNECTIONS, Side, Silence, Substream, Trunk, TrunkError};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::shut_on_drop::ShutOnDrop;
use crate::daemon::admin::PipeVia;
use crate::daemon::admission::ConnectionSource;
use crate::daemon::attach_table::{AttachEvent, CLOSE_TIMEOUT, LAST_BYTES, PipeHandle};
use crate::daemon::handshake::{self, Arrival};
use crate::daemon::handshake_slots::HandshakeSlots;
use crate::daemon::state::Daemon;
use crate::link::connection::Transport;
use crate::session::changes::{Change, ChangeKind};

#[derive(Debug, thiserror::Error)]
enum PipeError {
    #[error("the enrolment has ended")]
    Ended,
    #[error("{}", nothing_received(*.0))]
    NothingReceived(PipeVia),
    #[error("the token with which the pipe was opened was revoked or has expired")]
    RightEnded,
    #[error(transparent)]
    Silent(#[from] Silence),
    #[error("the sidecar is stopping")]
    Stopping,
    #[error("the hub began the TLS handshake and did not finish it within {} seconds", HANDSHAKE_TIMEOUT.as_secs())]
    TimedOut,
    #[error("TLS handshake with the hub in the sandbox: {source}{}", advice(.source, *.via))]
    Tls { source: TlsError, via: PipeVia },
    #[error(transparent)]
    Trunk(#[from] TrunkError),
    #[error("cannot use the pipe: {0}")]
    Io(#[from] std::io::Error),
}

/// How long the TLS handshake may take, from the hub's first byte on: before it the user may have to type a password.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The longest heartbeat interval of a pipe, shorter than that of links. A killed command may leave its hub running in
/// the sandbox with an open pipe. That hub blocks the next one until it has missed three heartbeats; with the time to
/// attach again, this must stay well under the minute that a call waits for its link.
const MAX_HEARTBEAT: Duration = Duration::from_secs(5);

impl Daemon {
    /// Whether a `cofferdam attach` or an attachment of the sidecar holds this enrolment.
    pub(crate) fn is_held(&self, enrolment: &str) -> bool {
        self.attaches.lock().find(enrolment).is_some_and(|attached| attached.holder.is_some())
    }

    /// Serves a pipe until it ends, or until `right_ended` completes: when the client that opened the pipe may no longer
    /// use it.
    pub(crate) async fn serve_pipe(
        self: Arc<Self>,
        enrolment: String,
        via: PipeVia,
        stream: UnixStream,
        right_ended: impl Future<Output = ()> + Send,
    ) {
        let (stream, end) = match self.register_pipe(&enrolment, stream).await {
            Ok(Some(started)) => started,
            // The sandbox is not held any more.
            Ok(None) => return,
            Err(error) => return tracing::error!(%error, enrolment, "cannot start a pipe"),
        };
        let mut right_ended = std::pin::pin!(right_ended);
        let gone = end.gone.clone().drop_guard();
        let served = tokio::select! {
            served = self.run_pipe(&enrolment, via, stream, &end) => served,
            () = right_ended.as_mut() => Err(PipeError::RightEnded),
        };
        let error = match served {
            Ok(link_ended) => {
                drop(gone);
                tokio::select! {
                    () = link_ended.cancelled() => return,
                    () = right_ended => PipeError::RightEnded,
                }
            }
            Err(error) => error,
        };
        // The table has a duplicate of the descriptor, so dropping ours would not close the connection.
        end.shut();
        tracing::info!(enrolment, why = %error, "pipe lost");
        report_pipe(&self, &enrolment, AttachEvent::Lost { why: error.to_string() });
    }

    async fn register_pipe(
        &self,
        enrolment: &str,
        stream: UnixStream,
    ) -> std::io::Result<Option<(UnixStream, PipeHandle)>> {
        let stream = stream.into_std()?;
        let end = self.attaches.replace_pipe(enrolment, stream.try_clone()?).await;
        let stream = UnixStream::from_std(stream)?;
        Ok(end.map(|end| (stream, end)))
    }

    /// Returns `Ok` if the pipe has a single link, which owns the pipe from then on; the token is cancelled when the link
    /// drops the pipe.
    async fn run_pipe(
        self: &Arc<Self>,
        enrolment: &str,
        via: PipeVia,
        stream: UnixStream,
        end: &PipeHandle,
    ) -> Result<CancellationToken, PipeError> {
        let readable = self.stop.run_until_cancelled(stream.readable()).await.ok_or(PipeError::Stopping)?;
        readable?;
        let mut buffer = [0];
        if matches!(peek(&stream, &mut buffer), Ok(0)) {
            return Err(PipeError::NothingReceived(via));
        }
        let accepting = timeout(HANDSHAKE_TIMEOUT, tls::accept_pipe(stream, &self.identity));
        let accepted = self.stop.run_until_cancelled(accepting).await.ok_or(PipeError::Stopping)?;
        let accepted = accepted.map_err(|_| PipeError::TimedOut)?;
        let (stream, key, inside) = accepted.map_err(|source| PipeError::Tls { source, via })?;
        tracing::info!(enrolment, %key, ?inside, "pipe attached");
        report_pipe(self, enrolment, AttachEvent::Attached { key: key.to_string() });
        match inside {
            StreamProtocol::Hub => match self.serve_hub(enrolment.into(), Box::new(stream), end).await? {},
            StreamProtocol::Link => {
                let slots = HandshakeSlots::new(1, self.stop.clone());
                let link_ended = CancellationToken::new();
                let arrival = Arrival {
                    stream: Box::new(ShutOnDrop::new(stream, end.clone(), link_ended.clone())),
                    source: ConnectionSource::Attached { enrolment: enrolment.into() },
                };
                handshake::accept(self, arrival, slots.take().await).await;
                Ok(link_ended)
            }
        }
    }

    async fn serve_hub(
        self: &Arc<Self>,
        enrolment: Arc<str>,
        stream: Box<dyn Transport>,
        end: &PipeHandle,
    ) -> Result<Infallible, PipeError> {
        let (heartbeat, slot_count) = {
            let config = self.context.config.load();
            (
                config.relay.heartbeat.min(MAX_HEARTBEAT),
                config.limits.greeting_connections.min(MAX_LOCAL_CONNECTIONS),
            )
        };
        let mut trunk = Trunk::new(stream, Side::Sidecar);
        let heartbeat_stream = trunk.open().await?;
        let mut heartbeats =
            std::pin::pin!(trunk::send_heartbeats(heartbeat_stream, trunk.last_received(), heartbeat));
        let mut stopped = std::pin::pin!(self.all_links_ended());
        // Each hub has its own slots, so a hub that opens silent substreams delays only its own links.
        let slots = Arc::new(HandshakeSlots::new(slot_count, self.stop.clone()));
        loop {
            tokio::select! {
                substream = trunk.next() => self.accept_link(&enrolment, substream?, &slots),
                silence = heartbeats.as_mut() => return Err(silence.into()),
                () = end.closing.cancelled() => break,
                () = stopped.as_mut() => return Err(PipeError::Stopping),
            }
        }
        // This ends the hub, whose stdin may stay open.
        if timeout(CLOSE_TIMEOUT, trunk.close()).await.is_ok() {
            // The command that carries the pipe is ended soon; this gives it time to forward these bytes.
            sleep(LAST_BYTES).await;
        }
        Err(PipeError::Ended)
    }

    fn accept_link(
        self: &Arc<Self>,
        enrolment: &Arc<str>,
        substream: Substream,
        slots: &Arc<HandshakeSlots>,
    ) {
        let arrival = Arrival {
            stream: Box::new(substream),
            source: ConnectionSource::Attached { enrolment: Arc::clone(enrolment) },
        };
        let (daemon, slots) = (Arc::clone(self), Arc::clone(slots));
        self.context.tasks.spawn(async move {
            let Some(slot) = daemon.stop.run_until_cancelled(slots.take()).await else { return };
            handshake::accept(&daemon, arrival, slot).await;
        });
    }

    /// Waits until the sidecar stops and all links have ended and had time to send their last bytes.
    async fn all_links_ended(&self) {
        self.stop.cancelled().await;
        while !self.context.tasks.is_closed() {
            sleep(STOP_POLL_INTERVAL).await;
        }
        sleep(LAST_BYTES).await;
    }
}

/// Reports a change of the pipe to its holder and to watchers.
fn report_pipe(daemon: &Daemon, enrolment: &str, event: AttachEvent) {
    let (kind, reason) = match &event {
        AttachEvent::Attached { .. } => (ChangeKind::Attached, None),
        AttachEvent::Lost { why } | AttachEvent::Over { why } => (ChangeKind::Detached, Some(why.clone())),
    };
    if let Some(sandbox) = daemon.attaches.notify(enrolment, event) {
        daemon.context.changes.publish(|| Change {
            enrolment: Some(enrolment.into()),
            name: Some(sandbox.name),
            reason,
            ..Change::new(kind, &sandbox.grant)
        });
    }
}

/// Reads without consuming.
fn peek(stream: &UnixStream, buffer: &mut [u8]) -> nix::Result<usize> {
    use std::os::fd::AsRawFd as _;
    nix::sys::socket::recv(stream.as_raw_fd(), buffer, nix::sys::socket::MsgFlags::MSG_PEEK)
}

/// Why nothing was received, and the next step.
fn nothing_received(via: PipeVia) -> &'static str {
    match via {
        PipeVia::Command => {
            "the command ended before the hub in the sandbox sent anything; its own messages are above"
        }
        PipeVia::Dial => {
            "the connection ended before anything was received: does a hub or a shim listen at this address?"
        }
        PipeVia::Platform => "the platform closed the pipe before the hub in the sandbox sent anything",
    }
}

/// The next step for a failed TLS handshake: most often the command printed something into the pipe.
fn advice(error: &TlsError, via: PipeVia) -> &'static str {
    match (error, via) {
        (TlsError::NotTls, PipeVia::Command) => {
            "; the command wrote something else to the pipe: only the hub may write to its stdout"
        }
        (TlsError::NotTls, PipeVia::Dial) => {
            "; another program listens at this address: does a hub or a shim listen there?"
        }
        (TlsError::NotTls, PipeVia::Platform) => "; another program than the hub responded",
        (TlsError::Closed | TlsError::Refused(_), PipeVia::Platform) => {
            "; does the hub come from this sidecar's shim, in the same version?"
        }
        (TlsError::Closed | TlsError::Refused(_), _) => {
            "; does the hub pin this sidecar's key, which `cofferdam key` prints and which replaces {pin}?"
        }
        _ => "",
    }
}
