//! The settings files of a harness in the sandbox: one MCP server for each server of the grant, all by the shim.

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

/// How the login of the harness is in the sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::run) enum LoginState {
    /// As a file.
    Copied,
    /// As a variable of the environment.
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
            // The first-run questions would come at every start, because the home is new each time.
            Self::ClaudeCode => json!({"hasCompletedOnboarding": true, key: entries}).to_string(),
            Self::Codex => codex(key, &entries),
            Self::GeminiCli => {
                // In a directory that it does not trust, Gemini CLI starts no MCP server. It would ask about trust and about the
                // kind of login at every start, because the home is new each time; the sandbox is what protects.
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

fn codex(key: &str, entries: &Map<String, Value>) -> String {
    let mut settings = toml::Table::new();
    settings.insert("check_for_update_on_startup".into(), false.into());
    settings.insert(CODEX_GRACE.0.into(), CODEX_GRACE.1.into());
    let entries = toml::Value::try_from(entries).expect("entries have texts and lists only");
    settings.insert(key.into(), entries);
    settings.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIM: ShimCommand<'_> =
        ShimCommand { program: "/run/cofferdam/bin/cofferdam-shim", link: Some("unix:/run/r.sock") };

    fn written(harness: Harness) -> String {
        let servers = ["github".parse().unwrap(), "ware-house".parse().unwrap()];
        let files = harness.settings(&servers, SHIM, LoginState::Copied);
        assert_eq!(files.len(), 1);
        files[0].text.clone()
    }

    #[test]
    fn every_harness_starts_the_shim_once_for_each_server() {
        let arguments = json!(["--relay", "unix:/run/r.sock", "--server", "ware-house"]);
        let claude: Value = serde_json::from_str(&written(Harness::ClaudeCode)).unwrap();
        assert_eq!(claude["mcpServers"]["ware-house"]["args"], arguments);
        assert_eq!(claude["mcpServers"]["github"]["command"], SHIM.program);
        let codex: toml::Table = written(Harness::Codex).parse().unwrap();
        let codex: Value = serde_json::to_value(codex).unwrap();
        assert_eq!(codex["mcp_servers"]["ware-house"]["args"], arguments);
        assert_eq!(codex["mcp_servers"]["github"]["command"], SHIM.program);
        let gemini: Value = serde_json::from_str(&written(Harness::GeminiCli)).unwrap();
        assert_eq!(gemini["mcpServers"]["ware-house"]["args"], arguments);
        let opencode: Value = serde_json::from_str(&written(Harness::OpenCode)).unwrap();
        assert_eq!(opencode["mcp"]["ware-house"]["command"][4], "ware-house");
    }
}
