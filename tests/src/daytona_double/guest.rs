//! The sandbox: real processes in bubblewrap, with their own home, `/tmp` and `/run`, which are kept when it stops.
//!
//! Its first process is a shell that runs the command lines that the double sends it, so that all processes are in one process
//! namespace and end with it.

use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

use nix::unistd::Pid;

use crate::deadline::{PATIENCE, holds_within};
use crate::process::{Running, children_of, command, command_line, into_file};

pub(super) const HOME: &str = "/home/daytona";
/// The directory of the double's own files in the sandbox.
const CONTROL: &str = "/mnt";

/// The number of the command that shows that the sandbox runs; the numbers of other commands start at 0.
const READY: u32 = u32::MAX;

pub(super) struct Guest {
    root: PathBuf,
    running: Mutex<Running>,
    shell_input: Mutex<ChildStdin>,
}

/// A command in the sandbox.
#[derive(Clone, Debug)]
pub(super) struct GuestCommand {
    root: PathBuf,
    number: u32,
}

impl Guest {
    #[track_caller]
    pub(super) fn start(bubblewrap: &Path, root: &Path) -> Self {
        let mut sandbox_command = sandbox_command(bubblewrap, root);
        // Each line is a shell command that runs in the background.
        let shell = "while IFS= read -r order; do eval \"$order\" & done";
        sandbox_command.args(["/bin/sh", "-c", shell]).stdin(Stdio::piped()).stdout(Stdio::null());
        sandbox_command.stderr(into_file(&root.join("sandbox.log")));
        let mut running = spawn_from_permanent_thread(sandbox_command, "the Daytona double's sandbox");
        let shell_input = running.child.stdin.take().expect("stdin is a pipe");
        let guest = Self {
            root: root.to_owned(),
            running: Mutex::new(running),
            shell_input: Mutex::new(shell_input),
        };
        // Waits for the shell: if bubblewrap is killed before `--die-with-parent` is set up, its second process is left behind.
        let ready = guest.run(READY, "true");
        assert_eq!(ready.wait(), Some(0), "the sandbox's shell runs");
        // A later start checks again.
        let _ = std::fs::remove_file(ready.file("exit"));
        guest
    }

    /// Starts a script in a new process group.
    pub(super) fn run(&self, number: u32, script: &str) -> GuestCommand {
        let command = GuestCommand { root: self.root.clone(), number };
        std::fs::write(command.file("cmd"), script).expect("the sandbox's directory is writable");
        let inside = |ending: &str| format!("{CONTROL}/{number}.{ending}");
        let (cmd, out, pid, exit) = (inside("cmd"), inside("out"), inside("pid"), inside("exit"));
        let wrapped = format!(
            "echo $$ > {pid}; cd; ( . {cmd} ) > {out} 2>&1; echo $? > {exit}.part; mv {exit}.part {exit}"
        );
        std::fs::write(command.file("run"), wrapped).expect("the sandbox's directory is writable");
        self.send_to_shell(&format!("setsid /bin/sh {} < /dev/null", inside("run")));
        command
    }

    /// Kills a command and all processes of its group.
    pub(super) fn end_command(&self, command: &GuestCommand) {
        let Ok(pid) = std::fs::read_to_string(command.file("pid")) else { return };
        let pid = pid.trim();
        self.send_to_shell(&format!("kill -s TERM -- -{pid}; sleep 0.3; kill -s KILL -- -{pid} 2>/dev/null"));
    }

    /// The path on the host of a path in the sandbox; `None` outside of the sandbox's own directories.
    pub(super) fn on_host(&self, path: &str) -> Option<PathBuf> {
        let path = if path.starts_with('/') { path.to_owned() } else { format!("{HOME}/{path}") };
        let own =
            [HOME, "/tmp", "/run"].iter().any(|own| path.starts_with(&format!("{own}/")) || path == *own);
        (own && !path.contains("..")).then(|| self.root.join(path.trim_start_matches('/')))
    }

    pub(super) fn processes(&self) -> Vec<String> {
        let id = self.running.lock().unwrap_or_else(PoisonError::into_inner).id();
        let (mut waiting, mut found) = (children_of(id), Vec::new());
        while let Some(process) = waiting.pop() {
            waiting.extend(children_of(process));
            found.push(command_line(process));
        }
        found
    }

    /// Kills every process; the files stay.
    pub(super) fn end(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.kill9();
    }

    fn send_to_shell(&self, line: &str) {
        let mut shell_input = self.shell_input.lock().unwrap_or_else(PoisonError::into_inner);
        // An error is ignored: the sandbox may be ending.
        let _ = writeln!(shell_input, "{line}");
    }
}

impl GuestCommand {
    pub(super) fn exit_code(&self) -> Option<i64> {
        std::fs::read_to_string(self.file("exit")).ok()?.trim().parse().ok()
    }

    pub(super) fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.file("out")).unwrap_or_default()).into_owned()
    }

    /// Waits for the exit code; `None` if there is none in time, for instance because the sandbox was stopped.
    pub(super) fn wait(&self) -> Option<i64> {
        holds_within(PATIENCE, || self.exit_code().is_some()).then(|| self.exit_code()).flatten()
    }

    /// The process group of the command, with its id on this machine; `None` if its shell has exited.
    pub(super) fn group(&self) -> Option<Pid> {
        let run = format!("{CONTROL}/{}.run", self.number);
        let shell = crate::process::process_ids()
            .find(|id| is_shell_of(*id, &run) && is_in_sandbox(*id, &self.root))?;
        group_of(shell)
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.root.join("control").join(format!("{}.{ending}", self.number))
    }
}

/// Starts a process in bubblewrap from a thread that lives as long as this process: with `--die-with-parent` it is killed when
/// the thread that started it ends, and the double handles each request in a new thread.
pub(super) fn spawn_from_permanent_thread(command: Command, name: &'static str) -> Running {
    type Start = (Command, &'static str, mpsc::Sender<Running>);
    static STARTER: OnceLock<Mutex<mpsc::Sender<Start>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, starts) = mpsc::channel::<Start>();
        std::thread::spawn(move || {
            for (command, name, started) in starts {
                // The caller waits for it.
                let _ = started.send(Running::spawn(command, name));
            }
        });
        Mutex::new(sender)
    });
    let (sender, started) = mpsc::channel();
    let sent = starter.lock().unwrap_or_else(PoisonError::into_inner).send((command, name, sender));
    sent.expect("the thread that starts processes lasts");
    started.recv().unwrap_or_else(|_| panic!("{name} was not started"))
}

/// The beginning of a command line that runs a program in the sandbox with bubblewrap. Creates the sandbox's directories.
pub(super) fn sandbox_command(bubblewrap: &Path, root: &Path) -> Command {
    for (own, mode) in [("control", 0o755), ("home/daytona", 0o755), ("tmp", 0o777), ("run", 0o755)] {
        let directory = root.join(own);
        std::fs::create_dir_all(&directory).expect("a temporary directory is writable");
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&directory, permissions).expect("it is the test's own");
    }
    let mut sandbox_command = command(bubblewrap);
    sandbox_command.args([
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--die-with-parent",
        "--clearenv",
    ]);
    sandbox_command.args(["--setenv", "HOME", HOME, "--setenv", "PATH", "/usr/bin:/bin"]);
    sandbox_command.args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/home"]);
    for (own, inside) in [("control", CONTROL), ("home/daytona", HOME), ("tmp", "/tmp"), ("run", "/run")] {
        sandbox_command.arg("--bind").arg(root.join(own)).arg(inside);
    }
    sandbox_command.args(["--chdir", HOME]);
    sandbox_command
}

/// Waits until no process of this group is left: a hub that is still exiting could accept a connection meant for the next hub.
pub(super) fn wait_for_group_exit(group: Pid) {
    holds_within(PATIENCE, || crate::process::process_ids().all(|id| group_of(id) != Some(group)));
}

fn group_of(id: u32) -> Option<Pid> {
    nix::unistd::getpgid(Some(Pid::from_raw(i32::try_from(id).ok()?))).ok()
}

/// Whether this process is the shell that runs the file `run`.
fn is_shell_of(id: u32, run: &str) -> bool {
    command_line(id).contains(run)
}

/// Whether this process is in the sandbox with this root.
fn is_in_sandbox(id: u32, root: &Path) -> bool {
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    let mounts = std::fs::read_to_string(format!("/proc/{id}/mountinfo"));
    mounts.is_ok_and(|mounts| mounts.contains(&format!("{name}/control")))
}
