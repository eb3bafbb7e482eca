//! What the manifests of servers allow in general, and no key of the configuration refines: the server does not get it.

use std::collections::BTreeMap;

use cofferdam_confine::manifest::Key;
use cofferdam_servers::spec::{ServerKind, ServerSpec, StdioServer};

use super::findings::Findings;
use crate::config::Config;

pub(super) fn check(config: &Config, findings: &mut Findings<'_>) {
    for server in config.servers.values() {
        if let ServerKind::Stdio(stdio) = &server.kind {
            check_server(server, stdio, findings);
        }
    }
}

fn check_server(server: &ServerSpec, stdio: &StdioServer, findings: &mut Findings<'_>) {
    let manifest = stdio.confinement.as_ref().and_then(|confinement| confinement.manifest.as_deref());
    let Some((manifest, given)) = manifest.zip(stdio.given(&server.scopes)) else { return };
    let name = server.name.as_str();
    let mut waiting: BTreeMap<&'static [&'static str], (Key, Vec<String>)> = BTreeMap::new();
    for (permission, key) in manifest.unrefined(&given) {
        let (_, permissions) = waiting.entry(key.path).or_insert_with(|| (key, Vec::new()));
        permissions.push(format!("`{permission}`"));
    }
    for (key, permissions) in waiting.into_values() {
        // An empty list that is written is a decision.
        if findings.is_written(&[&["servers", name], key.path].concat()) {
            continue;
        }
        let (tables, _) = key.path.split_at(key.path.len() - 1);
        let table = [&["servers", name], tables].concat().join(".");
        let message = format!(
            "its manifest allows {}, but no `{}` says what that is, so the server does not get it",
            permissions.join(" and "),
            key.path.join(".")
        );
        let hint = format!(
            "add a line such as `{}` to `{table}`, or an empty one if it is not to have it",
            key.example
        );
        findings.add("permission-unrefined", &["servers", name, "manifest"], message, hint);
    }
}
