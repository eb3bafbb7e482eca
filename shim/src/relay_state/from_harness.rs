//! Lines from the harness: read, remembered, and passed on as they are.

use std::ops::Range;

use relay_proto::envelope::{self, Envelope, Id, IdValue, Kind, Strictness};
use relay_proto::frame::MaybeRan;
use relay_proto::mcp::{self, ShimWait};
use tokio::time::Instant;

use super::{Introduction, MAX_BACKLOG, Phase, Queued, RelayState};
use crate::answer::Answer;
use crate::lines::Line;
use crate::pending::{MAX_PENDING, Place};

impl RelayState {
    /// Takes one line.
    pub(crate) fn line(&mut self, line: Line<'_>, now: Instant) {
        match line {
            Line::TooLarge { id } => {
                let answer = Answer::too_large(self.max_message);
                self.refuse_line(id.as_deref(), &answer);
            }
            Line::Whole(line) => match envelope::read(line, Strictness::Envelope) {
                Ok(envelope) => self.message(line, envelope, now),
                Err(malformed) => self.refuse_line(malformed.id.as_deref(), &Answer::malformed(&malformed)),
            },
        }
        if matches!(self.phase, Phase::Down) {
            self.pacing.hurry();
        }
    }

    fn message(&mut self, line: &[u8], envelope: Envelope<'_>, now: Instant) {
        match envelope.kind {
            Kind::Request { id, method } => self.request(line, &id, &method, envelope.body, now),
            Kind::Notification { method } => {
                if method == mcp::CANCELLED
                    && let Some(id) = envelope::cancelled_request(line, envelope.body)
                    && self.cancel(&id) == Reach::ShimOnly
                {
                    return;
                }
                self.memory.notification(line, &method);
                self.pass_on(line);
            }
            // An answer to a process that is gone is for nobody, and must not become one for its successor.
            Kind::Response { id: Some(id), .. } if !self.server_requests.answered(&id.value()) => {}
            Kind::Response { .. } => self.pass_on(line),
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
        if self.pending.contains(&value) || self.memory.is_own(&value) {
            return self.write_line(&Answer::id_in_flight().to(None));
        }
        if let Phase::Refused { answer, .. } = &self.phase {
            let line = answer.to(Some(id.raw));
            return self.write_line(&line);
        }
        if line.len() > self.max_message {
            return self.write_line(&Answer::too_large(self.max_message).to(Some(id.raw)));
        }
        if self.pending.len() >= MAX_PENDING {
            return self.write_line(&Answer::too_many(MAX_PENDING).to(Some(id.raw)));
        }
        self.memory.request(line, id, method, params);
        let shim_wait = mcp::lookup(method).map_or(ShimWait::Call, |method| method.shim_wait);
        if self.can_send() {
            let first = self.outbox.push(line, MaybeRan::No);
            let place = Place::Sent { first, last: self.outbox.last() };
            self.pending.insert(value, id, line, shim_wait, place, now);
        } else {
            self.pending.insert(value.clone(), id, line, shim_wait, Place::Queued, now);
            self.backlog_bytes += line.len();
            self.backlog.push_back(Queued::Request(value));
            self.send_backlog();
        }
    }

    /// Passes on what has no answer. Where nobody can take it and much is waiting, it is dropped.
    fn pass_on(&mut self, line: &[u8]) {
        if line.len() > self.max_message || matches!(self.phase, Phase::Refused { .. }) {
            return;
        }
        // The link's server did not take its introduction: nobody is there to be told, until a request tries again.
        if matches!(self.phase, Phase::Up(_)) && self.introduction == Introduction::Due {
            return;
        }
        if self.can_send() {
            self.outbox.push(line, MaybeRan::No);
        } else if matches!(self.phase, Phase::Up(_)) || self.backlog_bytes + line.len() <= MAX_BACKLOG {
            self.backlog_bytes += line.len();
            self.backlog.push_back(Queued::Other(line.into()));
        }
    }

    /// Moves the backlog into the outbox, as far as credit reaches.
    pub(super) fn send_backlog(&mut self) {
        self.introduce();
        while matches!(self.introduction, Introduction::Made)
            && matches!(self.phase, Phase::Up(_))
            && !self.outbox.is_full()
            && let Some(queued) = self.backlog.pop_front()
        {
            match queued {
                Queued::Other(line) => {
                    self.backlog_bytes -= line.len();
                    self.outbox.push(&line, MaybeRan::No);
                }
                Queued::Request(id) => self.send_request(&id),
            }
        }
    }

    fn send_request(&mut self, id: &IdValue) {
        let Some(request) = self.pending.request(id).filter(|request| request.place == Place::Queued) else {
            return;
        };
        let Some(bytes) = request.bytes.as_deref() else { return };
        self.backlog_bytes -= bytes.len();
        if bytes.len() > self.max_message {
            let line = Answer::too_large(self.max_message).to(Some(request.id.as_bytes()));
            self.pending.remove(id);
            return self.write_line(&line);
        }
        let first = self.outbox.push(bytes, request.maybe_ran.clone());
        self.pending.sent(id, first, self.outbox.last());
    }

    fn can_send(&self) -> bool {
        matches!(self.phase, Phase::Up(_))
            && self.introduction == Introduction::Made
            && self.backlog.is_empty()
            && !self.outbox.is_full()
    }

    /// Nothing more is said to the harness about this request.
    fn cancel(&mut self, id: &IdValue) -> Reach {
        let Some(request) = self.pending.remove(id) else { return Reach::Sidecar };
        self.memory.forget(id);
        self.unqueue(id, request.bytes.as_deref());
        if request.may_run() { Reach::Sidecar } else { Reach::ShimOnly }
    }

    /// An id that is in flight belongs to another request: an answer with it would end that one.
    fn refuse_line(&mut self, id: Option<&[u8]>, answer: &Answer) {
        let value = |raw| Id { raw, span: 0..0 }.value();
        let id = id.filter(|raw| !self.pending.contains(&value(raw)));
        self.write_line(&answer.to(id));
    }
}

/// How far a request may have come.
#[derive(Eq, PartialEq)]
enum Reach {
    ShimOnly,
    Sidecar,
}
