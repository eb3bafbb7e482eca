//! The entry with which each harness starts the shim.

use serde_json::{Value, json};

use crate::dialect::Dialect;

/// How a harness starts the shim.
#[derive(Clone, Copy, Debug)]
pub struct ShimProgram<'a> {
    pub program: &'a str,
    /// The address for `--relay`; without it the shim finds the relay by itself.
    pub relay: Option<&'a str>,
}

/// The members of an entry that say what a harness starts. All others stay, such as time limits and lists of tools.
pub(crate) const DEFINING_MEMBERS: &[&str] = &[
    "args",
    "bearer_token_env_var",
    "command",
    "cwd",
    "env",
    "envFile",
    "env_http_headers",
    "env_vars",
    "environment",
    "headers",
    "httpUrl",
    "http_headers",
    "oauth",
    "serverUrl",
    "transport",
    "type",
    "url",
];

/// The variables that tell the shim where to connect. Codex passes servers only the variables that it is told to.
const SHIM_VARIABLES: &[&str] =
    &["COFFERDAM_ENROLL", "COFFERDAM_ENROLL_FILE", "COFFERDAM_RELAY", "COFFERDAM_STATE"];

/// The defining members of an entry for the shim. `None` for a dialect whose entries are not those of a harness.
pub(crate) fn shim_members(
    dialect: Dialect,
    shim: ShimProgram<'_>,
    server: &str,
) -> Option<Vec<(&'static str, Value)>> {
    let relay = shim.relay.map(|address| ["--relay", address]).into_iter().flatten();
    let arguments: Vec<&str> = relay.chain(["--server", server]).collect();
    Some(match dialect {
        Dialect::E2b => return None,
        Dialect::OpenCode => {
            let command: Vec<&str> = std::iter::once(shim.program).chain(arguments).collect();
            vec![("type", json!("local")), ("command", json!(command))]
        }
        Dialect::Codex => {
            let mut members = vec![("command", json!(shim.program)), ("args", json!(arguments))];
            if shim.relay.is_none() {
                members.push(("env_vars", json!(SHIM_VARIABLES)));
            }
            members
        }
        Dialect::VsCode | Dialect::Standard => {
            vec![("type", json!("stdio")), ("command", json!(shim.program)), ("args", json!(arguments))]
        }
        Dialect::Gemini => vec![("command", json!(shim.program)), ("args", json!(arguments))],
    })
}
