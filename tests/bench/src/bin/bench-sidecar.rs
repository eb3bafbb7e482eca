//! The sidecar, with keepers started from `COFFERDAM_BIN`. A sidecar usually starts them from its own running image,
//! which under callgrind is callgrind.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(program) = std::env::var_os("COFFERDAM_BIN") {
        cofferdam_process::use_keeper_program(program.into());
    }
    cofferdam::cli::main()
}
