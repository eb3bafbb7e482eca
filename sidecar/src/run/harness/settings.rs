//! The settings files of a harness in the sandbox: an MCP server for each server of the grant, each started with the shim.

use relay_proto::name::Name;
use serde_json::{Map, Value, json};

use super::Harness;
use super::project_entries::ProjectEntries;
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

/// Where Claude Code has the person's choices, such as which servers of projects are switched off.
const CLAUDE_CODE_CHOICES: &str = ".claude/settings.json";

impl Harness {
    pub(in crate::run) fn settings(
        self,
        servers: &[Name],
        shim: ShimCommand<'_>,
        login: LoginState,
        project: &ProjectEntries,
    ) -> Vec<SettingsFile> {
        let named = servers.iter().flat_map(|server| {
            project.names_of(server, servers).into_iter().map(|name| (name, self.entry(server, shim)))
        });
        let entries: Map<String, Value> = named.collect();
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
        let mut files = vec![SettingsFile { path: self.settings_path(), text }];
        if !project.0.is_empty() {
            let names: Vec<&String> = project.0.keys().collect();
            let text = json!({"disabledMcpjsonServers": names}).to_string();
            files.push(SettingsFile { path: CLAUDE_CODE_CHOICES, text });
        }
        files
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
        let files = harness.settings(&servers, SHIM, LoginState::Copied, &ProjectEntries::default());
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

    #[test]
    fn entries_of_a_project_keep_their_names_and_are_switched_off_in_the_project() {
        let directory = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-project-"));
        std::fs::create_dir(&directory).unwrap();
        let servers: [Name; 2] = ["github".parse().unwrap(), "ware-house".parse().unwrap()];
        let shim = |server: &str| json!({"command": "cofferdam-shim", "args": ["--server", server]});
        let own = json!({"command": "own-server", "args": []});
        let entries = json!({"Ware House": shim("ware-house"), "github": shim("ware-house"), "other": shim("not-granted"), "own": own});
        std::fs::write(directory.join(".mcp.json"), json!({"mcpServers": entries}).to_string()).unwrap();
        let files = |harness: Harness| {
            let project = ProjectEntries::read(harness, &directory, &servers);
            harness.settings(&servers, SHIM, LoginState::Copied, &project)
        };
        let claude = files(Harness::ClaudeCode);
        let [settings, choices] = claude.as_slice() else { panic!("{claude:?}") };
        let settings: Value = serde_json::from_str(&settings.text).unwrap();
        let names: Vec<&String> = settings["mcpServers"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["Ware House", "github"]);
        assert_eq!(settings["mcpServers"]["Ware House"]["args"][3], "ware-house");
        assert_eq!(settings["mcpServers"]["github"]["args"][3], "github");
        assert_eq!(choices.path, ".claude/settings.json");
        assert_eq!(choices.text, r#"{"disabledMcpjsonServers":["Ware House","github"]}"#);
        assert_eq!(files(Harness::GeminiCli).len(), 1);
        // Not through a link, which a sandbox could have put there.
        std::fs::rename(directory.join(".mcp.json"), directory.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", directory.join(".mcp.json")).unwrap();
        assert_eq!(files(Harness::ClaudeCode).len(), 1);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
