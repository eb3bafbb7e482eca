//! The command line. Data goes to stdout, messages to stderr; exit codes are those of sysexits(3).
//!
//! | module | what it holds |
//! |---|---|
//! | [`arguments`] | commands and options |
//! | [`attach`] | `attach`: keeps a sandbox attached that cannot connect out |
//! | [`attachments`] | `attach list` and `attach end` |
//! | [`audit`] | `audit`: reads, verifies and prunes the audit |
//! | [`audit_lines`] | the layout of records of the audit |
//! | [`commands`] | the other commands |
//! | [`check`] | `check`: the configuration, and what it refers to on this host |
//! | [`confine`] | `confine`: what a confined server gets, and whether that suffices |
//! | [`doctor`] | `doctor`: looks for what is wrong |
//! | [`harness`] | `harness`: entries of harnesses' settings that start the shim |
//! | [`import`] | `import`: moves servers and secrets from harnesses' settings |
//! | [`init`] | `init`: writes a first configuration |
//! | [`logs`] | `logs`: what a server wrote to stderr |
//! | [`serve`] | `serve`: runs the sidecar |
//! | [`sessions`] | `sessions`, `kill` and `enrolments` |
//! | [`shell_files`] | `completions` and `man-pages` |
//! | [`shim`] | `shim`: writes the static shim |
//! | [`shim_pages`] | the manual pages of the shim |
//! | [`token`] | `token`: bearer tokens of the admin API |
//! | [`vault_setup`] | `vault setup`: makes in Vault what a configuration needs |
//! | [`watch`] | `sessions --watch` |

mod arguments;
mod attach;
mod attachments;
mod audit;
mod audit_lines;
mod check;
mod commands;
mod confine;
mod doctor;
mod harness;
mod import;
mod init;
mod logs;
mod serve;
mod sessions;
mod shell_files;
mod shim;
mod shim_pages;
#[cfg(test)]
mod tests;
mod token;
mod vault_setup;
mod watch;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory as _, FromArgMatches as _};
use cofferdam_process as process;

use crate::demo;
use crate::terminal::colour::ColourArgument;
use crate::terminal::failure::Sysexit;
use arguments::Arguments;

/// The first argument that makes this program run as the keeper of one server.
const KEEPER: &str = "keeper";

/// The version of this program, the commit of which it was built if that is known, and the version of the relay protocol.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let commit =
            option_env!("COFFERDAM_COMMIT").map(|commit| format!("commit {commit}, ")).unwrap_or_default();
        format!("{} ({commit}relay protocol {})", env!("CARGO_PKG_VERSION"), relay_proto::limits::VERSION)
    });
    &VERSION
}

/// Runs the program.
pub fn main() -> ExitCode {
    // These three first arguments select other programs in the same binary. A keeper must start before any thread exists.
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
    let colour = ColourArgument::find(std::env::args_os());
    colour.apply();
    let parsed = Arguments::command().color(colour.for_clap()).try_get_matches();
    let arguments = match parsed.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) => return print_help_or_usage_error(&error),
    };
    match commands::run(arguments) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

/// Prints what clap returns instead of arguments: the help or the version to stdout, or an error to stderr.
fn print_help_or_usage_error(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    match printed {
        _ if error.use_stderr() => Sysexit::Usage.into(),
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Sysexit::Io.into(),
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}
