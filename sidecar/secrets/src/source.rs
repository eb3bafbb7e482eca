//! The interface between the secrets of a session and where they come from.
//!
//! A [`Source`] reads a secret and returns a [`Lease`]: the fields, how long they are valid, and a [`Hold`] on whatever
//! the source keeps for them.
//!
//! What must stay true: a source passes its tokens and lease ids to [`SourceRequest::add_to_scrubbers`] before it returns
//! the fields, which the store adds; dropping the last `Arc` of a hold revokes the lease; a failure contains no text from the source, except in `detail`,
//! which goes to the log and to operators only.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::{SecretProblem, SourceFailure};
use super::fields::ParsedFields;
use super::renewal::{Failure, Terms};
use super::spec::{SecretSpec, SourceLimits};
use cofferdam_scrub::Needle;

/// Adds values to the scrubbers, before they are used.
pub type AddToScrubbers<'a> = dyn Fn(&[Needle], ValueEnd) + Send + Sync + 'a;

/// Where secrets come from.
pub trait Source: Send + Sync {
    /// Reads the secret. Bounded in size and time.
    fn read<'a>(&'a self, request: SourceRequest<'a>) -> BoxFuture<'a, Result<Lease, SecretProblem>>;

    /// The failure to report when a read takes longer than its caller waits.
    fn too_slow(&self, spec: &SecretSpec) -> SourceFailure;

    /// Cancelled when leases that are read now need no renewal any more.
    fn renewal_stop(&self) -> CancellationToken;
}

/// A request to read a secret.
#[derive(Clone, Copy)]
pub struct SourceRequest<'a> {
    pub spec: &'a SecretSpec,
    pub limits: SourceLimits,
    pub requester: Requester,
    pub add_to_scrubbers: &'a AddToScrubbers<'a>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Requester {
    /// A server's start or request waits for the secret; the next caller may come at any time.
    Caller,
    /// The task that renews the secret, which has a backoff of its own.
    RenewalTask,
}

/// A secret that a source returned, leased or not.
pub struct Lease {
    pub fields: ParsedFields,
    pub terms: Terms,
    pub hold: Arc<dyn Hold>,
    /// Identifies this read in the audit; `None` outside of Vault.
    pub read_id: Option<Arc<ReadId>>,
    /// Until when a certificate or web token among the fields is valid although its lease is revoked: other systems
    /// check its signature and do not ask the source. `None` without a lease, or where revocation ends everything.
    pub valid_without_lease: Option<Instant>,
}

/// What a source keeps for fields that it returned, such as a lease in Vault.
pub trait Hold: Any + Send + Sync {
    /// When the token ends that the fields depend on. `None` if only their own terms apply.
    fn ends(&self) -> Option<Instant>;

    fn validity(&self) -> Validity;

    /// Renews the lease for this long; `None` lets the source choose.
    fn renew(&self, increment: Option<Duration>) -> BoxFuture<'_, Result<Terms, Failure>>;

    /// Checks whether the lease still exists.
    fn check(&self) -> BoxFuture<'_, Result<(), Failure>>;

    /// Counts events that may have changed [`Hold::validity`].
    fn changes(&self) -> watch::Receiver<u64>;
}

/// Whether fields that were read before still equal what would be read now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Validity {
    Current,
    /// They still work, until `ends_at` at the latest; the next read will use a newer token.
    Superseded {
        ends_at: Option<Instant>,
    },
    /// The token that they depend on was withdrawn.
    Gone,
}

/// Identifies one read of a secret, in the sidecar's audit and in Vault's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReadId {
    /// A hash of the lease id; `None` without a lease.
    pub hash: Option<String>,
    pub request_id: String,
}

/// When a value ends. After its end a leaked copy is useless.
#[derive(Clone)]
pub enum ValueEnd {
    /// No end is known.
    Unknown,
    /// No end is known, and there may be many such values: versions of a key-value secret.
    KeyValue,
    /// Ends when the last handle of its token or lease is dropped, which revokes it.
    WithOwner(Weak<dyn Any + Send + Sync>),
    /// Expires at this time.
    At(Instant),
}

/// The hold on values for which the source keeps nothing.
pub(super) struct Unleased {
    changes: watch::Receiver<u64>,
}

impl ValueEnd {
    pub fn has_ended(&self, now: Instant) -> bool {
        match self {
            Self::Unknown | Self::KeyValue => false,
            Self::WithOwner(owner) => owner.strong_count() == 0,
            Self::At(end) => *end < now,
        }
    }
}

impl Unleased {
    pub(super) fn new(changes: watch::Receiver<u64>) -> Self {
        Self { changes }
    }
}

impl Hold for Unleased {
    fn ends(&self) -> Option<Instant> {
        None
    }

    fn validity(&self) -> Validity {
        Validity::Current
    }

    fn renew(&self, _increment: Option<Duration>) -> BoxFuture<'_, Result<Terms, Failure>> {
        async { Err(Failure::Refused { why: "there is no lease".into() }) }.boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), Failure>> {
        async { Ok(()) }.boxed()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }
}
