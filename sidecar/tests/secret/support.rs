//! What the tests of secrets share: a temporary directory, and the program that runs as the keeper of commands.

#[path = "../../process/tests/process/temporary_directory.rs"]
mod temporary_directory;

use cofferdam_process as process;

pub(crate) use temporary_directory::TemporaryDirectory;

/// Prepares this process as the sidecar does, with the real binary as the keeper's program.
pub(crate) fn prepare() {
    process::use_keeper_program(env!("CARGO_BIN_EXE_cofferdam").into());
    process::harden().expect("harden this process");
}
