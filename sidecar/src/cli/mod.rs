//! The command line. Stdout is data, stderr is talk, exit codes follow sysexits.
//!
//! | module | what it holds |
//! |---|---|
//! | [`attach`] | reaching into a sandbox, for as long as it is wanted |
//! | [`arguments`] | what can be typed |
//! | [`commands`] | what it does |
//! | [`check_online`] | what Vault says of a configuration |
//! | [`failure`] | how an error is told: what, why, what next |
//! | [`interruption`] | what ends a command that stays |
//! | [`terminal`] | the one place that writes to stdout |

mod arguments;
mod attach;
mod check_online;
mod commands;
mod failure;
mod interruption;
pub(crate) mod terminal;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::process;
use arguments::Arguments;

/// The first argument by which this program runs as the keeper of one server.
const KEEPER: &str = "keeper";
/// The first argument by which this program runs as a shim, for `demo` where no static one is given.
pub(crate) const SHIM: &str = "shim";
/// The first argument by which this program runs as the demo's MCP server.
pub(crate) const DEMO_SERVER: &str = "demo-server";

/// The whole program.
pub fn main() -> ExitCode {
    // These three are other programs in the same file. A keeper must be one before any thread exists.
    let first = std::env::args_os().nth(1).unwrap_or_default();
    match first.to_str() {
        Some(KEEPER) => return process::keeper_main(),
        Some(SHIM) => {
            let arguments: Vec<OsString> = std::env::args_os().skip(2).collect();
            return cofferdam_shim::main(arguments.into_iter(), |name| std::env::var_os(name));
        }
        Some(DEMO_SERVER) => return crate::demo::server::main(),
        _ => {}
    }
    let arguments = Arguments::parse();
    match commands::run(arguments) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
