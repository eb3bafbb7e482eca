//! The end of a link, and how a link describes itself before.
//!
//! What must stay true: [`Link::finish`] returns within five seconds. By then the link's server and all its descendants
//! are dead, or the end says that they are still dying; what the session had in Vault, where this was its last link, is
//! revoked after that or said to be pending; every call has an outcome in the audit, and so has
//! the link.

use std::borrow::Cow;
use std::time::Duration;

use relay_proto::code::Code;
use relay_proto::control::Retry;
use tokio::time::Instant;

use super::command::{Description, EndReason, Ended, Processes, ScopeProcess};
use super::credential::Credential;
use super::link::Link;
use super::visitor::Enrolled;
use crate::audit::{CallResult, Event, EventRecord};
use crate::vault::session::Left;

/// The whole end, Vault included; what is not revoked by then is said to be pending.
const END_TIME: Duration = Duration::from_millis(4500);

impl Link {
    pub(super) async fn finish(mut self, reason: EndReason) -> Ended {
        let began = Instant::now();
        let unanswered = self.calls.drain_all();
        let calls_unanswered = unanswered.len() + self.repeats.len();
        for call in unanswered {
            self.record_outcome(call, CallResult::OutcomeUnknown, Some(Code::SessionEnded), 0, 0);
        }
        self.write_outcomes();
        self.hand_out();
        let code = match reason {
            EndReason::Cloned => Code::CloneRefused,
            _ => Code::SessionEnded,
        };
        let (message, retry) = farewell(reason, self.session.enrolment.as_ref());
        self.say_goodbye(code, &message, retry).await;
        let grace = self.session.context.config.load().limits.stop_grace;
        let Self { servers, session, id, .. } = self;
        let processes = Processes::from(servers.end(grace).await);
        let took = began.elapsed().as_millis() as u64;
        let vault = match session.credentials.vault() {
            Some(vault) if vault.leave() == Left::Last => vault.end(began + END_TIME).await,
            _ => None,
        };
        let state = match processes {
            Processes::AllEnded => "ended",
            Processes::StillDying => "still dying",
        };
        tracing::info!(link = %id, session = %session.id, reason = reason.as_str(), server = state, "link ended");
        let mut detail = format!("{}; server {state} after {took} ms", reason.as_str());
        if let Some(vault) = &vault {
            detail.push_str("; ");
            detail.push_str(&vault.told());
        }
        let record = EventRecord {
            session: Some(&session.id),
            link: Some(&id),
            detail: Some(&detail),
            ..EventRecord::new(Event::LinkEnd)
        };
        if let Err(error) = session.context.audit.event(&record) {
            tracing::error!(%error, "the end of a link was not recorded");
        }
        Ended { calls_unanswered, processes, server_ended_ms: took, vault }
    }

    pub(super) fn describe(&self) -> Description {
        let config = self.session.context.config.load();
        let secrets =
            config.servers.get(&self.server).map(|server| server.every_secret()).unwrap_or_default();
        let held = self.session.credentials.held();
        Description {
            session: self.session.id.to_string(),
            link: self.id.to_string(),
            grant: self.session.grant.to_string(),
            server: self.server.to_string(),
            connected: self.is_connected(),
            pid: self.servers.pid(),
            replacement: self.servers.replacement(),
            scopes: self.servers.processes_beside().into_iter().map(ScopeProcess::from).collect(),
            in_flight: self.calls.len() + self.repeats.len(),
            calls: self.counted.calls,
            refused: self.counted.refused,
            redactions: self.counted.redactions,
            began: crate::clock::Rfc3339::from(self.session.began).as_str().into(),
            expires_in_seconds: self.session.expires.saturating_duration_since(Instant::now()).as_secs(),
            credentials: held
                .into_iter()
                .filter(|held| secrets.contains(&held.secret))
                .map(Credential::from)
                .collect(),
            secrets: secrets.into_iter().map(ToString::to_string).collect(),
        }
    }
}

/// What the shim is told, and whether it may come again.
fn farewell(reason: EndReason, enrolled: Option<&Enrolled>) -> (Cow<'static, str>, Retry) {
    let over = |why: &str| match enrolled {
        Some(Enrolled { next_step, .. }) => (Cow::Owned(format!("{why}; {next_step}")), Retry::Never),
        None => (Cow::Owned(why.to_owned()), Retry::Never),
    };
    match reason {
        EndReason::Broken => ("the shim broke the relay protocol".into(), Retry::AfterMs(1000)),
        EndReason::Stopped => ("the sidecar is stopping".into(), Retry::AfterMs(500)),
        EndReason::Cloned => {
            over("another copy of this sandbox's state was used at the same time, and goes on")
        }
        // On the shared socket the next link has a time of its own.
        EndReason::Expired if enrolled.is_none() => {
            ("the session's time is over".into(), Retry::AfterMs(500))
        }
        EndReason::Expired => over("the enrolment's time is over"),
        EndReason::Killed => over("the session was ended by the host's administrator"),
        EndReason::Goodbye | EndReason::GraceOver => ("the link is over".into(), Retry::Never),
    }
}
