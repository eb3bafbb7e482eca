//! `cofferdam run`: a local sandbox with the shim inside and a command running.
//!
//! ```text
//! arguments ─▶ plan ─▶ command line of the sandbox's program ─▶ trial start ─▶ sidecar ─▶ relay socket ─▶ command ─▶ clean-up
//! ```
//!
//! What must stay true: `run` itself changes no file of the user except a login that the harness refreshed; the home directory
//! is not in the sandbox; when `run` returns, the sandbox, its servers and its files are gone, and so is a sidecar that runs
//! have started and no other run uses.
//!
//! | module | what it is for |
//! |---|---|
//! | [`request`] | the arguments of the command line, checked |
//! | [`host`] | the user's home, directory and environment |
//! | [`plan`] | everything that will be done, decided before any file or process is created |
//! | [`mount`], [`visibility`], [`executable`], [`exposed`] | which files of the host are in the sandbox, and which must not be |
//! | [`shim_file`] | the shim that is put inside |
//! | [`harness`] | known harnesses: generated settings, the copy of the login |
//! | [`kinds`] | bubblewrap, podman, docker, gVisor, srt |
//! | [`kind_check`], [`trial`], [`obstacle`] | whether a kind works on this machine, why not, and which other one does |
//! | [`image`] | the image of a container, and its pull |
//! | [`last_output`] | the end of what a failed program wrote |
//! | [`directory`], [`removal`] | the run's files on the host, and their removal although a sandbox could write some of them |
//! | [`shared_sidecar`] | the sidecar that concurrent runs share |
//! | [`active`] | what a run has set up, and its removal |
//! | [`signals`], [`terminal_relay`] | the running command: its signals and its terminal |
//! | [`survey`] | which kinds work on this machine, for `cofferdam doctor` |
//! | [`shell_quoting`] | quoting of command lines for a shell |

mod active;
mod directory;
mod executable;
mod exposed;
mod harness;
mod host;
mod image;
mod kind_check;
mod kinds;
mod last_output;
mod mount;
mod obstacle;
mod plan;
mod removal;
mod request;
mod shared_sidecar;
mod shell_quoting;
mod shim_file;
mod signals;
mod survey;
mod terminal_relay;
mod trial;
mod visibility;

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::{ExitCode, Stdio as ProcessStdio};
use std::time::Duration;

use cofferdam_process::OrphanAdoption;
use nix::sys::signal::Signal;
use tokio::process::Command;
use tokio::time::timeout;

use crate::config::Config;
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::progress::{Output, Progress};
use active::ActiveRun;
use directory::RunDirectory;
use host::Host;
use kind_check::KindCheck;
use kinds::{CommandLine, Orphans, Prepared, Stdio};
use plan::Plan;
use request::RunRequest;
use signals::Signals;
use trial::Trials;

pub(crate) use kinds::Kind;
pub(crate) use request::{LoginArgument, Mode, NetworkArgument, RunArguments};
pub(crate) use survey::{KindState, survey};
pub(crate) use visibility::{RefusedFile, refused_in};

/// The longest part of a sandbox's name that comes from its command.
const MAX_STEM: usize = 24;

/// Runs a command in a sandbox and returns its exit code.
pub(crate) fn run(
    config_file: &Path,
    config: &Config,
    arguments: &RunArguments,
) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Sysexit::OperatingSystem, error))?;
    let result = runtime.block_on(run_async(config_file, config, arguments));
    // A request to a sidecar that does not respond must not delay the exit.
    runtime.shutdown_background();
    result
}

async fn run_async(
    config_file: &Path,
    config: &Config,
    arguments: &RunArguments,
) -> Result<ExitCode, Failure> {
    let software = |error: io::Error| Failure::new(Sysexit::OperatingSystem, error);
    let config_file = std::path::absolute(config_file).map_err(software)?;
    let host = Host::of_process()?;
    let request = RunRequest::parse(arguments, &host.directory)?;
    let name = sandbox_name(&request);
    let path = RunDirectory::path_for(&host.temporary, &name);
    let plan = Plan::new(&request, config, &config_file, &host, &path, name)?;
    let checks = KindCheck { request: &request, config, config_file: &config_file, host: &host };
    let mut signals = Signals::new().map_err(|error| Failure::new(Sysexit::OperatingSystem, error))?;
    let Some(program) = checks.find_program(plan.kind) else {
        let mut trials = Trials::default();
        let result = tokio::select! {
            failure = checks.program_is_missing(plan.kind, &mut trials) => Err(failure),
            signal = signals.interruption() => Ok(ended_by(signal)),
        };
        trials.stop().await;
        return result;
    };
    let stdio = match io::stdin().is_terminal() && io::stdout().is_terminal() {
        true => Stdio::Terminal,
        false => Stdio::Inherited,
    };
    let prepared = plan.kind.prepare(&plan, &host, program, &path, stdio);
    if arguments.output == Output::Lines {
        plan.summary().iter().for_each(|line| eprintln!("cofferdam: {line}"));
    }
    if arguments.mode == Mode::DryRun {
        terminal::print_line(&shell_quoting::command_line(prepared.command.argv()));
        return Ok(ExitCode::SUCCESS);
    }
    let progress = Progress::new("cofferdam", arguments.output);
    execute(&plan, &prepared, &checks, stdio, &mut signals, &progress).await
}

/// Sets the sandbox up, runs the command, and always cleans up, also after a failure or a signal.
async fn execute(
    plan: &Plan,
    prepared: &Prepared,
    checks: &KindCheck<'_>,
    stdio: Stdio,
    signals: &mut Signals,
    progress: &Progress,
) -> Result<ExitCode, Failure> {
    let _adoption = match prepared.orphans {
        Orphans::Kill => {
            Some(OrphanAdoption::begin().map_err(|error| Failure::new(Sysexit::OperatingSystem, error))?)
        }
        Orphans::Leave => None,
    };
    let mut run = ActiveRun::default();
    let ready = tokio::select! {
        ready = run.set_up(plan, prepared, checks, progress) => ready.map(|()| None),
        signal = signals.interruption() => Ok(Some(signal)),
    };
    // The command writes to the same terminal.
    progress.clear();
    let result = match ready {
        Ok(None) => run.run_command(plan, prepared, checks, stdio, signals).await,
        Ok(Some(signal)) => Ok(ended_by(signal)),
        Err(failure) => Err(failure),
    };
    let ended = run.end(plan, prepared, checks.host).await;
    result.and_then(|code| ended.map(|()| code))
}

/// Runs a program that removes what a sandbox has left behind. Failures are ignored: it may be gone already.
async fn run_quietly(command_line: &CommandLine, limit: Duration) {
    let mut command = command_line.command();
    command.stdin(ProcessStdio::null()).stdout(ProcessStdio::null()).stderr(ProcessStdio::null());
    let _ = timeout(limit, Command::from(command).kill_on_drop(true).status()).await;
}

/// The exit code that shells report for a process that a signal has ended.
fn ended_by(signal: Signal) -> ExitCode {
    ExitCode::from(128_u8.wrapping_add(signal as i32 as u8))
}

/// The command's name and some random digits: unique, and valid as a host name.
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
