//! `check`: the configuration, and what it refers to on this host.
//!
//! | module | what it holds |
//! |---|---|
//! | `findings` | what was found, as lines or as JSON |
//! | `secrets` | the sources of secrets, and the fields that templates use |
//! | `files` | programs, directories, certificates and keys |
//!
//! What must stay true: the check has no side effects, so it runs no program and creates no file; it prints neither a value of
//! the configuration, which may be a credential by mistake, nor anything of a secret but names of fields that the configuration
//! uses. A finding may be wrong about the sidecar, which runs in another environment and perhaps as another user, so findings
//! are warnings unless `--strict` is given.

mod files;
mod findings;
mod secrets;

use std::path::Path;
use std::process::ExitCode;

use super::arguments::CheckArguments;
use super::commands::{find, load_exit_code};
use crate::config::{self, Config};
use crate::terminal;
use crate::terminal::failure::Failure;
use findings::{Findings, Severity};

pub(super) fn run(file: Option<&Path>, arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    if arguments.schema {
        terminal::print_line(config::schema().trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let path = find(file)?;
    let config = match config::load(&path) {
        Ok(config) => config,
        Err(problems) if arguments.json => {
            terminal::print_line(&findings::problems_as_json(&problems));
            return Ok(load_exit_code(&path).into());
        }
        Err(problems) => return Err(Failure::new(load_exit_code(&path), problems)),
    };
    let severity = match arguments.strict {
        true => Severity::Error,
        false => Severity::Warning,
    };
    let mut findings = Findings::new(&path, severity);
    secrets::check(&config, &mut findings);
    files::check(&config, &mut findings);
    findings.sort();
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
        true => super::check_online::run(&config),
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

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
