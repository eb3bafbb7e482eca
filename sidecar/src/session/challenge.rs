//! Two who want the same link: the one who has it, and one who comes with its token.
//!
//! The newcomer may be the same shim, whose old connection is dead without our having noticed; or it may be a copy of
//! it. So the old connection is asked. Where its peer answers that very ping (late bytes of a dead connection do not
//! count), the newcomer is a copy and is refused. Where it does not, the newcomer has the link.

use std::time::Duration;

use relay_proto::control::Resume;
use tokio::time::Instant;

use super::connection::{Connection, Lost};
use super::link::Link;

pub(super) struct Challenger {
    connection: Connection,
    resume: Resume,
    pub(super) until: Instant,
    /// With this many answered pings the old connection is alive.
    alive_at: u64,
}

/// A peer that is there answers within this; a shim waits longer for its Welcome.
const PATIENCE: Duration = Duration::from_secs(3);

impl Link {
    /// Asks the old connection. Of several who wait, the last one stays: most likely it is the same one again.
    pub(super) fn challenge(&mut self, connection: Connection, resume: Resume) {
        let Some(old) = &mut self.connection else { return };
        let alive_at = old.ping();
        self.challenger = Some(Challenger { connection, resume, until: Instant::now() + PATIENCE, alive_at });
    }

    /// Decides as soon as it can be decided.
    pub(super) async fn settle_challenge(&mut self) {
        let Some(challenger) = &self.challenger else { return };
        let answered = self.connection.as_ref().map(|old| old.pongs >= challenger.alive_at);
        let over = Instant::now() >= challenger.until;
        match answered {
            Some(false) if !over => {}
            Some(true) => {
                if let Some(Challenger { connection, .. }) = self.challenger.take() {
                    self.refuse_resume(connection, "the link is in use on another connection").await;
                }
            }
            Some(false) | None => {
                if self.connection.is_some() {
                    self.disconnected(&Lost::Closed);
                }
                if let Some(Challenger { connection, resume, .. }) = self.challenger.take() {
                    self.take_up(connection, resume).await;
                }
            }
        }
    }
}
