//! The harness's side: lines to write, one response per request, and the messages to replay to a new server process.
//!
//! What must stay true: a request is removed from `pending` together with its one response, and is then in no backlog.

use std::ops::Range;

use relay_proto::envelope::{Id, IdValue, Outcome};
use relay_proto::notice;
use relay_proto::replay::Replay;
use tokio::time::Instant;

use super::backlog::{Backlog, Queued};
use super::sidecar_side::SidecarSide;
use crate::pending::{Pending, Request};
use crate::queue::Queue;
use crate::reconnect_backoff::Waiting;
use crate::server_requests::ServerRequests;
use crate::shim_error::ShimError;

/// Above this many bytes queued for the harness, neither side is read.
pub(crate) const MAX_TO_HARNESS: usize = 1024 * 1024;
/// Above this many bytes in the backlog, the harness is not read.
pub(crate) const MAX_BACKLOG: usize = 1024 * 1024;
/// The prefix of the ids of requests that the shim makes itself.
const OWN_ID_PREFIX: &str = "cofferdam-shim:replay:";

#[derive(Debug)]
pub(crate) struct HarnessSide {
    /// Lines for the harness.
    pub(crate) output: Queue,
    pub(super) pending: Pending,
    pub(super) backlog: Backlog,
    pub(super) replay: Replay,
    pub(super) server_requests: ServerRequests,
}

/// How far a cancelled request may have come.
#[derive(Eq, PartialEq)]
pub(super) enum Reach {
    ShimOnly,
    Sidecar,
}

impl HarnessSide {
    pub(super) fn new() -> Self {
        Self {
            output: Queue::default(),
            pending: Pending::default(),
            backlog: Backlog::default(),
            replay: Replay::new(OWN_ID_PREFIX),
            server_requests: ServerRequests::default(),
        }
    }

    /// Whether the harness's next bytes may be read.
    pub(crate) fn accepts_lines(&self) -> bool {
        self.backlog.bytes() <= MAX_BACKLOG && self.accepts_frames()
    }

    /// Whether the sidecar's next bytes may be read.
    pub(crate) fn accepts_frames(&self) -> bool {
        self.output.len() <= MAX_TO_HARNESS
    }

    /// Answers one request with an error: `did_not_run` if that is certain, otherwise `may_have_run`.
    pub(super) fn respond_with_error(
        &mut self,
        id: &IdValue,
        did_not_run: &ShimError,
        may_have_run: &ShimError,
    ) {
        let Some(request) = self.pending.remove(id) else { return };
        self.replay.remove_pending(id);
        self.backlog.remove(id);
        let error = if request.may_run() { may_have_run } else { did_not_run };
        self.write_line(&error.to_response(Some(request.id.as_bytes())));
    }

    /// Answers every request that `pick` chooses, oldest first: with `did_not_run`, or with an unknown outcome for the same
    /// reason.
    pub(super) fn respond_to_matching(
        &mut self,
        did_not_run: &ShimError,
        pick: impl FnMut(&Request) -> bool,
    ) {
        let may_have_run = ShimError::outcome_unknown(&did_not_run.sentence);
        for id in self.pending.ids(pick) {
            self.respond_with_error(&id, did_not_run, &may_have_run);
        }
    }

    /// Answers the requests whose wait for a sidecar has timed out.
    pub(super) fn respond_to_overdue(&mut self, sidecar: &SidecarSide, now: Instant) {
        let overdue =
            self.pending.ids(|request| request.times_out_at(sidecar.lost_at, &sidecar.timing) <= now);
        for id in overdue {
            let did_not_run = ShimError::relay_unavailable(&sidecar.problem);
            self.respond_with_error(&id, &did_not_run, &ShimError::outcome_unknown(&sidecar.problem));
        }
    }

    /// Whether a request waits for its response.
    pub(super) fn waiting(&self) -> Waiting {
        if self.pending.len() > 0 { Waiting::Yes } else { Waiting::No }
    }

    /// Takes the server's response to a request of the harness. Returns whether the harness still waits for it.
    pub(super) fn take_response(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> bool {
        if !self.pending.remove_answered(id) {
            return false;
        }
        self.replay.record_response(id, outcome, message, body);
        true
    }

    /// Removes a request that the harness cancelled: it gets no response.
    pub(super) fn cancel(&mut self, id: &IdValue) -> Reach {
        let Some(request) = self.pending.remove(id) else { return Reach::Sidecar };
        self.replay.remove_pending(id);
        self.backlog.remove(id);
        if request.may_run() { Reach::Sidecar } else { Reach::ShimOnly }
    }

    /// Answers a line that is not a usable message. The id is left out if a request with it is in flight: the harness would
    /// take this error for the response to that request.
    pub(super) fn refuse_line(&mut self, id: Option<&[u8]>, error: &ShimError) {
        let value = |raw| Id { raw, span: 0..0 }.value();
        let id = id.filter(|raw| !self.pending.contains(&value(raw)));
        self.write_line(&error.to_response(id));
    }

    /// Cancels the requests that the server sent to the harness: the server process is gone.
    pub(super) fn cancel_server_requests(&mut self) {
        for id in self.server_requests.drain() {
            self.write_line(&notice::cancelled(&id, "the server that asked is gone"));
        }
    }

    /// Queues every request for the next link, or answers it if its bytes were not retained. Responses and notifications in
    /// the backlog are dropped: they were for a server process that is gone.
    pub(super) fn requeue_requests(&mut self) {
        self.backlog.clear();
        let unknown =
            ShimError::outcome_unknown("the link to the sidecar was lost and replaced by a new one");
        for id in self.pending.ids(|_| true) {
            match self.pending.request(&id).and_then(|request| request.bytes.as_ref()) {
                Some(bytes) => {
                    let bytes = bytes.len();
                    self.backlog.push(Queued::Request { id, bytes });
                }
                None => self.respond_with_error(&id, &unknown, &unknown),
            }
        }
    }

    pub(super) fn write_line(&mut self, line: &[u8]) {
        let out = self.output.back();
        out.reserve(line.len() + 1);
        out.extend_from_slice(line);
        out.push(b'\n');
    }
}
