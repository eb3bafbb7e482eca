//! The harnesses that Cofferdam supports, and their settings files: an entry for each MCP server, which starts the shim.
//!
//! What must stay true: an entry holds no secret; a settings file that exists is only added to, by the rules of
//! [`sandbox_settings`].
//!
//! | module | what it holds |
//! |---|---|
//! | `json_settings` | adds entries to a JSON file and changes no other byte |
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
    /// The address for the shim's `--relay`. With `None` the shim finds the relay by itself.
    pub(crate) relay: Option<&'a str>,
}

/// The text of a settings file with entries added, and the names of servers that other entries already have.
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

/// The file name of the shim, and of the symbolic link to it in a sandbox.
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

    /// The path of the user's settings file, relative to the home.
    pub(crate) fn settings_path(self) -> &'static str {
        match self {
            Self::ClaudeCode => ".claude.json",
            Self::Codex => ".codex/config.toml",
            Self::GeminiCli => ".gemini/settings.json",
            Self::OpenCode => ".config/opencode/opencode.json",
        }
    }

    /// The key of the MCP servers in the settings.
    pub(crate) fn servers_key(self) -> &'static str {
        match self {
            Self::ClaudeCode | Self::GeminiCli => "mcpServers",
            Self::Codex => "mcp_servers",
            Self::OpenCode => "mcp",
        }
    }

    /// The entry of one server. The relay's address is an argument, because Codex passes no environment to servers.
    pub(crate) fn entry(self, server: &Name, shim: ShimCommand<'_>) -> Value {
        let relay = shim.relay.map(|address| ["--relay", address]).into_iter().flatten();
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
pub(crate) fn starts_shim(entry: &Value) -> bool {
    let command = match &entry["command"] {
        Value::Array(arguments) => arguments.first().and_then(Value::as_str),
        command => command.as_str(),
    };
    command.and_then(|command| Path::new(command).file_name()).is_some_and(|name| name == SHIM_PROGRAM)
}
