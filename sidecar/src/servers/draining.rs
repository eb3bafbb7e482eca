//! A process that gets no new calls any more, and goes on for those that it has.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::event::{Event, Incarnation, Unavailable};
use super::upstream::{Said, Telling, Upstream};
use crate::upstream::outbound::Outbound;

pub(super) struct Draining {
    pub(super) incarnation: Incarnation,
    upstream: Upstream,
    /// Whoever has no answer by then gets none.
    limit: Instant,
    patience: Duration,
    telling: Telling,
}

impl Draining {
    pub(super) fn new((incarnation, upstream): (Incarnation, Upstream), patience: Duration) -> Self {
        let limit = Instant::now() + patience;
        Self { incarnation, upstream, limit, patience, telling: Telling::default() }
    }

    /// What it says, its end included.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            match timeout_at(self.limit, self.upstream.next()).await {
                Ok(Said::Event(event)) => return event,
                // Of HTTP servers only, and none of those is drained.
                Ok(Said::Forgotten | Said::Returned(_)) => {}
                Err(_) => {
                    let seconds = self.patience.as_secs();
                    let why = format!(
                        "the server's process was replaced because its credential changed, and ended after `limits.replace-drain` ({seconds} s)"
                    );
                    return Event::Gone { why };
                }
            }
        }
    }

    pub(super) fn tell(&mut self, message: Outbound) {
        if self.telling.allows(&self.upstream, message.bytes.len()) {
            self.upstream.send(message);
        }
    }

    /// For requests about what it has.
    pub(super) fn send(&mut self, message: Outbound) -> Result<Option<Event>, Unavailable> {
        self.upstream.send_alone(message)
    }

    /// Whether nothing is on its way to it.
    pub(super) fn has_heard_all(&self) -> bool {
        self.upstream.queued_bytes() == 0
    }

    pub(super) fn into_upstream(self) -> Upstream {
        self.upstream
    }
}
