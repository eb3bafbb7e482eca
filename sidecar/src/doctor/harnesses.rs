//! The settings of this user's harnesses: whether they start the shim, and whether the link and the server that they name exist.
//!
//! What must stay true: settings files are only read; nothing of them is shown but the name of an entry, the shim, the link and
//! the server.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use cofferdam_import::{FoundEntry, FoundShim, Settings, Surroundings, known_files};
use cofferdam_process::program_path;
use relay_proto::address::Address;
use relay_proto::name::Name;
use zeroize::Zeroizing;

use super::finding::Findings;
use crate::config::{Config, suggest};

/// Claude Code keeps the history of all projects in its settings.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
const NEXT_FOR_SHIM: &str = "\
nothing, if the harness runs in a sandbox; outside of a sandbox it needs the shim:
cofferdam shim --out ~/.local/bin/cofferdam-shim && chmod +x ~/.local/bin/cofferdam-shim";

pub(super) fn probe(config: Option<&Config>, findings: &mut Findings) {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let directory = std::env::current_dir().unwrap_or_default();
    let mut found = 0;
    for path in known_files(&directory, home.as_deref(), &|name| std::env::var(name).ok()) {
        let about = format!("harness settings {}", path.display());
        let entries = match read(&path, config) {
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
        check_programs(&entries, &about, findings);
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
fn read(path: &Path, config: Option<&Config>) -> Result<Option<Vec<FoundShim>>, String> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read it: {error}")),
    };
    let mut bytes = Zeroizing::new(Vec::new());
    let read = file.take(MAX_FILE_BYTES).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot read it: {error}"))?;
    let is_configured = |name: &str| config.is_some_and(|config| has_server(config, name));
    let surroundings = Surroundings { is_configured: &is_configured, ..Surroundings::nowhere() };
    let settings =
        Settings::read(path, &bytes, &surroundings).map_err(|error| format!("it is not valid: {error}"))?;
    let shims = settings.entries.into_iter().filter_map(|entry| match entry {
        FoundEntry::Shim(shim) => Some(shim),
        FoundEntry::Server(_) | FoundEntry::Skipped { .. } => None,
    });
    Ok(Some(shims.collect()))
}

fn has_server(config: &Config, name: &str) -> bool {
    config.servers.keys().any(|known| known.as_str() == name)
}

/// Whether the programs of the entries are here. In a sandbox, for which entries are written, the shim is there.
fn check_programs(entries: &[FoundShim], about: &str, findings: &mut Findings) {
    let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| program_path(entry.program.as_ref()).is_err()) {
        missing.entry(&entry.program).or_default().push(format!("`{}`", entry.name));
    }
    for (program, names) in missing {
        let verb = if names.len() == 1 { "starts" } else { "start" };
        let what = format!(
            "{} {verb} `{program}`, which this machine does not have: that is right for a sandbox, which has it",
            names.join(", ")
        );
        findings.warning("harness-shim-missing", about, what, NEXT_FOR_SHIM);
    }
}

fn check(entry: &FoundShim, about: &str, config: Option<&Config>, findings: &mut Findings) {
    let FoundShim { name, relay, server, .. } = entry;
    if let Some(relay) = relay {
        check_link(name, relay, about, config, findings);
    }
    if let (Some(server), Some(config)) = (server, config)
        && !has_server(config, server)
    {
        let known = config.servers.keys().map(Name::as_str);
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
                "the entry `{name}` has the link `unix:{}`, a socket that this machine does not have: that is right only for a \
                 sandbox that has it",
                path.display()
            );
            findings.warning("harness-link-stale", about, what, next);
        }
        Ok(_) => {}
    }
}
