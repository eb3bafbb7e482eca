//! The values of one secret as the processes and requests of a session share them.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_scrub::Needle;
use relay_proto::name::Name;
use tokio::sync::watch;
use tokio::time::Instant;

use super::fields::{FieldError, Parsed};
use super::opened;
use super::renewal::Terms;
use super::source::{Hold, Lease, LeaseUse, RevokedWith, Unleased, Validity};
use super::spec::SecretSpec;
use super::value::Secret;

/// What a source gave: the fields, until when they are valid, and the hold that gives them back.
#[derive(Debug)]
pub struct Material {
    pub fields: BTreeMap<String, Secret>,
    /// Fields that the configuration says are not secret: neither scrubbed nor too short.
    pub public: BTreeSet<String>,
    /// Where they are from, for people.
    pub origin: String,
    /// Fields that exist and cannot be used, with the reason for a template that names one.
    pub unusable: BTreeMap<String, FieldError>,
    /// Shared by all users of the values: a renewal is for each of them.
    state: Mutex<State>,
    pub lease: Option<Arc<LeaseUse>>,
    /// Which values of its secret these are; the same values have the same number.
    pub generation: u64,
}

struct State {
    period: ValidityPeriod,
    hold: Arc<dyn Hold>,
}

/// Until when values are valid, as far as their source says.
#[derive(Clone, Copy, Debug, Default)]
struct ValidityPeriod {
    expires: Option<Instant>,
    /// From then on the secret is read again for the next caller.
    refresh: Option<Instant>,
}

impl Material {
    /// These values, from a source that lends nothing.
    pub fn of(fields: BTreeMap<String, Secret>) -> Self {
        let hold = Arc::new(Unleased::new(watch::Sender::<u64>::default().subscribe()));
        Self {
            fields,
            public: BTreeSet::new(),
            origin: String::new(),
            unusable: BTreeMap::new(),
            state: Mutex::new(State { period: ValidityPeriod::default(), hold }),
            lease: None,
            generation: 0,
        }
    }

    pub fn new(spec: &SecretSpec, lease: Lease) -> Self {
        let Lease { fields: Parsed { fields, unusable }, terms, hold, used } = lease;
        Self {
            fields,
            public: spec.public.iter().cloned().collect(),
            origin: spec.origin.described(),
            unusable,
            state: Mutex::new(State { period: ValidityPeriod::of(&terms), hold }),
            lease: used,
            generation: 0,
        }
    }

    /// Every value that must not leave the sidecar, labelled with the name of the secret.
    pub fn needles(&self, secret: &Name) -> Vec<Needle> {
        opened::needles(secret, self.fields.iter().filter(|(field, _)| !self.public.contains(*field)))
    }

    /// Whether users of the former values need not have these: they are equal, and nothing was lent for either.
    pub fn replaces_unnoticed(&self, former: &Self) -> bool {
        !self.has_lease() && !former.has_lease() && opened::are_equal(&self.fields, &former.fields)
    }

    /// When these values end: by their own terms, or with what they depend on.
    pub fn expires(&self) -> Option<Instant> {
        let (own, hold) = {
            let state = self.state();
            (state.period.expires, Arc::clone(&state.hold))
        };
        [own, hold.ends()].into_iter().flatten().min()
    }

    pub fn hold(&self) -> Arc<dyn Hold> {
        Arc::clone(&self.state().hold)
    }

    /// They were read again and are the same: they are valid for as long as the newer read is.
    pub fn adopt(&self, newer: Self) {
        *self.state() = newer.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    }

    /// They were renewed.
    pub fn extend(&self, terms: &Terms) {
        self.state().period = ValidityPeriod::of(terms);
    }

    /// They are known to have ended, whatever their terms said.
    pub fn expire(&self) {
        self.state().period.expires = Some(Instant::now());
    }

    pub fn is_live(&self) -> bool {
        self.expires().is_none_or(|end| end > Instant::now())
    }

    /// Whether it is not yet time to read it again.
    pub fn is_fresh(&self) -> bool {
        let refresh = self.state().period.refresh;
        self.is_live() && refresh.is_none_or(|refresh| refresh > Instant::now())
    }

    /// Whether the next caller gets it as it is.
    pub fn is_current(&self) -> bool {
        self.is_fresh() && self.hold().validity() == Validity::Current
    }

    /// Whether it is used while nothing newer is available. A lease that was given up is over; a value that was only
    /// read is as good as before.
    pub fn is_usable(&self) -> bool {
        self.is_live() && (!self.has_lease() || self.hold().validity() != Validity::Gone)
    }

    pub fn has_lease(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.hash.is_some())
    }

    pub fn revoked_with(&self) -> RevokedWith {
        if self.has_lease() {
            return RevokedWith::Owner(Arc::downgrade(&(self.hold() as Arc<dyn Any + Send + Sync>)));
        }
        match (self.state().period.expires, &self.lease) {
            (Some(end), _) => RevokedWith::Until(end),
            (None, Some(_)) => RevokedWith::KeyValue,
            (None, None) => RevokedWith::Nothing,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ValidityPeriod {
    fn of(terms: &Terms) -> Self {
        Self { expires: terms.life.map(|life| terms.asked_at + life), refresh: terms.due() }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("period", &self.period).finish_non_exhaustive()
    }
}
