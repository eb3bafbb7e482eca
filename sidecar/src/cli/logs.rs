//! `logs`: what a server wrote to stderr, from the files that the sidecar keeps. Needs no running sidecar.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cofferdam_servers::stderr_files::{StderrFollower, StderrReadError, StderrRecord, stderr_directory};
use relay_proto::name::Name;

use super::arguments::LogsArguments;
use super::commands::load;
use crate::config::{Config, suggest};
use crate::terminal;
use crate::terminal::failure::{Failure, Sysexit};

/// How often new lines are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

pub(super) fn run(file: Option<&Path>, arguments: &LogsArguments) -> Result<ExitCode, Failure> {
    let (_, config) = load(file)?;
    let server = known_server(&arguments.server, &config)?;
    let directory = stderr_directory(&config.state_dir);
    let mut follower = StderrFollower::from_start(&directory, &server).map_err(unreadable)?;
    let last = follower.last(arguments.lines).map_err(unreadable)?;
    let runs_processes = config.servers.get(&server).is_none_or(|server| server.kind.runs_processes());
    match (last.is_empty(), runs_processes) {
        (true, false) => eprintln!("`{server}` is an HTTP server: it has no stderr on this host"),
        (true, true) if arguments.lines > 0 => eprintln!("`{server}` has written nothing to stderr yet"),
        _ => {}
    }
    last.iter().for_each(|line| print(line, arguments));
    loop {
        if !arguments.follow {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(POLL_INTERVAL);
        for line in follower.poll().map_err(unreadable)? {
            print(&line, arguments);
        }
    }
}

/// A server of the configuration, or one that was: its lines are kept.
fn known_server(text: &str, config: &Config) -> Result<Name, Failure> {
    let name: Option<Name> = text.parse().ok();
    let has_lines = |name: &Name| {
        StderrFollower::from_start(&stderr_directory(&config.state_dir), name)
            .is_ok_and(|file| file.has_file())
    };
    match name {
        Some(name) if config.servers.contains_key(&name) || has_lines(&name) => Ok(name),
        _ => {
            let hint = suggest::hint(text, "server", config.servers.keys().map(Name::as_str));
            Err(Failure::new(Sysexit::Usage, format!("there is no server `{text}`")).hint(hint))
        }
    }
}

fn unreadable(error: StderrReadError) -> Failure {
    match error.is_denied() {
        true => Failure::new(Sysexit::NoPermission, error).hint("run this as the sidecar's user"),
        false => Failure::new(Sysexit::NoInput, error),
    }
}

fn print(line: &str, arguments: &LogsArguments) {
    match (StderrRecord::parse(line), arguments.json) {
        (Some(_), true) => terminal::print_line(line),
        (Some(record), false) => terminal::print_line(&record.human()),
        // A line that a crash of the host has cut, or that the sidecar did not write.
        (None, _) => eprintln!("a line of the file is damaged, and is left out"),
    }
}
