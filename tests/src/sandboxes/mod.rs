//! Real sandboxes, one file per kind. Each starts the same static shim inside and returns a [`Harness`] on its stdio.
//!
//! ```ignore
//! let Some(sandbox) = Bubblewrap::open() else { return };
//! let mut shim = sandbox.start(&Guest::of(&world, "tools"));
//! ```
//!
//! `open` first runs the shim's `--version` in the sandbox. Where that fails, the test fails under `CI=true` and
//! elsewhere is reported as not run, with the reason. What must stay true: a sandbox that goes out of scope leaves no
//! process, mount, network or file behind, also when its test panicked, and ends only what it started, by its id.
//!
//! | sandbox | its own file tree | connections to the host |
//! |---|---|---|
//! | [`Bubblewrap`] | yes, empty but for the shim | what is mounted |
//! | [`Podman`] | yes, `FROM scratch` | what is mounted, `exec -i` |
//! | [`Gvisor`] | yes, empty but for the shim | what is mounted, with `--host-uds=open` |
//! | [`Srt`] | no, the host's, read-only | its CONNECT proxy; Unix sockets are forbidden |
//! | [`Landlocked`] | no, the host's, what is named | Unix sockets; TCP is forbidden |
//! | [`Veth`] | no, the host's | one network with the host at its other end |
//! | [`Ssh`] | no, the host's, read-only | the stdin and stdout of an `ssh` |
//! | [`Machine`] | yes, empty but for the shim | vsock, or a network; only in `just slow` |

mod bubblewrap;
mod gvisor;
mod inside;
mod landlocked;
mod machine;
mod podman;
mod podman_engine;
mod rootless_podman;
mod srt;
mod ssh;
mod veth;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::Harness;
use crate::process::{built, output_of};
use crate::tools::cannot_run;
use crate::world::World;

pub use bubblewrap::Bubblewrap;
pub use gvisor::{Gvisor, HostSockets};
pub use inside::Inside;
pub use landlocked::Landlocked;
pub use machine::{Booted, Machine, Outlet, Snapshot, System};
pub use podman::{Container, Podman};
pub use podman_engine::PodmanEngine;
pub use rootless_podman::RootlessPodman;
pub use srt::{PROXY_OF_SRT, Srt};
pub use ssh::Ssh;
pub use veth::{Cable, Veth};

/// The relay's directory in sandboxes with a file tree of their own; the shim's default.
pub const RELAY_INSIDE: &str = "/run/cofferdam/relay";
/// The path of the shim in sandboxes with a file tree of their own.
pub const SHIM_INSIDE: &str = "/cofferdam-shim";

/// How the shim is started inside: its arguments, its whole environment, and what it may reach.
#[derive(Clone, Debug, Default)]
pub struct Guest {
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    mounts: Vec<Mount>,
    beside: Option<Vec<String>>,
    relay: Option<PathBuf>,
}

/// A directory of the host that is visible to a guest. In sandboxes without a file tree of their own it has its path on the
/// host.
#[derive(Clone, Debug)]
struct Mount {
    outside: PathBuf,
    inside: PathBuf,
    access: Access,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// The names of everything that a sandbox has created and must remove.
#[derive(Debug, Default)]
struct CreatedNames(Mutex<Vec<String>>);

/// A kind of sandbox that the shim can run in.
pub trait Sandbox {
    fn name(&self) -> &'static str;

    /// The command that starts the guest inside; its stdio is the guest's.
    fn command(&self, guest: &Guest) -> Command;

    /// A harness on the guest's stdio.
    #[track_caller]
    fn start(&self, guest: &Guest) -> Harness {
        Harness::start(self.command(guest), self.name())
    }
}

impl Guest {
    pub fn new(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self { arguments, ..Self::default() }
    }

    /// A shim that connects to this world through the relay's directory, for this server.
    pub fn of(world: &World, server: &str) -> Self {
        let directory = world.layout().relay.parent().expect("a socket is in a directory");
        Self { relay: Some(directory.to_owned()), ..Self::new(&["--server", server]) }
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Runs the shim binary a second time beside it, with these arguments. Only for machines: elsewhere a test starts
    /// both.
    pub fn beside(mut self, arguments: &[&str]) -> Self {
        self.beside = Some(arguments.iter().map(|argument| (*argument).to_owned()).collect());
        self
    }

    /// Mounts a directory, at `inside` in sandboxes with a file tree of their own.
    pub fn mount(mut self, outside: &Path, inside: &str, access: Access) -> Self {
        self.mounts.push(Mount { outside: outside.to_owned(), inside: inside.into(), access });
        self
    }

    /// All mounts for a sandbox with its own file tree. The relay's directory is read-only: that is enough to connect.
    fn mounts(&self) -> Vec<Mount> {
        let relay = self.relay.iter().map(|outside| Mount {
            outside: outside.clone(),
            inside: RELAY_INSIDE.into(),
            access: Access::ReadOnly,
        });
        relay.chain(self.mounts.iter().cloned()).collect()
    }

    /// The guest's environment in a sandbox with the host's file tree, with the relay's path on the host.
    fn environment_with_host_paths(&self) -> BTreeMap<String, String> {
        let mut environment = self.environment.clone();
        if let Some(relay) = &self.relay {
            let relay_address = format!("unix:{}", relay.join("relay.sock").display());
            environment.entry("COFFERDAM_RELAY".to_owned()).or_insert(relay_address);
        }
        environment
    }
}

impl CreatedNames {
    /// A new name, unique on this machine.
    fn next(&self) -> String {
        let name = unique_name();
        self.0.lock().expect("no holder of the lock panics").push(name.clone());
        name
    }

    #[track_caller]
    fn last(&self) -> String {
        self.all().pop().expect("something was started")
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().expect("no holder of the lock panics").clone()
    }
}

/// A name that is unique on this machine, and the number in it, which is unique in this process.
fn unique_name_and_number() -> (String, u32) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    (format!("cofferdam-{}-{number}", std::process::id()), number)
}

fn unique_name() -> String {
    unique_name_and_number().0
}

/// The static shim on the host.
#[track_caller]
fn shim() -> PathBuf {
    built("COFFERDAM_SHIM_BIN", "cofferdam-shim")
}

/// The sandbox, if the shim can run in it.
#[track_caller]
fn if_usable<S: Sandbox>(sandbox: S) -> Option<S> {
    let output = output_of(sandbox.command(&Guest::new(&["--version"])), sandbox.name());
    if output.status.success() && output.stdout.starts_with(b"cofferdam-shim ") {
        return Some(sandbox);
    }
    cannot_run(&format!("{} does not work here: {}", sandbox.name(), describe_output(&output)));
    None
}

/// Whether this process is root; otherwise reports that the sandbox needs root.
#[track_caller]
fn is_root(name: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        cannot_run(&format!("{name} needs root here"));
    }
    root
}

/// The status and output of a command, for failures.
fn describe_output(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    format!("{}: {} {}", output.status, text(&output.stdout), text(&output.stderr))
}

/// The output of one of the sandbox's own commands, which must succeed.
#[track_caller]
fn text_of_success(command: Command, name: &str) -> String {
    let output = output_of(command, name);
    assert!(output.status.success(), "{name}: {}", describe_output(&output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Writes an executable script that runs this command line with the script's own arguments after it.
#[track_caller]
fn write_program(path: &Path, command_line: &[OsString]) {
    use std::os::unix::fs::PermissionsExt as _;
    let quoted = |word: &OsString| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"));
    let words: Vec<String> = command_line.iter().map(quoted).collect();
    std::fs::write(path, format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" ")))
        .expect("the directory of programs is writable");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it was just written");
}
