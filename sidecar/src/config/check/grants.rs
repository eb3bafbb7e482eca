//! Checks `[grants.*]`: the servers that a sandbox may use, and the Vault policies of its sessions.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_secrets::SecretSpec;
use cofferdam_servers::spec::ServerSpec;
use relay_proto::name::Name;

use super::{Checker, Section, vault};
use crate::config::Grant;
use crate::config::raw::RawGrant;
use crate::config::spanned::Spanned;

/// Servers that use Vault, each with one of its Vault secrets to name in a message.
type VaultServers = BTreeMap<Name, Name>;

pub(super) fn servers_using_vault(
    servers: &BTreeMap<Name, Arc<ServerSpec>>,
    secrets: &BTreeMap<Name, Arc<SecretSpec>>,
) -> VaultServers {
    let in_vault = |name: &&Name| secrets.get(*name).is_some_and(|secret| secret.origin.is_in_vault());
    let users = servers.values().filter_map(|server| {
        server.every_secret().into_iter().find(in_vault).map(|secret| (server.name.clone(), secret.clone()))
    });
    users.collect()
}

pub(super) fn check_grants(
    checker: &mut Checker<'_, '_>,
    raw: BTreeMap<Spanned<String>, RawGrant>,
    vault_servers: &VaultServers,
) -> BTreeMap<Name, Arc<Grant>> {
    let checked = raw.into_iter().filter_map(|(written, grant)| {
        let name = checker.parse_name("a grant", &written);
        let grant = check_grant(checker, &written, name, grant, vault_servers)?;
        Some((grant.name.clone(), Arc::new(grant)))
    });
    checked.collect()
}

fn check_grant(
    checker: &mut Checker<'_, '_>,
    written: &Spanned<String>,
    name: Option<Name>,
    raw: RawGrant,
    vault_servers: &VaultServers,
) -> Option<Grant> {
    let table = format!("grants.{}", written.value);
    let ttl = checker.check_duration(&format!("{table}.ttl"), raw.ttl, "8h", "100ms"..="366d");
    if raw.servers.is_none() && !checker.removed.affects(&["grants", &written.value]) {
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
        && let Some((server, secret)) = servers.iter().find_map(|server| vault_servers.get_key_value(server))
        && !checker.removed.affects(&["grants", &written.value])
    {
        let message = format!(
            "`{table}` has no `vault-policies`, and its server `{server}` uses the Vault secret `{secret}`"
        );
        let hint = "name the policies that allow it, as in `vault-policies = [\"agent-dev\"]`";
        checker.add(&span, message, hint);
    }
    let vault_policies = vault::check_policies(checker, &key, policies);
    Some(Grant { name: name?, servers, vault_policies, ttl })
}
