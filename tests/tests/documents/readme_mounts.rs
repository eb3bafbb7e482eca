//! The rows of the README's table of sandboxes that mount the relay's directory, run as they are written: the directory of
//! the sidecar is at the README's path, in a mount namespace of the test. The dots at the end of a row stand for the image
//! and the command; Docker's command is run by Podman.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use cofferdam_tests::fuse_directory::enter_private_mounts;
use cofferdam_tests::markdown::spans;
use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::sandboxes::PodmanEngine;
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::{Tool, cannot_run};
use cofferdam_tests::world::World;
use nix::mount::{MsFlags, mount};

use super::README;

/// Where the README's configuration has the relay's socket.
const RELAY: &str = "/run/cofferdam/relay";

#[test]
fn the_mount_for_docker_works_as_written() {
    let Some(podman) = PodmanEngine::open() else { return };
    podman
        .build("readme", "FROM scratch\nCOPY file /shim\nENTRYPOINT [\"/shim\"]\n", &[])
        .expect("an image of one file can be built");
    let programs = tempfile::tempdir().expect("a temporary directory can be made");
    let words: Vec<_> = podman.line().iter().map(|word| format!("'{}'", word.display())).collect();
    let docker = programs.path().join("docker");
    std::fs::write(&docker, format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" "))).expect("it is new");
    std::fs::set_permissions(&docker, std::fs::Permissions::from_mode(0o755)).expect("it was just written");
    assert_lists_servers("docker run", "--rm --network none localhost/readme servers", programs.path());
    assert_eq!(podman.containers(), "");
}

#[test]
fn the_mount_for_bubblewrap_works_as_written() {
    let Some(bubblewrap) = Tool::Bubblewrap.path() else { return };
    let shim = built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    let rest = format!("--unshare-all --ro-bind '{}' /shim /shim servers", shim.display());
    assert_lists_servers("bwrap", &rest, bubblewrap.parent().expect("it is in a directory"));
}

/// Runs the command of the README that starts with these words, with `rest` instead of its dots.
#[track_caller]
fn assert_lists_servers(start: &str, rest: &str, programs: &Path) {
    if !nix::unistd::geteuid().is_root() {
        cannot_run("only root can mount");
        return;
    }
    let shown = spans(README).find(|span| span.starts_with(start)).expect("the README shows it");
    let line = shown.strip_suffix("…").expect("it ends with dots").to_owned() + rest;
    let world = World::new().server("tools", Server::fixture()).start();
    let relay = world.layout().relay.parent().expect("it is in a directory").to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    // In a thread of its own, whose mounts end with it.
    let run = std::thread::spawn(move || {
        enter_private_mounts();
        let none = None::<&str>;
        mount(none, "/run", Some("tmpfs"), MsFlags::empty(), none).expect("root may mount");
        std::fs::create_dir_all(RELAY).expect("it is writable");
        mount(Some(&relay), RELAY, none, MsFlags::MS_BIND, none).expect("root may mount");
        let mut shell = command("sh");
        shell.args(["-c", &line]).env("PATH", path);
        output_of(shell, &line)
    });
    let output = run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.lines().any(|line| line == "tools"),
        "{printed}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
