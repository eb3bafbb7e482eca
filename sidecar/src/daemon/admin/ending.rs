//! Ends sessions, enrolments and attachments for callers.
//!
//! What must stay true: a request to end something is carried out and recorded even if its caller disconnects meanwhile,
//! and is carried out even if it cannot be recorded.

use std::sync::Arc;

use cofferdam_audit::AdminAction;
use cofferdam_base::text::error_chain;
use http::StatusCode;
use tokio::time::Instant;

use super::actions::{Action, Target, run_in_own_task};
use super::caller::Caller;
use super::error::ApiError;
use super::listing::{self, NameOf};
use super::respond::parse_grant;
use super::{AdminResponse, EndedAttachment};
use crate::daemon::attachments::request::AttachmentKey;
use crate::daemon::attachments::status::{AttachmentState, AttachmentStatus};
use crate::daemon::attachments::{AttachmentKeeper, EndReason};
use crate::daemon::enrolling::Killed;
use crate::daemon::state::Daemon;
use crate::link::registry::Ending;

/// Ends the attachment, or the session with its enrolment, that a name or id of the caller refers to.
pub(super) async fn end(
    daemon: &Arc<Daemon>,
    caller: &Caller,
    name: String,
    name_of: NameOf,
) -> Result<AdminResponse, ApiError> {
    let kind = match name_of {
        NameOf::Enrolment => AdminAction::EndEnrolment,
        NameOf::SessionOrEnrolment => AdminAction::Kill,
    };
    let resolved = listing::resolve(daemon, caller, &name, name_of);
    let attachment = match &resolved {
        Ok(id) => listing::attachment_of_enrolment(daemon, caller, id),
        // An attachment may have no valid enrolment at the moment.
        Err(error) if error.is_not_found() => listing::find_attachment(daemon, caller, &name)?
            .filter(|attachment| !matches!(attachment.state, AttachmentState::Over { .. })),
        Err(_) => None,
    };
    if let Some(attachment) = attachment {
        return end_attachment(daemon, caller, kind, attachment).await;
    }
    let id = resolved?;
    let action = Action::new(daemon, caller, kind, Target::of_id(daemon, &id));
    let killer = Arc::clone(daemon);
    end_and_record(daemon, action, async move {
        let began = Instant::now();
        match killer.kill(&id).await {
            Some(killed) => kill_response(&name, killed, began),
            None => Err(ApiError::not_found(format!("`{name}` has ended meanwhile"))),
        }
    })
    .await
}

/// Ends an attachment that the caller may see.
pub(super) async fn end_attachment(
    daemon: &Arc<Daemon>,
    caller: &Caller,
    kind: AdminAction,
    attachment: AttachmentStatus,
) -> Result<AdminResponse, ApiError> {
    let action = Action::new(daemon, caller, kind, Target::of_attachment(daemon, &attachment));
    let (keeper, name) = (AttachmentKeeper::of(daemon), attachment.name);
    let reason = EndReason::Requested(caller.into());
    let key = AttachmentKey { grant: parse_grant(&attachment.grant)?, name: name.clone() };
    end_and_record(daemon, action, async move {
        let began = Instant::now();
        let Some((lifetime, killed)) = keeper.end(&key, reason).await else {
            return Err(ApiError::not_found(format!("`{name}` has ended meanwhile")));
        };
        let (links, enrolment) = match killed.map(|killed| kill_response(&name, killed, began)).transpose()? {
            Some(AdminResponse::Killed { links, enrolment, .. }) => (links, enrolment),
            _ => (Vec::new(), None),
        };
        let attachment = Some(EndedAttachment { name, lifetime });
        let total_ms = began.elapsed().as_millis() as u64;
        Ok(AdminResponse::Killed { links, enrolment, attachment, total_ms })
    })
    .await
}

/// Ends something in its own task, and records the result.
async fn end_and_record(
    daemon: &Arc<Daemon>,
    action: Action,
    end: impl Future<Output = Result<AdminResponse, ApiError>> + Send + 'static,
) -> Result<AdminResponse, ApiError> {
    run_in_own_task(daemon, async move {
        let result = end.await;
        action.record_result(&result);
        result
    })
    .await
}

/// The response to a kill. `name` is the name or id from the request.
fn kill_response(name: &str, killed: Killed, began: Instant) -> Result<AdminResponse, ApiError> {
    let Killed { ending: Ending { ended, late }, enrolment, save_error } = killed;
    if !late.is_empty() {
        let message = format!(
            "session `{name}` is ending but has not ended within 5 s; links still open: {}",
            late.join(", ")
        );
        return Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, "still_ending", message));
    }
    if let (Some(error), Some(enrolment)) = (save_error, &enrolment) {
        let message = format!(
            "all links have ended, but the end of the enrolment was not saved: {}; after a restart of the sidecar the \
             enrolment {enrolment} would be valid again: free disk space and kill it again, or remove its file",
            error_chain(&error)
        );
        return Err(ApiError::internal(message));
    }
    let total_ms = began.elapsed().as_millis() as u64;
    let enrolment = enrolment.map(|id| id.to_string());
    Ok(AdminResponse::Killed { links: ended, enrolment, attachment: None, total_ms })
}
