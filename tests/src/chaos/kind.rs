//! The kinds of link that go through the proxy.
//!
//! A new kind is one constructor here and one line in the chaos tests: what the sidecar's configuration needs, where
//! it then listens, where the proxy is to listen, and how a shim is told of the proxy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use super::place::Place;
use super::proxy::Proxy;
use crate::attach::Attach;
use crate::harness::Harness;
use crate::port::free_place;
use crate::sandbox::enroll;
use crate::world::{Builder, World};

#[derive(Clone, Copy, Debug)]
pub struct LinkKind {
    pub name: &'static str,
    /// About the bytes of the handshakes around a link's own, in each direction; more where progress would be rare.
    pub opening: usize,
    /// What the sidecar's configuration needs for it.
    pub configure: fn(Builder) -> Builder,
    /// Where the sidecar listens.
    pub sidecar: fn(&World) -> Place,
    /// Where a proxy for it can listen.
    pub front: fn(&World) -> Place,
    /// Tells a shim to go to the proxy, or to wait for the host.
    pub shim: fn(&World, &Place, &mut Command),
    /// Where the host reaches in: its end, which goes to the proxy.
    pub reach: Option<fn(&World, &Place) -> Attach>,
}

impl LinkKind {
    pub const UNIX: Self = Self {
        name: "unix",
        opening: 0,
        configure: |builder| builder,
        sidecar: |world| Place::Unix(world.layout().relay.clone()),
        front: |world| Place::Unix(fresh(world)),
        shim: |_, front, command| {
            if let Place::Unix(path) = front {
                command.arg("--relay").arg(format!("unix:{}", path.display()));
            }
        },
        reach: None,
    };

    pub const TLS: Self = Self {
        name: "tls",
        opening: 3_000,
        configure: |builder| {
            let port = free_place();
            builder.relay(&format!("tls = \"{port}\""))
        },
        sidecar: |world| Place::Tcp(port_of_the_sidecar(world)),
        front: |_| Place::Tcp(ANY_PORT.into()),
        shim: |world, front, command| dial_out(world, &format!("tls://{}", address(front)), command),
        reach: None,
    };

    pub const WEB_SOCKET: Self = Self {
        name: "wss",
        opening: 6_000,
        shim: |world, front, command| dial_out(world, &format!("wss://{}/relay", address(front)), command),
        ..Self::TLS
    };

    pub const LISTEN: Self = Self {
        name: "listen",
        opening: 3_000,
        // Only the host can come again, and silence is all that tells it to.
        configure: |builder| builder.relay("heartbeat = \"500ms\""),
        sidecar: |world| Place::Tcp(port_of_the_shim(world)),
        front: |_| Place::Tcp(ANY_PORT.into()),
        shim: |world, _, command| {
            let pin = world.cofferdam_text(&["key"]);
            command.arg("--relay").arg(format!("listen:{}", port_of_the_shim(world)));
            command.args(["--pin", pin.trim()]);
        },
        reach: Some(|world, front| {
            Attach::start(world, &["dial", &address(front).to_string(), "--grant", "dev"])
        }),
    };

    /// A harness on a new shim that goes through the proxy, its handshake not yet said.
    #[track_caller]
    pub fn shim(&self, world: &World, proxy: &Proxy, server: &str) -> Harness {
        let mut command = world.bare_shim_command();
        (self.shim)(world, proxy.front(), &mut command);
        command.args(["--server", server]);
        Harness::start(command, "cofferdam-shim")
    }

    /// What the host has to run for it, where it reaches in.
    #[track_caller]
    pub fn host(&self, world: &World, proxy: &Proxy) -> Option<Attach> {
        self.reach.map(|reach| reach(world, proxy.front()))
    }
}

const ANY_PORT: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// Enrolled, with its state in the world's directory.
fn dial_out(world: &World, relay: &str, command: &mut Command) {
    let state = fresh(world);
    command
        .args(["--relay", relay])
        .env("COFFERDAM_STATE", state)
        .env("COFFERDAM_ENROLL", enroll(world, &[]));
}

fn address(place: &Place) -> SocketAddr {
    match place {
        Place::Tcp(address) => *address,
        Place::Unix(path) => panic!("{} is no port", path.display()),
    }
}

fn port_of_the_sidecar(world: &World) -> SocketAddr {
    let config = std::fs::read_to_string(&world.layout().config).expect("the configuration is there");
    let line = config.lines().find_map(|line| line.strip_prefix("tls = \"")).expect("the sidecar has a port");
    line.trim_end_matches('"').parse().expect("it is an address")
}

/// The port on which the world's shim waits, chosen once.
fn port_of_the_shim(world: &World) -> SocketAddr {
    let file = world.layout().root().join("port-of-the-shim");
    if let Ok(text) = std::fs::read_to_string(&file) {
        return text.parse().expect("it is an address");
    }
    let port = free_place();
    std::fs::write(file, port.to_string()).expect("a temporary directory is writable");
    port
}

/// A path that nothing has yet.
fn fresh(world: &World) -> PathBuf {
    let place = |number: usize| world.layout().root().join(format!("chaos-{number}.sock"));
    (1..).map(place).find(|path| !path.exists()).expect("numbers do not run out")
}
