//! One short text for "which rules decided this": it stands in every audit record.
//!
//! Must stay true: two configurations have one digest exactly when they decide alike by what they say, whatever
//! the order they say it in.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use relay_proto::name::Name;

use super::{Grant, Retry, Server};

pub(super) fn policy_digest(
    servers: &BTreeMap<Name, Arc<Server>>,
    grants: &BTreeMap<Name, Arc<Grant>>,
) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, canonical(servers, grants).as_bytes());
    digest.as_ref().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a String takes all that is written");
        hex
    })
}

/// Names and patterns hold no control characters, so lines cannot be forged.
fn canonical(servers: &BTreeMap<Name, Arc<Server>>, grants: &BTreeMap<Name, Arc<Grant>>) -> String {
    let mut lines = vec!["cofferdam policy 1".to_owned()];
    for server in servers.values() {
        lines.push(format!("server {}", server.name));
        lines.extend(server.rules.canonical().into_iter().map(|rule| format!("  {rule}")));
        if server.retry == Retry::WhereSafe {
            lines.push("  retry".into());
        }
    }
    for grant in grants.values() {
        let mut named: Vec<&str> = grant.servers.iter().map(Name::as_str).collect();
        named.sort_unstable();
        lines.push(format!("grant {} {}ms {}", grant.name, grant.ttl.as_millis(), named.join(" ")));
    }
    lines.join("\n")
}
