//! What happens to requests when a link ends, or when connecting fails for good.

use tokio::time::Instant;

use super::sidecar_side::{AttemptState, Phase};
use super::{RelayState, ServerReplay};
use crate::shim_error::ShimError;

impl RelayState {
    /// Answers every request with the reason why connecting will never succeed.
    pub(crate) fn stop_connecting(&mut self, why: &str) {
        self.sidecar.attempt = AttemptState::None;
        self.refuse(ShimError::relay_unavailable(why), None);
    }

    /// Ends the link because the contents of its `Welcome` could not be stored: the `Welcome` must not be confirmed.
    pub(crate) fn welcome_not_stored(&mut self, why: String, now: Instant) {
        self.sidecar.disconnected(why, now);
        self.restart_link();
    }

    /// Ends the link. Its requests are queued for the next link, those that were handed out marked as possibly run. The
    /// next link's server process first gets the handshake and settings of the old process (see `server_replay`).
    pub(crate) fn restart_link(&mut self) {
        let had_link = self.sidecar.link.is_some();
        self.forget_link();
        if had_link {
            self.harness.requeue_requests();
        }
    }

    /// Answers all waiting requests and every later one with `error`. The next attempt to connect is at `again`, if ever.
    pub(super) fn refuse(&mut self, error: ShimError, again: Option<Instant>) {
        self.forget_link();
        self.harness.respond_to_matching(&error, |_| true);
        self.harness.backlog.clear();
        self.sidecar.unreported = Some(format!("{}: {}", error.code.as_str(), error.sentence));
        self.sidecar.problem = error.sentence.clone();
        self.sidecar.phase = Phase::Refused { error, again };
    }

    /// Forgets a link that cannot be resumed. Its sent requests are marked as queued, and the requests that its server
    /// process sent to the harness are cancelled, because the process is gone.
    fn forget_link(&mut self) {
        self.harness.cancel_server_requests();
        if let Some(link) = &self.sidecar.link {
            self.harness.pending.requeue_sent(&link.name, self.sidecar.outbox.handed_out());
            self.server_replay = ServerReplay::Pending;
        }
        self.sidecar.forget_link();
    }
}
