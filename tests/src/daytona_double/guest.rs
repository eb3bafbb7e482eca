//! The sandbox: real processes in bubblewrap, with a home, `/tmp` and `/run` of their own that outlive a stop.
//!
//! Its first process is a shell that starts what the double tells it, so that everything is in one namespace of processes
//! and ends with it.

use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

use nix::unistd::Pid;

use crate::deadline::{PATIENCE, holds_within};
use crate::process::{Running, children_of, command, command_line, into_file};

pub(super) const HOME: &str = "/home/daytona";
/// Where the double's own files are, inside.
const CONTROL: &str = "/mnt";

/// The number of the command by which a sandbox is known to be up; requests count from 0.
const READY: u32 = u32::MAX;

pub(super) struct Guest {
    root: PathBuf,
    running: Mutex<Running>,
    orders: Mutex<ChildStdin>,
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
        let mut boxed = boxed(bubblewrap, root);
        // Orders are lines; each runs in the background.
        let shell = "while IFS= read -r order; do eval \"$order\" & done";
        boxed.args(["/bin/sh", "-c", shell]).stdin(Stdio::piped()).stdout(Stdio::null());
        boxed.stderr(into_file(&root.join("sandbox.log")));
        let mut running = spawn_lasting(boxed, "the Daytona double's sandbox");
        let orders = running.child.stdin.take().expect("stdin is a pipe");
        let guest = Self { root: root.to_owned(), running: Mutex::new(running), orders: Mutex::new(orders) };
        // Bubblewrap that is killed before it has set up `--die-with-parent` leaves its second process behind.
        let ready = guest.run(READY, "true");
        assert_eq!(ready.wait(), Some(0), "the sandbox's shell runs");
        // A later start asks again.
        let _ = std::fs::remove_file(ready.file("exit"));
        guest
    }

    /// Starts a script, as the leader of a group of processes.
    pub(super) fn run(&self, number: u32, script: &str) -> GuestCommand {
        let command = GuestCommand { root: self.root.clone(), number };
        std::fs::write(command.file("cmd"), script).expect("the sandbox's directory is writable");
        let inside = |ending: &str| format!("{CONTROL}/{number}.{ending}");
        let (cmd, out, pid, exit) = (inside("cmd"), inside("out"), inside("pid"), inside("exit"));
        let wrapped = format!(
            "echo $$ > {pid}; cd; ( . {cmd} ) > {out} 2>&1; echo $? > {exit}.part; mv {exit}.part {exit}"
        );
        std::fs::write(command.file("run"), wrapped).expect("the sandbox's directory is writable");
        self.order(&format!("setsid /bin/sh {} < /dev/null", inside("run")));
        command
    }

    /// Ends a command and all processes of its group.
    pub(super) fn end_command(&self, command: &GuestCommand) {
        let Ok(pid) = std::fs::read_to_string(command.file("pid")) else { return };
        let pid = pid.trim();
        self.order(&format!("kill -s TERM -- -{pid}; sleep 0.3; kill -s KILL -- -{pid} 2>/dev/null"));
    }

    /// The path on the host of a path in the sandbox that is the sandbox's own.
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

    /// Ends every process; the files stay.
    pub(super) fn end(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.kill9();
    }

    fn order(&self, line: &str) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        // A sandbox that is ending takes none.
        let _ = writeln!(orders, "{line}");
    }
}

impl GuestCommand {
    pub(super) fn exit_code(&self) -> Option<i64> {
        std::fs::read_to_string(self.file("exit")).ok()?.trim().parse().ok()
    }

    pub(super) fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.file("out")).unwrap_or_default()).into_owned()
    }

    /// Waits for the end; `None` if the sandbox stops first.
    pub(super) fn wait(&self) -> Option<i64> {
        holds_within(PATIENCE, || self.exit_code().is_some()).then(|| self.exit_code()).flatten()
    }

    /// The group of the command's processes, as this machine numbers it; `None` if its shell has ended.
    pub(super) fn group(&self) -> Option<Pid> {
        let run = format!("{CONTROL}/{}.run", self.number);
        let shell = crate::process::process_ids().find(|id| is_of(*id, &run) && is_below(*id, &self.root))?;
        group_of(shell)
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.root.join("control").join(format!("{}.{ending}", self.number))
    }
}

/// Starts a process in bubblewrap from a thread that lasts as long as this process: `--die-with-parent` ends it with the
/// thread that started it, and the double answers each request on a thread of its own.
pub(super) fn spawn_lasting(command: Command, name: &'static str) -> Running {
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

/// A command in the sandbox's view of files, with the sandbox's own directories.
pub(super) fn boxed(bubblewrap: &Path, root: &Path) -> Command {
    for (own, mode) in [("control", 0o755), ("home/daytona", 0o755), ("tmp", 0o777), ("run", 0o755)] {
        let directory = root.join(own);
        std::fs::create_dir_all(&directory).expect("a temporary directory is writable");
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&directory, permissions).expect("it is the test's own");
    }
    let mut boxed = command(bubblewrap);
    boxed.args(["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--clearenv"]);
    boxed.args(["--setenv", "HOME", HOME, "--setenv", "PATH", "/usr/bin:/bin"]);
    boxed.args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/home"]);
    for (own, inside) in [("control", CONTROL), ("home/daytona", HOME), ("tmp", "/tmp"), ("run", "/run")] {
        boxed.arg("--bind").arg(root.join(own)).arg(inside);
    }
    boxed.args(["--chdir", HOME]);
    boxed
}

/// Waits until no process of this group is left: a hub that still ends would accept a connection meant for the next one.
pub(super) fn wait_gone(group: Pid) {
    holds_within(PATIENCE, || crate::process::process_ids().all(|id| group_of(id) != Some(group)));
}

fn group_of(id: u32) -> Option<Pid> {
    nix::unistd::getpgid(Some(Pid::from_raw(i32::try_from(id).ok()?))).ok()
}

/// Whether this process is the shell of a command.
fn is_of(id: u32, run: &str) -> bool {
    command_line(id).contains(run)
}

/// Whether this process has this sandbox's view of files.
fn is_below(id: u32, root: &Path) -> bool {
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    let mounts = std::fs::read_to_string(format!("/proc/{id}/mountinfo"));
    mounts.is_ok_and(|mounts| mounts.contains(&format!("{name}/control")))
}
