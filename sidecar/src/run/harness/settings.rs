//! The settings files of a harness in the sandbox: one MCP server for each server of the grant, all by the shim.

use relay_proto::name::Name;
use serde_json::{Map, Value, json};

use super::Harness;

/// A file below the sandbox's home.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::run) struct SettingsFile {
    pub(in crate::run) path: &'static str,
    pub(in crate::run) text: String,
}

/// How the harness starts the shim.
#[derive(Clone, Copy, Debug)]
pub(in crate::run) struct ShimCommand<'a> {
    pub(in crate::run) program: &'a str,
    pub(in crate::run) link: &'a str,
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

/// How long Codex waits for servers that are not `required`. Its default of a second is shorter than the first start of
/// many servers, and a turn that starts without them has none of their tools.
const CODEX_GRACE_MS: i64 = 10_000;

impl Harness {
    pub(in crate::run) fn settings(
        self,
        servers: &[Name],
        shim: ShimCommand<'_>,
        login: LoginState,
    ) -> Vec<SettingsFile> {
        let named = |entry: &dyn Fn(&Name) -> Value| -> Map<String, Value> {
            servers.iter().map(|server| (server.to_string(), entry(server))).collect()
        };
        match self {
            Self::ClaudeCode => {
                let servers = named(
                    &|server| json!({"type": "stdio", "command": shim.program, "args": shim.arguments(server)}),
                );
                // The first-run questions would come at every start, because the home is new each time.
                let text = json!({"hasCompletedOnboarding": true, "mcpServers": servers}).to_string();
                vec![SettingsFile { path: ".claude.json", text }]
            }
            Self::Codex => vec![SettingsFile { path: ".codex/config.toml", text: codex(servers, shim) }],
            Self::GeminiCli => {
                let servers =
                    named(&|server| json!({"command": shim.program, "args": shim.arguments(server)}));
                // In a directory that it does not trust, Gemini CLI starts no MCP server. It would ask about trust and about the
                // kind of login at every start, because the home is new each time; the sandbox is what protects.
                let mut security = json!({"folderTrust": {"enabled": false}});
                match login {
                    LoginState::Copied => security["auth"] = json!({"selectedType": "oauth-personal"}),
                    LoginState::Variable => security["auth"] = json!({"selectedType": "gemini-api-key"}),
                    LoginState::Absent => {}
                }
                let settings = json!({"mcpServers": servers, "security": security});
                vec![SettingsFile { path: ".gemini/settings.json", text: settings.to_string() }]
            }
            Self::OpenCode => {
                let servers = named(&|server| {
                    let mut command = vec![shim.program.to_owned()];
                    command.extend(shim.arguments(server));
                    json!({"type": "local", "command": command, "enabled": true})
                });
                let text = json!({"mcp": servers, "autoupdate": false}).to_string();
                vec![SettingsFile { path: ".config/opencode/opencode.json", text }]
            }
        }
    }
}

impl ShimCommand<'_> {
    /// Codex passes no environment to servers, so the link is an argument.
    fn arguments(self, server: &Name) -> Vec<String> {
        ["--relay", self.link, "--server", server.as_str()].map(str::to_owned).to_vec()
    }
}

fn codex(servers: &[Name], shim: ShimCommand<'_>) -> String {
    let entry = |server: &Name| {
        let mut entry = toml::Table::new();
        entry.insert("command".into(), shim.program.into());
        entry.insert("args".into(), shim.arguments(server).into());
        (server.to_string(), toml::Value::Table(entry))
    };
    let mut settings = toml::Table::new();
    settings.insert("check_for_update_on_startup".into(), false.into());
    settings.insert("mcp_optional_startup_grace_ms".into(), CODEX_GRACE_MS.into());
    settings.insert("mcp_servers".into(), toml::Value::Table(servers.iter().map(entry).collect()));
    settings.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIM: ShimCommand<'_> =
        ShimCommand { program: "/run/cofferdam/bin/cofferdam-shim", link: "unix:/run/r.sock" };

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
