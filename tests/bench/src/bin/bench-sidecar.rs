//! The sidecar, its keepers started from `COFFERDAM_BIN`: under callgrind the running image, from which a sidecar
//! starts them otherwise, is callgrind's own.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(program) = std::env::var_os("COFFERDAM_BIN") {
        cofferdam_process::use_keeper_program(program.into());
    }
    cofferdam::cli::main()
}
