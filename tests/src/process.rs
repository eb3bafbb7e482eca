//! Starting and ending processes; the only place that does.
//!
//! A test ends every process that it starts, by process id. Output goes to files, so that a failure can show it and
//! nothing blocks.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::deadline::{PATIENCE, holds_within};

/// A process that is killed and waited for when it goes out of scope.
#[derive(Debug)]
pub struct Running {
    pub child: Child,
    name: String,
}

/// A command that runs an external program; not started yet.
#[expect(clippy::disallowed_methods, reason = "this is the one place in the tests that starts processes")]
pub fn command(program: impl AsRef<Path>) -> Command {
    Command::new(program.as_ref())
}

/// Like [`command`], but without capabilities, even if the test runs as root.
pub fn without_capabilities(program: impl AsRef<Path>) -> Command {
    if !nix::unistd::geteuid().is_root() {
        return command(program);
    }
    let mut bare = command("setpriv");
    bare.args(["--bounding-set", "-all", "--inh-caps", "-all", "--"]).arg(program.as_ref());
    bare
}

impl Running {
    #[track_caller]
    pub fn spawn(mut command: Command, name: &str) -> Self {
        let child =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {name} ({command:?}): {error}"));
        Self { child, name: name.to_owned() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        send(self.id(), signal);
    }

    pub fn kill9(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait(PATIENCE);
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Waits until the process has exited; returns its exit status.
    #[track_caller]
    pub fn wait(&mut self, time: Duration) -> ExitStatus {
        let mut status = None;
        let ended = holds_within(time, || {
            status = self
                .child
                .try_wait()
                .unwrap_or_else(|error| panic!("cannot wait for {}: {error}", self.name));
            status.is_some()
        });
        match status {
            Some(status) if ended => status,
            _ => panic!("{} did not exit within {time:?}", self.name),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_running() {
            // Its children exit by themselves, such as a sidecar's keepers.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs a command to its end and returns its output.
#[track_caller]
pub fn output_of(mut command: Command, name: &str) -> Output {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let (out, err) = (directory.path().join("out"), directory.path().join("err"));
    command.stdin(Stdio::null()).stdout(into_file(&out)).stderr(into_file(&err));
    let status = Running::spawn(command, name).wait(PATIENCE * 3);
    Output { status, stdout: read(&out), stderr: read(&err) }
}

/// A file for a process's output.
pub fn into_file(path: &Path) -> Stdio {
    File::options().create(true).append(true).open(path).map_or_else(|_| Stdio::null(), Stdio::from)
}

/// Whether a process exists and is not a zombie.
pub fn is_alive(id: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{id}/stat"))
        .ok()
        .and_then(|stat| stat.rsplit_once(") ").map(|(_, rest)| !rest.starts_with(['Z', 'X'])))
        .unwrap_or_default()
}

/// The processes whose parent is `id`.
pub fn children_of(id: u32) -> Vec<u32> {
    process_ids().filter(|candidate| parent_of(*candidate) == Some(id)).collect()
}

/// The parent of a process, if the process exists.
pub fn parent_of(id: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The keeper of a server: the child of the sidecar among its ancestors.
pub fn keeper_of(server: u32, sidecar: u32) -> Option<u32> {
    let mut id = server;
    loop {
        let parent = parent_of(id)?;
        if parent == sidecar {
            return Some(id);
        }
        id = parent;
    }
}

/// One variable of another process of the same user.
pub fn environment_variable(process: u32, name: &str) -> String {
    let environment = std::fs::read(format!("/proc/{process}/environ")).expect("the process is ours");
    let prefix = format!("{name}=");
    let found =
        environment.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(prefix.as_bytes()));
    String::from_utf8_lossy(found.expect("the process has the variable")).into_owned()
}

/// A process's command line, its arguments joined by spaces.
pub fn command_line(id: u32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default())
        .replace('\0', " ")
}

pub fn send(id: u32, signal: Signal) {
    let id = i32::try_from(id).expect("process ids fit into i32");
    // It may have exited already.
    let _ = kill(Pid::from_raw(id), signal);
}

/// The built program `name`: from the variable, else beside the running test.
#[track_caller]
pub fn built(variable: &str, name: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let test = std::env::current_exe().expect("the path of the test program can be read");
    let program =
        test.ancestors().skip(1).map(|directory| directory.join(name)).take(2).find(|path| path.is_file());
    program.unwrap_or_else(|| panic!("{name} is not built and {variable} is not set: use tests/run"))
}

pub fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_default()
}

pub fn process_ids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The most memory that a process has had.
#[track_caller]
pub fn peak_memory_kib(id: u32) -> u64 {
    memory_line(id, "VmHWM:")
}

/// The memory that a process has now.
#[track_caller]
pub fn memory_kib(id: u32) -> u64 {
    memory_line(id, "VmRSS:")
}

/// The number of descriptors that a process has open.
#[track_caller]
pub fn open_descriptors(id: u32) -> usize {
    std::fs::read_dir(format!("/proc/{id}/fd")).expect("the process runs").count()
}

#[track_caller]
fn memory_line(id: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("Linux reports the memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// The processor time that a process has used.
#[track_caller]
pub fn cpu_time(id: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).expect("the process runs").flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let statistics = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        statistics.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// Whether every thread of a process has stopped: SIGSTOP takes a moment to reach them all.
pub fn is_stopped(id: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let states = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    states.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next()).all(|state| state == 'T')
}
