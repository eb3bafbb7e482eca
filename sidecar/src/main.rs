//! `cofferdam`: the sidecar and its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    cofferdam::cli::main()
}
