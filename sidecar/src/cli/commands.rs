//! What the commands do.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::arguments::{
    Arguments, AuditCommand, CheckArguments, Command, EnrollArguments, SessionsArguments, ShowArguments,
    TailArguments, VerifyArguments,
};
use crate::audit::Selector;
use crate::config::{self, Config, Environment};
use crate::daemon::admin::client::{self, AskError};
use crate::daemon::admin::{Answer, Question};
use crate::link::command::{Description, Processes, ScopeProcess};
use crate::link::registry::EndedLink;
use crate::secrets::log_scrubber::LogScrubber;
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};
use crate::vault::revocation::Revoked;
use crate::{audit, daemon, demo, enrolment, process};

pub(super) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let file = arguments.config.as_deref();
    match arguments.command {
        Command::Attach(command) => super::attach::run(&admin_socket(file)?, command),
        Command::Audit(command) => audit_command(file, command),
        Command::Check(check_arguments) => check(file, &check_arguments),
        Command::Demo(demo_arguments) => {
            demo::run(demo_arguments.shim).map_err(|error| Failure::new(Sysexit::Software, error))
        }
        Command::Enroll(enroll_arguments) => enroll(file, enroll_arguments),
        Command::Key => key(file),
        Command::Kill(kill_arguments) => kill(file, kill_arguments.session),
        Command::Reload => reload(file),
        Command::Serve => serve(file),
        Command::Sessions(sessions_arguments) => sessions(file, &sessions_arguments),
    }
}

fn serve(file: Option<&Path>) -> Result<ExitCode, Failure> {
    process::harden().map_err(|error| Failure::new(Sysexit::Software, error))?;
    let (path, config) = load(file)?;
    let log = Arc::<LogScrubber>::default();
    daemon::logging::start(Arc::clone(&log));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Sysexit::Software, error))?;
    runtime
        .block_on(daemon::serve(path, config, log))
        .map_err(|error| Failure::new(Sysexit::Unavailable, error))?;
    Ok(ExitCode::SUCCESS)
}

fn check(file: Option<&Path>, arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    if arguments.schema {
        terminal::line(config::schema().trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let (path, config) = load(file)?;
    let count = |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
    terminal::line(&format!(
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

/// The string is data; what to do with it is talk.
fn enroll(file: Option<&Path>, arguments: EnrollArguments) -> Result<ExitCode, Failure> {
    let EnrollArguments { grant, ttl, ticket_ttl, name, socket } = arguments;
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let how = match &socket {
        Some(_) => {
            "mount that directory into the sandbox, and set COFFERDAM_RELAY there to this link".to_owned()
        }
        None => format!(
            "the string is good for one sandbox, which must use it within {} s: write it to a file that the sandbox's \
             COFFERDAM_ENROLL_FILE names, or to /run/cofferdam/enroll there, or set COFFERDAM_ENROLL to it",
            ticket_ttl.as_secs()
        ),
    };
    let question = Question::Enroll {
        grant,
        name,
        ttl_ms: ttl.map(milliseconds),
        ticket_ttl_ms: milliseconds(ticket_ttl),
        socket,
    };
    match ask(file, &question)? {
        Answer::Enrolled { enrolment, expires_in_seconds, text } => {
            eprintln!("enrolment {enrolment}, for {expires_in_seconds} s; {how}");
            terminal::line(&text);
            Ok(ExitCode::SUCCESS)
        }
        Answer::Refused { why } => Err(Failure::new(Sysexit::Unavailable, why)),
        _ => Err(odd_answer()),
    }
}

fn key(file: Option<&Path>) -> Result<ExitCode, Failure> {
    let (_, config) = load(file)?;
    let identity = enrolment::key::load_or_make(&config.state_dir)
        .map_err(|error| Failure::new(Sysexit::NoInput, error).hint("run this as the sidecar's user"))?;
    terminal::line(&identity.public().to_string());
    Ok(ExitCode::SUCCESS)
}

fn sessions(file: Option<&Path>, arguments: &SessionsArguments) -> Result<ExitCode, Failure> {
    let Answer::Sessions { sessions } = ask(file, &Question::Sessions)? else { return Err(odd_answer()) };
    if arguments.json {
        terminal::line(&serde_json::to_string_pretty(&sessions).expect("descriptions are plain data"));
    } else if sessions.is_empty() {
        eprintln!("no sessions");
    } else {
        terminal::line(
            "SESSION            LINK               GRANT     SERVER    STATE      PID      CALLS  REFUSED  EXPIRES",
        );
        for session in &sessions {
            terminal::line(&session_line(session));
            for scope in &session.scopes {
                terminal::line(&scope_line(session, scope));
            }
            for credential in &session.credentials {
                terminal::line(&format!("  {}", credential.line()));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn session_line(session: &Description) -> String {
    let state = match session.connected {
        true => "connected",
        false => "lost",
    };
    format!(
        "{:<18} {:<18} {:<9} {:<9} {state:<10} {:<8} {:<6} {:<8} in {} min",
        session.session,
        session.link,
        session.grant,
        session.server,
        session.pid.map_or("-".into(), |pid| pid.to_string()),
        session.calls,
        session.refused,
        session.expires_in_seconds / 60,
    )
}

/// Below the line of its link, its process in the same column.
fn scope_line(session: &Description, scope: &ScopeProcess) -> String {
    format!(
        "{:<18} {:<18} {:<30} {:<8} tools {}",
        "", session.link, "  with other credentials", scope.pid, scope.tools
    )
}

fn kill(file: Option<&Path>, session: String) -> Result<ExitCode, Failure> {
    match ask(file, &Question::Kill { session })? {
        Answer::Killed { links, enrolment, total_ms } => {
            for link in &links {
                terminal::line(&ended_line(link));
                for line in link.ended.vault.iter().flat_map(Revoked::lines) {
                    terminal::line(&format!("session {}: {line}", link.session));
                }
                for credential in &link.ended.not_revocable {
                    terminal::line(&format!("session {}: {}", link.session, credential.line()));
                }
            }
            if let Some(enrolment) = enrolment {
                terminal::line(&format!("enrolment {enrolment}: ended; its sandbox is not let in again"));
            }
            terminal::line(&format!("ended after {total_ms} ms"));
            Ok(ExitCode::SUCCESS)
        }
        Answer::Refused { why } => {
            Err(Failure::new(Sysexit::NoInput, why).hint("`cofferdam sessions` shows who is here"))
        }
        _ => Err(odd_answer()),
    }
}

fn ended_line(link: &EndedLink) -> String {
    let processes = match link.ended.processes {
        Processes::AllEnded => "server and all its descendants ended",
        Processes::StillDying => "processes of the server were killed and are still dying",
    };
    format!(
        "link {}: {processes} after {} ms; {} calls were unanswered",
        link.link, link.ended.server_ended_ms, link.ended.calls_unanswered
    )
}

fn reload(file: Option<&Path>) -> Result<ExitCode, Failure> {
    match ask(file, &Question::Reload)? {
        Answer::Reloaded { policy, at_restart } => {
            terminal::line(&format!("reloaded; policy {policy}"));
            if !at_restart.is_empty() {
                terminal::line(&format!("takes effect at restart: {}", at_restart.join(", ")));
            }
            Ok(ExitCode::SUCCESS)
        }
        Answer::Refused { why } => Err(Failure::new(Sysexit::Configuration, why)
            .hint("nothing has changed; correct the configuration and reload again")),
        _ => Err(odd_answer()),
    }
}

fn audit_command(file: Option<&Path>, command: AuditCommand) -> Result<ExitCode, Failure> {
    let (_, config) = load(file)?;
    let directory = config.state_dir.join("audit");
    match command {
        AuditCommand::Show(arguments) => audit_show(&directory, &arguments),
        AuditCommand::Tail(arguments) => audit_tail(&directory, &arguments),
        AuditCommand::Verify(arguments) => audit_verify(&directory, &arguments),
    }
}

fn audit_show(directory: &Path, arguments: &ShowArguments) -> Result<ExitCode, Failure> {
    let selector: Selector = arguments.id.parse().map_err(|error| Failure::new(Sysexit::Usage, error))?;
    let mut found = false;
    audit::show(directory, &selector, |record| {
        found = true;
        print_record(record, arguments.json);
        Ok(())
    })
    .map_err(|error| Failure::new(Sysexit::NoInput, error))?;
    match found {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Failure::new(Sysexit::NoInput, format!("no record names `{}`", arguments.id)).hint(
            "give SESSION, LINK, SESSION/LINK or SESSION/LINK/SEQ, as `cofferdam audit tail` shows them",
        )),
    }
}

fn audit_tail(directory: &Path, arguments: &TailArguments) -> Result<ExitCode, Failure> {
    let unreadable = |error| Failure::new(Sysexit::NoInput, error);
    let mut follower = audit::Follower::from_last(directory, arguments.lines).map_err(unreadable)?;
    loop {
        for record in follower.poll().map_err(unreadable)? {
            print_record(&record, arguments.json);
        }
        if !arguments.follow {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}

fn audit_verify(directory: &Path, arguments: &VerifyArguments) -> Result<ExitCode, Failure> {
    let verified = audit::verify(directory, arguments.head.as_deref()).map_err(|error| {
        Failure::new(Sysexit::Data, error).hint("the audit was changed outside the sidecar")
    })?;
    terminal::line(&format!("{} records in {} files: the chain holds", verified.records, verified.files));
    if let Some(place) = &verified.last_torn {
        terminal::line(&format!("{} torn lines were marked at a start; the last at {place}", verified.torn));
    }
    if let Some(place) = &verified.unfinished {
        terminal::line(&format!("{place}: a line without its end; it is being written, or the sidecar died"));
    }
    if let Some(head) = &verified.head {
        terminal::line(&format!("head {}", head.hash.as_str()));
    }
    Ok(ExitCode::SUCCESS)
}

fn print_record(record: &str, json: bool) {
    match json {
        true => terminal::line(record),
        false => terminal::line(&audit::human(record)),
    }
}

fn load(file: Option<&Path>) -> Result<(PathBuf, Config), Failure> {
    let path = find(file)?;
    let config = config::load(&path).map_err(|problems| Failure::new(Sysexit::Configuration, problems))?;
    Ok((path, config))
}

fn find(file: Option<&Path>) -> Result<PathBuf, Failure> {
    config::find(file, &Environment::of_process()).map_err(|error| {
        Failure::new(Sysexit::NoInput, error).hint("write one, or see `cofferdam demo`, which needs none")
    })
}

fn admin_socket(file: Option<&Path>) -> Result<PathBuf, Failure> {
    let path = find(file)?;
    match config::load(&path) {
        Ok(config) => Ok(config.admin.socket),
        // The daemon runs with what the file said before.
        Err(problems) => {
            config::admin_socket(&path).ok_or_else(|| Failure::new(Sysexit::Configuration, problems))
        }
    }
}

fn ask(file: Option<&Path>, question: &Question) -> Result<Answer, Failure> {
    let socket = admin_socket(file)?;
    client::ask(&socket, question).map_err(|error| {
        let hint = match &error {
            AskError::Connect { .. } => {
                "is `cofferdam serve` running with this configuration, and as this user?"
            }
            AskError::Answer(_) | AskError::Talk(_) => "look at the sidecar's log",
        };
        Failure::new(Sysexit::Unavailable, error).hint(hint)
    })
}

fn odd_answer() -> Failure {
    Failure::new(Sysexit::Software, "the sidecar answered something else: is it of the same version?")
}
