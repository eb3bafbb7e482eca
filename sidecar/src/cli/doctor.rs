//! `doctor`: looks for what is wrong, and names the next step.

use std::path::Path;
use std::process::ExitCode;

use super::arguments::DoctorArguments;
use crate::doctor::{self, Format, Servers};
use crate::terminal::failure::Failure;

pub(super) fn run(file: Option<&Path>, arguments: &DoctorArguments) -> Result<ExitCode, Failure> {
    let servers = match arguments.no_servers {
        true => Servers::Skip,
        false => Servers::Start,
    };
    let format = match arguments.json {
        true => Format::Json,
        false => Format::Text,
    };
    doctor::run(file, servers, format)
}
