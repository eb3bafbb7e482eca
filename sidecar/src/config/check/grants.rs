//! `[grants.*]`: which servers a sandbox may use.

use std::collections::BTreeMap;
use std::sync::Arc;

use relay_proto::name::Name;

use super::{Checker, Known};
use crate::config::Grant;
use crate::config::at::At;
use crate::config::raw::RawGrant;

impl Checker<'_, '_> {
    pub(super) fn grants(
        &mut self,
        raw: BTreeMap<At<String>, RawGrant>,
        known: &Known,
    ) -> BTreeMap<Name, Arc<Grant>> {
        let checked = raw.into_iter().filter_map(|(written, grant)| {
            let name = self.name("a grant", &written);
            let grant = self.grant(&written, name, grant, known)?;
            Some((grant.name.clone(), Arc::new(grant)))
        });
        checked.collect()
    }

    fn grant(
        &mut self,
        written: &At<String>,
        name: Option<Name>,
        raw: RawGrant,
        known: &Known,
    ) -> Option<Grant> {
        let table = format!("grants.{}", written.value);
        self.later(&format!("{table}.vault-policies"), raw.vault_policies);
        let ttl = self.time(&format!("{table}.ttl"), raw.ttl, "8h", "100ms"..="366d");
        if raw.servers.is_none() && !self.damage.touches(&["grants", &written.value]) {
            let hint = "name the servers, as in `servers = [\"github\"]`; an empty list grants nothing";
            self.add(&written.span, format!("`{table}` does not say which servers it grants"), hint);
        }
        let key = format!("{table}.servers");
        let mut servers: Vec<Name> = Vec::new();
        for server in raw.servers.unwrap_or_default() {
            let Some(name) = self.reference(&key, "servers", &known.servers, &server.value, &server.span)
            else {
                continue;
            };
            match servers.contains(&name) {
                true => self.add(&server.span, format!("`{key}` names `{name}` twice"), "keep one of them"),
                false => servers.push(name),
            }
        }
        Some(Grant { name: name?, servers, ttl })
    }
}
