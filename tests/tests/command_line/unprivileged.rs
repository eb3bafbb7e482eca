//! Programs that run as a user who is not root, whichever user runs the tests.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use cofferdam_tests::other_user::{USER, copy_programs};
use cofferdam_tests::process::command;

/// A user with a home directory and copies of the programs: only root may enter the directories in which they were built.
pub(crate) struct Unprivileged {
    directory: tempfile::TempDir,
}

impl Unprivileged {
    /// `None` if this process cannot start programs of another user.
    #[track_caller]
    pub(crate) fn new() -> Option<Self> {
        let directory = copy_programs()?;
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
