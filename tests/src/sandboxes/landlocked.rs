//! A process to which Landlock denies all TCP and every file that is not named.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Access, Guest, Sandbox, if_usable, shim};
use crate::process::{built, command};

/// The launcher restricts itself and then executes the guest, so there is nothing to clean up.
#[derive(Debug)]
pub struct Landlocked {
    launcher: PathBuf,
}

impl Landlocked {
    #[track_caller]
    pub fn open() -> Option<Self> {
        if_usable(Self { launcher: built("COFFERDAM_LANDLOCKED_BIN", "landlocked") })
    }

    /// A command that runs another program under the same rules. `readable` and `writable` are whole trees.
    pub fn command_for(&self, program: &Path, readable: &[&Path], writable: &[&Path]) -> Command {
        let mut command = command(&self.launcher);
        for path in readable {
            command.arg("--read").arg(path);
        }
        for path in writable {
            command.arg("--write").arg(path);
        }
        command.arg("--").arg(program);
        command.env_clear();
        command
    }
}

impl Sandbox for Landlocked {
    fn name(&self) -> &'static str {
        "Landlock"
    }

    /// Mounts become permissions: the guest sees the host's tree.
    fn command(&self, guest: &Guest) -> Command {
        let (mounts, shim) = (guest.mounts(), shim());
        let trees = |access: Access| {
            let mounts = mounts.iter().filter(move |mount| mount.access == access);
            mounts.map(|mount| mount.outside.as_path())
        };
        let readable: Vec<&Path> = trees(Access::ReadOnly).chain([shim.as_path()]).collect();
        let writable: Vec<&Path> = trees(Access::ReadWrite).collect();
        let mut command = self.command_for(&shim, &readable, &writable);
        command.args(&guest.arguments).envs(guest.environment_with_host_paths());
        command
    }
}
