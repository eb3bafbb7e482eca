//! `shim`: writes the static shim that belongs to this program, for an image or a sandbox.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use cofferdam_base::atomic_file::write_program;
use cofferdam_platforms::Architecture;

use super::arguments::{ArchitectureArgument, ShimArguments};
use crate::shims::ShimFiles;
use crate::terminal::failure::{Failure, Sysexit, creation_exit_code};

pub(super) fn run(arguments: &ShimArguments) -> Result<ExitCode, Failure> {
    let architecture = match arguments.arch {
        Some(ArchitectureArgument::Aarch64) => Architecture::Aarch64,
        Some(ArchitectureArgument::X86_64) => Architecture::X86_64,
        None => Architecture::from_machine(std::env::consts::ARCH).ok_or_else(|| {
            let why =
                format!("there is no shim for the processor of this machine, {}", std::env::consts::ARCH);
            Failure::new(Sysexit::NoInput, why).hint("choose the sandbox's with --arch")
        })?,
    };
    let is_to_stdout = arguments.out == Path::new("-");
    if is_to_stdout && io::stdout().is_terminal() {
        return Err(Failure::new(Sysexit::Usage, "the shim is a program, and standard output is a terminal")
            .hint("name a file with --out FILE, or redirect the output"));
    }
    let shim = ShimFiles::default().find(None, architecture);
    let shim = shim.map_err(|why| Failure::new(Sysexit::NoInput, why))?;
    let written = match is_to_stdout {
        true => io::stdout().write_all(&shim.bytes).and_then(|()| io::stdout().flush()),
        false => write_program(&arguments.out, &shim.bytes),
    };
    written.map_err(|error| {
        let why = format!("cannot write the shim to `{}`: {error}", arguments.out.display());
        Failure::new(creation_exit_code(&error), why)
    })?;
    Ok(ExitCode::SUCCESS)
}
