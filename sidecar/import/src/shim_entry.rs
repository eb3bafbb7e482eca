//! The entry with which each harness starts the shim: how it is written, and how it is recognised.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::dialect::Dialect;
use crate::found::FoundShim;

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

/// The file name of the shim.
const SHIM: &str = "cofferdam-shim";
/// The variable with the meaning of `--relay`.
const RELAY_VARIABLE: &str = "COFFERDAM_RELAY";

/// The variables that tell the shim where to connect. Codex passes servers only the variables that it is told to.
const SHIM_VARIABLES: &[&str] =
    &["COFFERDAM_ENROLL", "COFFERDAM_ENROLL_FILE", RELAY_VARIABLE, "COFFERDAM_STATE"];

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

/// Reads an entry that starts the shim, which has its file name. With `--shim` an entry may start it by another one: such an
/// entry has exactly the arguments that [`shim_members`] writes, and `is_shims_server` knows the server that they name.
pub(crate) fn read_shim(
    name: &str,
    entry: &Map<String, Value>,
    is_shims_server: &dyn Fn(&str) -> bool,
) -> Option<FoundShim> {
    let texts = |value: Option<&Value>| -> Vec<String> {
        let list = value.and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let mut arguments = match entry.get("command")? {
        Value::String(program) => vec![program.clone()],
        command => texts(Some(command)),
    };
    arguments.extend(texts(entry.get("args")));
    if arguments.is_empty() {
        return None;
    }
    let program = arguments.remove(0);
    let has_name = Path::new(&program).file_name().is_some_and(|name| name == SHIM);
    let written = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--relay", _, "--server", server] | ["--server", server] => Some((*server).to_owned()),
        _ => None,
    };
    if !has_name && !written.is_some_and(|server| is_shims_server(&server)) {
        return None;
    }
    let option = |flag: &str| {
        let with_value = format!("{flag}=");
        arguments.iter().enumerate().find_map(|(index, word)| match word.strip_prefix(&with_value) {
            Some(value) => Some(value.to_owned()),
            None if word == flag => arguments.get(index + 1).cloned(),
            None => None,
        })
    };
    // opencode calls it `environment`.
    let variables = ["env", "environment"].iter().filter_map(|key| entry.get(*key));
    let variable = variables.filter_map(|table| table.get(RELAY_VARIABLE)?.as_str()).next();
    Some(FoundShim {
        name: name.to_owned(),
        relay: option("--relay").or_else(|| variable.map(str::to_owned)),
        server: option("--server"),
        program,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entry: &Value) -> Option<FoundShim> {
        read_shim("x", entry.as_object().unwrap(), &|server| server == "known")
    }

    #[test]
    fn entries_of_every_harness_are_understood() {
        for (entry, program, relay, server) in [
            (json!({"command": "/b/cofferdam-shim"}), "/b/cofferdam-shim", None, None),
            (
                json!({"command": "cofferdam-shim", "args": ["--relay", "unix:/r", "--server=g"]}),
                "cofferdam-shim",
                Some("unix:/r"),
                Some("g"),
            ),
            (
                json!({"command": ["/b/cofferdam-shim", "--server", "g"]}),
                "/b/cofferdam-shim",
                None,
                Some("g"),
            ),
            (
                json!({"command": "cofferdam-shim", "env": {"COFFERDAM_RELAY": "unix:/e"}}),
                "cofferdam-shim",
                Some("unix:/e"),
                None,
            ),
            (
                json!({"command": ["cofferdam-shim"], "environment": {"COFFERDAM_RELAY": "unix:/e"}}),
                "cofferdam-shim",
                Some("unix:/e"),
                None,
            ),
            (json!({"command": "cofferdam-shim", "args": ["--relay"]}), "cofferdam-shim", None, None),
            (json!({"command": "/opt/cs", "args": ["--server", "known"]}), "/opt/cs", None, Some("known")),
            (
                json!({"command": ["/opt/cs", "--relay", "tcp:h:1", "--server", "known"]}),
                "/opt/cs",
                Some("tcp:h:1"),
                Some("known"),
            ),
        ] {
            let expected = FoundShim {
                name: "x".to_owned(),
                program: program.to_owned(),
                relay: relay.map(str::to_owned),
                server: server.map(str::to_owned),
            };
            assert_eq!(read(&entry), Some(expected), "{entry}");
        }
    }

    #[test]
    fn other_programs_are_not_the_shim() {
        for entry in [
            json!({}),
            json!({"command": []}),
            json!({"command": "proxy", "args": ["--server", "unknown"]}),
            json!({"command": "proxy", "args": ["--server", "known", "--verbose"]}),
            json!({"command": "proxy", "args": ["--relay", "--server", "known"]}),
            json!({"command": "cofferdam-shim-wrapper"}),
        ] {
            assert_eq!(read(&entry), None, "{entry}");
        }
    }
}
