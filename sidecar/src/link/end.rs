//! Ends a link and its server processes.
//!
//! What must stay true: [`Link::finish`] returns within five seconds. By then the link's server and all its descendants
//! are dead, or reported as still dying; the session's leases in Vault, where this was its last link, are revoked after
//! that or reported as pending, and credentials that outlive the session are named with their expiry; the outcome of every call and the end of the link are in the audit.

use std::borrow::Cow;
use std::time::Duration;

use cofferdam_audit::{Event, EventRecord};
use cofferdam_scrub::Naming;
use cofferdam_vault::RemainingLinks;
use relay_proto::code::Code;
use relay_proto::control::Retry;
use tokio::time::Instant;

use super::Link;
use super::command::{EndReason, Ended, Processes};
use super::not_revocable::NotRevocable;
use super::peer::{Credit, Peer};
use crate::session::principal::Enrolled;

/// For the whole end, revocation in Vault included; leases that are not revoked by then are reported as pending.
const END_TIMEOUT: Duration = Duration::from_millis(4500);

impl Link {
    pub(super) async fn finish(mut self, reason: EndReason) -> Ended {
        let began = Instant::now();
        let calls_unanswered = self.pipeline.end(began);
        self.peer.send(&mut self.pipeline.replies, Credit::Withhold);
        let code = match reason {
            EndReason::Cloned => Code::CloneRefused,
            _ => Code::SessionEnded,
        };
        let (message, retry) = goodbye_message(reason, self.peer.session.enrolment.as_ref());
        self.peer.send_goodbye(code, &message, retry).await;
        let Self { servers, peer, mut end_record, .. } = self;
        let Peer { session, link, .. } = peer;
        let grace = session.context.config.load().limits.stop_grace;
        let processes = Processes::from(servers.end(grace).await);
        let took = began.elapsed().as_millis() as u64;
        let (vault, not_revocable) = match session.leave() {
            RemainingLinks::None => {
                let vault = match &session.vault {
                    Some(vault) => vault.end(began + END_TIMEOUT).await,
                    None => None,
                };
                // A reason may quote Vault, and goes to the audit and to the client of `kill`.
                let scrubber = session.context.values().scrubber(Naming::All);
                let vault = vault.map(|ended| ended.map_reasons(|why| scrubber.name(why).into_owned()));
                (vault, NotRevocable::of_session(&session))
            }
            RemainingLinks::Some => (None, Vec::new()),
        };
        let state = match processes {
            Processes::AllEnded => "ended",
            Processes::StillDying => "still dying",
        };
        tracing::info!(%link, session = %session.id, reason = reason.as_str(), server = state, "link ended");
        let mut detail = format!("{}; server {state} after {took} ms", reason.as_str());
        if let Some(vault) = &vault {
            detail.push_str("; ");
            detail.push_str(&vault.summary());
        }
        detail.push_str(&NotRevocable::audit_suffix(&not_revocable));
        let record = EventRecord {
            session: Some(&session.id),
            link: Some(&link),
            detail: Some(&detail),
            ..EventRecord::new(Event::LinkEnd)
        };
        session.record_reserved_event(&mut end_record, &record);
        Ended { calls_unanswered, processes, server_ended_ms: took, vault, not_revocable }
    }
}

/// The message of the Goodbye to the shim, and whether the shim may reconnect.
fn goodbye_message(reason: EndReason, enrolled: Option<&Enrolled>) -> (Cow<'static, str>, Retry) {
    let final_goodbye = |why: &str| match enrolled {
        Some(Enrolled { next_step, .. }) => (Cow::Owned(format!("{why}; {next_step}")), Retry::Never),
        None => (Cow::Owned(why.to_owned()), Retry::Never),
    };
    match reason {
        EndReason::Broken => ("the shim broke the relay protocol".into(), Retry::AfterMs(1000)),
        EndReason::Stopped => ("the sidecar is stopping".into(), Retry::AfterMs(500)),
        EndReason::Cloned => {
            final_goodbye("another copy of this sandbox's state was used at the same time, and stays in use")
        }
        // On the shared socket the next link gets a new session with a new expiry.
        EndReason::Expired if enrolled.is_none() => ("the session has expired".into(), Retry::AfterMs(500)),
        EndReason::Expired => final_goodbye("the enrolment has expired"),
        EndReason::Killed => final_goodbye("the session was ended by the host's administrator"),
        EndReason::Goodbye | EndReason::GraceOver => ("the link has ended".into(), Retry::Never),
    }
}
