//! Reads a secret from Vault with the session's own token.
//!
//! What must stay true: scrubbers know a token before it is used and a lease's id before anybody has the secret; a lease
//! is never believed to outlive the token it hangs from; what was lent is known to the session, so that it can be given
//! back; a field that cannot be used harms nobody who does not use it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use tokio::time::Instant;

use super::fields::{self, Parsed};
use super::{End, LeaseUse, Material, SecretProblem, SourceError, described};
use crate::config::{Limits, Origin, SecretSource};
use crate::scrub::Needle;
use crate::vault::login::Trouble;
use crate::vault::session::{SessionToken, SessionVault, next_try};
use crate::vault::{Data, Kind, LeaseId, Vault, VaultError};

/// A credential that Vault made is read anew when less of its life is left than this.
const LAST_PART: f64 = 0.15;
/// Longer than any session.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// What Vault said.
struct Answer {
    data: Data,
    request_id: String,
    lease: Option<LeaseId>,
    /// Of the lease, or the credential's own.
    expires: Option<Instant>,
    refresh: Option<Instant>,
}

pub(super) async fn read(
    source: &SecretSource,
    limits: &Limits,
    session: &SessionVault,
    learn: &(dyn Fn(&[Needle]) + Send + Sync),
) -> Result<Material, SecretProblem> {
    let (answer, token) = ask(source, session, learn).await?;
    if answer.data.as_bytes().len() > limits.secret_bytes {
        return Err(SourceError::TooLarge { limit: limits.secret_bytes }.into());
    }
    let mut expires = answer.expires;
    let mut hash = None;
    if let Some(id) = answer.lease {
        learn(&[id.needle("vault.lease-id")]);
        hash = Some(id.hash());
        expires = [expires, token.expires].into_iter().flatten().min();
        session.hold(source.name.as_str(), Arc::new(id), expires, &token).await;
    }
    let public: BTreeSet<String> = source.public.iter().cloned().collect();
    let Parsed { fields, unusable } = fields::parse_each(answer.data.as_bytes(), &public, source.short)?;
    Ok(Material {
        fields,
        unusable,
        public,
        origin: described(&source.origin),
        expires,
        refresh: answer.refresh,
        lease: Some(LeaseUse { hash, request_id: answer.request_id }),
        end: End::WithToken(token),
        generation: 0,
    })
}

/// Asks with the session's token; with a new one, once, if that turns out to be dead.
async fn ask(
    source: &SecretSource,
    session: &SessionVault,
    learn: &(dyn Fn(&[Needle]) + Send + Sync),
) -> Result<(Answer, Arc<SessionToken>), SecretProblem> {
    let mut token = session.token().await.map_err(unavailable)?;
    learn(&token.needles());
    let mut answer = request(session.client(), &token, &source.origin).await;
    if answer.as_ref().is_err_and(|error| error.kind() == Kind::Denied) && session.is_dead(&token).await {
        token = session.token().await.map_err(unavailable)?;
        learn(&token.needles());
        answer = request(session.client(), &token, &source.origin).await;
    }
    match answer {
        Ok(answer) => Ok((answer, token)),
        Err(error) => Err(unavailable(Trouble { next: next_try(&error), error })),
    }
}

fn unavailable(trouble: Trouble) -> SecretProblem {
    SecretProblem::Vault(Box::new(trouble))
}

async fn request(vault: &Vault, token: &SessionToken, origin: &Origin) -> Result<Answer, VaultError> {
    let asked_at = Instant::now();
    let envelope = match origin {
        Origin::Kv { path, refresh } => {
            let secret = vault.kv_read(token.reveal(), path.as_str()).await?;
            let refresh = secret.refresh.map_or(*refresh, |asked| asked.min(*refresh));
            return Ok(Answer {
                data: secret.data,
                request_id: secret.request_id,
                lease: None,
                expires: None,
                refresh: Some(asked_at + refresh),
            });
        }
        Origin::Vault { path, write: Some(values) } => {
            let values = values.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            vault.write(token.reveal(), path.as_str(), &values).await?
        }
        Origin::Vault { path, write: None } => vault.read(token.reveal(), path.as_str()).await?,
        Origin::Env(_) | Origin::Exec(_) | Origin::File(_) => unreachable!("not in Vault"),
    };
    let lease_end = envelope.expires();
    let data = envelope.data.unwrap_or_else(Data::empty);
    let expires = lease_end.or_else(|| own_end(&data, asked_at));
    let refresh = expires.map(|end| asked_at + (end - asked_at).mul_f64(1.0 - LAST_PART));
    Ok(Answer { data, request_id: envelope.request_id, lease: envelope.lease_id, expires, refresh })
}

/// When a credential without a lease ends, as it says itself: `ttl` in seconds, or `expiration` by the wall clock.
fn own_end(data: &Data, asked_at: Instant) -> Option<Instant> {
    #[derive(Deserialize)]
    struct Own {
        ttl: Option<serde_json::Value>,
        expiration: Option<serde_json::Value>,
    }
    let own: Own = serde_json::from_slice(data.as_bytes()).ok()?;
    let seconds = |value: Option<serde_json::Value>| value?.as_u64().filter(|seconds| *seconds > 0);
    let left = seconds(own.ttl).map(Duration::from_secs).or_else(|| {
        let end = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds(own.expiration)?))?;
        Some(end.duration_since(crate::clock::now()).unwrap_or_default())
    })?;
    Some(asked_at + left.min(FAR))
}
