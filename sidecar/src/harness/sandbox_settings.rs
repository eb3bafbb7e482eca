//! Adds entries for the servers of the grant to a harness's settings file in a sandbox of a platform.
//!
//! What must stay true: no entry is removed, and an existing entry with the name of a server is changed only if it starts the
//! shim (in TOML not even then). Shims find the hub by themselves, so an entry needs no address.

use std::sync::Arc;

use cofferdam_platforms::{HarnessSettings, MergedSettings};
use relay_proto::name::Name;
use serde_json::{Map, Value};
use toml::Table;

use super::{AddedEntries, Harness, ShimCommand, json_settings, toml_settings};

/// Called when the settings were handled, with a warning for the operator if entries are missing.
pub(crate) type ReportWarning = Arc<dyn Fn(Option<String>) + Send + Sync>;

pub(crate) struct SandboxSettings {
    pub(crate) harness: Harness,
    /// The servers of the sandbox's grant.
    pub(crate) servers: Vec<Name>,
    pub(crate) report: ReportWarning,
}

/// How long Codex waits for servers that are not `required`. Its default of one second is shorter than the first start of
/// many servers, whose tools would then be missing in the first turn.
pub(crate) const CODEX_GRACE: (&str, i64) = ("mcp_optional_startup_grace_ms", 10_000);

impl SandboxSettings {
    fn entries_by_name(&self, shim: &str) -> Map<String, Value> {
        let shim = ShimCommand { program: shim, relay: None };
        self.servers.iter().map(|server| (server.to_string(), self.harness.entry(server, shim))).collect()
    }

    fn new_file(&self, entries: Map<String, Value>) -> String {
        let key = self.harness.servers_key();
        if self.harness == Harness::Codex {
            let mut settings = Table::new();
            settings.insert(CODEX_GRACE.0.to_owned(), CODEX_GRACE.1.into());
            let added = toml_settings::add_entries(&settings.to_string(), key, &entries);
            return added.expect("the text before the entries is TOML without servers").text;
        }
        let settings = Map::from_iter([(key.to_owned(), Value::Object(entries))]);
        format!("{:#}\n", Value::Object(settings))
    }
}

impl HarnessSettings for SandboxSettings {
    fn path(&self) -> &str {
        self.harness.settings_path()
    }

    fn entries(&self, shim: &str) -> String {
        let (key, entries) = (self.harness.servers_key(), self.entries_by_name(shim));
        match self.harness {
            Harness::Codex => {
                let added = toml_settings::add_entries("", key, &entries);
                added.expect("entries can be added to an empty file").text
            }
            _ => Value::Object(Map::from_iter([(key.to_owned(), Value::Object(entries))])).to_string(),
        }
    }

    fn merge(&self, existing: Option<&str>, shim: &str) -> MergedSettings {
        let (key, entries) = (self.harness.servers_key(), self.entries_by_name(shim));
        let Some(existing) = existing.filter(|text| !text.trim().is_empty()) else {
            return MergedSettings { text: Some(self.new_file(entries)), not_added: None };
        };
        let added = match self.harness {
            Harness::Codex => toml_settings::add_entries(existing, key, &entries),
            _ => json_settings::add_entries(existing, key, &entries),
        };
        let AddedEntries { text, names_in_use } = match added {
            Ok(added) => added,
            Err(refusal) => return MergedSettings { text: None, not_added: Some(refusal.to_string()) },
        };
        let names = names_in_use.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let not_added = format!("it has other entries with the names {names}, which were left as they are");
        MergedSettings {
            text: (text != existing).then_some(text),
            not_added: (!names_in_use.is_empty()).then_some(not_added),
        }
    }

    fn finish(&self, warning: Option<String>) {
        (self.report)(warning.map(|warning| format!("settings of {}: {warning}", self.harness.name())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(harness: Harness) -> SandboxSettings {
        let servers = ["github", "ware-house"].map(|name| name.parse().unwrap());
        SandboxSettings { harness, servers: servers.to_vec(), report: Arc::new(|_| {}) }
    }

    const SHIM: &str = "/home/user/.local/bin/cofferdam-shim";
    const EVERY_HARNESS: [Harness; 4] =
        [Harness::ClaudeCode, Harness::Codex, Harness::GeminiCli, Harness::OpenCode];

    #[test]
    fn a_new_file_has_an_entry_for_each_server_and_merging_again_changes_nothing() {
        for harness in EVERY_HARNESS {
            let settings = settings(harness);
            let merged = settings.merge(None, SHIM);
            let text = merged.text.unwrap();
            assert!(text.contains(SHIM) && text.contains("ware-house"), "{text}");
            assert_eq!(merged.not_added, None);
            assert_eq!(settings.merge(Some(&text), SHIM), MergedSettings { text: None, not_added: None });
            assert!(settings.entries(SHIM).contains("ware-house"));
        }
    }

    #[test]
    fn the_reason_why_an_entry_was_not_added_is_reported() {
        for (harness, existing, reason) in [
            (Harness::OpenCode, "{ // comment\n}", "JSON"),
            (Harness::Codex, "mcp_servers = {}", "mcp_servers"),
            (Harness::GeminiCli, r#"{"mcpServers": {"github": {"command": "x"}}}"#, "`github`"),
        ] {
            let merged = settings(harness).merge(Some(existing), SHIM);
            assert!(merged.not_added.unwrap().contains(reason), "{reason}");
        }
    }
}
