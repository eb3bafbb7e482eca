//! Which secrets a call is made with, as the audit names them.

use std::collections::BTreeSet;
use std::sync::Arc;

use relay_proto::name::Name;

use super::link::Link;
use super::message::Ruling;
use super::requests::Step;
use crate::audit::SecretUse;
use crate::inject::{Reads, Secrets};
use crate::servers::spec::Scope;

/// What is held when the decisions about some messages are written down.
pub(super) struct Held {
    pub(super) base: Arc<Secrets>,
    /// By the place of the message; empty where none is in a scope.
    in_scopes: Vec<Option<Arc<Secrets>>>,
}

impl Held {
    pub(super) fn in_scope(&self, place: usize) -> Option<&Arc<Secrets>> {
        self.in_scopes.get(place).and_then(Option::as_ref)
    }

    /// What the message at this place would be carried out with.
    pub(super) fn of(&self, place: usize) -> Arc<Secrets> {
        Arc::clone(self.in_scope(place).unwrap_or(&self.base))
    }
}

impl Ruling {
    /// The reads that its record names, where the call could be made with others by the time that it leaves.
    pub(super) fn decided(&self) -> Option<Arc<Reads>> {
        let (server, held) = (self.server.as_ref()?, self.held.as_ref()?);
        let names = self.scope.as_ref().map_or_else(|| server.secrets(), |scope| scope.secrets());
        (!names.is_empty()).then(|| Arc::new(Reads::of(names, held)))
    }
}

impl Link {
    /// What runs in no scope has, and what those steps that are in one have. A process that runs has what it was given,
    /// whatever there is by now.
    pub(super) fn held(&self, steps: &[Step<'_>]) -> Held {
        let newest = self.session.credentials.newest();
        let held =
            |scope: Option<&Arc<Scope>>| self.servers.secrets(scope).unwrap_or_else(|| Arc::clone(&newest));
        let scope = |step: &Step<'_>| step.ruling.as_ref()?.scope.clone();
        let in_scopes = match steps.iter().any(|step| scope(step).is_some()) {
            true => steps.iter().map(|step| scope(step).map(|scope| held(Some(&scope)))).collect(),
            false => Vec::new(),
        };
        Held { base: held(None), in_scopes }
    }
}

/// What is held of these secrets.
pub(super) fn secret_uses<'a>(names: BTreeSet<&'a Name>, held: &'a Secrets) -> Vec<SecretUse<'a>> {
    let used = |name: &'a Name| {
        let lease = held.get(name).and_then(|material| material.lease.as_ref());
        SecretUse {
            name: name.as_str(),
            lease: lease.and_then(|lease| lease.hash.as_deref()),
            vault_request: lease.map(|lease| lease.request_id.as_str()),
        }
    };
    names.into_iter().map(used).collect()
}

/// Those that a call was made with instead of what its decision names.
pub(super) fn other_uses(reads: &Reads) -> Vec<SecretUse<'_>> {
    let uses = reads.iter().map(|(name, read)| SecretUse {
        name: name.as_str(),
        lease: read.hash.as_deref(),
        vault_request: Some(&read.request_id),
    });
    uses.collect()
}
