//! `cofferdam run`: a local sandbox with the shim inside and a command running.
//!
//! ```text
//! arguments ─▶ plan ─▶ command line of the sandbox's program ─▶ trial ─▶ sidecar ─▶ relay socket ─▶ command ─▶ end
//! ```
//!
//! What must stay true: nothing of the user's files changes, but for a login that the harness refreshed; the home is not in
//! the sandbox; when `run` returns, the sandbox, its servers, its files and a sidecar that no other run uses are gone.
//!
//! | module | what it is for |
//! |---|---|
//! | [`request`] | what was asked for, checked |
//! | [`host`] | the user's home, directory and environment |
//! | [`plan`] | everything that will be done, decided before anything is made |
//! | [`mount`], [`visibility`], [`executable`], [`exposed`] | which files are inside, and which must not be |
//! | [`shim_file`] | the shim that is put inside |
//! | [`harness`] | known harnesses: generated settings, the copy of the login |
//! | [`kinds`] | bubblewrap, podman, docker, gVisor, srt |
//! | [`image`] | the image of a container, and its pull |
//! | [`directory`], [`removal`] | the run's own files on the host, and how they go although a sandbox could write some of them |
//! | [`shared_sidecar`] | the sidecar that concurrent runs share |
//! | [`active`] | a run from its first file to its end |
//! | [`signals`], [`terminal_relay`] | the command at its terminal |
//! | [`words`] | quoting |

mod active;
mod directory;
mod executable;
mod exposed;
mod harness;
mod host;
mod image;
mod kinds;
mod mount;
mod plan;
mod removal;
mod request;
mod shared_sidecar;
mod shim_file;
mod signals;
mod terminal_relay;
mod visibility;
mod words;

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;

use nix::sys::signal::Signal;

use crate::config::Config;
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::progress::{Output, Progress};
use active::ActiveRun;
use directory::RunDirectory;
use host::Host;
use kinds::{Orphans, Prepared, Stdio};
use plan::Plan;
use request::RunRequest;
use signals::Signals;

pub(crate) use kinds::Kind;
pub(crate) use request::{Mode, NetworkArgument, RunArguments};

/// The longest part of a sandbox's name that comes from its command.
const MAX_STEM: usize = 24;

/// Runs a command in a sandbox and returns with its exit code.
pub(crate) fn run(
    config_file: &Path,
    config: &Config,
    arguments: &RunArguments,
) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Sysexit::Software, error))?;
    let result = runtime.block_on(run_async(config_file, config, arguments));
    // A request to a sidecar that does not answer must not hold up the end.
    runtime.shutdown_background();
    result
}

async fn run_async(
    config_file: &Path,
    config: &Config,
    arguments: &RunArguments,
) -> Result<ExitCode, Failure> {
    let software = |error: io::Error| Failure::new(Sysexit::Software, error);
    let config_file = std::path::absolute(config_file).map_err(software)?;
    let host = Host::of_process()?;
    let request = RunRequest::parse(arguments, &host.directory)?;
    let name = sandbox_name(&request);
    let path = RunDirectory::path_for(&host.temporary, &name);
    let plan = Plan::make(&request, config, &config_file, &host, &path, name)?;
    let program = kinds::find_program(plan.kind, &host).await?;
    let stdio = match io::stdin().is_terminal() && io::stdout().is_terminal() {
        true => Stdio::Terminal,
        false => Stdio::Pipes,
    };
    let prepared = plan.kind.prepare(&plan, &host, program, &path, stdio);
    if arguments.output == Output::Lines {
        plan.summary().iter().for_each(|line| eprintln!("cofferdam: {line}"));
    }
    if arguments.mode == Mode::DryRun {
        terminal::line(&words::line(prepared.command.words()));
        return Ok(ExitCode::SUCCESS);
    }
    let progress = Progress::new("cofferdam", arguments.output);
    execute(&plan, &prepared, &host, config, &config_file, stdio, &progress).await
}

/// Sets the sandbox up, runs the command, and takes everything down again, whatever happened.
async fn execute(
    plan: &Plan,
    prepared: &Prepared,
    host: &Host,
    config: &Config,
    config_file: &Path,
    stdio: Stdio,
    progress: &Progress,
) -> Result<ExitCode, Failure> {
    let mut signals = Signals::new().map_err(|error| Failure::new(Sysexit::Software, error))?;
    if prepared.orphans == Orphans::Kill {
        cofferdam_process::adopt_orphans().map_err(|error| Failure::new(Sysexit::Software, error))?;
    }
    let mut run = ActiveRun::default();
    let ready = tokio::select! {
        ready = run.set_up(plan, prepared, host, config, config_file, progress) => ready.map(|()| None),
        signal = signals.interruption() => Ok(Some(signal)),
    };
    // Before the command writes to the same terminal.
    progress.clear();
    let result = match ready {
        Ok(None) => run.command(prepared, stdio, &mut signals).await,
        Ok(Some(signal)) => Ok(ended_by(signal)),
        Err(failure) => Err(failure),
    };
    let ended = run.end(prepared).await;
    result.and_then(|code| ended.map(|()| code))
}

/// The exit code of a process that a signal has ended, as shells give it.
fn ended_by(signal: Signal) -> ExitCode {
    ExitCode::from(128_u8.wrapping_add(signal as i32 as u8))
}

/// The command's name and some random digits: unique, and a host name.
fn sandbox_name(request: &RunRequest) -> String {
    let program = request.command.first().map(|program| Path::new(program).file_name().unwrap_or_default());
    let program = program.unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let stem: String = program
        .chars()
        .map(|character| if character.is_ascii_alphanumeric() { character } else { '-' })
        .take(MAX_STEM)
        .collect();
    let stem = stem.trim_matches('-');
    let stem = if stem.is_empty() { "run" } else { stem };
    format!("{stem}-{}", cofferdam_base::random::hex::<4>())
}
