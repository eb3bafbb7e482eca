//! The sidecar under a service manager: the relay socket that is passed to it, and what it reports.
//!
//! `systemd-socket-activate` passes the sockets; the notifications arrive at a socket of the test. The units under a real
//! systemd are in [`super::debian`].

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::process::{Running, into_file};
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use serde_json::json;

fn fixture_world() -> World {
    World::new().server("tools", Server::fixture()).prepare()
}

/// `cofferdam serve` of this world with sockets at these paths, which starts at the first connection to one of them.
fn activated(world: &World, activate: &Path, sockets: &[&Path], notifications: &Path) -> Command {
    let mut command = world.command_of(activate);
    for socket in sockets {
        command.arg("--listen").arg(socket);
    }
    command.arg(format!("--setenv=NOTIFY_SOCKET={}", notifications.display()));
    command.arg(format!("--setenv=HOME={}", world.layout().root().display()));
    command.args(world.cofferdam_command().get_program().to_str());
    command.args(["serve", "-c"]).arg(&world.layout().config);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(into_file(&world.layout().log));
    command
}

struct Notifications(UnixDatagram);

impl Notifications {
    #[track_caller]
    fn bind(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a temporary directory is writable");
        socket.set_read_timeout(Some(PATIENCE)).expect("the time is not zero");
        Self(socket)
    }

    /// The lines of the next notification.
    #[track_caller]
    fn next(&self) -> Vec<String> {
        let mut buffer = [0; 1024];
        let length = self.0.recv(&mut buffer).expect("no notification arrived");
        String::from_utf8_lossy(&buffer[..length]).lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn assert_none(&self) {
        self.0.set_read_timeout(Some(Duration::from_millis(1))).expect("the time is not zero");
        assert!(self.0.recv(&mut [0; 1024]).is_err(), "another notification arrived");
    }
}

#[test]
fn a_passed_relay_socket_is_used_and_the_service_manager_is_told_every_state() {
    let Some(activate) = Tool::SystemdSocketActivate.path() else { return };
    let world = fixture_world();
    let path = world.layout().root().join("notify");
    let notifications = Notifications::bind(&path);
    let relay = world.layout().relay.clone();
    let mut sidecar =
        Running::spawn(activated(&world, &activate, &[&relay], &path), "systemd-socket-activate");
    world.wait_until("the relay socket exists", || relay.exists());

    // The first connection starts the sidecar and waits in the socket meanwhile.
    let mut shim = world.connected("tools");
    assert_eq!(shim.call_text("add", json!({"a": 20, "b": 22})), "42");
    assert_eq!(notifications.next(), ["READY=1"]);

    assert!(world.cofferdam(&["reload"]).status.success());
    let reloading = notifications.next();
    assert_eq!(reloading[0], "RELOADING=1", "{reloading:?}");
    assert!(reloading[1].starts_with("MONOTONIC_USEC="), "{reloading:?}");
    assert_eq!(notifications.next(), ["READY=1"]);

    // A configuration that is refused ends the reload too.
    std::fs::write(&world.layout().config, "no = \"key\"\n").expect("the configuration is writable");
    sidecar.signal(Signal::SIGHUP);
    assert_eq!(notifications.next()[0], "RELOADING=1");
    assert_eq!(notifications.next(), ["READY=1"]);

    sidecar.signal(Signal::SIGTERM);
    assert_eq!(notifications.next(), ["STOPPING=1"]);
    assert!(sidecar.wait(PATIENCE).success(), "{}", world.log());
    notifications.assert_none();
    assert!(relay.exists(), "the socket belongs to the service manager, and its file is gone");
}

#[test]
fn a_passed_socket_that_the_configuration_does_not_name_is_refused() {
    let Some(activate) = Tool::SystemdSocketActivate.path() else { return };
    let world = fixture_world();
    let notify = world.layout().root().join("notify");
    let notifications = Notifications::bind(&notify);
    let other = world.layout().root().join("other.sock");
    let relay = world.layout().relay.clone();
    let sockets: [(&[&Path], String); 2] = [
        (
            &[&other],
            format!("passes the socket `{}`, but `relay.unix` is `{}`", other.display(), relay.display()),
        ),
        (&[&relay, &other], "passes 2 sockets; it can pass that of `relay.unix` only".to_owned()),
    ];
    for (paths, expected) in sockets {
        let mut sidecar =
            Running::spawn(activated(&world, &activate, paths, &notify), "systemd-socket-activate");
        let connects = || std::os::unix::net::UnixStream::connect(paths[0]).is_ok();
        world.wait_until("the socket accepts connections", connects);
        assert_eq!(sidecar.wait(PATIENCE).code(), Some(78), "{}", world.log());
        assert!(world.log().contains(&expected), "{expected}:\n{}", world.log());
        for path in paths {
            std::fs::remove_file(path).expect("the socket is left by the service manager");
        }
    }
    notifications.assert_none();
}
