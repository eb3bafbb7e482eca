//! The policy digest: a hash of all rules, which every audit record carries to show which rules decided.
//!
//! What must stay true: two configurations have the same digest exactly when their rules and grants are the same; the
//! order in which they are written makes no difference, except for the order of scopes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cofferdam_base::text::hex;
use cofferdam_policy::Glob;
use cofferdam_secrets::Template;
use cofferdam_servers::spec::{Retry, ServerSpec};
use relay_proto::name::Name;

use super::Grant;

pub(super) fn policy_digest(
    servers: &BTreeMap<Name, Arc<ServerSpec>>,
    grants: &BTreeMap<Name, Arc<Grant>>,
) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, canonical_text(servers, grants).as_bytes());
    hex(digest.as_ref())
}

/// One line per rule. Names and patterns contain no control characters, so no name can imitate a line.
fn canonical_text(servers: &BTreeMap<Name, Arc<ServerSpec>>, grants: &BTreeMap<Name, Arc<Grant>>) -> String {
    let mut lines = vec!["cofferdam policy 1".to_owned()];
    for server in servers.values() {
        lines.push(format!("server {}", server.name));
        lines.extend(server.rules.canonical().into_iter().map(|rule| format!("  {rule}")));
        if server.retry == Retry::WhereSafe {
            lines.push("  retry".into());
        }
        lines.extend(scope_lines(server));
    }
    for grant in grants.values() {
        let mut server_names: Vec<&str> = grant.servers.iter().map(Name::as_str).collect();
        server_names.sort_unstable();
        lines.push(format!("grant {} {}ms {}", grant.name, grant.ttl.as_millis(), server_names.join(" ")));
        let mut policies: Vec<String> =
            grant.vault_policies.iter().map(|name| format!("  policy {name}")).collect();
        policies.sort_unstable();
        lines.extend(policies);
    }
    lines.join("\n")
}

/// Which credentials each tool runs with, for servers with scopes. Scopes keep their order, because the first match wins;
/// the credentials of all other tools come last.
fn scope_lines(server: &ServerSpec) -> Vec<String> {
    let mut lines = Vec::new();
    for scope in &server.scopes {
        lines.push("  scope".into());
        let patterns: BTreeSet<&str> = scope.tools.iter().map(Glob::as_str).collect();
        lines.extend(patterns.into_iter().map(|pattern| format!("    tools {pattern}")));
        lines.extend(secret_lines(scope.templates()));
    }
    if !lines.is_empty() {
        lines.push("  otherwise".into());
        lines.extend(secret_lines(server.templates()));
    }
    lines
}

fn secret_lines<'a>(templates: impl Iterator<Item = &'a Template>) -> BTreeSet<String> {
    let fields = templates.flat_map(Template::fields);
    fields.map(|(secret, field)| format!("    secret {secret}.{field}")).collect()
}
