//! `cofferdam attach` and the hub that it reaches: the two ends of a sandbox's one pipe.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::deadline::{PATIENCE, wait_until};
use crate::harness::Harness;
use crate::process::{Running, built, children_of, command, into_file, read};
use crate::world::World;

/// A running `cofferdam attach`.
#[derive(Debug)]
pub struct Attach {
    process: Running,
    stderr: PathBuf,
    _directory: tempfile::TempDir,
}

impl Attach {
    /// Starts `cofferdam attach` with these arguments, without waiting for a pipe.
    #[track_caller]
    pub fn start(world: &World, arguments: &[impl AsRef<OsStr>]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let stderr = directory.path().join("stderr");
        let mut command = world.cofferdam_command();
        command.arg("-c").arg(&world.layout().config).arg("attach").args(arguments);
        command.stdin(Stdio::null()).stdout(into_file(&stderr)).stderr(into_file(&stderr));
        Self { process: Running::spawn(command, "cofferdam attach"), stderr, _directory: directory }
    }

    /// Runs `attach exec` with a hub on this socket, and waits until it is attached.
    #[track_caller]
    pub fn exec(world: &World, socket: &Path) -> Self {
        let attach = Self::start(world, &exec_hub(socket));
        attach.wait_until_attached(1);
        attach
    }

    /// Waits until it has reported this many attached pipes.
    #[track_caller]
    pub fn wait_until_attached(&self, times: usize) {
        wait_until(&format!("attached {times} times"), || self.times_attached() >= times);
    }

    pub fn times_attached(&self) -> usize {
        self.printed().matches("cofferdam attach: attached").count()
    }

    /// Waits until its stderr, or that of its command, contains this text.
    #[track_caller]
    pub fn wait_until_output_has(&self, text: &str) {
        wait_until(&format!("the output has {text:?}"), || self.printed().contains(text));
    }

    /// The stderr of `attach` and of its command.
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&read(&self.stderr)).into_owned()
    }

    /// The process id of the command that `attach` runs now.
    #[track_caller]
    pub fn command_pid(&self) -> u32 {
        let mut children = Vec::new();
        wait_until("the command runs", || {
            children = children_of(self.process.id());
            !children.is_empty()
        });
        children[0]
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        self.wait_within(PATIENCE)
    }

    /// Like [`Self::wait`], for a command that waits by itself for about as long as [`PATIENCE`].
    #[track_caller]
    pub fn wait_within(&mut self, time: Duration) -> ExitStatus {
        self.process.wait(time)
    }

    /// Sends SIGTERM and waits until it has exited.
    #[track_caller]
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.wait();
        assert!(status.success(), "`attach` failed after SIGTERM: {status}");
    }
}

impl Drop for Attach {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("=== cofferdam attach\n{}", self.printed());
        }
    }
}

/// The arguments after `cofferdam attach` for a hub on this socket.
pub fn exec_hub(socket: &Path) -> Vec<String> {
    let shim = shim_binary().display().to_string();
    let words = ["exec", "--grant", "dev", "--", &shim, "hub", "--pin", "{pin}", "--socket"];
    words.into_iter().map(str::to_owned).chain([socket.display().to_string()]).collect()
}

/// Starts a shim with this relay address, and a harness that has made the legacy handshake.
#[track_caller]
pub fn connected(relay: &str, server: &str) -> Harness {
    Harness::start(shim_at(relay, server), "cofferdam-shim").initialized()
}

/// The command of a shim with this relay address and an empty environment.
pub fn shim_at(relay: &str, server: &str) -> Command {
    let mut command = command(shim_binary());
    command.env_clear().args(["--relay", relay, "--server", server]);
    command
}

pub fn shim_binary() -> PathBuf {
    built("COFFERDAM_SHIM_BIN", "cofferdam-shim")
}
