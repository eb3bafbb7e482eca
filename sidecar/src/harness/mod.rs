//! Harnesses that Cofferdam knows, and their settings files: one entry for each MCP server, which starts the shim.
//!
//! What must stay true: an entry holds no secret; a settings file that exists is only added to, by the rules of
//! [`sandbox_settings`].
//!
//! | module | what it holds |
//! |---|---|
//! | `json_settings` | adds entries to a JSON file and leaves all its other bytes |
//! | [`sandbox_settings`] | the settings file in a sandbox of a platform |
//! | `toml_settings` | adds entries to a TOML file, at its end |

mod json_settings;
pub(crate) mod sandbox_settings;
mod toml_settings;

use std::path::Path;

use relay_proto::name::Name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A harness whose settings Cofferdam can write.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Harness {
    #[serde(rename = "claude")]
    ClaudeCode,
    #[serde(rename = "codex")]
    Codex,
    #[serde(rename = "gemini")]
    GeminiCli,
    #[serde(rename = "opencode")]
    OpenCode,
}

/// How the harness starts the shim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShimCommand<'a> {
    pub(crate) program: &'a str,
    /// The shim's `--relay`; `None`: the shim finds its relay by itself.
    pub(crate) link: Option<&'a str>,
}

/// The text of a settings file with entries added, and the names of servers that belong to other entries.
#[derive(Debug, Eq, PartialEq)]
struct AddedEntries {
    text: String,
    names_in_use: Vec<String>,
}

/// Why no entry was added to a settings file.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
enum MergeRefusal {
    #[error("it is not a JSON object without comments and repeated members")]
    NotPlainJson,
    #[error("it is not valid TOML")]
    NotToml,
    #[error("its `{0}` is written in a form that entries cannot be added to")]
    ServersForm(String),
}

/// The name of the shim's program, also of the link to it in a sandbox.
const SHIM_PROGRAM: &str = "cofferdam-shim";

impl Harness {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ClaudeCode => "Claude Code",
            Self::Codex => "Codex",
            Self::GeminiCli => "Gemini CLI",
            Self::OpenCode => "opencode",
        }
    }

    /// The user's settings file, below the home.
    pub(crate) fn settings_path(self) -> &'static str {
        match self {
            Self::ClaudeCode => ".claude.json",
            Self::Codex => ".codex/config.toml",
            Self::GeminiCli => ".gemini/settings.json",
            Self::OpenCode => ".config/opencode/opencode.json",
        }
    }

    /// The member of the settings in which the MCP servers are.
    pub(crate) fn servers_key(self) -> &'static str {
        match self {
            Self::ClaudeCode | Self::GeminiCli => "mcpServers",
            Self::Codex => "mcp_servers",
            Self::OpenCode => "mcp",
        }
    }

    /// The entry of one server. Codex passes no environment to servers, so a link is an argument.
    pub(crate) fn entry(self, server: &Name, shim: ShimCommand<'_>) -> Value {
        let relay = shim.link.map(|link| ["--relay", link]).into_iter().flatten();
        let arguments: Vec<&str> = relay.chain(["--server", server.as_str()]).collect();
        match self {
            Self::ClaudeCode => json!({"type": "stdio", "command": shim.program, "args": arguments}),
            Self::Codex | Self::GeminiCli => json!({"command": shim.program, "args": arguments}),
            Self::OpenCode => {
                let command: Vec<&str> = std::iter::once(shim.program).chain(arguments).collect();
                json!({"type": "local", "command": command, "enabled": true})
            }
        }
    }
}

/// Whether an entry of a settings file starts the shim, so that it was written for Cofferdam.
fn starts_shim(entry: &Value) -> bool {
    let command = match &entry["command"] {
        Value::Array(words) => words.first().and_then(Value::as_str),
        command => command.as_str(),
    };
    command.and_then(|command| Path::new(command).file_name()).is_some_and(|name| name == SHIM_PROGRAM)
}
