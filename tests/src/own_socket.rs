//! A sandbox with an enrolment and a socket of its own.

use std::path::{Path, PathBuf};

use crate::harness::Harness;
use crate::world::World;

/// A sandbox that was enrolled with `cofferdam enroll --socket`.
pub struct OwnSocket<'a> {
    world: &'a World,
    path: PathBuf,
}

impl<'a> OwnSocket<'a> {
    /// Enrols a sandbox for the grant `dev`; `name` tells the sockets of one world apart.
    #[track_caller]
    pub fn enrolled(world: &'a World, name: &str) -> Self {
        let directory = world.layout().root().join(format!("socket-of-{name}"));
        std::fs::create_dir(&directory).expect("a temporary directory is writable");
        let directory = directory.to_str().expect("temporary paths are UTF-8");
        let link = world.cofferdam_text(&["enroll", "--grant", "dev", "--socket", directory]);
        let path = link.trim().strip_prefix("unix:").expect("the link names a socket").into();
        Self { world, path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new shim of this sandbox for this server.
    pub fn shim(&self, server: &str) -> Harness {
        let mut command = self.world.bare_shim_command();
        command.env("COFFERDAM_RELAY", format!("unix:{}", self.path.display()));
        command.args(["--server", server]);
        Harness::start(command, "enrolled")
    }

    /// A new shim after its handshake.
    #[track_caller]
    pub fn connected(&self, server: &str) -> Harness {
        self.shim(server).initialized()
    }
}
