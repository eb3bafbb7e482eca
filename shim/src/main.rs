//! The binary: everything is in the library, so that the sidecar's demo can run the shim too.

use std::process::ExitCode;

fn main() -> ExitCode {
    cofferdam_shim::main(std::env::args_os().skip(1), |name| std::env::var_os(name))
}
