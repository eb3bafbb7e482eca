//! gVisor: a kernel in user space, an empty root and no network. `runsc` is called directly, without a container
//! engine.
//!
//! A guest can connect to sockets of the host only with `--host-uds=open`; see [`HostSockets`].

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{
    Access, CreatedNames, Guest, SHIM_INSIDE, Sandbox, describe_output, if_usable, is_root, shim,
    text_of_success,
};
use crate::process::{command, output_of};
use crate::tools::Tool;

/// Starts sandboxes with `runsc`. Their bundles and the state of `runsc` are in a temporary directory.
#[derive(Debug)]
pub struct Gvisor {
    program: PathBuf,
    directory: tempfile::TempDir,
    sockets: HostSockets,
    created: CreatedNames,
}

/// Whether a guest may connect to a Unix socket of the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HostSockets {
    /// The default of `runsc`.
    Forbidden,
    Open,
}

impl Gvisor {
    #[track_caller]
    pub fn open(sockets: HostSockets) -> Option<Self> {
        let program = Tool::Runsc.path()?;
        if !is_root("gVisor") {
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        if_usable(Self { program, directory, sockets, created: CreatedNames::default() })
    }

    /// The process id, on the host, of the kernel of the last sandbox that was started.
    #[track_caller]
    pub fn process(&self) -> u32 {
        let mut state = self.runsc();
        state.arg("state").arg(self.created.last());
        let text = text_of_success(state, "runsc state");
        let state: Value = serde_json::from_str(&text).expect("runsc state is JSON");
        state["pid"].as_u64().and_then(|id| id.try_into().ok()).expect("a process id")
    }

    fn runsc(&self) -> Command {
        let mut command = command(&self.program);
        command.arg("--root").arg(self.directory.path().join("state"));
        command.args(["--platform=ptrace", "--network=none", "--ignore-cgroups"]);
        if self.sockets == HostSockets::Open {
            command.arg("--host-uds=open");
        }
        command
    }

    /// A bundle for this guest: a root with the shim in it, and the OCI configuration beside it.
    fn bundle(&self, name: &str, guest: &Guest) -> PathBuf {
        let bundle = self.directory.path().join(name);
        let root = bundle.join("root");
        std::fs::create_dir_all(&root).expect("a temporary directory is writable");
        std::fs::copy(shim(), inside(&root, Path::new(SHIM_INSIDE))).expect("the shim can be copied");
        for mount in guest.mounts() {
            std::fs::create_dir_all(inside(&root, &mount.inside)).expect("a temporary directory is writable");
        }
        std::fs::write(bundle.join("config.json"), configuration(guest).to_string())
            .expect("a temporary directory is writable");
        bundle
    }
}

impl Sandbox for Gvisor {
    fn name(&self) -> &'static str {
        "gVisor"
    }

    fn command(&self, guest: &Guest) -> Command {
        let name = self.created.next();
        let mut command = self.runsc();
        command.arg("run").arg("--bundle").arg(self.bundle(&name, guest)).arg(name);
        command
    }
}

impl Drop for Gvisor {
    fn drop(&mut self) {
        for name in self.created.all() {
            let mut delete = self.runsc();
            delete.args(["delete", "--force"]).arg(name);
            let output = output_of(delete, "runsc delete");
            // A container that has exited may be removed already.
            if !output.status.success() && std::thread::panicking() {
                eprintln!("runsc delete: {}", describe_output(&output));
            }
        }
    }
}

fn configuration(guest: &Guest) -> Value {
    let arguments: Vec<&str> =
        std::iter::once(SHIM_INSIDE).chain(guest.arguments.iter().map(String::as_str)).collect();
    let environment: Vec<String> =
        guest.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mounts: Vec<Value> = guest
        .mounts()
        .into_iter()
        .map(|mount| {
            let mode = match mount.access {
                Access::ReadOnly => "ro",
                Access::ReadWrite => "rw",
            };
            json!({"destination": mount.inside, "source": mount.outside, "type": "bind", "options": ["bind", mode]})
        })
        .collect();
    let namespaces: Vec<Value> =
        ["ipc", "mount", "network", "pid", "uts"].iter().map(|kind| json!({"type": kind})).collect();
    json!({
        "ociVersion": "1.0.0",
        "process": {"user": {"uid": 0, "gid": 0}, "args": arguments, "env": environment, "cwd": "/"},
        "root": {"path": "root", "readonly": true},
        "mounts": mounts,
        "linux": {"namespaces": namespaces},
    })
}

fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").expect("paths inside are absolute"))
}
