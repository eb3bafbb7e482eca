//! Vault as a source of secrets, which are read with the tokens of a session.
//!
//! What must stay true: the scrubbers search for a token before it is used, and for a lease's id before its secret is
//! used; a request that may create a lease is sent with a token that has no other use, and the lease depends on that
//! token alone; a lease is never assumed to outlive its token; the session records every lease, so that it can be
//! revoked; a field that cannot be used fails only the templates that name it.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cofferdam_base::metrics::{self, Outcome};
use cofferdam_secrets::embedded_expiry::{self, MAX_LIFETIME};
use cofferdam_secrets::renewal::{Failure, RenewalClass, Terms};
use cofferdam_secrets::{
    AddToScrubbers, Hold, Lease, ReadId, Requester, SecretProblem, SecretSpec, Source, SourceError,
    SourceFailure, SourceRequest, Validity, ValueEnd, VaultOrigin, fields,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::Vault;
use crate::envelope::{Data, Envelope};
use crate::error::{Kind, Problem, RequestLine, VaultError};
use crate::login::RetryableFailure;
use crate::session::{RETRY_INTERVAL, ReadMark, SessionToken, SessionVault, next_attempt};
use crate::token::LeaseId;

/// A credential whose lifetime is over is about to be replaced by Vault, so it is read again after this delay.
const EXPIRED_REREAD_DELAY: Duration = Duration::from_secs(10);

/// A secret as Vault returned it, and how long it is valid.
struct ReadSecret {
    data: Data,
    request_id: String,
    lease: Option<LeaseId>,
    class: RenewalClass,
    requested_at: Instant,
    /// `None` if no lifetime is known.
    lifetime: Option<Duration>,
    /// How long a certificate or web token in the data is valid without its lease.
    lifetime_after_revocation: Option<Duration>,
}

/// What failed, as a sandbox is told it.
#[derive(Clone, Copy, Debug)]
enum Attempt {
    Read,
    /// Creating a token for the session, or logging in for that.
    Token,
}

/// Keeps a lease: when this is dropped, the lease is revoked with its token.
struct LeaseHold {
    token: Arc<SessionToken>,
    session: SessionVault,
}

/// Values that were read without a lease: nothing is revoked when this is dropped.
struct ReadHold {
    read_mark: ReadMark,
    session: SessionVault,
}

impl Source for SessionVault {
    fn read<'a>(&'a self, request: SourceRequest<'a>) -> BoxFuture<'a, Result<Lease, SecretProblem>> {
        async move {
            let read = self.read_lease(request).await;
            metrics::vault().count_read(Outcome::of(&read));
            read
        }
        .boxed()
    }

    fn too_slow(&self, spec: &SecretSpec) -> SourceFailure {
        let path = spec.origin.vault().map(|origin| origin.path().to_string()).unwrap_or_default();
        let request = RequestLine { method: http::Method::GET, path };
        let error = VaultError { request, problem: Problem::Unreachable { why: "it took too long".into() } };
        source_failure(
            Attempt::Read,
            RetryableFailure { error, next_attempt: Instant::now() + RETRY_INTERVAL },
        )
    }

    fn renewal_stop(&self) -> CancellationToken {
        SessionVault::renewal_stop(self)
    }
}

impl SessionVault {
    async fn read_lease(&self, request: SourceRequest<'_>) -> Result<Lease, SecretProblem> {
        let SourceRequest { spec, limits, requester, add_to_scrubbers } = request;
        let (secret, token) = read_with_token(spec, (self, requester), add_to_scrubbers).await?;
        let ReadSecret { data, request_id, lease, class, requested_at, lifetime, lifetime_after_revocation } =
            secret;
        let read_mark = token.mark();
        let mut terms = Terms { class, requested_at, lifetime, token_expiry: None };
        let hash = lease.as_ref().map(LeaseId::hash);
        let hold: Arc<dyn Hold> = match lease {
            Some(id) => {
                add_to_scrubbers(&[id.needle("vault.lease-id")], until_dropped(Arc::downgrade(&token)));
                terms.token_expiry = self.relevant_token_expiry(&token);
                self.record_lease(spec.name.as_str(), Arc::new(id), &token)
                    .map_err(|failure| unavailable(Attempt::Read, failure))?;
                Arc::new(LeaseHold { token, session: self.clone() })
            }
            None => {
                if let Some(VaultOrigin::Generated { .. }) = spec.origin.vault() {
                    self.put_back(token).await;
                }
                Arc::new(ReadHold { read_mark, session: self.clone() })
            }
        };
        if data.as_bytes().len() > limits.bytes {
            return Err(SourceError::TooLarge { limit: limits.bytes }.into());
        }
        let public: BTreeSet<String> = spec.public.iter().cloned().collect();
        let fields = fields::parse_leniently(data.as_bytes(), &public, spec.short)?;
        Ok(Lease {
            fields,
            terms,
            hold,
            read_id: Some(Arc::new(ReadId { hash, request_id })),
            valid_after_revocation_until: lifetime_after_revocation.map(|lifetime| requested_at + lifetime),
        })
    }
}

impl Attempt {
    fn description(self) -> &'static str {
        match self {
            Self::Read => "read it from Vault",
            Self::Token => "get a token from Vault to read it with",
        }
    }
}

impl Hold for LeaseHold {
    fn ends(&self) -> Option<Instant> {
        self.token.ends()
    }

    fn validity(&self) -> Validity {
        let Self { token, session } = self;
        if session.is_withdrawn(token) {
            Validity::Gone
        } else if session.is_of_former_login(token) {
            Validity::Superseded { ends_at: token.ends() }
        } else if session.is_current(token) {
            Validity::Current
        } else {
            Validity::Gone
        }
    }

    fn renew(&self, increment: Option<Duration>) -> BoxFuture<'_, Result<Terms, Failure>> {
        let Self { token, session } = self;
        async move {
            let renewed = session.renew_lease(token, increment).await;
            metrics::vault().count_renewal(Outcome::of(&renewed));
            match renewed {
                Ok(envelope) => Ok(Terms {
                    class: RenewalClass::Renewable,
                    requested_at: envelope.requested_at,
                    lifetime: Some(envelope.lease_duration),
                    token_expiry: session.relevant_token_expiry(token),
                }),
                Err(error) => Err(match error.kind() {
                    Kind::Gone => Failure::Gone { why: error.explained() },
                    Kind::Denied if session.is_token_revoked(token).await => {
                        Failure::Gone { why: error.explained() }
                    }
                    Kind::Denied | Kind::Invalid | Kind::Missing => {
                        Failure::Refused { why: error.explained() }
                    }
                    _ => Failure::Later { why: error.explained(), not_before: not_before(&error) },
                }),
            }
        }
        .boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), Failure>> {
        async move {
            match self.session.is_lease_gone(&self.token).await {
                true => Err(Failure::Gone { why: "it was revoked in Vault".into() }),
                false => Ok(()),
            }
        }
        .boxed()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.session.login_token_numbers()
    }
}

impl Hold for ReadHold {
    fn ends(&self) -> Option<Instant> {
        None
    }

    fn validity(&self) -> Validity {
        match self.session.is_read_current(self.read_mark) {
            true => Validity::Current,
            false => Validity::Gone,
        }
    }

    fn renew(&self, _increment: Option<Duration>) -> BoxFuture<'_, Result<Terms, Failure>> {
        async { Err(Failure::Refused { why: "there is no lease".into() }) }.boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), Failure>> {
        async { Ok(()) }.boxed()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.session.login_token_numbers()
    }
}

/// Reads the secret with a token of the session; once more with a new token if that one turns out to be revoked.
async fn read_with_token(
    spec: &SecretSpec,
    (session, requester): (&SessionVault, Requester),
    add_to_scrubbers: &AddToScrubbers<'_>,
) -> Result<(ReadSecret, Arc<SessionToken>), SecretProblem> {
    let origin = spec.origin.vault().expect("the store reads only secrets of Vault from this source");
    let mut token = token_for(origin, (session, requester), add_to_scrubbers).await?;
    let mut secret = read_origin(session.client(), &token, origin).await;
    if secret.as_ref().is_err_and(|error| error.kind() == Kind::Denied)
        && session.is_token_revoked(&token).await
    {
        token = token_for(origin, (session, requester), add_to_scrubbers).await?;
        secret = read_origin(session.client(), &token, origin).await;
    }
    match secret {
        Ok(secret) => Ok((secret, token)),
        Err(error) => {
            let failure = RetryableFailure { next_attempt: next_attempt(&error), error };
            // Unless Vault refused, it may have created a lease with an unknown id: dropping the token revokes it.
            if was_not_executed(&failure.error) && matches!(origin, VaultOrigin::Generated { .. }) {
                session.put_back(token).await;
            }
            Err(unavailable(Attempt::Read, failure))
        }
    }
}

async fn token_for(
    origin: &VaultOrigin,
    (session, requester): (&SessionVault, Requester),
    add_to_scrubbers: &AddToScrubbers<'_>,
) -> Result<Arc<SessionToken>, SecretProblem> {
    let token = match origin {
        VaultOrigin::Generated { .. } => session.token_for_a_lease(requester).await,
        VaultOrigin::Kv { .. } => session.token(requester).await,
    };
    let token = token.map_err(|failure| unavailable(Attempt::Token, failure))?;
    let [session_needle, login_needle] = token.needles();
    add_to_scrubbers(&[session_needle], until_dropped(Arc::downgrade(&token)));
    add_to_scrubbers(&[login_needle], until_dropped(token.parent()));
    Ok(token)
}

/// Whether Vault certainly did not execute the request.
fn was_not_executed(error: &VaultError) -> bool {
    let refused = matches!(
        error.kind(),
        Kind::Busy { .. } | Kind::Denied | Kind::Invalid | Kind::Missing | Kind::Sealed | Kind::Standby
    );
    refused || matches!(error.problem, Problem::Unreachable { .. })
}

fn unavailable(attempt: Attempt, failure: RetryableFailure) -> SecretProblem {
    source_failure(attempt, failure).into()
}

/// The message is for sandboxes, so it names the attempt but not the request, whose path may contain a user, a role or a
/// mount of Vault.
fn source_failure(
    attempt: Attempt,
    RetryableFailure { error, next_attempt }: RetryableFailure,
) -> SourceFailure {
    SourceFailure {
        message: format!("{}: {}", attempt.description(), error.for_sandbox()),
        detail: format!("{error}: {}", error.problem),
        next_step: error.next_step().into(),
        next_attempt,
        not_before: not_before(&error),
    }
}

/// The time before which no request should be sent, if Vault sent `Retry-After`.
fn not_before(error: &VaultError) -> Option<Instant> {
    match error.kind() {
        Kind::Busy { retry_after: Some(pause) } => Some(Instant::now() + pause),
        _ => None,
    }
}

fn until_dropped<T: Any + Send + Sync>(owner: Weak<T>) -> ValueEnd {
    ValueEnd::WithOwner(owner)
}

async fn read_origin(
    vault: &Vault,
    token: &SessionToken,
    origin: &VaultOrigin,
) -> Result<ReadSecret, VaultError> {
    let requested_at = Instant::now();
    let envelope = match origin {
        VaultOrigin::Kv { path, refresh } => {
            let kv_secret = vault.kv_read(token.reveal(), path.as_str()).await?;
            let class = match kv_secret.refresh {
                Some(every) if every < *refresh => RenewalClass::StatedInterval { every },
                _ => RenewalClass::Static { every: *refresh },
            };
            let (data, request_id) = (kv_secret.data, kv_secret.request_id);
            let (lifetime, lifetime_after_revocation) = (None, None);
            return Ok(ReadSecret {
                data,
                request_id,
                lease: None,
                class,
                requested_at,
                lifetime,
                lifetime_after_revocation,
            });
        }
        VaultOrigin::Generated { path, write: Some(values) } => {
            let values = values.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            vault.write(token.reveal(), path.as_str(), &values).await?
        }
        VaultOrigin::Generated { path, write: None } => vault.read(token.reveal(), path.as_str()).await?,
    };
    let Envelope { data, request_id, lease_id: lease, lease_duration, renewable, date, .. } = envelope;
    let data = data.unwrap_or_else(Data::empty);
    let stated = Some(lease_duration)
        .filter(|lifetime| !lifetime.is_zero())
        .map(|lifetime| lifetime.min(MAX_LIFETIME));
    let now = date.unwrap_or_else(cofferdam_base::clock::now);
    let requested = || match origin {
        VaultOrigin::Generated { write: Some(values), .. } => embedded_expiry::requested_ttl(values),
        _ => None,
    };
    let (class, lifetime) = match (&lease, stated) {
        (Some(_), Some(stated)) => {
            match embedded_expiry::remaining_lifetime_of_values(data.as_bytes(), now) {
                // A renewal does not extend the embedded expiry. If that is past already, one of the clocks is wrong.
                Some(embedded) if embedded < stated && !embedded.is_zero() => {
                    (RenewalClass::Fixed, Some(embedded))
                }
                _ if renewable => (RenewalClass::Renewable, Some(stated)),
                _ => (RenewalClass::Fixed, Some(stated)),
            }
        }
        // Vault states no duration, and a renewal would not either.
        (Some(_), None) => match embedded_expiry::remaining_lifetime(data.as_bytes(), now) {
            Some(Duration::ZERO) => (RenewalClass::Fixed, Some(EXPIRED_REREAD_DELAY)),
            embedded => (RenewalClass::Fixed, embedded.or_else(requested)),
        },
        (None, stated) => match (embedded_expiry::remaining_lifetime(data.as_bytes(), now), stated) {
            (Some(Duration::ZERO), _) => (RenewalClass::StatedInterval { every: EXPIRED_REREAD_DELAY }, None),
            (Some(lifetime), _) => (RenewalClass::OwnExpiry, Some(lifetime)),
            // Without a lease, the duration only advises when to read again.
            (None, Some(every)) => (RenewalClass::StatedInterval { every }, None),
            (None, None) => (RenewalClass::OwnExpiry, requested()),
        },
    };
    let lifetime_after_revocation =
        lease.as_ref().and_then(|_| embedded_expiry::longest_lifetime_of_values(data.as_bytes(), now));
    Ok(ReadSecret { data, request_id, lease, class, requested_at, lifetime, lifetime_after_revocation })
}
