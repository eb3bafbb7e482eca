//! Starts a process in a sandbox, with bubblewrap: the sandbox's directories are mounted into its root.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::frames::RpcError;
use super::process::Process;
use super::sandbox::{Sandbox, SandboxUser};
use super::server::Shared;

type Started = (Arc<Process>, mpsc::Receiver<bytes::Bytes>);

/// Starts the process of a `Start` request. The receiver gets all events with its output.
pub(super) async fn launch(
    shared: &Arc<Shared>,
    sandbox: &Arc<Sandbox>,
    user: SandboxUser,
    start: &Value,
    limit: Option<Duration>,
) -> Result<Started, RpcError> {
    if start.get("pty").is_some_and(|pty| !pty.is_null()) {
        return Err(RpcError::new("unimplemented", "this double has no terminals"));
    }
    let mut command = bubblewrap_command(&shared.bubblewrap, sandbox.root(), user, &start["process"]);
    let has_stdin = start["stdin"].as_bool().unwrap_or(true);
    command.stdin(if has_stdin { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let started = tokio::process::Command::from(command).spawn();
    let mut child = started
        .map_err(|error| RpcError::new("invalid_argument", format!("error starting process: {error}")))?;
    let watcher = child.id().unwrap_or_default();
    let pid = inner_pid(watcher).await.unwrap_or(watcher);
    let process = Arc::new(Process::new(pid, watcher, start, child.stdin.take()));
    let output = process.listen();
    sandbox.add(Arc::clone(&process));
    let (watched, owner) = (Arc::clone(&process), Arc::clone(sandbox));
    shared.tasks.spawn(async move {
        if let Some(event) = watched.forward_until_exit(child, limit).await {
            owner.record_exit(watched.pid, event.clone());
            watched.finish(&event).await;
        }
    });
    Ok((process, output))
}

fn bubblewrap_command(bubblewrap: &Path, root: &Path, user: SandboxUser, process: &Value) -> Command {
    let id = if user == SandboxUser::Root { "0" } else { "1000" };
    let mut command = crate::process::command(bubblewrap);
    command.args(["--die-with-parent", "--unshare-user", "--uid", id, "--gid", id]);
    command.args(["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc", "--dev", "/dev"]);
    command.args(["--ro-bind", "/proc", "/proc"]);
    for link in ["bin", "lib", "lib64", "sbin"] {
        if Path::new("/usr").join(link).exists() {
            command.args(["--symlink", &format!("usr/{link}"), &format!("/{link}")]);
        }
    }
    for (inside, mode) in [
        ("home", "--bind"),
        ("root", "--bind"),
        ("tmp", "--bind"),
        // These belong to root.
        ("run", if user == SandboxUser::Root { "--bind" } else { "--ro-bind" }),
        ("usr/local", if user == SandboxUser::Root { "--bind" } else { "--ro-bind" }),
    ] {
        // A test may have removed one of these directories.
        if root.join(inside).exists() {
            command.arg(mode).arg(root.join(inside)).arg(format!("/{inside}"));
        }
    }
    command.args(["--remount-ro", "/"]);
    let home = user.home();
    let directory = Sandbox::resolve(user, process["cwd"].as_str().unwrap_or(home));
    command.arg("--chdir").arg(directory).arg("--clearenv");
    for (name, value) in
        [("HOME", home), ("USER", user.name()), ("LOGNAME", user.name()), ("E2B_SANDBOX", "true")]
    {
        command.args(["--setenv", name, value]);
    }
    command.args(["--setenv", "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]);
    for (name, value) in process["envs"].as_object().into_iter().flatten() {
        command.args(["--setenv", name, value.as_str().unwrap_or_default()]);
    }
    command.arg("--").arg(process["cmd"].as_str().unwrap_or_default());
    let arguments = process["args"].as_array().into_iter().flatten();
    command.args(arguments.filter_map(Value::as_str));
    command
}

/// The child of bubblewrap's process; `None` if it has exited already.
async fn inner_pid(watcher: u32) -> Option<u32> {
    for _ in 0..1000 {
        let children = fs::read_to_string(format!("/proc/{watcher}/task/{watcher}/children")).ok()?;
        if let Some(child) = children.split_whitespace().next() {
            return child.parse().ok();
        }
        if !crate::process::is_alive(watcher) {
            return None;
        }
        sleep(Duration::from_millis(1)).await;
    }
    None
}
