//! The values of one secret, shared by the processes and requests of a session.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_scrub::Needle;
use relay_proto::name::Name;
use tokio::sync::watch;
use tokio::time::Instant;

use super::fields::{FieldError, ParsedFields};
use super::opened;
use super::outliving::ValidUntil;
use super::renewal::Terms;
use super::source::{Hold, Lease, ReadId, Unleased, Validity, ValueEnd};
use super::spec::SecretSpec;
use super::value::Secret;

/// What a source returned: the fields, how long they are valid, and the hold that revokes them when it is dropped.
#[derive(Debug)]
pub struct Material {
    pub fields: BTreeMap<String, Secret>,
    /// Fields that the configuration declares as not secret: they are not scrubbed, and may be short.
    pub public: BTreeSet<String>,
    /// Where the values come from, for messages.
    pub origin: String,
    /// Fields that exist but cannot be used, and why.
    pub unusable: BTreeMap<String, FieldError>,
    /// Changed by a renewal, for all users of the values at once.
    lease_state: Mutex<LeaseState>,
    /// Identifies the read in the audit; `None` outside of Vault.
    pub read_id: Option<Arc<ReadId>>,
    /// See [`Lease::valid_without_lease`].
    valid_without_lease: Option<Instant>,
    /// Numbers the different values that a session has read of this secret, from 1.
    pub version: u64,
}

struct LeaseState {
    period: ValidityPeriod,
    hold: Arc<dyn Hold>,
}

/// How long values are valid, as far as their source says.
#[derive(Clone, Copy, Debug, Default)]
struct ValidityPeriod {
    expires: Option<Instant>,
    /// From this time on the next caller reads the secret again.
    refresh: Option<Instant>,
}

impl Material {
    /// Values without a lease or an expiry.
    pub fn without_lease(fields: BTreeMap<String, Secret>) -> Self {
        let hold = Arc::new(Unleased::new(watch::Sender::<u64>::default().subscribe()));
        Self {
            fields,
            public: BTreeSet::new(),
            origin: String::new(),
            unusable: BTreeMap::new(),
            lease_state: Mutex::new(LeaseState { period: ValidityPeriod::default(), hold }),
            read_id: None,
            valid_without_lease: None,
            version: 0,
        }
    }

    pub fn new(spec: &SecretSpec, lease: Lease) -> Self {
        let Lease { fields: ParsedFields { fields, unusable }, terms, hold, read_id, valid_without_lease } =
            lease;
        Self {
            fields,
            public: spec.public.iter().cloned().collect(),
            origin: spec.origin.description(),
            unusable,
            lease_state: Mutex::new(LeaseState { period: ValidityPeriod::of(&terms), hold }),
            read_id,
            valid_without_lease,
            version: 0,
        }
    }

    /// Every value that must not leave the sidecar, labelled with the name of the secret.
    pub fn needles(&self, secret: &Name) -> Vec<Needle> {
        opened::needles(secret, self.fields.iter().filter(|(field, _)| !self.public.contains(*field)))
    }

    /// Whether users of `former` can keep using it: the values are equal, and neither has a lease.
    pub fn is_equivalent_to(&self, former: &Self) -> bool {
        !self.has_lease() && !former.has_lease() && opened::are_equal(&self.fields, &former.fields)
    }

    /// When these values expire: by their own terms, or with the token that they depend on.
    pub fn expires(&self) -> Option<Instant> {
        let (own_expiry, hold) = {
            let state = self.lease_state();
            (state.period.expires, Arc::clone(&state.hold))
        };
        [own_expiry, hold.ends()].into_iter().flatten().min()
    }

    pub fn hold(&self) -> Arc<dyn Hold> {
        Arc::clone(&self.lease_state().hold)
    }

    /// Makes these values valid for as long as equal values that were read later.
    pub fn adopt_validity_of(&self, newer: Self) {
        *self.lease_state() = newer.lease_state.into_inner().unwrap_or_else(PoisonError::into_inner);
    }

    /// Applies the terms of a renewal.
    pub fn extend(&self, terms: &Terms) {
        self.lease_state().period = ValidityPeriod::of(terms);
    }

    /// Marks the values as expired, whatever their terms said.
    pub fn expire(&self) {
        self.lease_state().period.expires = Some(Instant::now());
    }

    /// Whether the values have not expired.
    pub fn is_live(&self) -> bool {
        self.expires().is_none_or(|end| end > Instant::now())
    }

    /// Whether the values are valid and need not be read again yet.
    pub fn is_fresh(&self) -> bool {
        let refresh = self.lease_state().period.refresh;
        self.is_live() && refresh.is_none_or(|refresh| refresh > Instant::now())
    }

    /// Whether the next caller can use the values without another read.
    pub fn is_current(&self) -> bool {
        self.is_fresh() && self.hold().validity() == Validity::Current
    }

    /// Whether the values may be used while nothing newer is available. Leases end when their token is withdrawn; values
    /// without a lease stay valid.
    pub fn is_usable(&self) -> bool {
        self.is_live() && (!self.has_lease() || self.hold().validity() != Validity::Gone)
    }

    pub fn has_lease(&self) -> bool {
        self.read_id.as_ref().is_some_and(|read| read.hash.is_some())
    }

    /// Until when copies of the values are valid after the session. `None` if they end with it, or have expired.
    pub fn outlives_session(&self) -> Option<ValidUntil> {
        let until = match (self.has_lease(), self.valid_without_lease) {
            (true, None) => return None,
            (true, Some(end)) => ValidUntil::Time(end),
            (false, _) => self.expires().map_or(ValidUntil::Unknown, ValidUntil::Time),
        };
        until.time().is_none_or(|end| end > Instant::now()).then_some(until)
    }

    /// When the values end, for the scrubbers.
    pub fn value_end(&self) -> ValueEnd {
        if self.has_lease() {
            return ValueEnd::WithOwner(Arc::downgrade(&(self.hold() as Arc<dyn Any + Send + Sync>)));
        }
        match (self.lease_state().period.expires, &self.read_id) {
            (Some(end), _) => ValueEnd::At(end),
            (None, Some(_)) => ValueEnd::KeyValue,
            (None, None) => ValueEnd::Unknown,
        }
    }

    fn lease_state(&self) -> MutexGuard<'_, LeaseState> {
        self.lease_state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ValidityPeriod {
    fn of(terms: &Terms) -> Self {
        Self {
            expires: terms.lifetime.map(|lifetime| terms.requested_at + lifetime),
            refresh: terms.read_again_at(),
        }
    }
}

impl fmt::Debug for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseState").field("period", &self.period).finish_non_exhaustive()
    }
}
