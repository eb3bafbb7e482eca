//! The configuration, and what it names on this host.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::finding::Findings;
use crate::check::check_host;
use crate::check::findings::{CONFIG_INVALID, Severity as CheckSeverity, count};
use crate::config::{self, Config, Environment};

/// Findings of `check` that may be wrong about a sidecar with another environment, or that keep nothing from working.
const WARNINGS: [&str; 4] =
    ["permission-unrefined", "secret-unset", "secret-exposed-to-group", "secret-guessable"];
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The configuration, if there is one, and its path, if that is known.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) path: Option<PathBuf>,
    pub(super) config: Option<Config>,
}

pub(super) fn probe(file: Option<&Path>, findings: &mut Findings) -> Loaded {
    let path = match config::find(file, &Environment::of_process()) {
        Ok(path) => path,
        Err(error) => {
            let next = "run `cofferdam init` for a first configuration, or `cofferdam import` to take over the servers of a harness";
            findings.error("config-missing", "configuration", error.to_string(), next);
            return Loaded::default();
        }
    };
    let about = path.display().to_string();
    if let Err(error) = std::fs::File::open(&path) {
        let next = match error.kind() {
            std::io::ErrorKind::NotFound => format!(
                "correct the path, or make the file: `cofferdam init -c {}`",
                cofferdam_base::text::shell_quoted(&about)
            ),
            _ => "run this as the sidecar's user, or make that user the owner of the file".to_owned(),
        };
        findings.error("config-unreadable", about, format!("cannot read it: {error}"), next);
        return Loaded { path: Some(path), config: None };
    }
    if std::fs::metadata(&path).is_ok_and(|metadata| metadata.mode() & WRITABLE_BY_OTHERS != 0) {
        let next = format!("chmod go-w {}", cofferdam_base::text::shell_quoted(&about));
        findings.error("config-writable", about.clone(), "other users of this host can change it", next);
    }
    match config::load(&path) {
        Ok(config) => {
            report_host(&path, &config, findings);
            Loaded { path: Some(path), config: Some(config) }
        }
        Err(problems) => {
            for problem in problems.list {
                findings.error(CONFIG_INVALID, about.clone(), problem.message, problem.hint);
                if let Some(last) = findings.0.last_mut() {
                    last.line = problem.position.map(|position| position.line);
                }
            }
            Loaded { path: Some(path), config: None }
        }
    }
}

fn report_host(path: &Path, config: &Config, findings: &mut Findings) {
    let found = check_host(path, config, CheckSeverity::Warning).into_list();
    if found.is_empty() {
        let what = format!(
            "{}, {}, {}: nothing of what it names is missing on this host",
            count(config.servers.len(), "server"),
            count(config.secrets.len(), "secret"),
            count(config.grants.len(), "grant")
        );
        findings.good("config-ok", path.display().to_string(), what);
    }
    for finding in found {
        let about = finding.key.unwrap_or_else(|| path.display().to_string());
        match WARNINGS.contains(&finding.code) {
            true => findings.warning(finding.code, about, finding.message, finding.hint),
            false => findings.error(finding.code, about, finding.message, finding.hint),
        }
        if let Some(last) = findings.0.last_mut() {
            last.line = finding.line;
        }
    }
}
