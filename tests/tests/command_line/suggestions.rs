//! Mistyped commands, options, servers and grants get the likely one.

use std::process::Stdio;

use cofferdam_tests::attach::shim_binary;
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;

use super::printed;

fn world() -> World {
    World::new()
        .server("github", Server::fixture())
        .server("wiki", Server::fixture())
        .relay(&format!("tls = \"{}\"", free_address()))
        .admin("[grants.review]\nservers = [\"wiki\"]")
        .start()
}

/// The exit code and what is printed to stderr.
#[track_caller]
fn refused(world: &World, arguments: &[&str]) -> (Option<i32>, String) {
    let output = world.cofferdam(arguments);
    (output.status.code(), printed(&output).1)
}

#[track_caller]
fn refused_by_shim(world: &World, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = command(shim_binary());
    command.env_clear().args(arguments).env("COFFERDAM_RELAY", world.link()).stdin(Stdio::null());
    let output = output_of(command, "cofferdam-shim");
    (output.status.code(), printed(&output).1)
}

#[test]
fn a_mistyped_command_or_option_gets_the_likely_one() {
    let world = World::new().server("tools", Server::fixture()).prepare();
    for (arguments, tip) in [
        (&["sesions"][..], "tip: a similar subcommand exists: 'sessions'"),
        (&["audit", "verfy"], "tip: a similar subcommand exists: 'verify'"),
        (&["sessions", "--wach"], "tip: a similar argument exists: '--watch'"),
    ] {
        let (code, stderr) = refused(&world, arguments);
        assert!(code == Some(64) && stderr.contains(tip), "{arguments:?}: {stderr}");
    }
    for (arguments, suggestion) in [
        (&["serversr"][..], "unknown option or command `serversr`; did you mean `servers`?"),
        (&["--sevrer=github"], "unknown option or command `--sevrer=github`; did you mean `--server`?"),
        (&["hub", "--sokcet", "/x"], "hub: unknown argument `--sokcet`; did you mean `--socket`?"),
    ] {
        let (code, stderr) = refused_by_shim(&world, arguments);
        assert!(code == Some(64) && stderr.contains(suggestion), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_server_that_is_not_granted_gets_the_nearest_granted_one() {
    let world = world();
    let near =
        "server `gihub` is not granted to this sandbox (did you mean `github`?); granted: `github`, `wiki`";
    for arguments in [&["tools", "gihub"][..], &["call", "gihub", "echo"]] {
        let (code, stderr) = refused_by_shim(&world, arguments);
        assert!(code == Some(77) && stderr.contains(near), "{arguments:?}: {stderr}");
    }
    let (code, stderr) = refused_by_shim(&world, &["tools", "calendar"]);
    let none = "server `calendar` is not granted to this sandbox; granted: `github`, `wiki`";
    assert!(code == Some(77) && stderr.contains(none), "{stderr}");
    // A harness gets it too.
    let mut harness = world.shim("gihub");
    let id = harness.send_initialize();
    let answer = harness.answer_to(&id);
    assert!(answer["error"]["message"].as_str().is_some_and(|message| message.contains(near)), "{answer}");
}

#[test]
fn a_mistyped_grant_gets_the_likely_one_in_every_command() {
    let world = world();
    let config = world.layout().config.to_str().expect("temporary paths are UTF-8");
    let shim = shim_binary();
    let shim = shim.to_str().expect("paths of builds are UTF-8");
    for arguments in [
        &["enroll", "--grant", "revieww"][..],
        &["token", "create", "--grant", "revieww"],
        &["run", "-c", config, "--shim", shim, "--grant", "revieww", "--dry-run", "--", "true"],
        &["harness", "claude", "--grant", "revieww"],
    ] {
        let (code, stderr) = refused(&world, arguments);
        assert_eq!(code, Some(64), "{arguments:?}: {stderr}");
        assert!(stderr.contains("did you mean `review`?"), "{arguments:?}: {stderr}");
    }
    let (_, stderr) = refused(&world, &["harness", "claude", "--grant", "staging"]);
    assert!(stderr.contains("the grants are: `dev`, `review`"), "{stderr}");
}

/// `import` makes a grant that does not exist; that it does so is said.
#[test]
fn an_import_says_that_a_grant_is_new() {
    let world = world();
    let settings = world.layout().root().join("settings.json");
    std::fs::write(&settings, r#"{"mcpServers": {"clock": {"command": "clock-server"}}}"#).unwrap();
    let settings = settings.to_str().unwrap();
    let import = |grant: &str| world.cofferdam_text(&["import", settings, "--dry-run", "--grant", grant]);
    assert!(import("revieww").contains("grant revieww: is new; did you mean `review`?"));
    let (known, other) = (import("review"), import("staging"));
    assert!(!known.contains("is new"), "{known}");
    assert!(other.contains("grant staging: is new\n"), "{other}");
}
