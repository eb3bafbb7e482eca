//! The shim: carries MCP between a harness's stdio and the sidecar, and holds no secret.
//!
//! One task on one thread owns everything, so a message costs one read and one write on its way. What must stay true:
//! the process never ends while its stdin is open (unless signalled, or stdout is closed), every request gets exactly
//! one response, stdout is data only, and no environment variable is forwarded.
//!
//! | module | what it holds |
//! |---|---|
//! | [`options`], [`network`], [`help`] | command line and environment, and the texts of `--help` |
//! | `suggestion` | what a mistyped option was probably meant to be |
//! | [`timing`] | every timeout and pause |
//! | `relay_loop` | the event loop: waits, calls `relay_state`, writes its output |
//! | `relay_state` | the state of the relay: handles lines, frames and deadlines, without I/O |
//! | `pending`, `server_requests`, `reconnect_backoff` | requests without a response, of the harness and of the server; when to connect again |
//! | `shim_error` | the content of error responses that the shim itself makes |
//! | `client`, [`client_command`] | `cofferdam-shim servers`, `tools` and `call`, for scripts |
//! | [`hub`] | `cofferdam-shim hub`: carries the links of all shims of a sandbox through its one pipe |
//! | `lines` | splitting bytes into lines |
//! | `link`, `enrolled_link` | opening a connection: where to, and with the sandbox's key |
//! | [`default_socket`] | the socket of hub and shims if none is configured |
//! | `connection`, `stream` | an open connection; reading and writing it over any transport |
//! | `loopback` | a link to a hub where Unix sockets are forbidden |
//! | `inbound_listener`, `listen` | a port that the host dials, and a link through it |
//! | `fork_detector` | whether the sandbox was copied while the shim runs |
//! | `state` | the sandbox's key and where it comes from (`state_without_tls`: none) |
//! | `doctor`, `wrap` | `cofferdam-shim doctor`: what is in the way of the link; text in the width of a terminal |
//! | `status`, `failure` | `cofferdam-shim status`; why a command failed, and its exit code |
//! | `stderr_log` | messages on stderr: each problem once, and the progress of a call |
//! | `socket`, `stdio`, `pipe`, `queue` | non-blocking I/O, without changing flags that the harness shares |

#![forbid(unsafe_code)]

mod client;
pub mod client_command;
mod connection;
pub mod default_socket;
mod doctor;
#[cfg(feature = "tls")]
mod enrolled_link;
#[cfg(not(feature = "tls"))]
#[path = "enrolled_link_without_tls.rs"]
mod enrolled_link;
mod failure;
mod fork_detector;
pub mod help;
#[cfg(feature = "hub")]
pub mod hub;
#[cfg(feature = "tls")]
mod inbound_listener;
mod lines;
mod link;
#[cfg(feature = "tls")]
mod listen;
mod loopback;
pub mod network;
pub mod options;
mod pending;
mod pipe;
mod queue;
mod reconnect_backoff;
mod relay_loop;
mod relay_state;
mod server_requests;
mod shim_error;
mod socket;
#[cfg(feature = "tls")]
mod state;
#[cfg(not(feature = "tls"))]
#[path = "state_without_tls.rs"]
mod state;
mod status;
mod stderr_log;
mod stdio;
mod stream;
mod suggestion;
pub mod timing;
mod wrap;

/// Entry points of the fuzz targets.
#[cfg(fuzzing)]
pub mod fuzzing {
    /// Runs one script of events; panics if an invariant is broken.
    pub fn run_script(script: &[(u8, u8)]) {
        super::relay_state::model::run_script(script);
    }
}

use std::ffi::OsString;
use std::future::Future;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use options::{Command, Options, OutputFormat};
use status::{Outcome, Report};
use timing::Timing;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// The whole program. `arguments` are those after the program's name; `environment` looks up one variable.
pub fn main(
    arguments: impl Iterator<Item = OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> ExitCode {
    let options = match options::parse(arguments, environment) {
        #[cfg(feature = "hub")]
        Ok(Command::Hub(options)) => return hub::main(options),
        Ok(Command::Client(command, options, format)) => return client::main(command, options, format),
        Ok(Command::Doctor(options, origin, format)) => {
            return print_report(
                async move || doctor::report(options, origin, format).await,
                OutputFormat::Json,
            );
        }
        Ok(Command::Relay(options)) => options,
        Ok(Command::Status(options, format)) => {
            return print_report(async move || status::report(options, format).await, format);
        }
        Ok(Command::Show(text)) => {
            return match io::stdout().lock().write_all(text.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::from(EX_IOERR),
            };
        }
        Err(error) => {
            print_error(&format!("{error}\n  next: run `cofferdam-shim --help`"));
            return ExitCode::from(EX_USAGE);
        }
    };
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&format!(
                "start: {error}\n  next: are stdin and stdout open, and is the limit of open files reached?"
            ));
            ExitCode::from(EX_OSERR)
        }
    }
}

/// Relays until the harness is gone or `stop` resolves. [`main`] is this with stdio, signals and the usual timing.
pub async fn relay(
    options: Options,
    timing: Timing,
    input: OwnedFd,
    output: OwnedFd,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let (input, output) = (stdio::Stdio::input(input)?, stdio::Stdio::output(output)?);
    relay_loop::run(options, timing, input, output, stop, stderr_log::StderrLog::new()).await
}

const EX_USAGE: u8 = 64;
const EX_OSERR: u8 = 71;
const EX_IOERR: u8 = 74;

/// Prints the report to stdout and a failure to stderr; with JSON both to stdout.
fn print_report(report: impl AsyncFnOnce() -> Report, format: OutputFormat) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let report = match runtime {
        Ok(runtime) => runtime.block_on(report()),
        Err(error) => {
            print_error(&format!("start: {error}"));
            return ExitCode::from(EX_OSERR);
        }
    };
    match (report.outcome, format) {
        (Outcome::Failure { .. }, OutputFormat::Text) => print_error(&report.text),
        (Outcome::Success, _) | (_, OutputFormat::Json) => {
            if io::stdout().lock().write_all(report.text.as_bytes()).is_err() {
                return ExitCode::from(EX_IOERR);
            }
        }
    }
    match report.outcome {
        Outcome::Success => ExitCode::SUCCESS,
        Outcome::Failure { exit_code } => ExitCode::from(exit_code),
    }
}

fn run(options: Options) -> io::Result<()> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        // In a separate task: the loop polls `stop` with each message, and polling signals is slow.
        let (stop, stopped) = oneshot::channel();
        let mut signals = JoinSet::new();
        signals.spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            let _ = stop.send(());
        });
        let stop = async { stopped.await.unwrap_or(()) };
        relay(options, Timing::default(), input, output, stop).await
    })
}

/// Writes a message to stderr in one write, since other processes may write there too. A failed write is ignored.
fn print_error(text: &str) {
    let _ = io::stderr().write_all(format!("cofferdam-shim: {text}\n").as_bytes());
}
