//! The kinds of link that go through the proxy.
//!
//! A new kind is one constructor here and one line in the chaos tests: what the sidecar's configuration needs, where
//! it then listens, where the proxy is to listen, and how a shim is told of the proxy.

use std::process::Command;

use super::place::Place;
use super::proxy::Proxy;
use crate::harness::Harness;
use crate::world::{Builder, World};

#[derive(Clone, Copy, Debug)]
pub struct LinkKind {
    pub name: &'static str,
    /// What the sidecar's configuration needs for it.
    pub configure: fn(Builder) -> Builder,
    /// Where the sidecar listens.
    pub sidecar: fn(&World) -> Place,
    /// Where a proxy for it can listen.
    pub front: fn(&World) -> Place,
    /// Tells a shim to go to the proxy.
    pub shim: fn(&World, &Place, &mut Command),
}

impl LinkKind {
    pub const UNIX: Self = Self {
        name: "unix",
        configure: |builder| builder,
        sidecar: |world| Place::Unix(world.layout().relay.clone()),
        front: |world| Place::Unix(fresh(world)),
        shim: |_, front, command| {
            if let Place::Unix(path) = front {
                command.arg("--relay").arg(format!("unix:{}", path.display()));
            }
        },
    };

    /// A harness on a new shim that goes through the proxy, its handshake not yet said.
    #[track_caller]
    pub fn shim(&self, world: &World, proxy: &Proxy, server: &str) -> Harness {
        let mut command = world.bare_shim_command();
        (self.shim)(world, proxy.front(), &mut command);
        command.args(["--server", server]);
        Harness::start(command, "cofferdam-shim")
    }
}

/// A path that nothing has yet.
fn fresh(world: &World) -> std::path::PathBuf {
    let place = |number: usize| world.layout().root().join(format!("chaos-{number}.sock"));
    (1..).map(place).find(|path| !path.exists()).expect("numbers do not run out")
}
