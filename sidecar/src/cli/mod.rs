//! The command line. Stdout is data, stderr is talk, exit codes follow sysexits.
//!
//! | module | what it holds |
//! |---|---|
//! | [`attach`] | reaching into a sandbox, for as long as it is wanted |
//! | [`arguments`] | what can be typed |
//! | [`commands`] | what it does |
//! | [`check_online`] | what Vault says of a configuration |
//! | [`interruption`] | what ends a command that stays |

mod arguments;
mod attach;
mod check_online;
mod commands;
mod interruption;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::{demo, process};
use arguments::Arguments;

/// The first argument by which this program runs as the keeper of one server.
const KEEPER: &str = "keeper";

/// The whole program.
pub fn main() -> ExitCode {
    // These three are other programs in the same file. A keeper must be one before any thread exists.
    let first = std::env::args_os().nth(1).unwrap_or_default();
    match first.to_str() {
        Some(KEEPER) => return process::keeper_main(),
        Some(demo::SHIM) => {
            let arguments: Vec<OsString> = std::env::args_os().skip(2).collect();
            return cofferdam_shim::main(arguments.into_iter(), |name| std::env::var_os(name));
        }
        Some(demo::SERVER) => return demo::server::main(),
        _ => {}
    }
    let arguments = Arguments::parse();
    match commands::run(arguments) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
