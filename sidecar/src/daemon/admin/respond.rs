//! Carries out the requests of the admin API.
//!
//! What must stay true: a caller's right is checked before anything else is done with its request; a caller gets the same
//! response for something that it may not use as for something that does not exist.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_audit::AdminAction;
use cofferdam_base::clock;
use http::StatusCode;
use relay_proto::name::Name;

use super::actions::{Action, Target};
use super::caller::Caller;
use super::ending::{end, end_attachment};
use super::error::ApiError;
use super::listing::{self, NameOf};
use super::{AdminRequest, AdminResponse, MAX_MILLISECONDS, PipeVia, token_requests};
use crate::daemon::attach::hold::{Hold, HoldRequest};
use crate::daemon::attachments::{AttachmentKeeper, Detach, Follower};
use crate::daemon::enrolling::{EnrollRequest, EnrollVia, Enrolled};
use crate::daemon::reload::Reloaded;
use crate::daemon::state::Daemon;

/// The result of a request.
pub(super) enum Outcome {
    /// The connection follows an attachment from now on.
    Follow(Follower, Detach),
    /// The connection holds a sandbox from now on.
    Hold(Hold),
    /// The connection is a pipe from now on.
    Pipe {
        enrolment: String,
        via: PipeVia,
    },
    Response(AdminResponse),
    /// The response is the stream of changes.
    Watch,
}

pub(super) async fn carry_out(
    daemon: &Arc<Daemon>,
    caller: &Caller,
    request: AdminRequest,
) -> Result<Outcome, ApiError> {
    let response = match request {
        AdminRequest::Attach { grant, name, ttl_ms } => {
            caller.require_grant(&grant)?;
            let target = Target::sandbox(&grant, Some(&name));
            let request =
                HoldRequest { grant: parse_grant(&grant)?, name, ttl: ttl_ms.map(Duration::from_millis) };
            let hold = async { Ok(daemon.hold(request).await?) };
            let action = Action::new(daemon, caller, AdminAction::Attach, target);
            let record_enrolment =
                |hold: &Hold, target: &mut Target| target.enrolment = Some(hold.enrolment.to_string());
            return Ok(Outcome::Hold(action.carry_out(hold, record_enrolment).await?));
        }
        AdminRequest::Attachments => {
            AdminResponse::Attachments { attachments: listing::attachments(daemon, caller) }
        }
        AdminRequest::AttachPlatform { attachment, detach } => {
            caller.require_grant(&attachment.grant)?;
            if attachment.shim.is_some() {
                caller.require_administrator("a shim in a file of the host")?;
            }
            let detach = match detach {
                true => Detach::WhenAttached,
                false => Detach::No,
            };
            let name = attachment.name.as_ref().unwrap_or(&attachment.sandbox);
            let target = Target::sandbox(&attachment.grant, Some(name));
            let started =
                async { Ok(AttachmentKeeper::of(daemon).attach_platform(&attachment, caller.into()).await?) };
            let action = Action::new(daemon, caller, AdminAction::AttachPlatform, target);
            return Ok(Outcome::Follow(action.carry_out(started, |_, _| ()).await?, detach));
        }
        AdminRequest::CreateToken { grants, name, ttl_ms } => {
            token_requests::create(daemon, caller, grants, name, ttl_ms).await?
        }
        AdminRequest::EndAttachment { name } => match listing::find_attachment(daemon, caller, &name)? {
            Some(attachment) => {
                end_attachment(daemon, caller, AdminAction::EndAttachment, attachment).await?
            }
            None => {
                let message = format!("there is no attachment `{name}`");
                return Err(ApiError::not_found(message).with_hint("`cofferdam attach list` lists them"));
            }
        },
        AdminRequest::EndEnrolment { enrolment } => end(daemon, caller, enrolment, NameOf::Enrolment).await?,
        AdminRequest::Enroll { grant, name, ttl_ms, ticket_ttl_ms, socket } => {
            caller.require_grant(&grant)?;
            let via = match socket {
                Some(directory) => {
                    caller.require_administrator("a socket in a directory of the host")?;
                    EnrollVia::Socket { directory }
                }
                None if ticket_ttl_ms > MAX_MILLISECONDS => {
                    return Err(ApiError::invalid("`ticket-ttl-ms` is too large"));
                }
                None => EnrollVia::Ticket { ttl: Duration::from_millis(ticket_ttl_ms) },
            };
            let ttl = ttl_ms.map(Duration::from_millis);
            let target = Target::sandbox(&grant, name.as_deref());
            let request = EnrollRequest { grant: parse_grant(&grant)?, name, ttl, via };
            let action = Action::new(daemon, caller, AdminAction::Enroll, target);
            enroll(daemon, action, request).await?
        }
        AdminRequest::Enrolments => {
            AdminResponse::Enrolments { enrolments: listing::enrolments(daemon, caller) }
        }
        AdminRequest::Kill { session } => end(daemon, caller, session, NameOf::SessionOrEnrolment).await?,
        AdminRequest::Pipe { enrolment, via } => {
            let found = daemon.enrolments.find(&enrolment, clock::now()).ok();
            let is_visible = found.is_some_and(|found| caller.may_use(found.grant.as_str()));
            if is_visible && daemon.is_held(&enrolment) {
                return Ok(Outcome::Pipe { enrolment, via });
            }
            return Err(ApiError::not_found(format!(
                "nothing holds the enrolment `{enrolment}`: it is unknown, or its `cofferdam attach` has ended"
            )));
        }
        AdminRequest::Reload => {
            caller.require_administrator("reloading the configuration")?;
            match daemon.reload() {
                Ok(Reloaded { policy, at_restart }) => AdminResponse::Reloaded {
                    policy,
                    at_restart: at_restart.into_iter().map(str::to_owned).collect(),
                },
                Err(problems) => {
                    return Err(ApiError::new(
                        StatusCode::UNPROCESSABLE_ENTITY,
                        "configuration_invalid",
                        problems.to_string(),
                    ));
                }
            }
        }
        AdminRequest::RevokeToken { token } => token_requests::revoke(daemon, caller, token).await?,
        AdminRequest::Sessions => {
            let mut sessions = daemon.registry.describe().await;
            sessions.retain(|session| caller.may_use(&session.grant));
            AdminResponse::Sessions {
                sessions,
                attached: listing::attached(daemon, caller),
                attachments: listing::attachments(daemon, caller),
            }
        }
        AdminRequest::Tokens => {
            caller.require_administrator("a list of tokens")?;
            AdminResponse::Tokens { tokens: daemon.admin.tokens.list(clock::now()) }
        }
        AdminRequest::Watch => return Ok(Outcome::Watch),
    };
    Ok(Outcome::Response(response))
}

pub(super) fn parse_grant(grant: &str) -> Result<Name, ApiError> {
    grant.parse().map_err(|error| ApiError::invalid(format!("the grant's name is invalid: {error}")))
}

async fn enroll(
    daemon: &Arc<Daemon>,
    action: Action,
    request: EnrollRequest,
) -> Result<AdminResponse, ApiError> {
    let enrolled = async { Ok(daemon.enroll(request).await?) };
    let record_enrolment = |enrolled: &Enrolled, target: &mut Target| {
        target.enrolment = Some(enrolled.enrolment.id.to_string());
    };
    let Enrolled { enrolment, connect_string } = action.carry_out(enrolled, record_enrolment).await?;
    let time_left = enrolment.expires.duration_since(clock::now()).unwrap_or_default();
    let expires_in_seconds = time_left.as_millis().div_ceil(1000) as u64;
    Ok(AdminResponse::Enrolled {
        enrolment: enrolment.id.to_string(),
        expires_in_seconds,
        text: connect_string,
    })
}

pub(super) const FAILED: &str = "the sidecar failed; see its log";
