//! Restricts itself with Landlock, then becomes another program.
//!
//!     landlocked [--read PATH]… [--write PATH]… -- PROGRAM ARGUMENT…
//!
//! That program can use only the named files, and can neither connect nor bind TCP sockets. Where the kernel cannot
//! enforce all of that, nothing is started.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, path_beneath_rules,
};

/// The first Landlock ABI that can restrict TCP.
const REQUIRED_ABI: ABI = ABI::V4;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (mut readable, mut writable) = (Vec::new(), Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--read") => readable.extend(arguments.next()),
            Some("--write") => writable.extend(arguments.next()),
            Some("--") => break,
            _ => return failed(&format!("unknown argument {}", argument.display())),
        }
    }
    let Some(program) = arguments.next() else { return failed("no program") };
    match restrict(&readable, &writable) {
        Ok(RulesetStatus::FullyEnforced) => {}
        Ok(status) => return failed(&format!("this kernel does not enforce all of the rules: {status:?}")),
        Err(error) => return failed(&error.to_string()),
    }
    let error = cofferdam_tests::process::command(&program).args(arguments).exec();
    failed(&format!("{}: {error}", program.display()))
}

fn restrict(readable: &[OsString], writable: &[OsString]) -> Result<RulesetStatus, RulesetError> {
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(REQUIRED_ABI))?
        .handle_access(AccessNet::from_all(REQUIRED_ABI))?
        .create()?
        .add_rules(path_beneath_rules(readable, AccessFs::from_read(REQUIRED_ABI)))?
        .add_rules(path_beneath_rules(writable, AccessFs::from_all(REQUIRED_ABI)))?
        .restrict_self()?;
    Ok(status.ruleset)
}

fn failed(problem: &str) -> ExitCode {
    eprintln!("landlocked: {problem}");
    ExitCode::from(70)
}
