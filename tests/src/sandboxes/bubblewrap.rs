//! Bubblewrap with no network and a root that contains only the shim and the mounts.

use std::path::PathBuf;
use std::process::Command;

use super::{Access, Guest, SHIM_INSIDE, Sandbox, if_usable, shim};
use crate::process::command;
use crate::tools::Tool;

/// Its children die with it (`--die-with-parent`).
#[derive(Debug)]
pub struct Bubblewrap {
    program: PathBuf,
}

impl Bubblewrap {
    #[track_caller]
    pub fn open() -> Option<Self> {
        if_usable(Self { program: Tool::Bubblewrap.path()? })
    }
}

impl Sandbox for Bubblewrap {
    fn name(&self) -> &'static str {
        "bubblewrap"
    }

    fn command(&self, guest: &Guest) -> Command {
        let mut command = command(&self.program);
        command.args(["--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]);
        for (name, value) in &guest.environment {
            command.args(["--setenv", name, value]);
        }
        command.arg("--ro-bind").arg(shim()).arg(SHIM_INSIDE);
        for mount in guest.mounts() {
            let flag = match mount.access {
                Access::ReadOnly => "--ro-bind",
                Access::ReadWrite => "--bind",
            };
            command.arg(flag).arg(mount.outside).arg(mount.inside);
        }
        command.arg(SHIM_INSIDE).args(&guest.arguments);
        command
    }
}
