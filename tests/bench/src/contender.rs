//! The definition of a contender, and a contender whose placeholders are filled in.
//!
//! A contender is what a user would have to run: a program that listens on the host (or none), and the command that a
//! harness would start. Placeholders are words in braces: `{dir}` is the contender's directory, `{port}` a free port,
//! `{server}` the MCP server; others are the paths of installed programs.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::bench_error::{BenchError, last_log_line};
use crate::clock::Deadline;
use crate::process::{self, Running, into_file};
use crate::program_paths::ProgramPaths;

#[derive(Debug)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    /// The description in the report.
    pub(crate) about: &'static str,
    /// Directories to create in `{dir}`, with mode 0700, before anything starts.
    pub(crate) directories: &'static [&'static str],
    /// Files to write to `{dir}`, with mode 0600: name, and content with placeholders.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// The program that listens on the host during all rounds; empty: none.
    pub(crate) host: &'static [&'static str],
    pub(crate) ready: Ready,
    /// A command that is run once when the host's program listens; its output is written to `{dir}/enrolment`.
    pub(crate) enrol: &'static [&'static str],
    /// The command that a harness starts.
    pub(crate) client: &'static [&'static str],
    pub(crate) env: &'static [(&'static str, &'static str)],
}

/// How the benchmark detects that the host's program listens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ready {
    /// Nothing listens.
    AtOnce,
    Port,
    Unix(&'static str),
}

/// A contender with its placeholders filled in and its directories and files created.
#[derive(Clone, Debug)]
pub(crate) struct PreparedContender {
    pub(crate) host: CommandLine,
    pub(crate) client: CommandLine,
    ready: ReadyCheck,
    enrol: Vec<String>,
    enrolment: PathBuf,
}

#[derive(Clone, Debug)]
pub(crate) struct CommandLine {
    pub(crate) argv: Vec<String>,
    env: Vec<(String, String)>,
    /// Its working directory; `None`: that of the benchmark.
    directory: Option<PathBuf>,
    /// The file for its output.
    log: PathBuf,
}

#[derive(Clone, Debug)]
enum ReadyCheck {
    AtOnce,
    Port(SocketAddr),
    Unix(PathBuf),
}

impl Contender {
    pub(crate) fn prepare(&self, dir: &Path, paths: &ProgramPaths) -> Result<PreparedContender, BenchError> {
        let port = free_port()?;
        let fill = |text: &str| fill(text, dir, port, paths);
        let fill_all = |texts: &[&str]| texts.iter().map(|text| fill(text)).collect::<Result<Vec<_>, _>>();
        let (host, enrol, client) = (fill_all(self.host)?, fill_all(self.enrol)?, fill_all(self.client)?);
        let env = self.env.iter().map(|(name, value)| Ok(((*name).to_owned(), fill(value)?)));
        let env: Vec<_> = env.collect::<Result<_, BenchError>>()?;
        for directory in [""].iter().chain(self.directories) {
            let path = dir.join(directory);
            let created = DirBuilder::new().recursive(true).mode(0o700).create(&path);
            created.map_err(|source| BenchError::Write {
                what: format!("a directory of {}", self.name),
                source,
            })?;
        }
        for (name, content) in self.files {
            let text = fill(content)?;
            let file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(dir.join(name));
            let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
            written.map_err(|source| BenchError::Write { what: (*name).into(), source })?;
        }
        let ready = match self.ready {
            Ready::AtOnce => ReadyCheck::AtOnce,
            Ready::Port => ReadyCheck::Port(SocketAddr::from(([127, 0, 0, 1], port))),
            Ready::Unix(path) => ReadyCheck::Unix(dir.join(path)),
        };
        let line = |argv, log| CommandLine { argv, env: env.clone(), directory: None, log: dir.join(log) };
        Ok(PreparedContender {
            host: line(host, "host.log"),
            client: line(client, "client.log"),
            ready,
            enrol,
            enrolment: dir.join("enrolment"),
        })
    }
}

impl PreparedContender {
    /// Starts the host's program, if there is one, waits until it listens, and enrols.
    pub(crate) fn start_host(&self) -> Result<Option<Running>, BenchError> {
        let Some(program) = self.host.argv.first() else { return Ok(None) };
        let mut command = process::killed_with_parent(program);
        self.host.apply_to(&mut command);
        command.stdin(Stdio::null()).stdout(into_file(&self.host.log));
        let mut running = Running::spawn(command, &self.host.name())?;
        let deadline = Deadline::after(READY_TIMEOUT);
        while !self.ready.is_reached() {
            let what = format!("the host side ({})", self.host.name());
            if !running.is_running() {
                return Err(BenchError::Ended { what, last_log_line: self.host.last_log_line() });
            }
            if deadline.is_over() {
                let last_log_line = self.host.last_log_line();
                return Err(BenchError::NotReady { what, within: READY_TIMEOUT, last_log_line });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.enrol()?;
        Ok(Some(running))
    }

    fn enrol(&self) -> Result<(), BenchError> {
        let Some((program, arguments)) = self.enrol.split_first() else { return Ok(()) };
        let mut command = process::command(program);
        command.args(arguments);
        let printed = process::output_of(command, READY_TIMEOUT);
        let printed = printed.ok_or_else(|| BenchError::Missing("an enrolment string".into()))?;
        std::fs::write(&self.enrolment, printed)
            .map_err(|source| BenchError::Write { what: "an enrolment string".into(), source })
    }
}

impl CommandLine {
    /// This command, started by another program: `prefix` is that program with its first arguments.
    pub(crate) fn under(&self, prefix: &[String]) -> Self {
        self.with_arguments(prefix.iter().chain(&self.argv).cloned().collect())
    }

    /// Another command with the same environment, working directory and log.
    pub(crate) fn with_arguments(&self, argv: Vec<String>) -> Self {
        Self { argv, ..self.clone() }
    }

    pub(crate) fn in_directory(self, directory: &Path) -> Self {
        Self { directory: Some(directory.to_owned()), ..self }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = process::command(&self.argv[0]);
        self.apply_to(&mut command);
        command
    }

    /// The program's name without its directory.
    pub(crate) fn name(&self) -> String {
        let program = self.argv.first().map_or("", String::as_str);
        Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(crate) fn last_log_line(&self) -> String {
        last_log_line(&String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()))
    }

    fn apply_to(&self, command: &mut Command) {
        command.args(&self.argv[1..]).envs(self.env.iter().cloned()).stderr(into_file(&self.log));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
    }
}

impl ReadyCheck {
    fn is_reached(&self) -> bool {
        match self {
            Self::AtOnce => true,
            Self::Port(address) => TcpStream::connect_timeout(address, Duration::from_secs(1)).is_ok(),
            Self::Unix(path) => UnixStream::connect(path).is_ok(),
        }
    }
}

/// Node and Python need a second or two to start, more on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

fn fill(text: &str, dir: &Path, port: u16, paths: &ProgramPaths) -> Result<String, BenchError> {
    let mut filled = text.to_owned();
    for (placeholder, value) in [("{dir}", dir.display().to_string()), ("{port}", port.to_string())] {
        filled = filled.replace(placeholder, &value);
    }
    paths.fill(filled)
}

/// Replaces placeholders in a prepared file whose values were not known when it was written.
pub(crate) fn replace_in(file: &Path, values: &[(&str, &str)]) -> Result<(), BenchError> {
    let written = std::fs::read_to_string(file).and_then(|text| {
        let replace = |text: String, (placeholder, value): &(&str, &str)| text.replace(placeholder, value);
        std::fs::write(file, values.iter().fold(text, replace))
    });
    written.map_err(|source| BenchError::Write { what: "a configuration".into(), source })
}

/// A port that is currently free.
fn free_port() -> Result<u16, BenchError> {
    let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let address =
        bound.map_err(|source| BenchError::Start { what: "a listener on loopback".into(), source })?;
    Ok(address.port())
}
