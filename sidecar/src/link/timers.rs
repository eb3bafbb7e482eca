//! The timers of a link, and flow control of its shim.
//!
//! What must stay true: a shim gets credit only while there is room for its messages, so that messages for a slow
//! server, or from a shim that reads slowly, queue in the sandbox and not here; nothing is queued without limit for a
//! peer that does not read; no deadline stays in the past.

use std::time::Duration;

use relay_proto::frame::Frame;
use tokio::time::Instant;

use super::Link;
use super::command::EndReason;
use super::peer::{Credit, Peer, SEND_CHUNK};
use super::takeover::PEER_SILENT;
use crate::call::Replies;

/// After silence of this many heartbeats the connection is treated as dead.
const SILENT_HEARTBEATS: u32 = 3;
/// How long an acknowledgement waits for a message that it can be sent along with.
const ACK_DELAY: Duration = Duration::from_secs(1);
/// Withheld credit is checked again after this time.
const CREDIT_DELAY: Duration = Duration::from_millis(50);
/// With this many unwritten bytes no acknowledgement is added: a later one includes it.
const MAX_UNWRITTEN: usize = 64 * 1024;

impl Link {
    /// Handles everything that is due: call timeouts, a silent peer, the grace period, expiry of the session.
    pub(super) fn on_timer(&mut self, now: Instant) -> Option<EndReason> {
        if now >= self.peer.session.expires {
            return Some(EndReason::Expired);
        }
        let end = self.peer.on_timer(now, self.credit());
        if end.is_none() {
            self.pipeline.expire(&mut self.servers, now);
        }
        end
    }

    pub(super) fn next_deadline(&mut self) -> Instant {
        let peer = self.peer.next_deadline(self.credit());
        let deadlines = [self.pipeline.next_deadline(), peer];
        deadlines.into_iter().flatten().fold(self.peer.session.expires, Instant::min)
    }
}

impl Peer {
    fn on_timer(&mut self, now: Instant, credit: Credit) -> Option<EndReason> {
        let config = self.session.context.config.load_full();
        if self.lost.is_some_and(|lost| now >= lost + config.relay.resume_grace) {
            return Some(EndReason::GraceOver);
        }
        let acknowledge = self.may_send_ack(credit);
        if let Some(connection) = &mut self.connection {
            if now >= connection.last_received + config.relay.heartbeat * SILENT_HEARTBEATS {
                self.on_disconnect(&PEER_SILENT);
            } else if connection.unwritten() == 0
                && now >= connection.quiet_since(self.pinged) + config.relay.heartbeat
            {
                connection.ping();
                self.pinged = now;
            } else if acknowledge
                && now >= connection.last_received + ACK_DELAY
                && let Some(ack) = self.inbox.take_ack()
            {
                connection.push(&Frame::Ack(ack));
            }
        }
        None
    }

    fn next_deadline(&self, credit: Credit) -> Option<Instant> {
        let config = self.session.context.config.load();
        let takeover = self.takeover.deadline();
        let of_connection = match (&self.connection, self.lost) {
            (Some(connection), _) => {
                let mut deadline = connection.last_received + config.relay.heartbeat * SILENT_HEARTBEATS;
                if connection.unwritten() == 0 {
                    deadline = deadline.min(connection.quiet_since(self.pinged) + config.relay.heartbeat);
                }
                if self.inbox.has_pending_ack() {
                    deadline = deadline.min(match self.may_send_ack(credit) {
                        true => connection.last_received + ACK_DELAY,
                        false => Instant::now() + CREDIT_DELAY,
                    });
                }
                Some(deadline)
            }
            (None, Some(lost)) => Some(lost + config.relay.resume_grace),
            (None, None) => None,
        };
        [takeover, of_connection].into_iter().flatten().min()
    }

    /// Moves messages from the outbox to the connection, and adds an acknowledgement if messages are sent or one is
    /// due.
    pub(super) fn send(&mut self, replies: &mut Replies, credit: Credit) {
        self.queue(replies);
        let acknowledge = self.may_send_ack(credit);
        let Some(connection) = &mut self.connection else { return };
        let before = connection.unwritten();
        if before < SEND_CHUNK {
            self.outbox.take_ready_up_to(SEND_CHUNK, connection.out());
        }
        let has_messages = connection.unwritten() > before;
        if acknowledge
            && (has_messages || self.inbox.ack_due())
            && let Some(ack) = self.inbox.take_ack()
        {
            connection.push(&Frame::Ack(ack));
        }
    }

    /// Answers a Ping, unless other bytes are about to be written: any byte shows that this side is alive.
    pub(super) fn pong(&mut self) {
        if self.connection.as_ref().is_some_and(|connection| connection.unwritten() == 0) {
            self.push(&Frame::Pong);
        }
    }

    /// Whether the shim may be given more credit: it reads its responses, and its server can take more messages.
    fn may_send_ack(&self, credit: Credit) -> bool {
        let is_read =
            self.connection.as_ref().is_some_and(|connection| connection.unwritten() < MAX_UNWRITTEN);
        is_read && !self.outbox.is_full() && credit == Credit::Give
    }
}
