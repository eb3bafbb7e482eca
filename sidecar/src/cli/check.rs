//! `check`: the configuration, and what it refers to on this host.
//!
//! What must stay true: a finding may be wrong about the sidecar, which runs in another environment and perhaps as another
//! user, so findings are warnings unless `--strict` is given.

use std::path::Path;
use std::process::ExitCode;

use super::arguments::CheckArguments;
use super::commands::{find, load_exit_code};
use crate::check::findings::{Severity, count, problems_as_json};
use crate::check::{check_host, online};
use crate::config::{self, Config};
use crate::terminal;
use crate::terminal::failure::Failure;

pub(super) fn run(file: Option<&Path>, arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    if arguments.schema {
        terminal::print_line(config::schema().trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let path = find(file)?;
    let config = match config::load(&path) {
        Ok(config) => config,
        Err(problems) if arguments.json => {
            terminal::print_line(&problems_as_json(&problems));
            return Ok(load_exit_code(&path).into());
        }
        Err(problems) => return Err(Failure::new(load_exit_code(&path), problems)),
    };
    let severity = match arguments.strict {
        true => Severity::Error,
        false => Severity::Warning,
    };
    let findings = check_host(&path, &config, severity);
    if arguments.json {
        terminal::print_line(&findings.as_json());
        return Ok(findings.exit_code().map_or(ExitCode::SUCCESS, ExitCode::from));
    }
    findings.print();
    if let Some(code) = findings.exit_code() {
        return Err(findings.failure(code));
    }
    terminal::print_line(&format!("{}{}", summary(&path, &config), findings.summary()));
    match arguments.online {
        true => online::run(&config),
        false => Ok(ExitCode::SUCCESS),
    }
}

fn summary(path: &Path, config: &Config) -> String {
    format!(
        "{}: ok ({}, {}, {})",
        path.display(),
        count(config.servers.len(), "server"),
        count(config.secrets.len(), "secret"),
        count(config.grants.len(), "grant")
    )
}
