//! Checks `[grants.*]`: the servers that a sandbox may use, and the Vault policies of its sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_secrets::SecretSpec;
use cofferdam_servers::spec::{ServerKind, ServerSpec};
use relay_proto::name::Name;

use super::confine::{WORKSPACE, check_shown};
use super::{Checker, Section, vault};
use crate::config::Grant;
use crate::config::raw::RawGrant;
use crate::config::spanned::Spanned;

/// What servers need of the grants that name them.
pub(super) struct GrantNeeds {
    /// Servers that use Vault, each with one of its Vault secrets to name in a message.
    vault: BTreeMap<Name, Name>,
    /// Servers that see the workspace.
    workspace: BTreeSet<Name>,
}

impl GrantNeeds {
    pub(super) fn of(
        servers: &BTreeMap<Name, Arc<ServerSpec>>,
        secrets: &BTreeMap<Name, Arc<SecretSpec>>,
    ) -> Self {
        let in_vault = |name: &&Name| secrets.get(*name).is_some_and(|secret| secret.origin.is_in_vault());
        let vault_secret = |server: &ServerSpec| server.every_secret().into_iter().find(in_vault).cloned();
        let sees_workspace = |server: &&Arc<ServerSpec>| match &server.kind {
            ServerKind::Http(_) => false,
            ServerKind::Stdio(stdio) => {
                stdio.confinement.as_ref().is_some_and(|walls| walls.workspace.is_some())
            }
        };
        let vault = servers.values().filter_map(|server| Some((server.name.clone(), vault_secret(server)?)));
        let workspace = servers.values().filter(sees_workspace).map(|server| server.name.clone());
        Self { vault: vault.collect(), workspace: workspace.collect() }
    }
}

pub(super) fn check_grants(
    checker: &mut Checker<'_, '_>,
    raw: BTreeMap<Spanned<String>, RawGrant>,
    needs: &GrantNeeds,
    hidden: &Arc<[PathBuf]>,
) -> BTreeMap<Name, Arc<Grant>> {
    let checked = raw.into_iter().filter_map(|(written, grant)| {
        let name = checker.parse_name("a grant", &written);
        let grant = check_grant(checker, &written, name, grant, needs, hidden)?;
        Some((grant.name.clone(), Arc::new(grant)))
    });
    checked.collect()
}

fn check_grant(
    checker: &mut Checker<'_, '_>,
    written: &Spanned<String>,
    name: Option<Name>,
    raw: RawGrant,
    needs: &GrantNeeds,
    hidden: &Arc<[PathBuf]>,
) -> Option<Grant> {
    let table = format!("grants.{}", written.value);
    let ttl = checker.check_duration(&format!("{table}.ttl"), raw.ttl, "8h", "100ms"..="366d");
    if raw.servers.is_none() && !checker.missing_key_may_be_reported(&["grants", &written.value]) {
        let hint = "name the servers, as in `servers = [\"github\"]`; an empty list grants nothing";
        checker.add(&written.span, format!("`{table}` does not say which servers it grants"), hint);
    }
    let key = format!("{table}.servers");
    let mut servers: Vec<Name> = Vec::new();
    for server in raw.servers.unwrap_or_default() {
        let Some(name) = checker.check_reference(&key, Section::Servers, &server.value, &server.span) else {
            continue;
        };
        match servers.contains(&name) {
            true => checker.add(&server.span, format!("`{key}` names `{name}` twice"), "keep one of them"),
            false => servers.push(name),
        }
    }
    let key = format!("{table}.vault-policies");
    let (policies, span) = match raw.vault_policies {
        Some(Spanned { value, span }) => {
            checker.require_vault(&key, &span);
            (value, span)
        }
        None => (Vec::new(), written.span.clone()),
    };
    if policies.is_empty()
        && let Some((server, secret)) = servers.iter().find_map(|server| needs.vault.get_key_value(server))
        && !checker.missing_key_may_be_reported(&["grants", &written.value])
    {
        let message = format!(
            "`{table}` has no `vault-policies`, and its server `{server}` uses the Vault secret `{secret}`"
        );
        let hint = "name the policies that allow it, as in `vault-policies = [\"agent-dev\"]`";
        checker.add(&span, message, hint);
    }
    let vault_policies = vault::check_policies(checker, &key, policies);
    let key = format!("{table}.workspace");
    let user = servers.iter().find(|server| needs.workspace.contains(*server));
    let workspace = match (raw.workspace, user) {
        (Some(path), _) => check_shown(checker, &key, &path, hidden),
        (None, Some(user)) => {
            let message =
                format!("`{table}` has no `workspace`, and its server `{user}` is shown `{WORKSPACE}`");
            checker.add(&written.span, message, "name the directory, as in `workspace = \"/srv/project\"`");
            None
        }
        (None, None) => None,
    };
    Some(Grant { name: name?, servers, vault_policies, workspace, ttl })
}
