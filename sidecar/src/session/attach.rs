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
use crate::audit::{Event, EventRecord};

impl Link {
    pub(super) async fn attach(&mut self, connection: Connection, resume: Resume) -> ControlFlow<End> {
        if !self.tokens.accept(&resume.token) {
            self.refuse_resume(connection, STRANGE_TOKEN).await;
            return ControlFlow::Continue(());
        }
        self.hear_the_old_connection_out().await?;
        match self.connection {
            Some(_) => self.challenge(connection, resume).await,
            None => self.take_up(connection, resume).await,
        }
        ControlFlow::Continue(())
    }

    /// The link goes on here. There is no other connection any more.
    pub(super) async fn take_up(&mut self, connection: Connection, resume: Resume) {
        // What the old connection still said may have turned it.
        if !self.tokens.accept(&resume.token) {
            return self.refuse_resume(connection, STRANGE_TOKEN).await;
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

    pub(super) async fn refuse_resume(&mut self, mut connection: Connection, reason: &str) {
        if self.alerts.allows() {
            tracing::warn!(link = %self.id, session = %self.session.id, reason, "resume refused");
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
        connection.push(&Frame::Refusal(Refusal {
            code: Code::CloneRefused.as_str().into(),
            message: format!("{reason}; a new link is given to a shim that asks for none"),
            retry: Retry::AfterMs(1000),
        }));
        // Whoever does not read its refusal goes without.
        let _ = timeout(GOODBYE_TIME, connection.flush()).await;
    }
}

const STRANGE_TOKEN: &str = "the resume token is not this link's: another shim may hold a copy of its state";
/// Frames looked through for the end of a connection; one that has more to say is alive.
const MAX_FRAMES: usize = 64;
