//! What a link does by the clock, and how much it lets its shim send.
//!
//! What must stay true: a shim gets credit only while there is room for what it sends, so that its own slowness, or its
//! server's, is held in the sandbox and not here; nothing is sent for which a peer that does not read has no room; no
//! deadline stays in the past.

use std::time::Duration;

use relay_proto::frame::Frame;
use tokio::time::Instant;

use super::Link;
use super::command::EndReason;
use super::peer::{Credit, ENOUGH_TO_SEND, Peer};
use super::takeover::NO_SIGN_OF_LIFE;
use crate::call::Replies;

/// Silence of this many heartbeats means that the connection is dead.
const SILENT_HEARTBEATS: u32 = 3;
/// A lone acknowledgement waits this long for a message to travel with.
const ACK_DELAY: Duration = Duration::from_secs(1);
/// Credit that was withheld is looked at again after this time.
const CREDIT_DELAY: Duration = Duration::from_millis(50);
/// A peer that has not taken this much gets no acknowledgement on top: the next one will say the same and more.
const MAX_UNTAKEN: usize = 64 * 1024;

impl Link {
    /// Time passed: calls that ran out, silence, grace, expiry.
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
        let acknowledge = self.may_acknowledge(credit);
        if let Some(connection) = &mut self.connection {
            if now >= connection.heard + config.relay.heartbeat * SILENT_HEARTBEATS {
                self.disconnected(&NO_SIGN_OF_LIFE);
            } else if connection.waiting() == 0
                && now >= connection.quiet_since(self.pinged) + config.relay.heartbeat
            {
                connection.ping();
                self.pinged = now;
            } else if acknowledge
                && now >= connection.heard + ACK_DELAY
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
                let mut deadline = connection.heard + config.relay.heartbeat * SILENT_HEARTBEATS;
                if connection.waiting() == 0 {
                    deadline = deadline.min(connection.quiet_since(self.pinged) + config.relay.heartbeat);
                }
                if self.inbox.has_ack() {
                    deadline = deadline.min(match self.may_acknowledge(credit) {
                        true => connection.heard + ACK_DELAY,
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

    /// Gives the connection what may be sent; the acknowledgement travels with it.
    pub(super) fn send(&mut self, replies: &mut Replies, credit: Credit) {
        self.queue(replies);
        let acknowledge = self.may_acknowledge(credit);
        let Some(connection) = &mut self.connection else { return };
        let before = connection.waiting();
        if before < ENOUGH_TO_SEND {
            self.outbox.take_ready_up_to(ENOUGH_TO_SEND, connection.out());
        }
        let travels = connection.waiting() > before;
        if acknowledge
            && (travels || self.inbox.ack_due())
            && let Some(ack) = self.inbox.take_ack()
        {
            connection.push(&Frame::Ack(ack));
        }
    }

    /// The answer to a Ping, unless other bytes are on their way: any byte is a sign of life.
    pub(super) fn pong(&mut self) {
        if self.connection.as_ref().is_some_and(|connection| connection.waiting() == 0) {
            self.push(&Frame::Pong);
        }
    }

    /// Whether the shim may send more: it takes its responses, and its server takes what it is asked.
    fn may_acknowledge(&self, credit: Credit) -> bool {
        let taken = self.connection.as_ref().is_some_and(|connection| connection.waiting() < MAX_UNTAKEN);
        taken && !self.outbox.is_full() && credit == Credit::Give
    }
}
