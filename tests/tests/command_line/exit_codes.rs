//! Exit codes: each one that the guide lists is returned in the case that it describes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Output, Stdio};

use cofferdam_tests::attach::{Attach, shim_binary};
use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::markdown::rows;
use cofferdam_tests::other_user::open_to_all;
use cofferdam_tests::process::{Running, command, output_of};
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;

use super::printed;
use super::unprivileged::Unprivileged;

/// The exit codes of `cofferdam`.
const SYSEXIT: &str = include_str!("../../../sidecar/src/terminal/failure.rs");
const OPERATIONS: &str = include_str!("../../../packaging/guide/operations.md");
/// The exit codes that the tests below cause.
const TESTED: [&str; 13] = ["0", "1", "64", "65", "66", "69", "70", "71", "73", "74", "75", "77", "78"];
const KEY: &str = "0000000000000000000000000000000000000000000000000000000000000001";

#[track_caller]
fn assert_code(output: &Output, code: i32, what: &str) -> String {
    let (stdout, stderr) = printed(output);
    assert_eq!(output.status.code(), Some(code), "{what}: {stdout}{stderr}");
    stderr
}

#[track_caller]
fn cofferdam(world: &World, arguments: &[&str], code: i32) -> String {
    assert_code(&world.cofferdam(arguments), code, &format!("cofferdam {}", arguments.join(" ")))
}

#[track_caller]
fn shim(arguments: &[&str], code: i32) -> String {
    let mut command = command(shim_binary());
    command.env_clear().args(arguments).stdin(Stdio::null());
    let what = format!("cofferdam-shim {}", arguments.join(" "));
    assert_code(&output_of(command, &what), code, &what)
}

/// Runs a command with at most this many open descriptors.
#[track_caller]
fn with_descriptors(limit: u32, command: &Command) -> Output {
    let mut limited = cofferdam_tests::process::command("sh");
    limited.args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")]);
    limited.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    output_of(limited, "a command with few descriptors")
}

#[test]
fn the_guide_lists_exactly_the_codes_that_are_tested() {
    let listed: BTreeSet<String> = rows(exit_code_section())
        .map(|row| row[0].clone())
        .filter(|code| code.parse::<u8>().is_ok())
        .collect();
    assert_eq!(listed, TESTED.iter().map(|code| (*code).to_owned()).collect());
}

/// Neither the guide nor these tests lack a code that `cofferdam` can return.
#[test]
fn every_code_of_the_program_is_in_the_guide_and_tested() {
    let codes = SYSEXIT.split("enum Sysexit {").nth(1).and_then(|rest| rest.split('}').next());
    let codes = codes.expect("the exit codes are an enum there").lines().filter_map(|line| {
        let (_, code) = line.trim().strip_suffix(',')?.split_once(" = ")?;
        Some(code)
    });
    let codes: Vec<&str> = codes.collect();
    assert!(codes.len() >= 10 && codes.contains(&"78"), "{codes:?}");
    for code in codes {
        assert!(TESTED.contains(&code), "{code} is not tested");
        let row = rows(exit_code_section()).find(|row| row[0] == code);
        let row = row.unwrap_or_else(|| panic!("{code} is not in the guide"));
        assert_ne!(row[1], "–", "the guide does not say when `cofferdam` returns {code}");
    }
}

fn exit_code_section() -> &'static str {
    let section = OPERATIONS.split("## Exit codes").nth(1).expect("the guide has a section about exit codes");
    section.split("\n## ").next().expect("a split has a first part")
}

#[test]
fn help_and_version_succeed_and_wrong_arguments_are_64() {
    let world = World::new().server("tools", Server::fixture()).start();
    for arguments in [&["--help"][..], &["--version"], &["audit", "--help"], &["audit", "verify", "-h"]] {
        cofferdam(&world, arguments, 0);
    }
    let wrong: [&[&str]; 9] = [
        &["--colour"],
        &["unknown"],
        &["enroll"],
        &["enroll", "--grant", "dev", "--ttl", "8 hours"],
        &["enroll", "--grant", "dev", "--ttl", "900d", "--socket", "/nonexistent/x"],
        &["enroll", "--grant", "nowhere", "--socket", "/nonexistent/x"],
        &["audit"],
        &["audit", "prune"],
        &["audit", "verify", "--head", "1234"],
    ];
    for arguments in wrong {
        cofferdam(&world, arguments, 64);
    }
    let mut bare = world.cofferdam_command();
    bare.stdin(Stdio::null());
    assert_code(&output_of(bare, "cofferdam"), 64, "cofferdam without a command");

    for arguments in [&["--help"][..], &["--version"], &["call", "--help"], &["hub", "--help"]] {
        shim(arguments, 0);
    }
    let wrong: [&[&str]; 5] =
        [&["--colour"], &["--relay", "nowhere"], &["call"], &["hub"], &["servers", "extra"]];
    for arguments in wrong {
        shim(arguments, 64);
    }
}

#[test]
fn a_damaged_audit_is_65_and_missing_input_is_66() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    for arguments in
        [&["kill", "unknown"][..], &["enrolments", "end", "unknown"], &["token", "revoke", "none"]]
    {
        cofferdam(&world, arguments, 66);
    }
    cofferdam(&world, &["audit", "show", "s0000000000000000"], 66);
    cofferdam(&world, &["demo", "--shim", "/no/such/shim"], 66);
    world.stop_sidecar();
    let audit = world.audit_files()[0].clone();
    let text = std::fs::read_to_string(&audit).unwrap();
    std::fs::write(&audit, text.replacen("sidecar", "sidebar", 1)).unwrap();
    cofferdam(&world, &["audit", "verify"], 65);
    std::fs::remove_file(&audit).unwrap();
    cofferdam(&world, &["audit", "verify"], 66);
    std::fs::remove_file(&world.layout().config).unwrap();
    for arguments in [&["check"][..], &["sessions"], &["serve"], &["check", "--json"]] {
        cofferdam(&world, arguments, 66);
    }
}

#[test]
fn an_unavailable_sidecar_is_69_for_both_programs() {
    let world = World::new().server("tools", Server::fixture()).prepare();
    let commands: [&[&str]; 6] = [
        &["sessions"],
        &["enrolments"],
        &["reload"],
        &["kill", "x"],
        &["token", "list"],
        &["attach", "list"],
    ];
    for arguments in commands {
        let stderr = cofferdam(&world, arguments, 69);
        assert!(stderr.contains("hint: is `cofferdam serve` running"), "{arguments:?}: {stderr}");
    }
    for arguments in [&["servers"][..], &["status"], &["call", "tools", "add"]] {
        shim(&[arguments, &["--relay", &world.link()]].concat(), 69);
    }
}

/// A program that is not a shim sends no response, which the demo cannot explain.
#[test]
fn a_failure_of_the_program_itself_is_70() {
    cofferdam(&World::new().prepare(), &["demo", "--shim", "/bin/false"], 70);
}

#[test]
fn a_refusal_of_the_operating_system_is_71() {
    let world = World::new().prepare();
    let mut watch = world.cofferdam_command();
    watch.args(["sessions", "--watch", "-c"]).arg(&world.layout().config);
    // The configuration can be read, but the runtime needs two descriptors at the same time.
    assert_code(&with_descriptors(4, &watch), 71, "cofferdam sessions --watch");
    let mut status = command(shim_binary());
    status.args(["status", "--relay", "unix:/nonexistent"]);
    assert_code(&with_descriptors(3, &status), 71, "cofferdam-shim status");
}

#[test]
fn what_cannot_be_created_is_73_and_output_that_cannot_be_written_is_74() {
    let world = World::new().prepare();
    let state = world.layout().state.display().to_string();
    let text = std::fs::read_to_string(&world.layout().config).unwrap();
    std::fs::write(&world.layout().config, text.replace(&state, "/proc/cofferdam-state")).unwrap();
    cofferdam(&world, &["key"], 73);
    cofferdam(&world, &["serve"], 73);

    std::fs::write(&world.layout().config, text).unwrap();
    for arguments in [&["check"][..], &["key"], &["--help"]] {
        let mut full = world.cofferdam_command();
        full.args(arguments).arg("-c").arg(&world.layout().config);
        full.stdout(File::create("/dev/full").unwrap());
        assert_code(&output_with_own_stdout(full), 74, &format!("cofferdam {arguments:?}"));
    }
    // The sandbox's key for such a link would be stored there.
    shim(&["doctor", "--relay", "tls://127.0.0.1:9", "--state", "/dev/null/state"], 73);
    let mut full = command(shim_binary());
    full.arg("--help").stdout(File::create("/dev/full").unwrap());
    assert_code(&output_with_own_stdout(full), 74, "cofferdam-shim --help");
}

/// Runs a command whose stdout is set already, and captures its stderr.
#[track_caller]
fn output_with_own_stdout(mut command: Command) -> Output {
    let child =
        command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program can be started");
    child.wait_with_output().expect("its end can be awaited")
}

#[test]
fn a_second_hub_on_a_pipe_is_75() {
    let directory = tempfile::tempdir().unwrap();
    let (here, mut there) = UnixStream::pair().unwrap();
    let end = || Stdio::from(OwnedFd::from(here.try_clone().unwrap()));
    let hub = |socket: &str| {
        let mut hub = command(shim_binary());
        hub.env_clear().args(["hub", "--pin", KEY, "--socket"]).arg(directory.path().join(socket));
        hub.stdin(end()).stdout(end()).stderr(Stdio::null());
        Running::spawn(hub, "cofferdam-shim hub")
    };
    let _first = hub("one/relay.sock");
    // The first hub has begun its handshake, so it uses the pipe.
    there.read_exact(&mut [0; 5]).unwrap();
    assert_eq!(hub("two/relay.sock").wait(PATIENCE).code(), Some(75));
}

#[test]
fn a_hub_whose_host_has_another_key_is_77() {
    let Some(socat) = Tool::Socat.path() else { return };
    let world = World::new().server("tools", Server::fixture()).start();
    let socket = world.layout().root().join("pipe");
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (socat, address) = (socat.display().to_string(), format!("UNIX-CONNECT:{}", socket.display()));
    let _attach = Attach::start(&world, &["exec", "--grant", "dev", "--", &socat, "-", &address]);
    let mut pipe = None;
    world.wait_until("the host's end of the pipe is open", || {
        pipe = listener.accept().ok();
        pipe.is_some()
    });
    let (pipe, _) = pipe.expect("it was just set");
    pipe.set_nonblocking(false).unwrap();
    let end = || Stdio::from(OwnedFd::from(pipe.try_clone().unwrap()));
    let mut hub = command(shim_binary());
    hub.env_clear().args(["hub", "--pin", KEY, "--socket"]).arg(world.layout().root().join("box/relay.sock"));
    hub.stdin(end()).stdout(end()).stderr(Stdio::null());
    assert_eq!(Running::spawn(hub, "cofferdam-shim hub").wait(PATIENCE).code(), Some(77));
}

#[test]
fn a_denied_call_or_file_is_77_and_a_failed_tool_is_1() {
    let world = World::new()
        .server("tools", Server::fixture())
        .server("theirs", Server::fixture())
        .granting(&["tools"])
        .start();
    let link = world.link();
    shim(&["call", "theirs", "add", "--relay", &link], 77);
    shim(&["call", "tools", "crash", "--relay", &link], 1);
    shim(&["call", "tools", "echo", "{\"text\": \"fine\"}", "--relay", &link], 0);

    let Some(user) = Unprivileged::new() else { return };
    open_to_all(world.layout().root());
    let mut key = user.command("cofferdam");
    key.args(["key", "-c"]).arg(&world.layout().config);
    assert_code(&output_of(key, "cofferdam key"), 77, "another user's key");
    let mut status = user.command("cofferdam-shim");
    status.args(["status", "--relay", &link]);
    assert_code(&output_of(status, "cofferdam-shim status"), 69, "a socket that this user may not open");
}

#[test]
fn a_wrong_configuration_is_78() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    std::fs::write(&world.layout().config, "colour = 1\n").unwrap();
    cofferdam(&world, &["check"], 78);
    cofferdam(&world, &["serve"], 78);
    world.stop_sidecar();
    let world = World::new().server("tools", Server::fixture()).start();
    let text = std::fs::read_to_string(&world.layout().config).unwrap();
    std::fs::write(&world.layout().config, format!("{text}\ncolour = 1\n")).unwrap();
    let stderr = cofferdam(&world, &["reload"], 78);
    assert!(stderr.contains("the previous configuration stays in effect"), "{stderr}");
}
