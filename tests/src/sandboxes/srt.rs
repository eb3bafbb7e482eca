//! The sandbox runtime of Claude Code (`srt`): the host's file tree read-only, a filter that forbids Unix sockets, and
//! a CONNECT proxy with a password, which connects to allowed addresses only, as the only connection to the host.
//!
//! In the guest, `HTTPS_PROXY` and similar variables name the proxy, and `NO_PROXY` names loopback and private networks.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::{Access, Guest, Sandbox, if_usable, shim};
use crate::process::command;
use crate::tools::Tool;

/// An argument of a guest that is expanded inside: the URL of the proxy with user and password, which exist only there.
/// For a link to a numeric address, because the `NO_PROXY` inside would bypass the proxy.
pub const PROXY_OF_SRT: &str = "$HTTPS_PROXY";

/// All processes in it die with the outermost one, the first of a process namespace.
#[derive(Debug)]
pub struct Srt {
    node: PathBuf,
    program: PathBuf,
    unshare: PathBuf,
    directory: tempfile::TempDir,
}

impl Srt {
    /// A sandbox whose proxy leads to these addresses (`HOST:PORT`) and to no other, and where these paths cannot be
    /// read.
    #[track_caller]
    pub fn open(allowed: &[&str], hidden: &[&Path]) -> Option<Self> {
        let (node, program) = (Tool::Node.path()?, Tool::SandboxRuntime.path()?);
        let unshare = Tool::Unshare.path()?;
        for needed in [Tool::Bubblewrap, Tool::Ripgrep, Tool::Socat] {
            needed.path()?;
        }
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        std::fs::create_dir(directory.path().join("writable")).expect("a temporary directory is writable");
        let settings = json!({
            "network": {"allowedDomains": allowed, "deniedDomains": []},
            "filesystem": {"denyRead": hidden, "allowWrite": [directory.path().join("writable")], "denyWrite": []},
        });
        std::fs::write(directory.path().join("settings.json"), settings.to_string())
            .expect("a temporary directory is writable");
        if_usable(Self { node, program, unshare, directory })
    }

    /// The only directory that guests may write to, for their state; it is empty at first.
    pub fn writable(&self) -> PathBuf {
        self.directory.path().join("writable")
    }

    /// A command that runs another program in the same sandbox, with the proxy's environment.
    pub fn command_for(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = command(&self.unshare);
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        if !nix::unistd::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        let line: Vec<String> = std::iter::once(program.display().to_string())
            .chain(arguments.iter().map(|argument| (*argument).to_owned()))
            .map(|word| quoted(&word))
            .collect();
        command.arg("--").arg(&self.node).arg(&self.program);
        command.arg("--settings").arg(self.directory.path().join("settings.json"));
        command.arg("-c").arg(format!("exec {}", line.join(" ")));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        // Its sockets and its home are removed with the sandbox.
        command.env("HOME", self.directory.path()).env("TMPDIR", self.directory.path());
        command
    }
}

impl Sandbox for Srt {
    fn name(&self) -> &'static str {
        "srt"
    }

    /// Mounts are ignored, except for [`Srt::writable`]: the guest sees the host's tree.
    fn command(&self, guest: &Guest) -> Command {
        let writable = |path: &Path| path.starts_with(self.writable());
        assert!(
            guest.mounts.iter().all(|mount| mount.access == Access::ReadOnly || writable(&mount.outside)),
            "nothing but `writable` can be written to in this sandbox"
        );
        let arguments: Vec<&str> = guest.arguments.iter().map(String::as_str).collect();
        let mut command = self.command_for(&shim(), &arguments);
        command.envs(guest.environment_outside());
        command
    }
}

/// Quotes a word for a shell; [`PROXY_OF_SRT`] is left to be expanded.
fn quoted(word: &str) -> String {
    match word {
        PROXY_OF_SRT => format!("\"{word}\""),
        word => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
