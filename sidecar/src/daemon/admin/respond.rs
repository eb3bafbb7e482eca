//! Carries out the requests of the admin API.
//!
//! What must stay true: a caller's right is checked before anything else is done with its request; for what it may not use
//! it gets the same response as for what does not exist.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::clock;
use cofferdam_base::text::error_chain;
use http::StatusCode;
use relay_proto::name::Name;
use tokio::time::Instant;

use super::caller::Caller;
use super::error::ApiError;
use super::listing::{self, NameOf};
use super::tokens::{TokenNotCreated, TokenTerms};
use super::{AdminRequest, AdminResponse, EndedAttachment, MAX_MILLISECONDS, MAX_TOKEN_TTL_MS, PipeVia};
use crate::daemon::attach::hold::{AttachRequest, Hold};
use crate::daemon::attachments::request::AttachmentKey;
use crate::daemon::attachments::status::{AttachmentState, AttachmentStatus};
use crate::daemon::attachments::{AttachmentKeeper, Detach, Follower};
use crate::daemon::enrolling::{EnrollRequest, EnrollVia, Enrolled, Killed};
use crate::daemon::reload::Reloaded;
use crate::daemon::state::Daemon;
use crate::link::registry::Ending;

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

const DEFAULT_TOKEN_TTL: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const MAX_TOKEN_TTL: Duration = Duration::from_millis(MAX_TOKEN_TTL_MS);
const MIN_TOKEN_TTL: Duration = Duration::from_secs(1);
/// Grants of one token.
const MAX_TOKEN_GRANTS: usize = 64;
/// In characters, as for sandboxes.
const MAX_TOKEN_NAME: usize = 64;

pub(super) async fn carry_out(
    daemon: &Arc<Daemon>,
    caller: &Caller,
    request: AdminRequest,
) -> Result<Outcome, ApiError> {
    let response = match request {
        AdminRequest::Attach { grant, name, ttl_ms } => {
            caller.require_grant(&grant)?;
            let request =
                AttachRequest { grant: parse_grant(&grant)?, name, ttl: ttl_ms.map(Duration::from_millis) };
            return Ok(Outcome::Hold(daemon.hold(request).await?));
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
            let keeper = AttachmentKeeper::of(daemon);
            let follower = keeper.attach_platform(&attachment, caller.into()).await?;
            return Ok(Outcome::Follow(follower, detach));
        }
        AdminRequest::CreateToken { grants, name, ttl_ms } => {
            create_token(daemon, caller, grants, name, ttl_ms).await?
        }
        AdminRequest::EndAttachment { name } => match listing::find_attachment(daemon, caller, &name)? {
            Some(attachment) => end_attachment(daemon, &attachment).await?,
            None => {
                let message = format!("there is no attachment `{name}`");
                return Err(ApiError::not_found(message).hint("`cofferdam attach list` lists them"));
            }
        },
        AdminRequest::EndEnrolment { enrolment } => {
            end(daemon, caller, &enrolment, NameOf::Enrolment).await?
        }
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
            enroll(daemon, EnrollRequest { grant: parse_grant(&grant)?, name, ttl, via }).await?
        }
        AdminRequest::Enrolments => {
            AdminResponse::Enrolments { enrolments: listing::enrolments(daemon, caller) }
        }
        AdminRequest::Kill { session } => end(daemon, caller, &session, NameOf::SessionOrEnrolment).await?,
        AdminRequest::Pipe { enrolment, via } => {
            let found = daemon.enrolments.find(&enrolment, clock::now()).ok();
            let is_visible = found.is_some_and(|found| caller.may_use(found.grant.as_str()));
            if is_visible && daemon.is_held(&enrolment) {
                return Ok(Outcome::Pipe { enrolment, via });
            }
            return Err(ApiError::not_found(format!(
                "no `cofferdam attach` holds the enrolment `{enrolment}`"
            )));
        }
        AdminRequest::Reload => {
            caller.require_administrator("reading the configuration again")?;
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
        AdminRequest::RevokeToken { token } => revoke_token(daemon, caller, token).await?,
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

fn parse_grant(grant: &str) -> Result<Name, ApiError> {
    grant.parse().map_err(|error| ApiError::invalid(format!("read the grant's name: {error}")))
}

async fn enroll(daemon: &Arc<Daemon>, request: EnrollRequest) -> Result<AdminResponse, ApiError> {
    let Enrolled { enrolment, text } = daemon.enroll(request).await?;
    let left = enrolment.expires.duration_since(clock::now()).unwrap_or_default();
    let expires_in_seconds = left.as_millis().div_ceil(1000) as u64;
    Ok(AdminResponse::Enrolled { enrolment: enrolment.id.to_string(), expires_in_seconds, text })
}

/// Ends what a name means to the caller: an attachment, or a session with its enrolment.
async fn end(
    daemon: &Arc<Daemon>,
    caller: &Caller,
    name: &str,
    name_of: NameOf,
) -> Result<AdminResponse, ApiError> {
    let resolved = listing::resolve(daemon, caller, name, name_of);
    let attachment = match &resolved {
        Ok(id) => listing::attachment_of_enrolment(daemon, caller, id),
        // An attachment may have no valid enrolment at the moment.
        Err(error) if error.is_not_found() => listing::find_attachment(daemon, caller, name)?
            .filter(|attachment| !matches!(attachment.state, AttachmentState::Over { .. })),
        Err(_) => None,
    };
    if let Some(attachment) = attachment {
        return end_attachment(daemon, &attachment).await;
    }
    let began = Instant::now();
    match daemon.kill(&resolved?).await {
        Some(killed) => report_kill(name, killed, began),
        None => Err(ApiError::not_found(format!("`{name}` has ended meanwhile"))),
    }
}

async fn end_attachment(
    daemon: &Arc<Daemon>,
    attachment: &AttachmentStatus,
) -> Result<AdminResponse, ApiError> {
    let began = Instant::now();
    let name = attachment.name.as_str();
    let key = AttachmentKey { grant: parse_grant(&attachment.grant)?, name: name.to_owned() };
    let Some((lifetime, killed)) = AttachmentKeeper::of(daemon).end(&key).await else {
        return Err(ApiError::not_found(format!("`{name}` has ended meanwhile")));
    };
    let (links, enrolment) = match killed.map(|killed| report_kill(name, killed, began)).transpose()? {
        Some(AdminResponse::Killed { links, enrolment, .. }) => (links, enrolment),
        _ => (Vec::new(), None),
    };
    let attachment = Some(EndedAttachment { name: name.to_owned(), lifetime });
    Ok(AdminResponse::Killed { links, enrolment, attachment, total_ms: began.elapsed().as_millis() as u64 })
}

/// `name` is what the caller wrote.
fn report_kill(name: &str, killed: Killed, began: Instant) -> Result<AdminResponse, ApiError> {
    let Killed { ending: Ending { ended, late }, enrolment, unwritten } = killed;
    if !late.is_empty() {
        let message = format!(
            "session `{name}` is ending but has not ended within 5 s; links still open: {}",
            late.join(", ")
        );
        return Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, "still_ending", message));
    }
    if let (Some(error), Some(enrolment)) = (unwritten, &enrolment) {
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

async fn create_token(
    daemon: &Arc<Daemon>,
    caller: &Caller,
    grants: Vec<String>,
    name: Option<String>,
    ttl_ms: Option<u64>,
) -> Result<AdminResponse, ApiError> {
    caller.require_administrator("creating tokens")?;
    if !(1..=MAX_TOKEN_GRANTS).contains(&grants.len()) {
        return Err(ApiError::invalid(format!("a token is for 1 to {MAX_TOKEN_GRANTS} grants")));
    }
    let is_name = |name: &String| {
        (1..=MAX_TOKEN_NAME).contains(&name.chars().count()) && !name.contains(char::is_control)
    };
    if name.as_ref().is_some_and(|name| !is_name(name)) {
        let message =
            format!("a token's name has 1 to {MAX_TOKEN_NAME} characters and no control characters");
        return Err(ApiError::invalid(message));
    }
    let ttl = ttl_ms.map_or(DEFAULT_TOKEN_TTL, Duration::from_millis);
    if !(MIN_TOKEN_TTL..=MAX_TOKEN_TTL).contains(&ttl) {
        return Err(ApiError::invalid("a token's `--ttl` is between 1s and 366d"));
    }
    let mut known = Vec::new();
    for grant in &grants {
        let grant = parse_grant(grant)?;
        if !daemon.context.config.load().grants.contains_key(&grant) {
            let message = format!("there is no grant `{grant}`");
            return Err(ApiError::new(StatusCode::NOT_FOUND, "grant_unknown", message)
                .hint("the configuration's `[grants.NAME]` tables define them"));
        }
        if !known.contains(&grant) {
            known.push(grant);
        }
    }
    let tokens = Arc::clone(&daemon.admin.tokens);
    let terms = TokenTerms { grants: known, name, ttl };
    let created = daemon.context.tasks.spawn_blocking(move || tokens.create(terms, clock::now())).await;
    let (id, token) = created.map_err(|_| ApiError::internal(FAILED))?.map_err(|error| match &error {
        TokenNotCreated::Full => ApiError::refused(error.to_string()),
        TokenNotCreated::Store(_) => ApiError::internal(error_chain(&error)),
    })?;
    tracing::info!(token = id, grants = grants.join(", "), "token created");
    Ok(AdminResponse::TokenCreated { id, token, expires_in_seconds: ttl.as_secs() })
}

async fn revoke_token(daemon: &Arc<Daemon>, caller: &Caller, id: String) -> Result<AdminResponse, ApiError> {
    caller.require_administrator("revoking tokens")?;
    let (tokens, token) = (Arc::clone(&daemon.admin.tokens), id.clone());
    let revoked = daemon.context.tasks.spawn_blocking(move || tokens.revoke(&token)).await;
    match revoked.map_err(|_| ApiError::internal(FAILED))? {
        Ok(true) => {
            tracing::info!(token = id, "token revoked");
            Ok(AdminResponse::TokenRevoked { id })
        }
        Ok(false) => Err(ApiError::not_found(format!("there is no token `{id}`"))
            .hint("`cofferdam token list` lists them")),
        Err(error) => {
            let message = format!(
                "the token is refused from now on, but after a restart it would be valid again: {}",
                error_chain(&error)
            );
            Err(ApiError::internal(message).hint("remove the file"))
        }
    }
}

const FAILED: &str = "the sidecar failed; see its log";
