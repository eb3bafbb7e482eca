//! A sandbox at a Unix socket: one that was enrolled with a socket of its own, or one at the shared socket.

use std::path::{Path, PathBuf};

use crate::harness::Harness;
use crate::world::{Builder, World};

/// A sandbox that was enrolled with `cofferdam enroll --socket`, or one at the shared socket.
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

    /// A sandbox at the shared socket, whose limits belong to its user.
    pub fn shared(world: &'a World) -> Self {
        Self { world, path: world.layout().relay.clone() }
    }

    /// Calls `test` in a new world each with a sandbox at the shared socket and with an enrolled one: limits hold for both.
    pub fn for_both(builder: impl Fn() -> Builder, test: impl Fn(&World, &OwnSocket<'_>)) {
        let shared = builder().start();
        test(&shared, &OwnSocket::shared(&shared));
        let own = builder().start();
        test(&own, &OwnSocket::enrolled(&own, "greedy"));
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
