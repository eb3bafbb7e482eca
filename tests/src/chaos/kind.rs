//! The kinds of link that go through the proxy.
//!
//! A new kind needs one constructor here and one line in the chaos tests: the sidecar's configuration, where the
//! sidecar listens, where the proxy listens, and how a shim gets the proxy's address.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::endpoint::Endpoint;
use super::plan::LinkSizes;
use super::proxy::Proxy;
use crate::attach::Attach;
use crate::harness::Harness;
use crate::port::free_address;
use crate::process::{Running, into_file};
use crate::sandbox_files::enroll;
use crate::world::{Builder, World};

#[derive(Clone, Copy, Debug)]
pub struct LinkKind {
    pub name: &'static str,
    /// The sizes for plans of this kind.
    pub sizes: LinkSizes,
    /// Adds what the sidecar's configuration needs.
    pub configure: fn(Builder) -> Builder,
    /// Where the sidecar listens.
    pub sidecar: fn(&World) -> Endpoint,
    /// Where a proxy for it can listen.
    pub front: fn(&World) -> Endpoint,
    /// Configures a shim to connect to the proxy or to the hub, or to wait for the host.
    pub shim: fn(&World, &Endpoint, &mut Command),
    /// The number of shims that share a connection of the proxy.
    pub shims: usize,
    /// Starts the programs that run beside the shims, if the host connects to the sandbox.
    pub host: fn(&World, &Endpoint) -> HostProcesses,
}

/// Processes that a link needs besides its shim and its sidecar.
#[derive(Debug, Default)]
pub struct HostProcesses {
    _attach: Option<Attach>,
    _hub: Option<Running>,
}

impl LinkKind {
    pub const UNIX: Self = Self {
        name: "unix",
        sizes: sizes(0),
        configure: |builder| builder,
        sidecar: |world| Endpoint::Unix(world.layout().relay.clone()),
        front: |world| Endpoint::Unix(unused_path(world)),
        shim: |_, front, command| {
            if let Endpoint::Unix(path) = front {
                command.arg("--relay").arg(format!("unix:{}", path.display()));
            }
        },
        shims: 1,
        host: |_, _| HostProcesses::default(),
    };

    /// A microVM's monitor connects a vsock port of its guest to a socket on the host. Here the proxy takes the place
    /// of the monitor, and the shim connects to it by a Unix socket; only the sidecar's side is real.
    pub const VSOCK_DIR: Self = Self {
        name: "vsock-dir",
        configure: |builder| builder.relay("vsock-dir = \"machines\""),
        sidecar: |world| {
            let machine = world.layout().root().join("machines/one");
            enroll(world, &["--socket", &machine.display().to_string()]);
            Endpoint::Unix(machine.join("vsock_7443"))
        },
        ..Self::UNIX
    };

    pub const TLS: Self = Self {
        name: "tls",
        sizes: sizes(3_000),
        configure: |builder| {
            let port = free_address();
            builder.relay(&format!("tls = \"{port}\""))
        },
        sidecar: |world| Endpoint::Tcp(port_of_the_sidecar(world)),
        front: |_| Endpoint::Tcp(ANY_PORT.into()),
        shim: |world, front, command| dial_out(world, &format!("tls://{}", address(front)), command),
        ..Self::UNIX
    };

    pub const WEB_SOCKET: Self = Self {
        name: "wss",
        sizes: sizes(6_000),
        shim: |world, front, command| dial_out(world, &format!("wss://{}/relay", address(front)), command),
        ..Self::TLS
    };

    pub const LISTEN: Self = Self {
        name: "listen",
        sizes: sizes(3_000),
        // Only the host reconnects, and it detects a dead connection only by missing heartbeats.
        configure: |builder| builder.relay("heartbeat = \"500ms\""),
        sidecar: |world| Endpoint::Tcp(port_in_the_sandbox(world)),
        front: |_| Endpoint::Tcp(ANY_PORT.into()),
        shim: |world, _, command| {
            let pin = world.cofferdam_text(&["key"]);
            command.arg("--relay").arg(format!("listen:{}", port_in_the_sandbox(world)));
            command.args(["--pin", pin.trim()]);
        },
        shims: 1,
        host: |world, front| HostProcesses { _attach: Some(dial_in(world, front)), _hub: None },
    };

    /// Shims that share a pipe; the pipe goes through the proxy.
    pub const HUB: Self = Self {
        name: "hub",
        // With a pipe that is cut often, a shim's reconnects have the longest delay.
        sizes: LinkSizes { stretch: 3 * STRETCH, ..sizes(3_000) },
        shim: |world, _, command| {
            command.arg("--relay").arg(format!("unix:{}", socket_of_the_hub(world).display()));
        },
        shims: 2,
        host: |world, front| HostProcesses { _hub: Some(hub(world)), _attach: Some(dial_in(world, front)) },
        ..Self::LISTEN
    };

    /// Starts a shim whose link goes through the proxy, with a harness that has not made the MCP handshake yet.
    #[track_caller]
    pub fn shim(&self, world: &World, proxy: &Proxy, server: &str) -> Harness {
        let mut command = world.bare_shim_command();
        (self.shim)(world, proxy.front(), &mut command);
        command.args(["--server", server]);
        Harness::start(command, "cofferdam-shim")
    }

    /// Starts the processes that this kind needs besides shim and sidecar, if any.
    #[track_caller]
    pub fn host(&self, world: &World, proxy: &Proxy) -> HostProcesses {
        (self.host)(world, proxy.front())
    }
}

/// Enough bytes for two parts of a long message.
const STRETCH: usize = 160_000;

const fn sizes(opening: usize) -> LinkSizes {
    LinkSizes { opening, stretch: STRETCH }
}

const ANY_PORT: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// Configures an enrolled shim to connect to `relay`, with its state in the world's directory.
fn dial_out(world: &World, relay: &str, command: &mut Command) {
    let state = unused_path(world);
    command
        .args(["--relay", relay])
        .env("COFFERDAM_STATE", state)
        .env("COFFERDAM_ENROLL", enroll(world, &[]));
}

fn address(endpoint: &Endpoint) -> SocketAddr {
    match endpoint {
        Endpoint::Tcp(address) => *address,
        Endpoint::Unix(path) => panic!("{} is not a TCP address", path.display()),
    }
}

fn port_of_the_sidecar(world: &World) -> SocketAddr {
    let config = std::fs::read_to_string(&world.layout().config).expect("the configuration is there");
    let line = config.lines().find_map(|line| line.strip_prefix("tls = \"")).expect("the sidecar has a port");
    line.trim_end_matches('"').parse().expect("it is an address")
}

/// Starts `attach dial`: the host connects to the sandbox, through the proxy.
fn dial_in(world: &World, front: &Endpoint) -> Attach {
    Attach::start(world, &["dial", &address(front).to_string(), "--grant", "dev"])
}

/// Starts a hub that listens for the host.
fn hub(world: &World) -> Running {
    let pin = world.cofferdam_text(&["key"]);
    let printed = world.layout().root().join("hub.log");
    let mut hub = world.bare_shim_command();
    hub.args(["hub", "--listen", &port_in_the_sandbox(world).to_string(), "--pin", pin.trim(), "--socket"]);
    hub.arg(socket_of_the_hub(world));
    hub.stdin(Stdio::null()).stdout(Stdio::null()).stderr(into_file(&printed));
    Running::spawn(hub, "cofferdam-shim hub")
}

fn socket_of_the_hub(world: &World) -> PathBuf {
    world.layout().root().join("box/relay.sock")
}

/// The port at which the world's shim or hub waits, chosen once.
fn port_in_the_sandbox(world: &World) -> SocketAddr {
    let file = world.layout().root().join("port-in-the-sandbox");
    if let Ok(text) = std::fs::read_to_string(&file) {
        return text.parse().expect("it is an address");
    }
    let port = free_address();
    std::fs::write(file, port.to_string()).expect("a temporary directory is writable");
    port
}

/// A path that does not exist yet.
fn unused_path(world: &World) -> PathBuf {
    let path = |number: usize| world.layout().root().join(format!("chaos-{number}.sock"));
    (1..).map(path).find(|path| !path.exists()).expect("numbers do not run out")
}
