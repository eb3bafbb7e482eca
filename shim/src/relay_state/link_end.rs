//! What happens to requests when a link ends, or when connecting fails for good.

use tokio::time::Instant;

use super::sidecar_side::{Attempt, Phase};
use super::{RelayState, ServerReplay};
use crate::answer::Answer;

impl RelayState {
    /// Connecting will never succeed: answers every request with the reason.
    pub(crate) fn give_up(&mut self, why: &str) {
        self.sidecar.attempt = Attempt::None;
        self.refuse(Answer::relay_unavailable(why), None);
    }

    /// The contents of the `Welcome` could not be stored. So it must not be confirmed, and there is no link.
    pub(crate) fn welcome_not_stored(&mut self, why: String, now: Instant) {
        self.sidecar.disconnected(why, now);
        self.restart_link();
    }

    /// The link is over. Requests that were sent on it are sent again first, marked as possibly run; a new server
    /// process is first sent the handshake and settings of the old one (see `server_replay`).
    pub(crate) fn restart_link(&mut self) {
        let had_link = self.sidecar.link.is_some();
        self.forget_link();
        if had_link {
            self.harness.requeue_requests();
        }
    }

    /// No sidecar will accept requests: answers all waiting ones and every later one.
    pub(super) fn refuse(&mut self, answer: Answer, again: Option<Instant>) {
        self.forget_link();
        self.harness.answer_each(&answer, |_| true);
        self.harness.backlog.clear();
        self.sidecar.unreported = Some(format!("{}: {}", answer.code.as_str(), answer.sentence));
        self.sidecar.problem = answer.sentence.clone();
        self.sidecar.phase = Phase::Refused { answer, again };
    }

    /// The link cannot be resumed: what it carried is sent again on another, or answered. Its server process is gone,
    /// and so are the requests that the process sent to the harness.
    fn forget_link(&mut self) {
        self.harness.cancel_server_requests();
        if let Some(link) = &self.sidecar.link {
            self.harness.pending.requeue_sent(&link.name, self.sidecar.outbox.handed_out());
            self.server_replay = ServerReplay::Pending;
        }
        self.sidecar.forget_link();
    }
}
