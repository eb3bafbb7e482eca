//! The keeper's program for this crate's tests, whose own binary cannot run as a keeper.

use std::process::ExitCode;

fn main() -> ExitCode {
    cofferdam_process::keeper_main()
}
