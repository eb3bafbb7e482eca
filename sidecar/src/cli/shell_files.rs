//! `completions` and `man-pages`: what shells and `man` know of this program, generated from its arguments.

use std::process::ExitCode;

use clap::CommandFactory as _;

use super::arguments::{Arguments, CompletionsArguments, ManPagesArguments};
use super::shim_pages;
use crate::terminal;
use crate::terminal::failure::{Failure, creation_exit_code};

pub(super) fn print_completions(arguments: &CompletionsArguments) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "cofferdam", &mut script);
    terminal::print_line(String::from_utf8_lossy(&script).trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Writes one page for each command, such as `cofferdam-audit-verify.1`, and for each of the shim.
pub(super) fn write_man_pages(arguments: &ManPagesArguments) -> Result<ExitCode, Failure> {
    let command = Arguments::command().disable_help_subcommand(true);
    let written = clap_mangen::generate_to(command, &arguments.directory);
    written.and_then(|()| shim_pages::write(&arguments.directory)).map_err(|error| {
        let why = format!("cannot write the manual pages into `{}`: {error}", arguments.directory.display());
        Failure::new(creation_exit_code(&error), why)
    })?;
    Ok(ExitCode::SUCCESS)
}
