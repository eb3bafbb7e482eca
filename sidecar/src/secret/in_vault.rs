//! Reads a secret from Vault with a token of the session's own.
//!
//! What must stay true: scrubbers know a token before it is used and a lease's id before anybody has the secret; what may
//! be lent is asked for with a token that nobody else has, and what was lent hangs from that alone; a lease is never
//! believed to outlive its token; what was lent is known to the session, so that it can be given back; a field that
//! cannot be used harms nobody who does not use it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use tokio::time::Instant;

use super::fields::{self, Parsed};
use super::{End, Learn, LeaseUse, Life, Material, SecretProblem, SourceError, Tie, described};
use crate::config::{Origin, SecretSource};
use crate::vault::leases::{Class, Terms};
use crate::vault::login::Trouble;
use crate::vault::session::{Asker, SessionToken, SessionVault, next_try};
use crate::vault::{Data, Envelope, Kind, LeaseId, Problem, Vault, VaultError};

/// Longer than any session.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// A credential that says it has no time left is about to be another: looked at again that often.
const ABOUT_TO_CHANGE: Duration = Duration::from_secs(10);

/// What Vault said.
struct Answer {
    data: Data,
    request_id: String,
    lease: Option<LeaseId>,
    class: Class,
    asked_at: Instant,
    life: Option<Duration>,
}

pub(super) async fn read(
    source: &SecretSource,
    secret_bytes: usize,
    (session, asker): (&SessionVault, Asker),
    learn: &Learn<'_>,
) -> Result<(Material, Terms), SecretProblem> {
    let (answer, token) = ask(source, (session, asker), learn).await?;
    let Answer { data, request_id, lease, class, asked_at, life } = answer;
    let read_with = Some(token.mark());
    let mut terms = Terms { class, asked_at, life, bound: None };
    let hash = lease.as_ref().map(LeaseId::hash);
    let end = match lease {
        Some(id) => {
            learn(&[id.needle("vault.lease-id")], Tie::Token(Arc::downgrade(&token)));
            terms.bound = session.bound(&token);
            session.hold(source.name.as_str(), Arc::new(id), &token).await.map_err(unavailable)?;
            End::WithToken(token)
        }
        None => {
            if let Origin::Vault { .. } = source.origin {
                session.give_back(token).await;
            }
            End::Nothing
        }
    };
    if data.as_bytes().len() > secret_bytes {
        return Err(SourceError::TooLarge { limit: secret_bytes }.into());
    }
    let public: BTreeSet<String> = source.public.iter().cloned().collect();
    let Parsed { fields, unusable } = fields::parse_each(data.as_bytes(), &public, source.short)?;
    let material = Material {
        unusable,
        public,
        origin: described(&source.origin),
        lease: Some(LeaseUse { hash, request_id }),
        end,
        ..Material::of(fields)
    };
    material.extend(Life { read_with, ..Life::of(&terms) });
    Ok((material, terms))
}

/// Asks with a token of the session's; with a new one, once, if that turns out to be dead.
async fn ask(
    source: &SecretSource,
    (session, asker): (&SessionVault, Asker),
    learn: &Learn<'_>,
) -> Result<(Answer, Arc<SessionToken>), SecretProblem> {
    let mut token = token_for(&source.origin, (session, asker), learn).await?;
    let mut answer = request(session.client(), &token, &source.origin).await;
    if answer.as_ref().is_err_and(|error| error.kind() == Kind::Denied) && session.is_dead(&token).await {
        token = token_for(&source.origin, (session, asker), learn).await?;
        answer = request(session.client(), &token, &source.origin).await;
    }
    match answer {
        Ok(answer) => Ok((answer, token)),
        Err(error) => {
            let trouble = Trouble { next: next_try(&error), error };
            // Where Vault did not say no, it may have lent something that we do not know of: that ends with the token.
            if is_refusal(&trouble.error) && matches!(source.origin, Origin::Vault { .. }) {
                session.give_back(token).await;
            }
            Err(unavailable(trouble))
        }
    }
}

async fn token_for(
    origin: &Origin,
    (session, asker): (&SessionVault, Asker),
    learn: &Learn<'_>,
) -> Result<Arc<SessionToken>, SecretProblem> {
    let token = match origin {
        Origin::Vault { .. } => session.token_for_a_lease(asker).await,
        _ => session.token(asker).await,
    };
    let token = token.map_err(unavailable)?;
    let [own, login] = token.needles();
    learn(&[own], Tie::Token(Arc::downgrade(&token)));
    learn(&[login], Tie::Login(token.parent()));
    Ok(token)
}

/// Whether nothing was done.
fn is_refusal(error: &VaultError) -> bool {
    let said_no = matches!(
        error.kind(),
        Kind::Busy { .. } | Kind::Denied | Kind::Invalid | Kind::Missing | Kind::Sealed | Kind::Standby
    );
    said_no || matches!(error.problem, Problem::Unreachable { .. })
}

fn unavailable(trouble: Trouble) -> SecretProblem {
    SecretProblem::Vault(Box::new(trouble))
}

async fn request(vault: &Vault, token: &SessionToken, origin: &Origin) -> Result<Answer, VaultError> {
    let asked_at = Instant::now();
    let envelope = match origin {
        Origin::Kv { path, refresh } => {
            let secret = vault.kv_read(token.reveal(), path.as_str()).await?;
            let class = match secret.refresh {
                Some(every) if every < *refresh => Class::Advised { every },
                _ => Class::Static { every: *refresh },
            };
            let (data, request_id) = (secret.data, secret.request_id);
            return Ok(Answer { data, request_id, lease: None, class, asked_at, life: None });
        }
        Origin::Vault { path, write: Some(values) } => {
            let values = values.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            vault.write(token.reveal(), path.as_str(), &values).await?
        }
        Origin::Vault { path, write: None } => vault.read(token.reveal(), path.as_str()).await?,
        Origin::Env(_) | Origin::Exec(_) | Origin::File(_) => unreachable!("not in Vault"),
    };
    let Envelope { data, request_id, lease_id: lease, lease_duration, renewable, date, .. } = envelope;
    let data = data.unwrap_or_else(Data::empty);
    let said = Some(lease_duration).filter(|life| !life.is_zero()).map(|life| life.min(FAR));
    let (class, life) = match &lease {
        Some(_) if renewable => (Class::Renewable, said),
        Some(_) => (Class::Fixed, said),
        None => match (own_life(&data, date.unwrap_or_else(crate::clock::now)), said) {
            (Some(Duration::ZERO), _) => (Class::Advised { every: ABOUT_TO_CHANGE }, None),
            (Some(life), _) => (Class::OwnEnd, Some(life)),
            // Without a lease it is advice.
            (None, Some(every)) => (Class::Advised { every }, None),
            (None, None) => (Class::OwnEnd, None),
        },
    };
    Ok(Answer { data, request_id, lease, class, asked_at, life })
}

/// How long a credential without a lease lives, as it says itself: `ttl` in seconds, or `expiration` and
/// `expires_at_seconds` by the clock that made them, which says `now`: ours may be another.
fn own_life(data: &Data, now: SystemTime) -> Option<Duration> {
    #[derive(Deserialize)]
    struct Own {
        ttl: Option<serde_json::Value>,
        expiration: Option<serde_json::Value>,
        expires_at_seconds: Option<serde_json::Value>,
    }
    let own: Own = serde_json::from_slice(data.as_bytes()).ok()?;
    let seconds = |value: Option<serde_json::Value>| value?.as_u64();
    let life = seconds(own.ttl).map(Duration::from_secs).or_else(|| {
        let end = seconds(own.expiration).or_else(|| seconds(own.expires_at_seconds))?;
        let end = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(end))?;
        Some(end.duration_since(now).unwrap_or_default())
    })?;
    Some(life.min(FAR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life_of(data: &str, now: u64) -> Option<u64> {
        let envelope = Envelope::for_tests(&format!(r#"{{"data": {data}}}"#));
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
        own_life(&envelope.data.unwrap(), now).map(|life| life.as_secs())
    }

    #[tokio::test]
    async fn a_credential_says_itself_how_long_it_lives() {
        assert_eq!(life_of(r#"{"ttl": 60, "expiration": 5}"#, 0), Some(60));
        assert_eq!(life_of(r#"{"expiration": 1700000600}"#, 1_700_000_000), Some(600));
        assert_eq!(life_of(r#"{"expires_at_seconds": 1700000600}"#, 1_700_000_000), Some(600));
        // Over already: somebody's clock is wrong, or it is about to be another.
        assert_eq!(life_of(r#"{"expiration": 1700000000}"#, 1_800_000_000), Some(0));
        assert_eq!(life_of(r#"{"ttl": 0}"#, 0), Some(0));
        // A hundred years and more.
        assert_eq!(life_of(r#"{"ttl": 18446744073709551615}"#, 0), Some(FAR.as_secs()));
        assert_eq!(life_of(r#"{"expiration": 18446744073709551615}"#, 0), None);
        for nothing in ["{}", r#"{"ttl": "30s"}"#, r#"{"ttl": -1}"#, r#"{"ttl": null}"#, "[]", "null"] {
            let envelope = Envelope::for_tests(&format!(r#"{{"data": {nothing}}}"#));
            let data = envelope.data.unwrap_or_else(Data::empty);
            assert_eq!(own_life(&data, SystemTime::UNIX_EPOCH), None, "{nothing}");
        }
    }
}
