//! The settings files of a harness in the sandbox: an MCP server for each server of the grant, each started with the shim.

use relay_proto::name::Name;
use serde_json::{Map, Value, json};

use super::Harness;
use crate::harness::ShimCommand;
use crate::harness::sandbox_settings::CODEX_GRACE;

/// A file below the sandbox's home.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::run) struct SettingsFile {
    pub(in crate::run) path: &'static str,
    pub(in crate::run) text: String,
}

/// How the harness in the sandbox gets its login.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::run) enum LoginState {
    /// From a file that was copied.
    Copied,
    /// From an environment variable.
    Variable,
    Absent,
}

impl Harness {
    pub(in crate::run) fn settings(
        self,
        servers: &[Name],
        shim: ShimCommand<'_>,
        login: LoginState,
    ) -> Vec<SettingsFile> {
        let entries: Map<String, Value> =
            servers.iter().map(|server| (server.to_string(), self.entry(server, shim))).collect();
        let key = self.servers_key();
        let text = match self {
            // Otherwise Claude Code would show its first-run questions at every start, because the home is new each time.
            Self::ClaudeCode => json!({"hasCompletedOnboarding": true, key: entries}).to_string(),
            Self::Codex => codex_settings(key, &entries),
            Self::GeminiCli => {
                // Gemini CLI starts no MCP server in a directory that it does not trust, and would ask for trust and for the kind
                // of login at every start, because the home is new each time. Trust is not needed in a sandbox.
                let mut security = json!({"folderTrust": {"enabled": false}});
                match login {
                    LoginState::Copied => security["auth"] = json!({"selectedType": "oauth-personal"}),
                    LoginState::Variable => security["auth"] = json!({"selectedType": "gemini-api-key"}),
                    LoginState::Absent => {}
                }
                json!({key: entries, "security": security}).to_string()
            }
            Self::OpenCode => json!({key: entries, "autoupdate": false}).to_string(),
        };
        vec![SettingsFile { path: self.settings_path(), text }]
    }
}

fn codex_settings(key: &str, entries: &Map<String, Value>) -> String {
    let mut settings = toml::Table::new();
    settings.insert("check_for_update_on_startup".into(), false.into());
    settings.insert(CODEX_GRACE.0.into(), CODEX_GRACE.1.into());
    let entries = toml::Value::try_from(entries).expect("entries contain only strings and arrays");
    settings.insert(key.into(), entries);
    settings.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIM: ShimCommand<'_> =
        ShimCommand { program: "/run/cofferdam/bin/cofferdam-shim", relay: Some("unix:/run/r.sock") };

    fn settings_text(harness: Harness) -> String {
        let servers = ["github".parse().unwrap(), "ware-house".parse().unwrap()];
        let files = harness.settings(&servers, SHIM, LoginState::Copied);
        assert_eq!(files.len(), 1);
        files[0].text.clone()
    }

    #[test]
    fn every_harness_starts_the_shim_once_for_each_server() {
        let arguments = json!(["--relay", "unix:/run/r.sock", "--server", "ware-house"]);
        let claude: Value = serde_json::from_str(&settings_text(Harness::ClaudeCode)).unwrap();
        assert_eq!(claude["mcpServers"]["ware-house"]["args"], arguments);
        assert_eq!(claude["mcpServers"]["github"]["command"], SHIM.program);
        let codex: toml::Table = settings_text(Harness::Codex).parse().unwrap();
        let codex: Value = serde_json::to_value(codex).unwrap();
        assert_eq!(codex["mcp_servers"]["ware-house"]["args"], arguments);
        assert_eq!(codex["mcp_servers"]["github"]["command"], SHIM.program);
        let gemini: Value = serde_json::from_str(&settings_text(Harness::GeminiCli)).unwrap();
        assert_eq!(gemini["mcpServers"]["ware-house"]["args"], arguments);
        let opencode: Value = serde_json::from_str(&settings_text(Harness::OpenCode)).unwrap();
        assert_eq!(opencode["mcp"]["ware-house"]["command"][4], "ware-house");
    }
}
