//! Messages name the likely cause and the next step: the sidecar is down, a user is not admitted, a second sidecar starts.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;

use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::harness::Harness;
use cofferdam_tests::markdown::blocks;
use cofferdam_tests::other_user::{USER, open_to_all};
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{Running, into_file, output_of, read};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::json;

use super::printed;
use super::unprivileged::Unprivileged;

const README: &str = include_str!("../../../README.md");

/// What `cofferdam-shim servers` prints to stderr on this link.
#[track_caller]
fn shim_error(world: &World) -> String {
    let mut command = world.bare_shim_command();
    command.args(["servers", "--relay", &world.link()]).stdin(Stdio::null());
    let output = output_of(command, "cofferdam-shim servers");
    assert_eq!(output.status.code(), Some(69));
    printed(&output).1
}

#[test]
fn a_shim_whose_sidecar_is_down_asks_for_the_sidecar_and_not_for_an_enrolment() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    world.kill9_sidecar();
    let stale = shim_error(&world);
    std::fs::remove_file(&world.layout().relay).unwrap();
    let missing = shim_error(&world);
    for printed in [&stale, &missing] {
        assert!(printed.contains("is `cofferdam serve` running on the host"), "{printed}");
        assert!(!printed.contains("enrol"), "{printed}");
    }
    assert!(missing.contains("the relay's directory mounted here?"), "{missing}");
}

#[test]
fn a_user_who_is_not_admitted_is_named_with_the_key_that_admits_users() {
    let Some(user) = Unprivileged::new() else { return };
    // Without `unix-uids` the socket's file has mode 0600; with it the sidecar itself refuses the user.
    for (lines, code, expected) in [
        ("", 69, "on the host add 1000 (or the user id that it has there) to `unix-uids`"),
        ("unix-uids = [0]", 77, "on the host add 1000 to `unix-uids` under [relay], run `cofferdam reload`"),
    ] {
        let world = World::new().server("tools", Server::fixture()).relay(lines).start();
        open_to_all(world.layout().root());
        open_to_all(world.layout().relay.parent().unwrap());
        let mut command = user.command("cofferdam-shim");
        command.args(["servers", "--relay", &world.link()]);
        let output = output_of(command, "cofferdam-shim servers");
        let (_, stderr) = printed(&output);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(expected) && !stderr.contains("enrol"), "{stderr}");
    }
}

/// Following the advice admits the user.
#[test]
fn a_user_who_is_added_to_the_list_can_connect_after_a_reload() {
    let Some(user) = Unprivileged::new() else { return };
    let mut world = World::new().server("tools", Server::fixture()).relay("unix-uids = [0]").start();
    open_to_all(world.layout().root());
    open_to_all(world.layout().relay.parent().unwrap());
    let text = std::fs::read_to_string(&world.layout().config).unwrap();
    std::fs::write(&world.layout().config, text.replace("[0]", &format!("[0, {USER}]"))).unwrap();
    world.cofferdam_text(&["reload"]);
    let mut command = user.command("cofferdam-shim");
    command.args(["servers", "--relay", &world.link()]);
    let output = output_of(command, "cofferdam-shim servers");
    assert_eq!(printed(&output), ("tools\n".to_owned(), String::new()));
    world.stop_sidecar();
}

#[test]
fn a_second_sidecar_names_the_process_of_the_first_and_the_way_out() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    let pid = world.sidecar().id();
    let second = world.cofferdam(&["serve"]);
    let (_, stderr) = printed(&second);
    assert_eq!(second.status.code(), Some(69), "{stderr}");
    assert!(stderr.contains(&format!("another sidecar (process {pid})")), "{stderr}");
    let advice = ["`cofferdam reload`", &format!("`kill {pid}`"), "`state-dir`"];
    assert!(advice.iter().all(|words| stderr.contains(words)), "{stderr}");

    // With its own state directory, but the same socket.
    let mut third = World::new().server("tools", Server::fixture()).prepare();
    let _other = UnixListener::bind(&third.layout().relay).unwrap();
    third.launch();
    assert_eq!(third.sidecar().wait(PATIENCE).code(), Some(69));
    let own = std::process::id();
    let log = third.log();
    assert!(log.contains(&format!("another process serves this socket (process {own})")), "{log}");
    assert!(log.contains(&format!("`kill {own}`")), "{log}");
}

#[test]
fn the_line_ready_names_every_address() {
    let (relay, health) = (free_address(), free_address());
    let world = World::new()
        .server("tools", Server::fixture())
        .relay(&format!("tls = \"{relay}\""))
        .admin(&format!("http = \"{health}\""))
        .start();
    wait_until("the sidecar is ready", || world.log().contains("ready; listening on "));
    let log = world.log();
    let line = log.lines().find(|line| line.contains("ready; listening on ")).unwrap();
    for address in [
        format!("relay unix:{}", world.layout().relay.display()),
        format!("admin unix:{}", world.layout().admin.display()),
        format!("relay tls://{relay}"),
        format!("health http://{health}"),
    ] {
        assert!(line.contains(&address), "{address} is not in {line}");
    }
}

#[test]
fn cofferdam_log_chooses_what_is_logged_and_a_mistake_in_it_is_reported() {
    for (filter, logged, expected) in [
        ("info", true, None),
        ("warn", false, None),
        ("cofferdam=loud", true, Some("COFFERDAM_LOG cannot be read, so `info` applies")),
    ] {
        let world = World::new().server("tools", Server::fixture()).prepare();
        let mut command = world.cofferdam_command();
        command.args(["serve", "-c"]).arg(&world.layout().config).env("COFFERDAM_LOG", filter);
        let log = world.layout().log.clone();
        command.stdin(Stdio::null()).stdout(into_file(&log)).stderr(into_file(&log));
        let mut sidecar = Running::spawn(command, "cofferdam serve");
        wait_until("the sidecar answers", || world.cofferdam(&["sessions"]).status.success());
        sidecar.signal(nix::sys::signal::Signal::SIGTERM);
        assert!(sidecar.wait(PATIENCE).success());
        let log = String::from_utf8(read(&log)).unwrap();
        assert_eq!(log.contains("ready; listening on"), logged, "{filter}: {log}");
        assert!(expected.is_none_or(|words| log.contains(words)), "{filter}: {log}");
    }
}

/// The README's configuration with the path that it gives for users without root, run by such a user.
#[test]
fn the_configuration_of_the_readme_works_without_root() {
    let Some(user) = Unprivileged::new() else { return };
    let shown = blocks(README, "toml").into_iter().next().expect("the README has a configuration");
    let line = shown.lines().find(|line| line.starts_with("unix = ")).expect("it has a socket");
    let (as_root, comment) = line.split_once('#').expect("it says what to do without root");
    let socket = comment.split('"').nth(1).expect("it gives a path for users without root");
    let text = shown.replace(as_root.trim(), &format!("unix = \"{socket}\""));
    let fixture = user.program("fixture-server");
    let text = text.replace("[\"github-mcp-server\", \"stdio\"]", &format!("[{fixture:?}]"));
    let text = text.replace("allow = [\"get_*\", \"search_*\", \"list_*\"]", "allow = [\"echo\"]");
    write(&user.home().join("cofferdam.toml"), &text);
    let secret: toml::Table = text.parse().unwrap();
    let secret = secret["secrets"]["github"]["file"].as_str().unwrap().to_owned();
    write(&user.home().join(&secret), "{\"token\": \"a-token-of-the-test\"}");

    let mut serve = user.command("cofferdam");
    let log = user.home().join("log");
    serve.arg("serve").stdin(Stdio::null()).stdout(into_file(&log)).stderr(into_file(&log));
    let mut sidecar = Running::spawn(serve, "cofferdam serve");
    let relay = user.home().join(socket);
    wait_until("the sidecar accepts links", || {
        assert!(sidecar.is_running(), "{}", String::from_utf8_lossy(&read(&log)));
        std::os::unix::net::UnixStream::connect(&relay).is_ok()
    });
    let mut shim = user.command("cofferdam-shim");
    shim.arg("--relay").arg(format!("unix:{}", relay.display()));
    let mut shim = Harness::start(shim, "cofferdam-shim");
    shim.initialize();
    assert_eq!(shim.call_text("echo", json!({"text": "without root"})), "without root");
    drop(shim);
    sidecar.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(sidecar.wait(PATIENCE).success());

    // The path for root is refused with the next step.
    write(&user.home().join("cofferdam.toml"), &shown);
    let mut serve = user.command("cofferdam");
    serve.arg("serve").stdin(Stdio::null());
    let output = output_of(serve, "cofferdam serve");
    let (_, stderr) = printed(&output);
    assert_eq!(output.status.code(), Some(77), "{stderr}");
    assert!(stderr.contains("hint: choose a directory that this user may write to"), "{stderr}");
}

/// Writes a file that belongs to the user.
fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("the directory is writable");
    std::os::unix::fs::chown(path, Some(USER), Some(USER)).expect("root may give files away");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(path, mode).expect("the file was just written");
}
