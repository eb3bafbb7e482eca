//! The end of a link, or of all hope of one: what becomes of the requests on it.

use tokio::time::Instant;

use super::sidecar_side::{Attempt, Phase};
use super::{RelayState, ServerReplay};
use crate::answer::Answer;

impl RelayState {
    /// There is no way to connect, now or ever: answers every request with the reason.
    pub(crate) fn give_up(&mut self, why: &str) {
        self.sidecar.attempt = Attempt::None;
        self.refuse(Answer::relay_unavailable(why), None);
    }

    /// What the Welcome brought could not be stored: it was not confirmed and must not be, so there is no link.
    pub(crate) fn welcome_not_stored(&mut self, why: String, now: Instant) {
        self.sidecar.disconnected(why, now);
        self.restart_link();
    }

    /// The link is over. What was handed out on it is sent again, marked, before what was not; a new server process
    /// is first told what the old one knew (see `server_replay`).
    pub(crate) fn restart_link(&mut self) {
        let had_link = self.sidecar.link.is_some();
        self.forget_link();
        if had_link {
            self.harness.requeue_requests();
        }
    }

    /// No sidecar will take requests: answers all that wait, and from now on each that comes.
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
            self.harness.pending.unsend(&link.name, self.sidecar.outbox.handed_out());
            self.server_replay = ServerReplay::Pending;
        }
        self.sidecar.forget_link();
    }
}
