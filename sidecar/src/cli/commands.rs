//! Runs each command of the command line; `attach`, `sessions` and others are in their own modules.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use cofferdam_process as process;
use cofferdam_scrub::shared::SharedValues;

use super::arguments::{
    Arguments, AttachCommand, CheckArguments, Command, EnrollArguments, RunCommand, ServeArguments,
};
use crate::config::{self, Config, Environment};
use crate::daemon::admin::client::{self, AdminError};
use crate::daemon::admin::{AdminRequest, AdminResponse};
use crate::daemon::while_held::{HoldFiles, Lifetime};
use crate::run::{self, Mode, RunArguments};
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::progress::Output;
use crate::{daemon, demo, enrolment};

pub(super) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let file = arguments.config.as_deref();
    match arguments.command {
        Command::Attach(AttachCommand::End(arguments)) => super::attachments::end(file, arguments.name),
        Command::Attach(AttachCommand::List(arguments)) => super::attachments::list(file, &arguments),
        Command::Attach(AttachCommand::E2b(arguments)) if arguments.template => {
            super::attach::print_template(arguments.options.shim)
        }
        Command::Attach(command) => super::attach::run(&admin_socket(file)?, command),
        Command::Audit(command) => super::audit::run(file, command),
        Command::Check(check_arguments) => check(file, &check_arguments),
        Command::Demo(demo_arguments) => {
            demo::run(demo_arguments.shim).map_err(|error| Failure::new(Sysexit::Software, error))
        }
        Command::Enroll(enroll_arguments) => enroll(file, enroll_arguments),
        Command::Enrolments(enrolments_arguments) => super::sessions::enrolments(file, enrolments_arguments),
        Command::Key => print_key(file),
        Command::Kill(kill_arguments) => super::sessions::kill(file, kill_arguments.target),
        Command::Reload => reload(file),
        Command::Run(run_command) => run_sandbox(file, run_command),
        Command::Serve(serve_arguments) => serve(file, &serve_arguments),
        Command::Sessions(sessions_arguments) => super::sessions::sessions(file, &sessions_arguments),
        Command::Token(command) => super::token::run(file, command),
    }
}

/// Runs a command in a local sandbox.
fn run_sandbox(file: Option<&Path>, command: RunCommand) -> Result<ExitCode, Failure> {
    let (path, config) = load(file)?;
    let arguments = RunArguments {
        sandbox: command.sandbox,
        image: command.image,
        grant: command.grant,
        network: command.network,
        mounts: command.mounts,
        variables: command.variables,
        shim: command.shim,
        output: if command.quiet { Output::Quiet } else { Output::Lines },
        mode: if command.dry_run { Mode::DryRun } else { Mode::Run },
        command: command.command,
    };
    run::run(&path, &config, &arguments)
}

fn serve(file: Option<&Path>, arguments: &ServeArguments) -> Result<ExitCode, Failure> {
    process::harden().map_err(|error| Failure::new(Sysexit::Software, error))?;
    let (path, config) = load(file)?;
    let log = Arc::<SharedValues>::default();
    daemon::logging::start(Arc::clone(&log));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // An audit write that hangs blocks one thread; at least one other must stay available.
        .worker_threads(available_parallelism().map_or(2, NonZero::get).max(2))
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Sysexit::Software, error))?;
    let lifetime = match arguments.while_held {
        true => Lifetime::WhileHeld(HoldFiles::in_state(&config.state_dir)),
        false => Lifetime::UntilSignal,
    };
    runtime
        .block_on(daemon::serve(path, config, log, lifetime))
        .map_err(|error| Failure::new(Sysexit::Unavailable, error))?;
    Ok(ExitCode::SUCCESS)
}

fn check(file: Option<&Path>, arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    if arguments.schema {
        terminal::print_line(config::schema().trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let (path, config) = load(file)?;
    let count = |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
    terminal::print_line(&format!(
        "{}: ok ({}, {}, {})",
        path.display(),
        count(config.servers.len(), "server"),
        count(config.secrets.len(), "secret"),
        count(config.grants.len(), "grant")
    ));
    if arguments.online {
        return super::check_online::run(&config);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the enrolment string or the socket's address to stdout, and the next step to stderr.
fn enroll(file: Option<&Path>, arguments: EnrollArguments) -> Result<ExitCode, Failure> {
    let EnrollArguments { grant, ttl, ticket_ttl, name, socket } = arguments;
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let next_step = match &socket {
        Some(_) => {
            "mount the directory into the sandbox and set COFFERDAM_RELAY there to the printed address"
                .to_owned()
        }
        None => format!(
            "the string enrols one sandbox, which must use it within {} s. In the sandbox, write it to the file named by \
             COFFERDAM_ENROLL_FILE or to /run/cofferdam/enroll, or set COFFERDAM_ENROLL to it",
            ticket_ttl.as_secs()
        ),
    };
    let enroll = AdminRequest::Enroll {
        grant,
        name,
        ttl_ms: ttl.map(milliseconds),
        ticket_ttl_ms: milliseconds(ticket_ttl),
        socket,
    };
    match request(file, &enroll)? {
        AdminResponse::Enrolled { enrolment, expires_in_seconds, text } => {
            eprintln!("enrolment {enrolment}, valid for {expires_in_seconds} s; {next_step}");
            terminal::print_line(&text);
            Ok(ExitCode::SUCCESS)
        }
        AdminResponse::Refused { why } => Err(Failure::new(Sysexit::Unavailable, why)),
        _ => Err(unexpected_response()),
    }
}

fn print_key(file: Option<&Path>) -> Result<ExitCode, Failure> {
    let (_, config) = load(file)?;
    let identity = enrolment::key::load_or_create(&config.state_dir)
        .map_err(|error| Failure::new(Sysexit::NoInput, error).hint("run this as the sidecar's user"))?;
    terminal::print_line(&identity.public().to_string());
    Ok(ExitCode::SUCCESS)
}

fn reload(file: Option<&Path>) -> Result<ExitCode, Failure> {
    match request(file, &AdminRequest::Reload)? {
        AdminResponse::Reloaded { policy, at_restart } => {
            terminal::print_line(&format!("reloaded; policy {policy}"));
            if !at_restart.is_empty() {
                terminal::print_line(&format!("takes effect at restart: {}", at_restart.join(", ")));
            }
            Ok(ExitCode::SUCCESS)
        }
        AdminResponse::Refused { why } => Err(Failure::new(Sysexit::Configuration, why)
            .hint("the previous configuration stays in effect; correct the file and reload again")),
        _ => Err(unexpected_response()),
    }
}

pub(super) fn load(file: Option<&Path>) -> Result<(PathBuf, Config), Failure> {
    let path = find(file)?;
    let config = config::load(&path).map_err(|problems| Failure::new(Sysexit::Configuration, problems))?;
    Ok((path, config))
}

fn find(file: Option<&Path>) -> Result<PathBuf, Failure> {
    config::find(file, &Environment::of_process()).map_err(|error| {
        Failure::new(Sysexit::NoInput, error)
            .hint("write a configuration, or run `cofferdam demo`, which needs none")
    })
}

pub(super) fn admin_socket(file: Option<&Path>) -> Result<PathBuf, Failure> {
    let path = find(file)?;
    match config::load(&path) {
        Ok(config) => Ok(config.admin.socket),
        // The file may have become invalid after the daemon read it, so its admin socket alone is read.
        Err(problems) => {
            config::admin_socket(&path).ok_or_else(|| Failure::new(Sysexit::Configuration, problems))
        }
    }
}

pub(super) fn request(file: Option<&Path>, request: &AdminRequest) -> Result<AdminResponse, Failure> {
    client::send(&admin_socket(file)?, request).map_err(admin_failure)
}

pub(super) fn admin_failure(error: AdminError) -> Failure {
    let hint = match &error {
        AdminError::Connect { .. } => {
            "is `cofferdam serve` running with this configuration, and as this user?"
        }
        AdminError::Response(_) | AdminError::Io(_) => "look at the sidecar's log",
    };
    Failure::new(Sysexit::Unavailable, error).hint(hint)
}

pub(super) fn unexpected_response() -> Failure {
    Failure::new(Sysexit::Software, "the sidecar sent an unexpected response: does it have the same version?")
}
