//! The running sidecar, its sockets and ports, and the directory of the relay.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;

use cofferdam_tests::certificates::Authority;
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::other_user::{USER, copy_programs, open_to_all};
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::sandbox_files::enroll;
use cofferdam_tests::tools::cannot_run;

use super::examined::{Examined, examine, prepared, protect, set_mode, sound};

#[test]
fn a_sidecar_that_runs_is_good_and_one_that_does_not_gets_its_command() {
    let mut world = sound().prepare();
    protect(&world);
    let examined = examine(&world);
    examined.assert_warning("serve-not-running", "admin.sock", "no sidecar runs", "cofferdam serve -c /");
    examined.assert_no_error();
    world.start_sidecar();
    let examined = examine(&world);
    examined.assert_no_error();
    examined.assert_good("serve-running", "admin.sock", "it runs, with 0 open links");
    examined.assert_good("relay-ok", "relay.sock", "accepts connections");
}

#[test]
fn the_socket_of_a_killed_sidecar_is_named() {
    let mut world = sound().start();
    protect(&world);
    world.kill9_sidecar();
    let examined = examine(&world);
    examined.assert_warning("serve-not-running", "admin.sock", "left behind", "cofferdam serve -c /");
    let next = "Mount the socket's directory into sandboxes, not the socket itself.";
    examined.assert_error("relay-socket-dead", "relay.sock", "a sidecar that is gone", next);
    assert_eq!(examined.code, 69);
}

#[test]
fn a_removed_relay_socket_of_a_running_sidecar_is_found() {
    let world = sound().start();
    protect(&world);
    fs::remove_file(&world.layout().relay).unwrap();
    examine(&world).assert_error("relay-unreachable", "relay.sock", "cannot connect", "restart the sidecar");
}

#[test]
fn a_port_that_another_program_has_is_found() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let examined = examine(&prepared(sound().admin(&format!("http = \"{address}\""))));
    let next = format!("`ss -ltnp 'sport = :{}'`", address.port());
    examined.assert_error("port-taken", &format!("admin.http {address}"), "another program", &next);
    assert_eq!(examined.code, 69);
    drop(taken);
    assert!(
        examine(&prepared(sound().admin(&format!("http = \"{address}\""))))
            .with_code("port-taken")
            .is_empty()
    );
}

#[track_caller]
fn wait_for_port(address: SocketAddr) {
    wait_until("the port is open", || TcpStream::connect(address).is_ok());
}

#[test]
fn ports_that_a_running_sidecar_does_not_serve_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (certificate, key) = authority.server("127.0.0.1").write(directory.path(), "server");
    set_mode(&key, 0o600);
    let ports = ["relay.tls", "admin.http", "admin.tls"].map(|key| (key, free_address()));
    let [(_, relay), (_, http), (_, tls)] = ports;
    let mut world = sound().start();
    world.rewrite(|builder| {
        let builder = builder.relay(&format!("tls = \"{relay}\"")).admin(&format!("http = \"{http}\""));
        builder.admin(&format!("tls = \"{tls}\"\ncert-file = {certificate:?}\nkey-file = {key:?}"))
    });
    protect(&world);
    // These keys take effect at a restart.
    let examined = examine(&world);
    for (key, address) in ports {
        let about = format!("{key} {address}");
        let next = format!("restart the sidecar: `{key}` takes effect at restart");
        examined.assert_error("port-not-served", &about, "nothing accepts connections", &next);
    }
    assert_eq!(examined.code, 69);
    world.stop_sidecar();
    world.start_sidecar();
    ports.iter().for_each(|(_, address)| wait_for_port(*address));
    let examined = examine(&world);
    examined.assert_no_error();
    for (key, address) in ports {
        examined.assert_good("port-ok", &format!("{key} {address}"), "accepts connections");
    }
}

#[test]
fn the_port_of_a_listener_on_all_addresses_is_reached() {
    let port = free_address().port();
    let lines = format!("tls = \"0.0.0.0:{port}\"\nadvertise = \"tls://127.0.0.1:{port}\"");
    let world = sound().relay(&lines).start();
    protect(&world);
    wait_for_port(([127, 0, 0, 1], port).into());
    let examined = examine(&world);
    examined.assert_good("port-ok", &format!("relay.tls 0.0.0.0:{port}"), "accepts connections");
}

#[test]
fn removed_sockets_of_single_sandboxes_are_found() {
    let machines = tempfile::tempdir().unwrap();
    let mut world = sound().relay(&format!("vsock-dir = {:?}", machines.path())).start();
    protect(&world);
    let own = world.layout().root().join("own");
    let machine = machines.path().join("vm1");
    for (name, directory) in [("box1", &own), ("vm1", &machine)] {
        enroll(&world, &["--name", name, "--socket", directory.to_str().unwrap()]);
    }
    let examined = examine(&world);
    examined.assert_no_error();
    examined.assert_good("relay-ok", "sockets of single sandboxes", "2 accept connections");
    let sockets = [("box1", own.join("relay.sock")), ("vm1", machine.join("vsock_7443"))];
    for (_, socket) in &sockets {
        fs::remove_file(socket).unwrap();
    }
    let examined = examine(&world);
    for (name, socket) in &sockets {
        let about = format!("socket of sandbox {name}, unix:{}", socket.display());
        examined.assert_error("relay-unreachable", &about, "cannot connect", "restart the sidecar");
    }
    assert_eq!(examined.code, 69);
    // The next step helps, and the socket of an enrolment that has ended is not missed.
    world.cofferdam_text(&["kill", "box1"]);
    world.stop_sidecar();
    world.start_sidecar();
    let examined = examine(&world);
    examined.assert_no_error();
    examined.assert_good("relay-ok", "sockets of single sandboxes", "1 accept connections");
    // Without a sidecar that runs, they are not expected.
    world.stop_sidecar();
    examine(&world).assert_no_error();
}

#[test]
fn enrolments_that_cannot_be_read_are_said() {
    let world = sound().start();
    protect(&world);
    let enrolments = world.layout().state.join("enrolments");
    fs::rename(&enrolments, world.layout().state.join("elsewhere")).unwrap();
    fs::write(&enrolments, "").unwrap();
    let (what, next) = ("was not tried", "as the sidecar's user");
    examine(&world).assert_warning("relay-not-tried", "enrolments in", what, next);
}

#[test]
fn a_relay_directory_that_others_own_or_can_write_is_found() {
    let world = prepared(sound());
    let directory = world.layout().root().join("relay");
    set_mode(&directory, 0o777);
    let examined = examine(&world);
    examined.assert_error("relay-directory-writable", "relay", "mode 777", "chmod 755 /");
    set_mode(&directory, 0o755);
    if !nix::unistd::geteuid().is_root() {
        cannot_run("only root can give a directory to another user");
        return;
    }
    chown(&directory, Some(12_345), None).unwrap();
    let examined = examine(&world);
    examined.assert_error("relay-directory-foreign", "relay", "belongs to user 12345", "chown 0 /");
    assert_eq!(examined.code, 77);
}

#[test]
fn a_state_directory_that_resolves_into_the_relays_is_found() {
    let world = prepared(sound());
    let (state, relay) = (&world.layout().state, world.layout().root().join("relay"));
    fs::remove_dir(state).unwrap();
    symlink(relay.join("state"), state).unwrap();
    fs::create_dir(relay.join("state")).unwrap();
    let examined = examine(&world);
    examined.assert_error(
        "relay-not-isolated",
        "relay",
        "inside the relay's directory",
        "directories that hold nothing else",
    );
    assert_eq!(examined.code, 78);
}

#[test]
fn an_address_of_another_host_is_found() {
    let examined = examine(&prepared(sound().relay("tls = \"192.0.2.1:4433\"")));
    let next = "give `relay.tls` an address of this host";
    examined.assert_error("port-unavailable", "relay.tls 192.0.2.1:4433", "cannot listen there", next);
    assert_eq!(examined.code, 69);
}

#[test]
fn a_program_at_the_admin_socket_that_is_no_sidecar_is_found() {
    let world = prepared(sound());
    fs::create_dir_all(world.layout().admin.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(&world.layout().admin).unwrap();
    let closing = std::thread::spawn(move || drop(listener.accept()));
    let examined = examine(&world);
    closing.join().unwrap();
    let what = "does not answer as this version expects";
    examined.assert_error("serve-no-answer", "admin.sock", what, "restart the sidecar");
    // One that accepts connections and says nothing.
    fs::remove_file(&world.layout().admin).unwrap();
    let _silent = UnixListener::bind(&world.layout().admin).unwrap();
    let examined = examine(&world);
    examined.assert_error("serve-no-answer", "admin.sock", "does not answer within 3 s", "the sidecar's log");
    assert_eq!(examined.code, 69);
}

#[test]
fn an_admin_socket_of_another_user_is_a_warning() {
    let Some(programs) = copy_programs() else { return };
    let directory = tempfile::tempdir().unwrap();
    open_to_all(directory.path());
    let _listener = UnixListener::bind(directory.path().join("admin.sock")).unwrap();
    set_mode(&directory.path().join("admin.sock"), 0o600);
    let config = directory.path().join("cofferdam.toml");
    let text = "state-dir = \"state\"\n[admin]\nsocket = \"admin.sock\"\n";
    fs::write(&config, text).unwrap();
    let mut doctor = command(programs.path().join("cofferdam"));
    doctor
        .env_clear()
        .env("HOME", directory.path())
        .env("PATH", "/nonexistent")
        .current_dir(directory.path());
    doctor.args(["doctor", "--json", "-c"]).arg(&config).uid(USER).gid(USER);
    let examined = Examined::of(&output_of(doctor, "cofferdam doctor of another user"));
    examined.assert_warning("serve-denied", "admin.sock", "this user may not open", "as the sidecar's user");
}
