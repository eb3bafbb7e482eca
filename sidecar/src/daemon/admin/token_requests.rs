//! Creates and revokes bearer tokens for administrators.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_audit::AdminAction;
use cofferdam_base::clock;
use cofferdam_base::text::error_chain;
use http::StatusCode;
use relay_proto::name::Name;

use super::actions::{Action, Target, run_in_own_task};
use super::caller::Caller;
use super::error::ApiError;
use super::respond::{FAILED, parse_grant};
use super::tokens::{TokenNotCreated, TokenTerms};
use super::{AdminResponse, MAX_TOKEN_TTL_MS};
use crate::config::suggest;
use crate::daemon::state::Daemon;

const DEFAULT_TOKEN_TTL: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const MAX_TOKEN_TTL: Duration = Duration::from_millis(MAX_TOKEN_TTL_MS);
const MIN_TOKEN_TTL: Duration = Duration::from_secs(1);
/// How many grants one token may have.
const MAX_TOKEN_GRANTS: usize = 64;
/// The same limit as for the names of sandboxes.
const MAX_TOKEN_NAME_CHARS: usize = 64;

pub(super) async fn create(
    daemon: &Arc<Daemon>,
    caller: &Caller,
    grants: Vec<String>,
    name: Option<String>,
    ttl_ms: Option<u64>,
) -> Result<AdminResponse, ApiError> {
    caller.require_administrator("creating tokens")?;
    let terms = check_terms(daemon, &grants, name, ttl_ms)?;
    let names = terms.grants.iter().map(Name::as_str).collect::<Vec<_>>().join(",");
    let target = Target { grant: Some(names), ..Target::default() };
    let creator = Arc::clone(daemon);
    let ttl = terms.ttl;
    let created = async move {
        let tokens = Arc::clone(&creator.admin.tokens);
        let created = creator.context.tasks.spawn_blocking(move || tokens.create(terms, clock::now())).await;
        created.map_err(|_| ApiError::internal(FAILED))?.map_err(|error| match &error {
            TokenNotCreated::Full => ApiError::refused(error.to_string()),
            TokenNotCreated::Store(_) => ApiError::internal(error_chain(&error)),
        })
    };
    let action = Action::new(daemon, caller, AdminAction::CreateToken, target);
    let (id, token) = action.carry_out(created, |(id, _), target| target.token = Some(id.clone())).await?;
    tracing::info!(token = id, grants = grants.join(", "), "token created");
    Ok(AdminResponse::TokenCreated { id, token, expires_in_seconds: ttl.as_secs() })
}

fn check_terms(
    daemon: &Daemon,
    grants: &[String],
    name: Option<String>,
    ttl_ms: Option<u64>,
) -> Result<TokenTerms, ApiError> {
    if !(1..=MAX_TOKEN_GRANTS).contains(&grants.len()) {
        return Err(ApiError::invalid(format!("a token must have 1 to {MAX_TOKEN_GRANTS} grants")));
    }
    let is_valid = |name: &String| {
        (1..=MAX_TOKEN_NAME_CHARS).contains(&name.chars().count()) && !name.contains(char::is_control)
    };
    if name.as_ref().is_some_and(|name| !is_valid(name)) {
        let message = format!(
            "a token's name must have 1 to {MAX_TOKEN_NAME_CHARS} characters and no control characters"
        );
        return Err(ApiError::invalid(message));
    }
    let ttl = ttl_ms.map_or(DEFAULT_TOKEN_TTL, Duration::from_millis);
    if !(MIN_TOKEN_TTL..=MAX_TOKEN_TTL).contains(&ttl) {
        return Err(ApiError::invalid("a token's `--ttl` must be between 1s and 366d"));
    }
    let mut known = Vec::new();
    for grant in grants {
        let grant = parse_grant(grant)?;
        let config = daemon.context.config.load();
        if !config.grants.contains_key(&grant) {
            let message = format!("there is no grant `{grant}`");
            let hint = suggest::hint(grant.as_str(), "grant", config.grants.keys().map(Name::as_str));
            return Err(ApiError::new(StatusCode::NOT_FOUND, "grant_unknown", message).with_hint(hint));
        }
        if !known.contains(&grant) {
            known.push(grant);
        }
    }
    Ok(TokenTerms { grants: known, name, ttl })
}

/// Revokes a token, whether or not the revocation can be recorded.
pub(super) async fn revoke(
    daemon: &Arc<Daemon>,
    caller: &Caller,
    id: String,
) -> Result<AdminResponse, ApiError> {
    caller.require_administrator("revoking tokens")?;
    let target = Target { token: Some(id.clone()), ..Target::default() };
    let action = Action::new(daemon, caller, AdminAction::RevokeToken, target);
    run_in_own_task(daemon, revoke_and_record(Arc::clone(daemon), action, id)).await
}

/// An unknown id is not recorded: the text may be a whole token that the operator gave instead of its id.
async fn revoke_and_record(
    daemon: Arc<Daemon>,
    action: Action,
    id: String,
) -> Result<AdminResponse, ApiError> {
    let (tokens, token) = (Arc::clone(&daemon.admin.tokens), id.clone());
    let revoked = daemon.context.tasks.spawn_blocking(move || tokens.revoke(&token)).await;
    let revoked = match revoked.map_err(|_| ApiError::internal(FAILED))? {
        Ok(true) => Ok(()),
        Ok(false) => {
            let message = format!("there is no token `{id}`");
            return Err(ApiError::not_found(message).with_hint("`cofferdam token list` lists them"));
        }
        Err(error) => {
            let message = format!(
                "the token is refused from now on, but after a restart it would be valid again: {}",
                error_chain(&error)
            );
            Err(ApiError::internal(message).with_hint("remove the token's file"))
        }
    };
    action.record_result(&revoked);
    revoked?;
    tracing::info!(token = id, "token revoked");
    Ok(AdminResponse::TokenRevoked { id })
}
