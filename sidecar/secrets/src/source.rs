//! The seam between the secrets of a session and the places that they come from.
//!
//! A [`Source`] reads a secret and returns a [`Lease`]: the fields, how long they are valid, and a [`Hold`] on whatever
//! the source keeps for them.
//!
//! What must stay true: what must be scrubbed is passed to [`Ask::learn`] before the fields are returned; dropping the
//! last `Arc` of a hold gives the lease back; a failure carries nothing that the source said, except in `detail`, which
//! goes to the log and to operators only.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::{SecretProblem, SourceFailure};
use super::fields::Parsed;
use super::renewal::{Failure, Terms};
use super::spec::{SecretSpec, SourceLimits};
use cofferdam_scrub::Needle;

/// Receives what must be scrubbed, before it is used.
pub type Learn<'a> = dyn Fn(&[Needle], RevokedWith) + Send + Sync + 'a;

/// Where secrets come from.
pub trait Source: Send + Sync {
    /// Reads the secret. Bounded in size and time.
    fn read<'a>(&'a self, ask: Ask<'a>) -> BoxFuture<'a, Result<Lease, SecretProblem>>;

    /// The failure of a read that took longer than its caller waits.
    fn too_slow(&self, spec: &SecretSpec) -> SourceFailure;

    /// Leases that are read now are renewed until this is cancelled.
    fn period(&self) -> CancellationToken;
}

/// What is read, and for which caller.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    pub spec: &'a SecretSpec,
    pub limits: SourceLimits,
    pub asker: Asker,
    pub learn: &'a Learn<'a>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Asker {
    /// A request that waits; the next one may come at any time.
    Caller,
    /// The task that keeps a credential, which has a backoff of its own.
    Upkeep,
}

/// What a source gave.
pub struct Lease {
    pub fields: Parsed,
    pub terms: Terms,
    pub hold: Arc<dyn Hold>,
    /// How this read is found again in the audit.
    pub used: Option<Arc<LeaseUse>>,
}

/// What a source keeps for the fields that it gave.
pub trait Hold: Any + Send + Sync {
    /// When the fields end with what they depend on, such as a token. None where only their own terms count.
    fn ends(&self) -> Option<Instant>;

    fn validity(&self) -> Validity;

    /// Asks for this much more time; `None` leaves it to the source.
    fn renew(&self, increment: Option<Duration>) -> BoxFuture<'_, Result<Terms, Failure>>;

    /// Checks whether the lease still exists.
    fn check(&self) -> BoxFuture<'_, Result<(), Failure>>;

    /// Counts events that may have changed [`Hold::validity`].
    fn changes(&self) -> watch::Receiver<u64>;
}

/// Whether fields that were read before are as good as what would be read now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Validity {
    Current,
    /// They still work, until then at the latest; the next read depends on something newer.
    Superseded {
        by: Option<Instant>,
    },
    /// What they depended on is given up.
    Gone,
}

/// How the read of a secret is found again, in our audit and in Vault's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LeaseUse {
    /// Of the lease's id, where there is a lease.
    pub hash: Option<String>,
    pub request_id: String,
}

/// When a value that leaked becomes useless.
#[derive(Clone)]
pub enum RevokedWith {
    /// Never, as far as is known.
    Nothing,
    /// A key-value secret: a newer version may exist, and this one may still be valid.
    KeyValue,
    /// Revoked once the last handle of its owner (a token, a lease) is dropped.
    Owner(Weak<dyn Any + Send + Sync>),
    /// It expires by itself.
    Until(Instant),
}

/// The hold of values for which the source keeps nothing.
pub(super) struct Unleased {
    changes: watch::Receiver<u64>,
}

impl RevokedWith {
    /// Whether the value is of no use any more.
    pub fn is_over(&self, now: Instant) -> bool {
        match self {
            Self::Nothing | Self::KeyValue => false,
            Self::Owner(owner) => owner.strong_count() == 0,
            Self::Until(end) => *end < now,
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
