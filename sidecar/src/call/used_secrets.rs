//! Which secrets a call is made with, as the audit names them.

use std::collections::BTreeSet;
use std::sync::Arc;

use cofferdam_audit::SecretUse;
use cofferdam_secrets::{Reads, Secrets};
use cofferdam_servers::ServerSet;
use cofferdam_servers::spec::Scope;
use relay_proto::name::Name;

use super::decide::Decided;
use crate::session::Session;

/// The secrets that are held when the decisions about some messages are written down.
pub(crate) struct HeldSecrets {
    pub(super) base: Arc<Secrets>,
    /// By the place of the message; empty where none is in a scope.
    in_scopes: Vec<Option<Arc<Secrets>>>,
}

impl HeldSecrets {
    pub(super) fn in_scope(&self, place: usize) -> Option<&Arc<Secrets>> {
        self.in_scopes.get(place).and_then(Option::as_ref)
    }

    /// What the message at this place would be carried out with.
    pub(super) fn of(&self, place: usize) -> Arc<Secrets> {
        Arc::clone(self.in_scope(place).unwrap_or(&self.base))
    }
}

/// What calls outside of scopes have, and what those in scopes have. A process that runs has what it was given, whatever
/// there is by now.
pub(super) fn held_secrets(session: &Session, servers: &ServerSet, decided: &[Decided<'_>]) -> HeldSecrets {
    let newest = session.credentials.newest();
    let held = |scope: Option<&Arc<Scope>>| servers.secrets(scope).unwrap_or_else(|| Arc::clone(&newest));
    let in_scopes = match decided.iter().any(|one| one.scope().is_some()) {
        true => decided.iter().map(|one| one.scope().map(|scope| held(Some(scope)))).collect(),
        false => Vec::new(),
    };
    HeldSecrets { base: held(None), in_scopes }
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
