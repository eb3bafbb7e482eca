//! A shim that comes back to its link on a new connection.

use std::ops::ControlFlow;

use futures_util::FutureExt;
use relay_proto::code::Code;
use relay_proto::control::{Refusal, Resume, ResumeToken, Resumed, Retry, Welcome};
use relay_proto::frame::Frame;
use relay_proto::limits::{DEFAULT_WINDOW, VERSION};
use tokio::time::timeout;

use super::connection::Connection;
use super::link::{End, GOODBYE_TIME, Link};
use super::visitor::{Enrolled, EnrolledBy};
use crate::audit::{Event, EventRecord};

impl Link {
    pub(super) async fn attach(&mut self, connection: Connection, resume: Resume) -> ControlFlow<End> {
        if !self.tokens.accept(&resume.token) {
            let reason = "the resume token is not this link's: another shim may hold a copy of its state";
            self.refuse_resume(connection, reason).await;
            return ControlFlow::Continue(());
        }
        self.hear_the_old_connection_out().await?;
        match self.connection {
            Some(_) => self.challenge(connection, resume),
            None => self.take_up(connection, resume).await,
        }
        ControlFlow::Continue(())
    }

    /// The link goes on with this connection, which came with a good token. (It may have turned since.)
    pub(super) async fn take_up(&mut self, connection: Connection, resume: Resume) {
        if !self.tokens.accept(&resume.token) {
            return self.refuse_resume(connection, "the resume token was used by another").await;
        }
        if self.outbox.resume(resume.received, DEFAULT_WINDOW).is_err() {
            return self
                .refuse_resume(connection, "the shim claims to have received what was never sent")
                .await;
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

    /// Whoever has a copy of a key is a clone, and one is enough; elsewhere there is a link for everybody.
    pub(super) async fn refuse_resume(&mut self, mut connection: Connection, reason: &str) {
        self.alert(reason);
        let (next, retry) = match &self.session.enrolment {
            Some(Enrolled { kind: EnrolledBy::Key, next_step, .. }) => (*next_step, Retry::Never),
            _ => ("a new link is given to a shim that asks for none", Retry::AfterMs(1000)),
        };
        connection.push(&Frame::Refusal(Refusal {
            code: Code::CloneRefused.as_str().into(),
            message: format!("{reason}; {next}"),
            retry,
        }));
        // Whoever does not read its refusal goes without.
        let _ = timeout(GOODBYE_TIME, connection.flush()).await;
    }

    /// Two used what belongs to one.
    pub(super) fn alert(&mut self, reason: &str) {
        if self.alerts.allows() {
            tracing::warn!(link = %self.id, session = %self.session.id, reason, "link or key used twice");
            let record = EventRecord {
                session: Some(&self.session.id),
                link: Some(&self.id),
                detail: Some(reason),
                ..EventRecord::new(Event::Alert)
            };
            if let Err(error) = self.session.context.audit.event(&record) {
                tracing::error!(%error, "an alert was not recorded");
            }
        }
    }
}

/// Frames looked through for the end of a connection; one that has more to say is alive.
const MAX_FRAMES: usize = 64;
