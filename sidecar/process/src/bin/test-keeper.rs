//! The keeper alone, for this crate's tests: the product's keeper is its own binary, started again.

use std::process::ExitCode;

fn main() -> ExitCode {
    cofferdam_process::keeper_main()
}
