//! A keeper without a sidecar, for this crate's tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    cofferdam_process::keeper_main()
}
