//! A shim that comes back to its link on a new connection.
//!
//! Where the old connection seems to be there still, it is asked for a sign of life: a connection that died behind
//! somebody's NAT looks just like one that is quiet. What must stay true: one that answers keeps its link and the
//! newcomer is refused, as a clone would be; one that does not is dropped and the newcomer has the link at once; and the
//! link serves on while it waits for that.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_base::RateLimiter;
use futures_util::FutureExt;
use relay_proto::code::Code;
use relay_proto::control::{Refusal, Resume, ResumeToken, Resumed, Retry, Welcome};
use relay_proto::frame::Frame;
use relay_proto::limits::{DEFAULT_WINDOW, VERSION};
use tokio::time::{Instant, timeout};

use super::Session;
use super::connection::{Connection, LEAVING_TIME};
use super::link::{End, GOODBYE_TIME, Link};
use super::visitor::{Enrolled, EnrolledBy};
use crate::audit::{Event, EventRecord};

/// Somebody with the token of a link that another connection has. There is one at most.
pub(super) struct Newcomer {
    connection: Connection,
    resume: Resume,
    /// The Ping that the old connection must answer.
    ping: u64,
    until: Instant,
}

/// How long the old connection has to answer, unless a heartbeat is shorter. A shim waits five times as long for its
/// Welcome.
const SIGN_OF_LIFE_TIME: Duration = Duration::from_secs(2);
/// When whoever comes meanwhile may try again: the test is over then.
const TRY_AGAIN: Retry = Retry::AfterMs(SIGN_OF_LIFE_TIME.as_millis() as u64);
/// Frames looked through for the end of a connection; one that has more to say is alive.
const MAX_FRAMES: usize = 64;
/// Why a connection is given up that nobody closed.
pub(super) const NO_SIGN_OF_LIFE: &str = "the peer gave no sign of life";
/// Nobody is harmed, and it may be a copy that was careful: it is in the log, and no alert.
const LATE: &str = "somebody came with a link's former token and left before any answer: a Hello that was under way for long";
const FOREIGN_TOKEN: &str = "the resume token is not this link's: another shim may hold a copy of its state";

impl Newcomer {
    pub(super) fn deadline(&self) -> Instant {
        self.until
    }

    /// One whose own connection is over makes room for the next.
    fn still_waits(&mut self) -> bool {
        self.connection.next().now_or_never().is_none()
    }
}

impl Link {
    pub(super) async fn attach(&mut self, connection: Connection, resume: Resume) -> ControlFlow<End> {
        if !self.tokens.accept(&resume.token) {
            match self.tokens.has_just_turned(&resume.token) {
                true => self.refuse_clone_unless_late(connection),
                false => self.refuse_clone(connection, FOREIGN_TOKEN),
            }
            return ControlFlow::Continue(());
        }
        self.hear_the_old_connection_out().await?;
        match &mut self.connection {
            None => self.take_up(connection, resume),
            Some(_) if self.newcomer.as_mut().is_some_and(Newcomer::still_waits) => {
                let message = "the link is in use, and another connection that wants it came first".into();
                let code = Code::RelayUnavailable.as_str().into();
                self.refuse_newcomer(connection, Refusal { code, message, retry: TRY_AGAIN });
            }
            Some(old) => {
                let ping = old.ping();
                let time = self.session.context.config.load().relay.heartbeat.min(SIGN_OF_LIFE_TIME);
                self.newcomer = Some(Newcomer { connection, resume, ping, until: Instant::now() + time });
            }
        }
        ControlFlow::Continue(())
    }

    /// Decides between the old connection and a newcomer, as soon as that can be done.
    pub(super) fn settle_newcomer(&mut self) {
        let Some(newcomer) = &self.newcomer else { return };
        let alive = match &self.connection {
            Some(old) if old.has_answered(newcomer.ping) => true,
            Some(_) if Instant::now() < newcomer.until => return,
            Some(_) | None => false,
        };
        let Some(mut newcomer) = self.newcomer.take() else { return };
        // Nobody is there to have the link, nor any reason to take it from the old connection.
        if !newcomer.still_waits() {
            if self.talk.allows(Instant::now()) {
                tracing::warn!(link = %self.id, session = %self.session.id, "{LATE}");
            }
            return;
        }
        let Newcomer { connection, resume, .. } = newcomer;
        if alive {
            return self.refuse_clone(connection, "the link is in use on another connection, which answers");
        }
        if self.connection.is_some() {
            self.disconnected(&NO_SIGN_OF_LIFE);
        }
        // What the old connection said last may have turned the token.
        match self.tokens.accept(&resume.token) {
            true => self.take_up(connection, resume),
            false => self.refuse_clone(connection, FOREIGN_TOKEN),
        }
    }

    fn take_up(&mut self, connection: Connection, resume: Resume) {
        if self.outbox.resume(resume.received, DEFAULT_WINDOW).is_err() {
            return self.refuse_clone(connection, "the shim claims to have received what was never sent");
        }
        let token = self.tokens.offer(resume.token);
        self.inbox.resume();
        let welcome = self.welcome(Resumed::Resumed, token);
        self.connection = Some(connection);
        self.lost = None;
        self.push(&Frame::Welcome(welcome));
    }

    pub(super) fn welcome(&self, resumed: Resumed, token: ResumeToken) -> Welcome {
        let config = self.session.context.config.load();
        Welcome {
            version: VERSION,
            session: self.session.id.to_string(),
            link: self.id.to_string(),
            server: self.server.clone(),
            resumed,
            token,
            epoch: None,
            received: self.inbox.received(),
            window: self.promised.window_bytes,
            max_message: self.promised.message_bytes as u64,
            heartbeat_ms: config.relay.heartbeat.as_millis() as u64,
        }
    }

    /// The old connection may be over without our having noticed: then there is nobody to be in the way of.
    async fn hear_the_old_connection_out(&mut self) -> ControlFlow<End> {
        for _ in 0..MAX_FRAMES {
            let Some(connection) = &mut self.connection else { break };
            match connection.next().now_or_never() {
                None => break,
                Some(Ok(frame)) => self.frames(frame).await?,
                Some(Err(lost)) => self.disconnected(&lost),
            }
        }
        ControlFlow::Continue(())
    }

    /// Somebody else may hold a copy of the shim's memory. Of two copies of a key one is enough; elsewhere there is a link
    /// for everybody.
    fn refuse_clone(&mut self, connection: Connection, reason: &str) {
        self.alert(reason);
        self.refuse_newcomer(connection, self.clone_refusal(reason));
    }

    /// The same, where it may be a Hello of the shim's own that was under way for long: then nobody waits for an answer.
    /// Where too many are looked at already, it is not.
    fn refuse_clone_unless_late(&mut self, mut connection: Connection) {
        let Ok(place) = Arc::clone(&self.late).try_acquire_owned() else {
            return self.refuse_clone(connection, FOREIGN_TOKEN);
        };
        let refusal = self.clone_refusal(FOREIGN_TOKEN);
        let may_talk = self.talk.allows(Instant::now());
        let (session, link, alerts) =
            (Arc::clone(&self.session), Arc::clone(&self.id), Arc::clone(&self.alerts));
        self.session.context.tasks.spawn(async move {
            let _place = place;
            if connection.leaves_within(LEAVING_TIME).await {
                if may_talk {
                    tracing::warn!(%link, session = %session.id, "{LATE}");
                }
                return;
            }
            // Not before: whoever leaves must not use up the alerts about whoever comes next.
            if allows(&alerts) {
                record_alert(&session, &link, FOREIGN_TOKEN);
            }
            connection.push(&Frame::Refusal(refusal));
            let _ = timeout(GOODBYE_TIME, connection.flush()).await;
        });
    }

    fn clone_refusal(&self, reason: &str) -> Refusal {
        let (next, retry) = match &self.session.enrolment {
            Some(Enrolled { kind: EnrolledBy::Key, next_step, .. }) => (*next_step, Retry::Never),
            _ => ("a new link is given to a shim that asks for none", Retry::AfterMs(1000)),
        };
        let code = Code::CloneRefused.as_str().into();
        Refusal { code, message: format!("{reason}; {next}"), retry }
    }

    /// The link does not wait for somebody who does not read its refusal.
    fn refuse_newcomer(&self, mut connection: Connection, refusal: Refusal) {
        connection.push(&Frame::Refusal(refusal));
        self.session.context.tasks.spawn(async move {
            let _ = timeout(GOODBYE_TIME, connection.flush()).await;
        });
    }

    /// Two used what belongs to one.
    pub(super) fn alert(&mut self, reason: &str) {
        if allows(&self.alerts) {
            record_alert(&self.session, &self.id, reason);
        }
    }
}

fn allows(alerts: &Mutex<RateLimiter>) -> bool {
    alerts.lock().unwrap_or_else(PoisonError::into_inner).allows(Instant::now())
}

fn record_alert(session: &Session, link: &str, reason: &str) {
    tracing::warn!(link, session = %session.id, reason, "link or key used twice");
    let record = EventRecord {
        session: Some(&session.id),
        link: Some(link),
        detail: Some(reason),
        ..EventRecord::new(Event::Alert)
    };
    if let Err(error) = session.context.audit.event(&record) {
        tracing::error!(%error, "an alert was not recorded");
    }
}

#[cfg(test)]
mod tests;
