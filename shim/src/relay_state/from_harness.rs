//! Handles lines from the harness: records their requests and forwards them byte for byte.

use std::ops::Range;

use relay_proto::envelope::{self, Envelope, Id, IdValue, Kind, Strictness};
use relay_proto::frame::MaybeRan;
use relay_proto::mcp::{self, ShimWait};
use tokio::time::Instant;

use super::backlog::Queued;
use super::harness_side::{MAX_BACKLOG, Reach};
use super::sidecar_side::Phase;
use super::{RelayState, ServerReplay};
use crate::lines::Line;
use crate::pending::{MAX_PENDING, RequestLocation};
use crate::shim_error::ShimError;

impl RelayState {
    /// Handles one line.
    pub(crate) fn line(&mut self, line: Line<'_>, now: Instant) {
        match line {
            Line::TooLarge { id } => {
                let error = ShimError::message_too_large(self.max_message);
                self.harness.refuse_line(id.as_deref(), &error);
            }
            Line::Whole(line) => match envelope::read(line, Strictness::Envelope) {
                Ok(envelope) => self.message(line, envelope, now),
                Err(malformed) => {
                    self.harness.refuse_line(malformed.id.as_deref(), &ShimError::malformed(&malformed));
                }
            },
        }
        if matches!(self.sidecar.phase, Phase::Down) {
            self.sidecar.backoff.retry_at_once();
        }
    }

    fn message(&mut self, line: &[u8], envelope: Envelope<'_>, now: Instant) {
        match envelope.kind {
            Kind::Request { id, method } => self.request(line, &id, &method, envelope.body, now),
            Kind::Notification { method } => {
                if method == mcp::CANCELLED
                    && let Some(id) = envelope::cancelled_request(line, envelope.body)
                    && self.harness.cancel(&id) == Reach::ShimOnly
                {
                    return;
                }
                self.harness.replay.record_notification(line, &method);
                self.forward(line);
            }
            // A response to a process that is gone must not reach the one that replaced it.
            Kind::Response { id: Some(id), .. } if !self.harness.server_requests.remove(&id.value()) => {}
            Kind::Response { .. } => self.forward(line),
        }
    }

    fn request(
        &mut self,
        line: &[u8],
        id: &Id<'_>,
        method: &str,
        params: Option<Range<usize>>,
        now: Instant,
    ) {
        let value = id.value();
        if self.harness.pending.contains(&value) || self.harness.replay.is_own(&value) {
            return self.harness.write_line(&ShimError::id_in_flight().to_response(None));
        }
        if let Phase::Refused { error, .. } = &self.sidecar.phase {
            return self.harness.write_line(&error.to_response(Some(id.raw)));
        }
        if line.len() > self.max_message {
            return self
                .harness
                .write_line(&ShimError::message_too_large(self.max_message).to_response(Some(id.raw)));
        }
        if self.harness.pending.len() >= MAX_PENDING {
            return self
                .harness
                .write_line(&ShimError::too_many_requests(MAX_PENDING).to_response(Some(id.raw)));
        }
        self.harness.replay.record_request(line, id, method, params);
        let shim_wait = mcp::lookup(method).map_or(ShimWait::Call, |method| method.shim_wait);
        if self.can_send() {
            let first = self.sidecar.outbox.push(line, MaybeRan::No);
            let location = RequestLocation::Sent { first, last: self.sidecar.outbox.last() };
            self.harness.pending.insert(value, id, line, shim_wait, location, now);
        } else {
            self.harness.pending.insert(value.clone(), id, line, shim_wait, RequestLocation::Queued, now);
            self.harness.backlog.push(Queued::Request { id: value, bytes: line.len() });
            self.send_backlog();
        }
    }

    /// Forwards a notification or a response. It is dropped if it is too large, if the sidecar refused the shim, if the
    /// server did not accept the replay, or if there is no link and the backlog is full.
    fn forward(&mut self, line: &[u8]) {
        if line.len() > self.max_message || matches!(self.sidecar.phase, Phase::Refused { .. }) {
            return;
        }
        // The server did not accept the replay, so no process can receive this line. The next request repeats the replay.
        if self.sidecar.is_up() && self.server_replay == ServerReplay::Pending {
            return;
        }
        if self.can_send() {
            self.sidecar.outbox.push(line, MaybeRan::No);
        } else if self.sidecar.is_up() || self.harness.backlog.bytes() + line.len() <= MAX_BACKLOG {
            self.harness.backlog.push(Queued::Other(line.into()));
        }
    }

    /// Moves the backlog into the outbox, as far as credit reaches.
    pub(super) fn send_backlog(&mut self) {
        self.start_replay();
        while self.server_replay == ServerReplay::Done
            && self.sidecar.is_up()
            && !self.sidecar.outbox.is_full()
            && let Some(queued) = self.harness.backlog.pop()
        {
            match queued {
                Queued::Other(line) => {
                    self.sidecar.outbox.push(&line, MaybeRan::No);
                }
                Queued::Request { id, .. } => self.send_request(&id),
            }
        }
    }

    fn send_request(&mut self, id: &IdValue) {
        let request =
            self.harness.pending.request(id).filter(|request| request.location == RequestLocation::Queued);
        let Some(request) = request else { return };
        let Some(bytes) = request.bytes.as_deref() else { return };
        if bytes.len() > self.max_message {
            let line =
                ShimError::message_too_large(self.max_message).to_response(Some(request.id.as_bytes()));
            self.harness.pending.remove(id);
            return self.harness.write_line(&line);
        }
        let first = self.sidecar.outbox.push(bytes, request.maybe_ran.clone());
        self.harness.pending.mark_sent(id, first, self.sidecar.outbox.last());
    }

    fn can_send(&self) -> bool {
        self.sidecar.is_up()
            && self.server_replay == ServerReplay::Done
            && self.harness.backlog.is_empty()
            && !self.sidecar.outbox.is_full()
    }
}
