//! The settings of this user's harnesses: whether they start the shim, and whether the link and the server that they name exist.
//!
//! What must stay true: settings files are only read; nothing of them is shown but the name of an entry, the shim, the link and
//! the server.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use cofferdam_process::program_path;
use relay_proto::address::Address;
use serde_json::{Map, Value};

use super::finding::Findings;
use crate::config::{Config, suggest};
use crate::harness::{Harness, starts_shim};

const HARNESSES: [Harness; 4] = [Harness::ClaudeCode, Harness::Codex, Harness::GeminiCli, Harness::OpenCode];
/// The settings of a project, in the working directory. Claude Code and others read it.
const PROJECT_FILE: &str = ".mcp.json";
/// Claude Code keeps the history of all projects in its settings.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// An entry that starts the shim.
#[derive(Debug, Default, Eq, PartialEq)]
struct ShimEntry {
    name: String,
    program: String,
    relay: Option<String>,
    server: Option<String>,
}

pub(super) fn probe(config: Option<&Config>, findings: &mut Findings) {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let mut files: Vec<(String, PathBuf, Harness)> = Vec::new();
    for harness in HARNESSES {
        let path = home.as_ref().map(|home| home.join(harness.settings_path()));
        files.extend(path.map(|path| (harness.name().to_owned(), path, harness)));
    }
    files.push(("this project".to_owned(), PROJECT_FILE.into(), Harness::ClaudeCode));
    let mut found = 0;
    for (name, path, harness) in files {
        let about = format!("{name} ({})", path.display());
        let entries = match read(&path, harness) {
            Ok(Some(entries)) => entries,
            Ok(None) => continue,
            Err(why) => {
                let next =
                    "correct the file; or look at its entries yourself, if the harness accepts it as it is";
                findings.warning("harness-unreadable", about, why, next);
                continue;
            }
        };
        found += entries.len();
        let before = findings.0.len();
        for entry in &entries {
            check(entry, &about, config, findings);
        }
        if !entries.is_empty() && findings.0.len() == before {
            let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            findings.good("harness-ok", about, format!("starts the shim for {}", names.join(", ")));
        }
    }
    if found == 0 {
        let what = "no settings of this user name the shim; `cofferdam run -- CMD` needs none";
        findings.good("harness-none", "harnesses", what);
    }
}

/// The entries of a file that start the shim. `None` if there is no file.
fn read(path: &Path, harness: Harness) -> Result<Option<Vec<ShimEntry>>, String> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read it: {error}")),
    };
    let mut text = String::new();
    let read = file.take(MAX_FILE_BYTES).read_to_string(&mut text);
    read.map_err(|error| format!("cannot read it: {error}"))?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    let key = harness.servers_key();
    let settings: Map<String, Value> = match harness {
        Harness::Codex => toml::from_str(&text).map_err(|_| "it is not valid TOML")?,
        _ => serde_json::from_str(text.trim_start_matches('\u{feff}'))
            .map_err(|_| "it is not plain JSON (it may have comments)")?,
    };
    // Claude Code has servers of the user, and of each project.
    let projects = settings.get("projects").and_then(Value::as_object);
    let of_projects = projects.into_iter().flat_map(Map::values).filter_map(|project| project.get(key));
    let tables = settings.get(key).into_iter().chain(of_projects).filter_map(Value::as_object);
    let entries = tables.flatten().filter(|(_, entry)| starts_shim(entry));
    Ok(Some(entries.map(|(name, entry)| ShimEntry::read(name, entry)).collect()))
}

impl ShimEntry {
    fn read(name: &str, entry: &Value) -> Self {
        let words = |value: &Value| -> Vec<String> {
            let list = value.as_array().into_iter().flatten();
            list.filter_map(|word| word.as_str().map(str::to_owned)).collect()
        };
        let mut command = match &entry["command"] {
            Value::String(program) => vec![program.clone()],
            command => words(command),
        };
        command.extend(words(&entry["args"]));
        let option = |flag: &str| {
            let with_value = format!("{flag}=");
            command.iter().enumerate().find_map(|(index, word)| match word.strip_prefix(&with_value) {
                Some(value) => Some(value.to_owned()),
                None if word == flag => command.get(index + 1).cloned(),
                None => None,
            })
        };
        // opencode calls it `environment`.
        let variables = [&entry["env"], &entry["environment"]];
        let variable = variables.iter().find_map(|table| table["COFFERDAM_RELAY"].as_str());
        Self {
            name: name.to_owned(),
            program: command.first().cloned().unwrap_or_default(),
            relay: option("--relay").or_else(|| variable.map(str::to_owned)),
            server: option("--server"),
        }
    }
}

fn check(entry: &ShimEntry, about: &str, config: Option<&Config>, findings: &mut Findings) {
    let ShimEntry { name, program, relay, server } = entry;
    if program_path(program.as_ref()).is_err() {
        let what = format!("the entry `{name}` starts `{program}`, which is not there or not executable");
        let next = "cofferdam shim --out ~/.local/bin/cofferdam-shim && chmod +x ~/.local/bin/cofferdam-shim\nThen name that file in the entry.";
        findings.error("harness-shim-missing", about, what, next);
    }
    if let Some(relay) = relay {
        check_link(name, relay, about, config, findings);
    }
    if let (Some(server), Some(config)) = (server, config)
        && !config.servers.keys().any(|known| known.as_str() == server)
    {
        let known = config.servers.keys().map(relay_proto::name::Name::as_str);
        let what =
            format!("the entry `{name}` names the server `{server}`, which the configuration does not have");
        findings.error("harness-server-unknown", about, what, suggest::hint(server, "server", known));
    }
}

fn check_link(name: &str, relay: &str, about: &str, config: Option<&Config>, findings: &mut Findings) {
    let configured = config.and_then(|config| config.relay.unix.as_ref()).map(|unix| unix.path.as_path());
    let next = match configured {
        Some(path) => format!("write `unix:{}` there, as the configuration has it", path.display()),
        None => {
            "remove `--relay` and COFFERDAM_RELAY there: the shim then looks in the usual places".to_owned()
        }
    };
    match relay.parse() {
        Err(_) => {
            let what = format!("the entry `{name}` has a link that the shim does not understand");
            findings.error("harness-link-stale", about, what, next);
        }
        // Whether a sidecar listens at the configured socket is reported with the relay.
        Ok(Address::Unix(path)) if configured != Some(&path) && !path.exists() => {
            let what = format!(
                "the entry `{name}` has the link `unix:{}`, and there is no such socket",
                path.display()
            );
            findings.error("harness-link-stale", about, what, next);
        }
        Ok(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_of_every_harness_are_understood() {
        let expected = |relay: Option<&str>, server: Option<&str>| ShimEntry {
            name: "x".into(),
            program: "/b/cofferdam-shim".into(),
            relay: relay.map(str::to_owned),
            server: server.map(str::to_owned),
        };
        for (entry, relay, server) in [
            (json!({"command": "/b/cofferdam-shim"}), None, None),
            (
                json!({"command": "/b/cofferdam-shim", "args": ["--relay", "unix:/r", "--server=g"]}),
                Some("unix:/r"),
                Some("g"),
            ),
            (json!({"command": ["/b/cofferdam-shim", "--server", "g"]}), None, Some("g")),
            (
                json!({"command": "/b/cofferdam-shim", "env": {"COFFERDAM_RELAY": "unix:/e"}}),
                Some("unix:/e"),
                None,
            ),
            (json!({"command": "/b/cofferdam-shim", "args": ["--relay"]}), None, None),
        ] {
            assert_eq!(ShimEntry::read("x", &entry), expected(relay, server), "{entry}");
        }
    }
}
