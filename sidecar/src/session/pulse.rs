//! What a link does by the clock, and how much it lets its shim send.
//!
//! What must stay true: a shim gets credit only while there is room for what it sends, so that its own slowness, or its
//! server's, is held in the sandbox and not here; nothing is sent for which a deaf peer has no room; no deadline stays
//! in the past.

use std::ops::ControlFlow;
use std::time::Duration;

use relay_proto::frame::Frame;
use tokio::time::Instant;

use super::attach::{NO_SIGN_OF_LIFE, Newcomer};
use super::command::EndReason;
use super::link::Link;

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
    pub(super) fn tick(&mut self) -> ControlFlow<EndReason> {
        let now = Instant::now();
        let config = self.session.context.config.load_full();
        if now >= self.session.expires {
            return ControlFlow::Break(EndReason::Expired);
        }
        if self.lost.is_some_and(|lost| now >= lost + config.relay.resume_grace) {
            return ControlFlow::Break(EndReason::GraceOver);
        }
        while let Some(call) = self.calls.take_expired(now) {
            self.timed_out(call);
        }
        self.end_inquiry_by(now);
        let acknowledge = self.may_acknowledge();
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
        ControlFlow::Continue(())
    }

    pub(super) fn next_deadline(&mut self) -> Instant {
        let config = self.session.context.config.load();
        let mut deadline = self.session.expires;
        if let Some(call) = self.calls.next_deadline() {
            deadline = deadline.min(call);
        }
        let newcomer = self.newcomer.as_ref().map(Newcomer::deadline);
        for further in [self.outcomes.due(), self.repeats.deadline(), newcomer] {
            deadline = further.map_or(deadline, |further| deadline.min(further));
        }
        match (&self.connection, self.lost) {
            (Some(connection), _) => {
                deadline = deadline.min(connection.heard + config.relay.heartbeat * SILENT_HEARTBEATS);
                if connection.waiting() == 0 {
                    deadline = deadline.min(connection.quiet_since(self.pinged) + config.relay.heartbeat);
                }
                if self.inbox.has_ack() {
                    deadline = deadline.min(match self.may_acknowledge() {
                        true => connection.heard + ACK_DELAY,
                        false => Instant::now() + CREDIT_DELAY,
                    });
                }
            }
            (None, Some(lost)) => deadline = deadline.min(lost + config.relay.resume_grace),
            (None, None) => {}
        }
        deadline
    }

    /// Gives the connection what may be sent; the acknowledgement travels with it.
    pub(super) fn hand_out(&mut self) {
        let acknowledge = self.may_acknowledge();
        let Some(connection) = &mut self.connection else { return };
        let before = connection.waiting();
        self.outbox.take_ready(connection.out());
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

    /// Whether the shim may send more: its answers are taken, and so is what it asks of its server.
    fn may_acknowledge(&self) -> bool {
        let taken = self.connection.as_ref().is_some_and(|connection| connection.waiting() < MAX_UNTAKEN);
        taken && !self.outbox.is_full() && !self.servers.is_full()
    }
}
