//! One short text for "which rules decided this": it stands in every audit record.
//!
//! Must stay true: two configurations have one digest exactly when they decide alike by what they say, whatever
//! the order they say it in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cofferdam_base::text::hex;
use relay_proto::name::Name;

use super::Grant;
use crate::policy::Glob;
use crate::secrets::Template;
use crate::servers::spec::{Retry, ServerSpec};

pub(super) fn policy_digest(
    servers: &BTreeMap<Name, Arc<ServerSpec>>,
    grants: &BTreeMap<Name, Arc<Grant>>,
) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, canonical(servers, grants).as_bytes());
    hex(digest.as_ref())
}

/// Names and patterns hold no control characters, so lines cannot be forged.
fn canonical(servers: &BTreeMap<Name, Arc<ServerSpec>>, grants: &BTreeMap<Name, Arc<Grant>>) -> String {
    let mut lines = vec!["cofferdam policy 1".to_owned()];
    for server in servers.values() {
        lines.push(format!("server {}", server.name));
        lines.extend(server.rules.canonical().into_iter().map(|rule| format!("  {rule}")));
        if server.retry == Retry::WhereSafe {
            lines.push("  retry".into());
        }
        lines.extend(scopes(server));
    }
    for grant in grants.values() {
        let mut named: Vec<&str> = grant.servers.iter().map(Name::as_str).collect();
        named.sort_unstable();
        lines.push(format!("grant {} {}ms {}", grant.name, grant.ttl.as_millis(), named.join(" ")));
        let mut policies: Vec<String> =
            grant.vault_policies.iter().map(|name| format!("  policy {name}")).collect();
        policies.sort_unstable();
        lines.extend(policies);
    }
    lines.join("\n")
}

/// Which credentials a tool runs with, where that depends on the tool: scopes in their order, for the first wins, and
/// what is left to all other tools.
fn scopes(server: &ServerSpec) -> Vec<String> {
    let mut lines = Vec::new();
    for scope in &server.scopes {
        lines.push("  scope".into());
        let patterns: BTreeSet<&str> = scope.tools.iter().map(Glob::as_str).collect();
        lines.extend(patterns.into_iter().map(|pattern| format!("    tools {pattern}")));
        lines.extend(fields(scope.templates()));
    }
    if !lines.is_empty() {
        lines.push("  otherwise".into());
        lines.extend(fields(server.templates()));
    }
    lines
}

fn fields<'a>(templates: impl Iterator<Item = &'a Template>) -> BTreeSet<String> {
    let fields = templates.flat_map(Template::fields);
    fields.map(|(secret, field)| format!("    secret {secret}.{field}")).collect()
}
