//! A Debian without a compiler, thrown away at the end: booted with its own systemd, or for one command.
//!
//! `tests/tools --dist` makes its root directory. What must stay true: the root directory is not changed (what is written
//! goes to memory), and nothing runs on after the end.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::deadline::{PATIENCE, wait_until};
use crate::process::{Running, children_of, command, into_file, output_of, read};
use crate::tools::{Tool, cannot_run};

/// Files of this machine that are seen, read-only, inside.
#[derive(Debug, Default)]
pub struct Shared(Vec<(PathBuf, String)>);

/// A booted system.
#[derive(Debug)]
pub struct BootedDebian {
    /// `systemd-nspawn`, whose end ends all processes inside.
    container: Running,
    console: tempfile::NamedTempFile,
    /// systemd, process 1 inside.
    leader: u32,
}

impl Shared {
    #[must_use]
    pub fn path(mut self, outside: &Path, inside: &str) -> Self {
        self.0.push((outside.to_owned(), inside.to_owned()));
        self
    }

    /// Node itself and the npm packages of the tests, as `/usr/bin/node` and `/opt/node_modules`.
    #[must_use]
    pub fn node(self) -> Option<Self> {
        Some(
            self.path(&Tool::Node.path()?, "/usr/bin/node")
                .path(&Tool::NodeModules.path()?, "/opt/node_modules"),
        )
    }

    /// npm of this machine, as `/opt/npm`.
    #[must_use]
    pub fn npm(self) -> Option<Self> {
        let npm = Tool::Npm.path()?.canonicalize().ok()?;
        // The program is `bin/npm-cli.js` of a directory of files.
        Some(self.path(npm.ancestors().nth(2)?, "/opt/npm"))
    }

    /// `systemd-nspawn` with these files, as root and without the host's systemd, which may not be running.
    fn nspawn(&self) -> Option<Command> {
        let (nspawn, root) = (Tool::SystemdNspawn.path()?, Tool::DebianRoot.path()?);
        if !nix::unistd::geteuid().is_root() {
            cannot_run("systemd-nspawn needs root");
            return None;
        }
        let mut unshare = command(Tool::Unshare.path()?);
        // A /run of its own, where nspawn keeps what it would share with other containers.
        let script = "mount --make-rprivate / && mount -t tmpfs tmpfs /run && exec \"$@\"";
        unshare.args(["--mount", "sh", "-c", script, "sh"]).arg(nspawn).arg("--directory").arg(root);
        unshare.args(["--quiet", "--volatile=overlay", "--register=no", "--keep-unit", "--console=pipe"]);
        for (outside, inside) in &self.0 {
            // Links are resolved here, because they would lead to another file inside.
            let outside = outside.canonicalize().unwrap_or_else(|_| outside.clone());
            unshare.arg(format!("--bind-ro={}:{inside}", outside.display()));
        }
        Some(unshare)
    }

    /// Runs a shell script as root in a Debian that is not booted, and returns what it printed; it must succeed.
    #[track_caller]
    pub fn succeeds(&self, script: &str) -> Option<String> {
        let mut nspawn = self.nspawn()?;
        nspawn.args(["--as-pid2", "sh", "-exc", script]);
        let output = output_of(nspawn, "systemd-nspawn");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{script}: {}\n{stdout}{stderr}", output.status);
        Some(stdout)
    }
}

impl BootedDebian {
    #[track_caller]
    pub fn boot(shared: &Shared) -> Option<Self> {
        let console = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let mut nspawn = shared.nspawn()?;
        nspawn
            .arg("--boot")
            .stdin(Stdio::null())
            .stdout(into_file(console.path()))
            .stderr(into_file(console.path()));
        let container = Running::spawn(nspawn, "systemd-nspawn");
        let mut debian = Self { container, console, leader: 0 };
        wait_until("the container's systemd runs", || {
            assert!(debian.container.is_running(), "{}", debian.console());
            debian.leader = children_of(debian.container.id()).first().copied().unwrap_or_default();
            debian.leader != 0 && debian.run("systemctl is-system-running --wait").status.success()
        });
        Some(debian)
    }

    /// Runs a shell script as root inside.
    #[track_caller]
    pub fn run(&self, script: &str) -> Output {
        let mut nsenter = self.enter();
        nsenter.args(["sh", "-exc", script]).env("HOME", "/root");
        output_of(nsenter, script)
    }

    /// A shell that runs these lines as a user inside, in a directory below the user's home, and stops at the first that fails.
    pub fn shell_of(&self, user: &str, directory: &str, lines: &str) -> Command {
        let mut nsenter = self.enter();
        nsenter.args(["/usr/sbin/runuser", "--user", user, "--", "bash", "-euo", "pipefail", "-c"]);
        nsenter.arg(format!("cd ~/{directory}\n{lines}")).env("HOME", format!("/home/{user}"));
        nsenter.env("PATH", "/usr/local/bin:/usr/bin:/bin");
        nsenter
    }

    /// Enters the system; its environment has only a path.
    fn enter(&self) -> Command {
        let mut nsenter = command("nsenter");
        nsenter.args(["--target", &self.leader.to_string(), "--all", "--wdns=/"]);
        nsenter.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        nsenter
    }

    /// Runs a script that must succeed; returns its output.
    #[track_caller]
    pub fn succeeds(&self, script: &str) -> String {
        let output = self.run(script);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{script}: {}\n{stdout}{stderr}\n{}", output.status, self.journal());
        stdout
    }

    /// The end of the log of the whole system.
    pub fn journal(&self) -> String {
        String::from_utf8_lossy(&self.run("journalctl --no-pager --lines 60").stdout).into_owned()
    }

    fn console(&self) -> String {
        String::from_utf8_lossy(&read(self.console.path())).into_owned()
    }
}

impl Drop for BootedDebian {
    fn drop(&mut self) {
        self.container.signal(nix::sys::signal::Signal::SIGTERM);
        let _ = crate::deadline::holds_within(PATIENCE, || !self.container.is_running());
    }
}
