//! The shim at the other end of a link: its connection, if there is one, and the delivery of messages over it.
//!
//! What must stay true: a message is delivered once, across all connections of the link; a peer that breaks the
//! protocol loses its link.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::PacedLines;
use relay_proto::code::Code;
use relay_proto::control::{Goodbye, ResumeToken, Resumed, Retry, Welcome};
use relay_proto::delivery::{DeliveryError, Inbox, Outbox, Received};
use relay_proto::frame::{Frame, FrameView, MaybeRan};
use relay_proto::limits::{DEFAULT_WINDOW, VERSION};
use relay_proto::name::Name;
use tokio::time::{Instant, timeout};

use super::command::EndReason;
use super::connection::{Connection, Lost};
use super::resume::ResumeTokens;
use super::takeover::{ReportLimits, Takeover};
use super::{FirstConnection, MAX_BATCH};
use crate::call::Replies;
use crate::session::Session;
use crate::session::principal::OfferOutcome;

// A sandbox can cause these lines as fast as it opens links, or connections.
static BROKEN_LINES: PacedLines = PacedLines::new("the shim broke the relay protocol");
static LOST_LINES: PacedLines = PacedLines::new("connection lost");

pub(super) struct Peer {
    pub(super) session: Arc<Session>,
    pub(super) link: Arc<str>,
    server: Name,
    pub(super) connection: Option<Connection>,
    /// When the last connection was lost, while there is none.
    pub(super) lost: Option<Instant>,
    /// When the last heartbeat Ping was sent.
    pub(super) pinged: Instant,
    pub(super) outbox: Outbox,
    pub(super) inbox: Inbox,
    /// The limits that the inbox enforces; a reloaded configuration does not change them.
    limits: AnnouncedLimits,
    pub(super) tokens: ResumeTokens,
    /// Confirms the epoch of the link's first Welcome; called when the shim sends its first frame.
    unconfirmed: Option<Box<dyn FnOnce() -> OfferOutcome + Send>>,
    pub(super) takeover: Takeover,
    pub(super) reports: ReportLimits,
}

/// The limits that the first `Welcome` announced to the shim.
#[derive(Clone, Copy, Debug)]
struct AnnouncedLimits {
    message_bytes: usize,
    window_bytes: u64,
}

/// Whether the shim's server can take more messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Credit {
    Give,
    Withhold,
}

/// Bytes that are copied to a connection at a time: a large response is copied in pieces as the shim reads it.
pub(super) const SEND_CHUNK: usize = 64 * 1024;
/// How long writing a Goodbye or a Refusal may take.
pub(super) const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);

impl Peer {
    /// The shim of a new link; its `Welcome` is the first frame.
    pub(super) fn new(
        session: Arc<Session>,
        link: Arc<str>,
        server: Name,
        first: FirstConnection,
        window_bytes: u64,
    ) -> Self {
        let FirstConnection { connection, offer } = first;
        let (epoch, unconfirmed) = offer.map(|offer| (offer.epoch, offer.confirm)).unzip();
        let limits = session.context.config.load().limits.clone();
        let mut peer = Self {
            session,
            link,
            server,
            connection: Some(connection),
            lost: None,
            pinged: Instant::now(),
            outbox: Outbox::new(DEFAULT_WINDOW),
            inbox: Inbox::new(limits.message_bytes, window_bytes),
            limits: AnnouncedLimits { message_bytes: limits.message_bytes, window_bytes },
            tokens: ResumeTokens::new(),
            unconfirmed,
            takeover: Takeover::default(),
            reports: ReportLimits::default(),
        };
        let welcome = Welcome { epoch, ..peer.welcome(Resumed::Fresh, peer.tokens.current()) };
        peer.push(&Frame::Welcome(welcome));
        peer
    }

    /// The size of the largest message that the harness accepts.
    pub(super) fn max_message_bytes(&self) -> usize {
        self.limits.message_bytes
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// The memory of responses that the shim has not acknowledged, and of an incomplete message that it sent.
    pub(super) fn held_bytes(&self) -> usize {
        self.outbox.allocated_bytes() + self.inbox.partial_message_allocated_bytes().unwrap_or(0)
    }

    /// Whether there is room for more responses.
    pub(super) fn has_room(&self) -> bool {
        !self.outbox.is_full()
    }

    /// The next frame; waits for ever while there is no connection. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Frame, Lost> {
        match &mut self.connection {
            Some(connection) => {
                let outbox = &mut self.outbox;
                connection.next_while_sending(|out| outbox.take_ready_up_to(SEND_CHUNK, out)).await
            }
            None => std::future::pending().await,
        }
    }

    /// Handles one frame and those buffered after it. Returns the messages that they complete, and whether they end the
    /// link.
    pub(super) fn receive(&mut self, first: Frame) -> (Vec<Received>, Option<EndReason>) {
        let mut messages = Vec::new();
        // A shim may have sent its Goodbye before the Welcome arrived.
        if !matches!(first, Frame::Goodbye(_))
            && let Some(end) = self.confirm()
        {
            return (messages, Some(end));
        }
        let mut end = self.handle_frame(first, &mut messages);
        let mut handled = 1;
        while end.is_none() && handled < MAX_BATCH {
            let Self { connection: Some(connection), inbox, .. } = self else { break };
            end = match connection.buffered() {
                None => break,
                Some(FrameView::Control(frame)) => self.handle_frame(*frame, &mut messages),
                Some(FrameView::Message(part)) => {
                    let accepted = inbox.accept_view(part).map(|message| message.map(Received::into_owned));
                    self.add_accepted(accepted, &mut messages)
                }
            };
            handled += 1;
        }
        (messages, end)
    }

    /// Adds the message that a part has completed; a peer that breaks the protocol loses its link.
    fn add_accepted(
        &self,
        accepted: Result<Option<Received>, DeliveryError>,
        messages: &mut Vec<Received>,
    ) -> Option<EndReason> {
        match accepted {
            Ok(message) => {
                messages.extend(message);
                None
            }
            Err(error) => self.broke_protocol(&error.to_string()),
        }
    }

    /// Handles one frame; a peer that breaks the protocol loses its link.
    fn handle_frame(&mut self, frame: Frame, messages: &mut Vec<Received>) -> Option<EndReason> {
        match frame {
            Frame::Message(part) => {
                let accepted = self.inbox.accept(part);
                return self.add_accepted(accepted, messages);
            }
            Frame::Ack(ack) => {
                if let Err(error) = self.outbox.acknowledge(ack) {
                    return self.broke_protocol(&error.to_string());
                }
            }
            Frame::Ping => self.pong(),
            Frame::Pong => {
                if let Some(connection) = &mut self.connection {
                    connection.on_pong();
                }
            }
            Frame::Goodbye(_) => return Some(EndReason::Goodbye),
            Frame::Hello(_) | Frame::Refusal(_) | Frame::Status(_) | Frame::Welcome(_) => {
                return self.broke_protocol("a handshake frame came after the handshake");
            }
        }
        None
    }

    /// The shim sent a frame, which confirms that the token and epoch of its Welcome have arrived.
    fn confirm(&mut self) -> Option<EndReason> {
        self.tokens.confirm();
        match self.unconfirmed.take().map(|confirm| confirm()) {
            Some(OfferOutcome::Superseded) => {
                self.alert("another copy of the key was used since this link was opened");
                Some(EndReason::Cloned)
            }
            Some(OfferOutcome::Accepted) | None => None,
        }
    }

    fn broke_protocol(&self, why: &str) -> Option<EndReason> {
        if let Some(left_out) = BROKEN_LINES.admit() {
            let (link, session) = (&self.link, &self.session.id);
            tracing::warn!(%link, %session, left_out, why, "the shim broke the relay protocol");
        }
        Some(EndReason::Broken)
    }

    pub(super) fn push(&mut self, frame: &Frame) {
        if let Some(connection) = &mut self.connection {
            connection.push(frame);
        }
    }

    /// Moves the scrubbed responses to the outbox; they are delivered as credit allows.
    pub(super) fn queue(&mut self, replies: &mut Replies) {
        replies.drain(|line| {
            self.outbox.push(line, MaybeRan::No);
        });
    }

    pub(super) fn on_disconnect(&mut self, reason: &impl fmt::Display) {
        if let Some(left_out) = self.reports.admit(&LOST_LINES) {
            tracing::info!(link = %self.link, session = %self.session.id, left_out, %reason, "connection lost");
        }
        self.connection = None;
        self.lost = Some(Instant::now());
    }

    pub(super) async fn send_goodbye(&mut self, code: Code, message: &str, retry: Retry) {
        if let Some(connection) = &mut self.connection {
            self.outbox.take_ready(connection.out());
            let goodbye = Goodbye { code: code.as_str().into(), message: message.into(), retry };
            connection.push(&Frame::Goodbye(goodbye));
            // If the shim does not read the Goodbye in time, the connection is closed without it.
            let _ = timeout(GOODBYE_TIMEOUT, connection.flush()).await;
        }
    }

    pub(super) fn welcome(&self, resumed: Resumed, token: ResumeToken) -> Welcome {
        let config = self.session.context.config.load();
        Welcome {
            version: VERSION,
            session: self.session.id.to_string(),
            link: self.link.to_string(),
            server: self.server.clone(),
            resumed,
            token,
            epoch: None,
            received: self.inbox.received(),
            window: self.limits.window_bytes,
            max_message: self.limits.message_bytes as u64,
            heartbeat_ms: config.relay.heartbeat.as_millis() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use relay_proto::decoder::Decoder;
    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;
    use crate::session::fixture::Fixture;
    use crate::session::principal::Principal;

    #[tokio::test]
    async fn a_goodbye_is_sent_after_all_responses_that_credit_allows() {
        const BYTES: usize = 5 * SEND_CHUNK;
        let fixture = Fixture::new("");
        let session = Session::new(&fixture.context, &Principal::anonymous("dev".parse().unwrap(), None));
        let (near, mut far) = duplex(16 * 1024);
        let first = FirstConnection { connection: Connection::new(Box::new(near)), offer: None };
        let mut peer = Peer::new(Arc::new(session), "l-1".into(), "tools".parse().unwrap(), first, 1 << 20);
        peer.outbox.push(&vec![7; BYTES], MaybeRan::No);
        peer.send(&mut Replies::default(), Credit::Give);
        let goodbye = async {
            peer.send_goodbye(Code::SessionEnded, "the link has ended", Retry::Never).await;
            drop(peer);
        };
        let mut received = Vec::new();
        let ((), read) = tokio::join!(goodbye, far.read_to_end(&mut received));
        read.expect("a duplex does not fail");
        let mut decoder = Decoder::new();
        decoder.feed(&received);
        let mut bytes = 0;
        let last = loop {
            match decoder.next().expect("our own frames decode") {
                Some(Frame::Welcome(_)) => {}
                Some(Frame::Message(part)) => bytes += part.bytes.len(),
                other => break other,
            }
        };
        assert_eq!(bytes, BYTES);
        assert!(matches!(last, Some(Frame::Goodbye(_))), "{last:?}");
    }
}
