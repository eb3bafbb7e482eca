//! `cofferdam-shim doctor`: in a sandbox, the link and what is in its way.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use cofferdam_tests::process::output_of;
use cofferdam_tests::tools::cannot_run;
use cofferdam_tests::world::World;
use relay_proto::control::Status;
use relay_proto::frame::{Frame, PREFACE};

use super::examined::{Examined, sound};

/// `cofferdam-shim doctor --json`, with nothing in its environment but a state directory.
fn shim_doctor(world: &World) -> Command {
    let mut command = world.bare_shim_command();
    command.args(["doctor", "--json"]).env("COFFERDAM_STATE", world.layout().root().join("shim-state"));
    command.env("XDG_RUNTIME_DIR", world.layout().root().join("runtime"));
    command
}

#[track_caller]
fn examine(command: Command) -> Examined {
    Examined::of(&output_of(command, "cofferdam-shim doctor"))
}

#[test]
fn a_link_that_works_is_named_with_its_origin_and_what_is_granted() {
    let world = sound().start();
    let mut command = shim_doctor(&world);
    command.arg("--relay").arg(world.link());
    let examined = examine(command);
    examined.assert_no_error();
    examined.assert_good("link-chosen", "link", "relay.sock, from --relay");
    examined.assert_good("link-ok", "link", "grant `dev` with tools");
    assert!(examined.with_code("clock-skew").is_empty(), "{:#}", examined.report);
    let mut command = shim_doctor(&world);
    command.env("COFFERDAM_RELAY", world.link());
    examine(command).assert_good("link-chosen", "link", "relay.sock, from COFFERDAM_RELAY");
    let mut text = world.bare_shim_command();
    text.arg("doctor").env("COFFERDAM_RELAY", world.link());
    let output = output_of(text, "cofferdam-shim doctor");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.ends_with("\nnothing is wrong\n"), "{text}");
    // No link was opened for it.
    assert_eq!(world.sessions(), serde_json::json!([]));
}

#[test]
fn a_socket_that_is_not_mounted_or_dead_is_told_with_the_next_step() {
    let mut world = sound().start();
    let mut missing = shim_doctor(&world);
    missing.args(["--relay", "unix:/nonexistent/relay/relay.sock"]);
    let examined = examine(missing);
    let what = "the relay's directory mounted here?";
    examined.assert_error("link-unreachable", "link", what, "on the host run `cofferdam doctor`");
    assert_eq!(examined.code, 69);
    world.kill9_sidecar();
    let mut dead = shim_doctor(&world);
    dead.arg("--relay").arg(world.link());
    examine(dead).assert_error("link-unreachable", "link", "dead after a restart", "not the socket itself");
}

#[test]
fn a_default_socket_in_a_directory_of_another_user_is_not_trusted() {
    if !nix::unistd::geteuid().is_root() {
        cannot_run("only root can give a directory to another user");
        return;
    }
    let world = sound().prepare();
    let directory = world.layout().root().join("runtime/cofferdam");
    fs::create_dir_all(&directory).unwrap();
    let _listener = UnixListener::bind(directory.join("relay.sock")).unwrap();
    chown(&directory, Some(12_345), None).unwrap();
    let examined = examine(shim_doctor(&world));
    examined.assert_good("link-chosen", "link", "the first of the default sockets");
    examined.assert_warning(
        "socket-untrusted",
        "link",
        "belongs to user 12345",
        "on the host, make the directory",
    );
    examined.assert_error("link-unreachable", "link", "belongs to user 12345", "");
}

#[test]
fn an_enrolment_is_shown_and_a_string_is_not_used_up() {
    let port = cofferdam_tests::port::free_address();
    let world = sound().relay(&format!("tls = \"{port}\"\nadvertise = \"127.0.0.1:9\"")).start();
    let string = world.cofferdam_text(&["enroll", "--grant", "dev"]);
    let file = world.layout().root().join("enroll");
    fs::write(&file, &string).unwrap();
    let mut waiting = shim_doctor(&world);
    waiting.env("COFFERDAM_ENROLL_FILE", &file);
    let examined = examine(waiting);
    examined.assert_no_error();
    examined.assert_good("enrolment-waiting", "enrolment", "was not used yet");
    examined.assert_warning(
        "link-not-tried",
        "link",
        "would use the enrolment string",
        "cofferdam-shim status",
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), string, "the string was used up");
    assert!(!world.layout().root().join("shim-state").exists(), "a key was made");
    // `status` makes the key; no sidecar listens at the advertised address.
    let mut status = world.bare_shim_command();
    status
        .arg("status")
        .env("COFFERDAM_ENROLL_FILE", &file)
        .env("COFFERDAM_STATE", world.layout().root().join("shim-state"));
    assert_eq!(output_of(status, "cofferdam-shim status").status.code(), Some(69));
    let pin = world.cofferdam_text(&["key"]);
    let examined = examine(shim_doctor(&world));
    examined.assert_good("enrolment-stored", "enrolment", &format!("key is pinned: {}", pin.trim()));
    examined.assert_good("link-chosen", "link", "tls://127.0.0.1:9, from the enrolment in");
    examined.assert_good("proxy-none", "proxy", "directly");
    examined.assert_error("link-unreachable", "link", "127.0.0.1:9", "");
}

#[test]
fn a_damaged_enrolment_a_bad_proxy_and_an_unwritable_state_directory_are_found() {
    let world = sound().prepare();
    let state = world.layout().root().join("shim-state");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("enrolment.json"), "{").unwrap();
    let examined = examine(shim_doctor(&world));
    examined.assert_error(
        "enrolment-unusable",
        "enrolment",
        "enrolment.json",
        "cofferdam enroll --grant GRANT",
    );
    assert_eq!(examined.code, 78);

    let mut proxied = shim_doctor(&world);
    proxied
        .args(["--relay", "tls://sidecar.invalid:1"])
        .env("HTTPS_PROXY", "socks9://user:hunter2-password@x");
    proxied.env("COFFERDAM_STATE", "/dev/null/state");
    let examined = examine(proxied);
    examined.assert_error("proxy-invalid", "proxy", "HTTPS_PROXY", "or give another proxy with --proxy");
    examined.assert_error("state-not-writable", "state directory", "/dev/null/state", "a tmpfs is enough");
    assert!(!examined.report.to_string().contains("hunter2"), "{:#}", examined.report);
    let mut local = shim_doctor(&world);
    local.args(["--relay", "unix:/nonexistent"]).env("COFFERDAM_STATE", "/dev/null/state");
    examine(local).assert_warning("state-not-writable", "state directory", "/dev/null/state", "tmpfs");
}

/// A stand-in for a sidecar whose clock is ten minutes behind.
#[test]
fn a_clock_that_differs_from_the_hosts_is_a_warning() {
    let world = sound().prepare();
    let path = world.layout().root().join("skewed.sock");
    let now = cofferdam_base::clock::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let server = answer_status_once(&path, now - 600, &["tools"]);
    let mut command = shim_doctor(&world);
    command.arg("--relay").arg(format!("unix:{}", path.display()));
    let examined = examine(command);
    server.join().unwrap();
    examined.assert_no_error();
    examined.assert_warning("clock-skew", "clock", "differs from the host's by 60", "synchronise");
}

/// Answers one request for the status.
fn answer_status_once(path: &Path, unix_time: u64, servers: &'static [&str]) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).expect("the test's own files and processes are at hand");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the test's own files and processes are at hand");
        let mut bytes = PREFACE.to_vec();
        Frame::Status(Status {
            name: None,
            grant: "dev".parse().expect("the test's own files and processes are at hand"),
            servers: servers.iter().map(|name| name.parse().expect("it is a name")).collect(),
            session: None,
            links: 0,
            expires_in_seconds: None,
            software: "a stand-in".into(),
            unix_time: Some(unix_time),
        })
        .encode(&mut bytes);
        // The request has to arrive before the answer.
        let _ = stream.read(&mut [0; 4096]).expect("the test's own files and processes are at hand");
        stream.write_all(&bytes).expect("the test's own files and processes are at hand");
        let _ = stream.read(&mut [0; 4096]);
    })
}

#[test]
fn an_enrolment_that_was_ended_is_refused() {
    let port = cofferdam_tests::port::free_address();
    let world = sound().relay(&format!("tls = \"{port}\"")).start();
    let string = world.cofferdam_text(&["enroll", "--grant", "dev", "--name", "box1"]);
    let mut status = shim_doctor(&world);
    status.env("COFFERDAM_ENROLL", string.trim());
    let arguments: Vec<_> =
        status.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
    let mut first = world.bare_shim_command();
    first.arg("status");
    for (name, value) in arguments {
        value.map(|value| first.env(name, value));
    }
    assert!(output_of(first, "cofferdam-shim status").status.success());
    examine(shim_doctor(&world)).assert_good("link-ok", "link", "grant `dev` with tools");
    world.cofferdam_text(&["kill", "box1"]);
    let examined = examine(shim_doctor(&world));
    examined.assert_error("link-refused", "link", "", "`cofferdam enroll` for a new enrolment");
    assert_eq!(examined.code, 77);
}

#[test]
fn a_grant_without_servers_is_a_warning() {
    let world = sound().prepare();
    let path = world.layout().root().join("empty.sock");
    let now = cofferdam_base::clock::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let server = answer_status_once(&path, now, &[]);
    let mut command = shim_doctor(&world);
    command.arg("--relay").arg(format!("unix:{}", path.display()));
    let examined = examine(command);
    server.join().unwrap();
    examined.assert_warning("grant-empty", "link", "the grant names no server", "`grants.dev.servers`");
}

#[test]
fn a_proxy_on_the_way_is_named() {
    let world = sound().prepare();
    let mut proxied = shim_doctor(&world);
    proxied
        .args(["--relay", "tls://sidecar.invalid:1"])
        .env("HTTPS_PROXY", "http://user:hunter2-password@127.0.0.1:9");
    let examined = examine(proxied);
    examined.assert_good("proxy-used", "proxy", "the link goes through a proxy");
    assert!(!examined.report.to_string().contains("hunter2"), "{:#}", examined.report);
}
