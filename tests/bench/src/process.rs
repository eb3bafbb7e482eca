//! Starts and ends processes; no other module does.
//!
//! Every started process is ended by its id. The processes that a contender starts exit when their stdin closes. If this
//! process is killed, the kernel sends SIGTERM to the host-side programs, provided that `setpriv` is installed.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bench_error::BenchError;
use crate::clock::Deadline;

/// A process that is ended and waited for when it goes out of scope.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
}

#[expect(clippy::disallowed_methods, reason = "this is the one place in the benchmark that starts processes")]
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

impl Running {
    pub(crate) fn spawn(mut command: Command, what: &str) -> Result<Self, BenchError> {
        let child = command.spawn().map_err(|source| BenchError::Start { what: what.into(), source })?;
        Ok(Self { child })
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// The exit status, if the process exits within `time`.
    pub(crate) fn ends_within(&mut self, time: Duration) -> Option<ExitStatus> {
        let deadline = Deadline::after(time);
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            if deadline.is_over() {
                return None;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends SIGTERM, and SIGKILL after `grace`.
    pub(crate) fn end(&mut self, grace: Duration) -> Option<ExitStatus> {
        if self.is_running() {
            let id = i32::try_from(self.child.id()).expect("process ids fit into i32");
            // The process may have exited already.
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
        let status = self.ends_within(grace);
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(EXIT_TIMEOUT);
    }
}

/// A command whose process, if `setpriv` is installed, gets SIGTERM when this process dies.
pub(crate) fn killed_with_parent(program: &str) -> Command {
    match on_path("setpriv") {
        Some(setpriv) => {
            let mut wrapped = command(setpriv);
            wrapped.args(["--pdeathsig", "TERM", "--"]).arg(program);
            wrapped
        }
        None => command(program),
    }
}

/// The stdout of a command. `None` if it fails or takes longer than `time`.
pub(crate) fn output_of(mut command: Command, time: Duration) -> Option<String> {
    let directory = tempfile::tempdir().ok()?;
    let path = directory.path().join("out");
    command.stdin(Stdio::null()).stdout(into_file(&path)).stderr(Stdio::null());
    let mut running = Running::spawn(command, "a command").ok()?;
    running.ends_within(time).filter(ExitStatus::success)?;
    std::fs::read_to_string(path).ok()
}

/// A file for a process's output.
pub(crate) fn into_file(path: &Path) -> Stdio {
    File::options().create(true).append(true).open(path).map_or_else(|_| Stdio::null(), Stdio::from)
}

/// Raises the descriptor limit of this process, and of those that it starts, to at least this number.
pub(crate) fn raise_descriptor_limit(descriptors: u64) -> Result<(), BenchError> {
    let missing = || BenchError::Missing(format!("{descriptors} descriptors for one process (`ulimit -Hn`)"));
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|_| missing())?;
    if hard < descriptors {
        return Err(missing());
    }
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(descriptors), hard).map_err(|_| missing())
}

pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file())
}

const POLL: Duration = Duration::from_millis(2);
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);
