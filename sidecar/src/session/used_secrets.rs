//! Which secrets a call is made with, as the audit names them.

use std::collections::BTreeSet;
use std::sync::Arc;

use relay_proto::name::Name;

use super::link::Link;
use super::requests::Step;
use crate::audit::SecretUse;
use crate::config::Scope;
use crate::inject::Secrets;

impl Link {
    /// What runs in no scope has, and what those steps that are in one have. A process that runs has what it was given,
    /// whatever there is by now.
    pub(super) fn held(&self, steps: &[Step<'_>]) -> (Arc<Secrets>, Vec<Option<Arc<Secrets>>>) {
        let newest = self.session.credentials.newest();
        let held =
            |scope: Option<&Arc<Scope>>| self.servers.secrets(scope).unwrap_or_else(|| Arc::clone(&newest));
        let scope = |step: &Step<'_>| step.ruling.as_ref()?.scope.clone();
        let in_scopes = match steps.iter().any(|step| scope(step).is_some()) {
            true => steps.iter().map(|step| scope(step).map(|scope| held(Some(&scope)))).collect(),
            false => Vec::new(),
        };
        (held(None), in_scopes)
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
