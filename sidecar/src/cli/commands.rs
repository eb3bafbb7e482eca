//! Runs each command of the command line; `attach`, `sessions` and others are in their own modules.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use cofferdam_base::duration;

use super::arguments::{Arguments, AttachCommand, Command, EnrollArguments, RunCommand, VaultCommand};
use crate::config::{self, Config, Environment};
use crate::daemon::admin::client::{self, AdminError};
use crate::daemon::admin::{AdminRequest, AdminResponse};
use crate::demo::{self, DemoError};
use crate::enrolment;
use crate::run::{self, Mode, RunArguments};
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit, creation_exit_code};
use crate::terminal::progress::Output;

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
        Command::Check(check_arguments) => super::check::run(file, &check_arguments),
        Command::Completions(arguments) => super::shell_files::print_completions(&arguments),
        Command::Confine(command) => super::confine::run(file, &command),
        Command::Demo(demo_arguments) => {
            demo::run(demo_arguments.shim).map_err(|error| Failure::new(demo_exit_code(&error), error))
        }
        Command::Doctor(doctor_arguments) => super::doctor::run(file, &doctor_arguments),
        Command::Enroll(enroll_arguments) => enroll(file, enroll_arguments),
        Command::Enrolments(enrolments_arguments) => super::sessions::enrolments(file, enrolments_arguments),
        Command::Harness(arguments) => super::harness::run(file, &arguments),
        Command::Import(arguments) => super::import::run(file, &arguments),
        Command::Init(init_arguments) => super::init::run(file, &init_arguments),
        Command::Key => print_key(file),
        Command::Kill(kill_arguments) => super::sessions::kill(file, kill_arguments.target),
        Command::Logs(logs_arguments) => super::logs::run(file, &logs_arguments),
        Command::ManPages(arguments) => super::shell_files::write_man_pages(&arguments),
        Command::Reload => reload(file),
        Command::Run(run_command) => run_sandbox(file, run_command),
        Command::Serve(serve_arguments) => super::serve::run(file, &serve_arguments),
        Command::Sessions(sessions_arguments) => super::sessions::sessions(file, &sessions_arguments),
        Command::Shim(shim_arguments) => super::shim::run(&shim_arguments),
        Command::Token(command) => super::token::run(file, command),
        Command::Vault(VaultCommand::Setup(arguments)) => super::vault_setup::run(file, &arguments),
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
        login: command.login,
        mounts: command.mounts,
        variables: command.variables,
        shim: command.shim,
        output: if command.quiet { Output::Quiet } else { Output::Lines },
        mode: if command.dry_run { Mode::DryRun } else { Mode::Run },
        command: command.command,
    };
    run::run(&path, &config, &arguments)
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
            "the string enrols one sandbox, which must use it within {}. In the sandbox, write it to the file named by \
             COFFERDAM_ENROLL_FILE or to /run/cofferdam/enroll, or set COFFERDAM_ENROLL to it",
            duration::rounded(ticket_ttl)
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
            let validity = duration::rounded(Duration::from_secs(expires_in_seconds));
            eprintln!("enrolment {enrolment}, valid for {validity}; {next_step}");
            terminal::print_line(&text);
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(unexpected_response()),
    }
}

fn print_key(file: Option<&Path>) -> Result<ExitCode, Failure> {
    let (_, config) = load(file)?;
    let identity = enrolment::key::load_or_create(&config.state_dir).map_err(|error| {
        Failure::new(creation_exit_code(&error), error).hint("run this as the sidecar's user")
    })?;
    terminal::print_line(&identity.public().to_string());
    Ok(ExitCode::SUCCESS)
}

fn reload(file: Option<&Path>) -> Result<ExitCode, Failure> {
    match request(file, &AdminRequest::Reload)? {
        AdminResponse::Reloaded { policy, at_restart } => {
            terminal::print_line(&format!("reloaded; the policy's digest, as in the audit: {policy}"));
            if !at_restart.is_empty() {
                terminal::print_line(&format!("takes effect at restart: {}", at_restart.join(", ")));
            }
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(unexpected_response()),
    }
}

pub(super) fn load(file: Option<&Path>) -> Result<(PathBuf, Config), Failure> {
    let path = find(file)?;
    let config = config::load(&path).map_err(|problems| Failure::new(load_exit_code(&path), problems))?;
    Ok((path, config))
}

/// The exit code for a configuration that could not be loaded: a file that cannot be opened is missing input, otherwise its
/// content is wrong.
pub(super) fn load_exit_code(path: &Path) -> Sysexit {
    match File::open(path) {
        Ok(_) => Sysexit::Configuration,
        Err(_) => Sysexit::NoInput,
    }
}

pub(super) fn find(file: Option<&Path>) -> Result<PathBuf, Failure> {
    config::find(file, &Environment::of_process()).map_err(|error| {
        Failure::new(Sysexit::NoInput, error)
            .hint("run `cofferdam init` for a first configuration, or `cofferdam demo`, which needs none")
    })
}

pub(super) fn admin_socket(file: Option<&Path>) -> Result<PathBuf, Failure> {
    let path = find(file)?;
    match config::load(&path) {
        Ok(config) => Ok(config.admin.socket),
        // The file may have become invalid after the daemon read it, so its admin socket alone is read.
        Err(problems) => {
            config::admin_socket(&path).ok_or_else(|| Failure::new(load_exit_code(&path), problems))
        }
    }
}

/// Sends a request to the sidecar. A refusal is an error, so that the result is never [`AdminResponse::Refused`].
pub(super) fn request(file: Option<&Path>, request: &AdminRequest) -> Result<AdminResponse, Failure> {
    match client::send(&admin_socket(file)?, request).map_err(admin_failure)? {
        AdminResponse::Refused { code, why } => Err(refusal(&code, why)),
        response => Ok(response),
    }
}

/// The failure of a request that the sidecar refused. `code` is the stable code of the refusal, which determines the exit
/// code.
pub(super) fn refusal(code: &str, why: String) -> Failure {
    match code {
        "ambiguous" | "not_found" => Failure::new(Sysexit::NoInput, why),
        "configuration_invalid" => Failure::new(Sysexit::Configuration, why)
            .hint("the previous configuration stays in effect; correct the file and reload again"),
        "forbidden" | "unauthorized" => Failure::new(Sysexit::NoPermission, why),
        "grant_unknown" | "invalid" => Failure::new(Sysexit::Usage, why),
        _ => Failure::new(Sysexit::Unavailable, why),
    }
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

/// A shim that was named but cannot be opened is missing input; everything else is an error of the demo itself.
fn demo_exit_code(error: &DemoError) -> Sysexit {
    match error {
        DemoError::NoShim { .. } => Sysexit::NoInput,
        _ => Sysexit::Software,
    }
}

pub(super) fn unexpected_response() -> Failure {
    Failure::new(Sysexit::Software, "the sidecar sent an unexpected response: does it have the same version?")
}
