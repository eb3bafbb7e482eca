//! The demo's sandbox: bubblewrap without network and with few files, or a child process without isolation.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::SHIM;

/// Whether the shim runs in a sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Isolation {
    Bubblewrap,
    /// Bubblewrap does not work on this machine, which the demo prints.
    None,
}

/// Which program is the shim.
#[derive(Clone, Debug)]
pub(super) enum Shim {
    /// This program, run as the shim. It is linked dynamically, so the sandbox needs the system's libraries.
    ThisProgram(PathBuf),
    /// A static binary: the sandbox needs no other file.
    Static(PathBuf),
}

/// The shim's process, read from outside through `/proc`.
pub(super) struct ShimProcess {
    pid: u32,
}

/// The directory in the sandbox in which the shim looks for the relay's socket by default.
const RELAY_INSIDE: &str = "/run/cofferdam/relay";
const SHIM_INSIDE: &str = "/shim";
/// Where a dynamically linked program's libraries may be.
const LIBRARIES: [&str; 4] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];

/// Tries bubblewrap by running the shim in it.
pub(super) fn detect_isolation(shim: &Shim, relay: &Path) -> Isolation {
    let mut probe = inside_bubblewrap(shim, relay);
    let works =
        probe.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match works.is_ok_and(|status| status.success()) {
        true => Isolation::Bubblewrap,
        false => Isolation::None,
    }
}

/// The command that starts the shim, with an empty environment except, without bubblewrap, PATH.
pub(super) fn command(isolation: Isolation, shim: &Shim, relay: &Path) -> Command {
    match isolation {
        Isolation::Bubblewrap => inside_bubblewrap(shim, relay),
        Isolation::None => {
            let (program, arguments) = shim.command_line();
            let mut command = command_without_environment(program.into());
            command
                .args(arguments)
                .arg("--relay")
                .arg(format!("unix:{}", relay.join("relay.sock").display()));
            command
        }
    }
}

impl ShimProcess {
    /// Finds the shim: the started process, or its descendant if the started process is bubblewrap.
    pub(super) fn of(started: u32) -> Self {
        let mut pid = started;
        while let Some(child) = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .ok()
            .and_then(|children| children.split_whitespace().next()?.parse().ok())
        {
            pid = child;
        }
        Self { pid }
    }

    pub(super) fn variables(&self) -> String {
        let Ok(environment) = fs::read(format!("/proc/{}/environ", self.pid)) else {
            return "(not readable)".into();
        };
        let names: Vec<_> = environment
            .split(|byte| *byte == 0)
            .filter_map(|pair| {
                String::from_utf8_lossy(pair).split_once('=').map(|(name, _)| name.to_string())
            })
            .collect();
        join_names(names)
    }

    /// All files that the process can see; of the directories for libraries only the names.
    pub(super) fn files(&self) -> String {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        let mut found = Vec::new();
        let mut pending = vec![root.clone()];
        while let Some(folder) = pending.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let inside = format!("/{}", entry.path().strip_prefix(&root).unwrap_or(&folder).display());
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() && !LIBRARIES.contains(&inside.as_str()) => {
                        pending.push(entry.path())
                    }
                    _ => found.push(inside),
                }
            }
        }
        found.sort();
        join_names(found)
    }

    pub(super) fn network(&self) -> String {
        let Ok(interfaces) = fs::read_to_string(format!("/proc/{}/net/dev", self.pid)) else {
            return "(not readable)".into();
        };
        let names = interfaces.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_string()));
        join_names(names.filter(|name| name != "lo").collect())
    }
}

fn join_names(names: Vec<String>) -> String {
    match names.is_empty() {
        true => "none".into(),
        false => names.join(", "),
    }
}

impl Shim {
    fn command_line(&self) -> (&Path, &'static [&'static str]) {
        match self {
            Self::ThisProgram(program) => (program, &[SHIM]),
            Self::Static(program) => (program, &[]),
        }
    }
}

fn inside_bubblewrap(shim: &Shim, relay: &Path) -> Command {
    let (program, arguments) = shim.command_line();
    let mut command = command_without_environment("bwrap".into());
    command.args(["--unshare-all", "--die-with-parent", "--new-session", "--unsetenv", "PATH"]);
    command.arg("--ro-bind").arg(program).arg(SHIM_INSIDE).arg("--ro-bind").arg(relay).arg(RELAY_INSIDE);
    if let Shim::ThisProgram(_) = shim {
        for libraries in LIBRARIES {
            command.args(["--ro-bind-try", libraries, libraries]);
        }
    }
    command.arg(SHIM_INSIDE).args(arguments);
    command
}

fn command_without_environment(program: OsString) -> Command {
    #[expect(clippy::disallowed_methods, reason = "the demo acts as the harness, which starts the shim")]
    let mut command = Command::new(program);
    command.env_clear();
    if let Some(path) = std::env::var_os("PATH") {
        // Needed to find bubblewrap, which does not pass it on to the sandbox.
        command.env("PATH", path);
    }
    command
}
