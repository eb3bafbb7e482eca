//! The secrets that calls are made with, as the audit names them.

use std::collections::BTreeSet;
use std::sync::Arc;

use cofferdam_audit::SecretUse;
use cofferdam_secrets::{SecretReads, Secrets};
use cofferdam_servers::ServerSet;
use cofferdam_servers::spec::Scope;
use relay_proto::name::Name;

use super::decide::Decided;
use crate::session::Session;

/// The secrets in use when the decisions of a chunk are recorded.
pub(crate) struct HeldSecrets {
    /// For calls outside of scopes.
    pub(super) base: Arc<Secrets>,
    /// By the index of the message in the chunk; empty where no message is in a scope.
    in_scopes: Vec<Option<Arc<Secrets>>>,
}

impl HeldSecrets {
    pub(super) fn in_scope(&self, index: usize) -> Option<&Arc<Secrets>> {
        self.in_scopes.get(index).and_then(Option::as_ref)
    }

    /// The secrets that the message at this index would be sent with.
    pub(super) fn of(&self, index: usize) -> Arc<Secrets> {
        Arc::clone(self.in_scope(index).unwrap_or(&self.base))
    }
}

/// The secrets for calls outside of and inside scopes. A running process keeps the secrets that it was started with,
/// even where newer ones exist.
pub(super) fn held_secrets(session: &Session, servers: &ServerSet, decided: &[Decided<'_>]) -> HeldSecrets {
    let newest = session.credentials.newest();
    let held = |scope: Option<&Arc<Scope>>| servers.secrets(scope).unwrap_or_else(|| Arc::clone(&newest));
    let in_scopes = match decided.iter().any(|message| message.scope().is_some()) {
        true => decided.iter().map(|message| message.scope().map(|scope| held(Some(scope)))).collect(),
        false => Vec::new(),
    };
    HeldSecrets { base: held(None), in_scopes }
}

/// The audit fields of these secrets.
pub(super) fn secret_uses<'a>(names: BTreeSet<&'a Name>, held: &'a Secrets) -> Vec<SecretUse<'a>> {
    let used = |name: &'a Name| {
        let read = held.get(name).and_then(|material| material.read_id.as_ref());
        SecretUse {
            name: name.as_str(),
            lease: read.and_then(|read| read.hash.as_deref()),
            vault_request: read.map(|read| read.request_id.as_str()),
        }
    };
    names.into_iter().map(used).collect()
}

/// The audit fields of the secrets that a call was sent with, where its decision record names others.
pub(super) fn uses_of_reads(reads: &SecretReads) -> Vec<SecretUse<'_>> {
    let uses = reads.iter().map(|(name, read)| SecretUse {
        name: name.as_str(),
        lease: read.hash.as_deref(),
        vault_request: Some(&read.request_id),
    });
    uses.collect()
}
