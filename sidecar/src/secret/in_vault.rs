//! Reads a secret from Vault with a token of the session's own.
//!
//! What must stay true: scrubbers know a token before it is used and a lease's id before anybody has the secret; what may
//! be lent is asked for with a token that nobody else has, and what was lent hangs from that alone; a lease is never
//! believed to outlive its token; what was lent is known to the session, so that it can be given back; a field that
//! cannot be used harms nobody who does not use it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::fields::{self, Parsed};
use super::own_end::{self, FAR};
use super::spec::{Origin, SecretSpec};
use super::{End, Learn, LeaseUse, Life, Material, SecretProblem, SourceError, Tie, described};
use crate::vault::leases::{Class, Terms};
use crate::vault::login::Trouble;
use crate::vault::session::{Asker, SessionToken, SessionVault, next_try};
use crate::vault::{Data, Envelope, Kind, LeaseId, Problem, Vault, VaultError};

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
    source: &SecretSpec,
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
        lease: Some(Arc::new(LeaseUse { hash, request_id })),
        end,
        ..Material::of(fields)
    };
    material.extend(Life { read_with, ..Life::of(&terms) });
    Ok((material, terms))
}

/// Asks with a token of the session's; with a new one, once, if that turns out to be dead.
async fn ask(
    source: &SecretSpec,
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
    let now = date.unwrap_or_else(crate::clock::now);
    let asked = || match origin {
        Origin::Vault { write: Some(values), .. } => own_end::asked_for(values),
        _ => None,
    };
    let (class, life) = match (&lease, said) {
        (Some(_), Some(said)) => match own_end::inside(&data, now) {
            // No renewal would help. One that is over already is so by a clock that is wrong.
            Some(own) if own < said && !own.is_zero() => (Class::Fixed, Some(own)),
            _ if renewable => (Class::Renewable, Some(said)),
            _ => (Class::Fixed, Some(said)),
        },
        // To renew it would not say more.
        (Some(_), None) => match own_end::of(&data, now) {
            Some(Duration::ZERO) => (Class::Fixed, Some(ABOUT_TO_CHANGE)),
            own => (Class::Fixed, own.or_else(asked)),
        },
        (None, said) => match (own_end::of(&data, now), said) {
            (Some(Duration::ZERO), _) => (Class::Advised { every: ABOUT_TO_CHANGE }, None),
            (Some(life), _) => (Class::OwnEnd, Some(life)),
            // Without a lease it is advice.
            (None, Some(every)) => (Class::Advised { every }, None),
            (None, None) => (Class::OwnEnd, asked()),
        },
    };
    Ok(Answer { data, request_id, lease, class, asked_at, life })
}
