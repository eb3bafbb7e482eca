//! Programs that run as a user who is not root, whichever user runs the tests.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_tests::process::{built, command};
use cofferdam_tests::tools::cannot_run;

pub(crate) const USER: u32 = 1000;

/// A user with a home directory and copies of the programs: only root may enter the directories in which they were built.
pub(crate) struct Unprivileged {
    directory: tempfile::TempDir,
}

impl Unprivileged {
    /// `None` if this process cannot start programs of another user.
    #[track_caller]
    pub(crate) fn new() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            cannot_run("only root can start programs of another user");
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        open_to_all(directory.path());
        for (variable, name) in [
            ("COFFERDAM_BIN", "cofferdam"),
            ("COFFERDAM_SHIM_BIN", "cofferdam-shim"),
            ("COFFERDAM_FIXTURE_BIN", "fixture-server"),
        ] {
            std::fs::copy(built(variable, name), directory.path().join(name)).expect("it was built");
        }
        let user = Self { directory };
        std::fs::create_dir(user.home()).expect("a temporary directory is writable");
        chown(user.home(), Some(USER), Some(USER)).expect("root may give files away");
        Some(user)
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A command that runs one of the programs as this user.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = command(self.program(name));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home()).current_dir(self.home()).uid(USER).gid(USER);
        command
    }
}

/// Lets every user enter and read a directory.
pub(crate) fn open_to_all(directory: &Path) {
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory, mode).expect("the directory belongs to this user");
}
