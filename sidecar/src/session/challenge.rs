//! Two connections for one link: the one it has, and one that comes with its token.
//!
//! Mostly the old one is dead and nobody has told us: a network that went away says no goodbye, and a proxy may close
//! late. Sometimes it is alive, and the newcomer is a copy of the shim. A Ping tells them apart: whoever still answers
//! keeps its link, whoever does not has lost it to the newcomer.
//!
//! Must stay true: only an answer to a Ping counts, since other bytes of a dead connection may have been under way for
//! long; at most one newcomer waits; the link goes about its business meanwhile; the token is looked at again when
//! the newcomer's turn comes, because what the old connection still said may have turned it.

use futures_util::FutureExt;
use relay_proto::code::Code;
use relay_proto::control::{Refusal, Resume, Retry};
use relay_proto::frame::Frame;
use std::time::Duration;
use tokio::time::{Instant, timeout};

use super::connection::{Connection, Lost};
use super::link::{GOODBYE_TIME, Link};

/// Somebody with the link's token, who waits to see whether the old connection is alive.
pub(super) struct Challenger {
    connection: Connection,
    resume: Resume,
    until: Instant,
}

/// A shim that is there answers a Ping within this; the newcomer waits ten seconds for its Welcome.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Pings that may wait for an answer on one connection: newcomers must not fill a deaf peer's buffer with them.
const MAX_PINGS: u32 = 4;

impl Link {
    /// Asks the old connection whether it is alive; the newcomer waits.
    pub(super) async fn challenge(&mut self, newcomer: Connection, resume: Resume) {
        if let Some(waiting) = &mut self.challenger
            && waiting.connection.next().now_or_never().is_none()
        {
            return come_again(newcomer).await;
        }
        if let Some(old) = &mut self.connection
            && old.unanswered_pings() < MAX_PINGS
        {
            old.push(&Frame::Ping);
        }
        let until = Instant::now() + ANSWER_TIME;
        self.challenger = Some(Challenger { connection: newcomer, resume, until });
    }

    /// When a newcomer has waited long enough, if there is one.
    pub(super) fn challenge_ends(&self) -> Option<Instant> {
        self.challenger.as_ref().map(|challenger| challenger.until)
    }

    /// Decides between the two, as soon as that can be done.
    pub(super) async fn settle_challenge(&mut self) {
        let Some(challenger) = &self.challenger else { return };
        let turned = !self.tokens.accept(&challenger.resume.token);
        let answered = self.connection.as_ref().is_some_and(|old| old.unanswered_pings() == 0);
        let waits = Instant::now() < challenger.until;
        if self.connection.is_some() && waits && !answered && !turned {
            return;
        }
        let Some(Challenger { connection, resume, .. }) = self.challenger.take() else { return };
        if answered {
            return self.refuse_resume(connection, "the link is in use on another connection").await;
        }
        if self.connection.is_some() && !turned {
            self.disconnected(&Lost::Silent);
        }
        self.take_up(connection, resume).await;
    }
}

async fn come_again(mut newcomer: Connection) {
    newcomer.push(&Frame::Refusal(Refusal {
        code: Code::RelayUnavailable.as_str().into(),
        message: "another connection waits for this link already".into(),
        retry: Retry::AfterMs(500),
    }));
    // Whoever does not read its refusal goes without.
    let _ = timeout(GOODBYE_TIME, newcomer.flush()).await;
}
