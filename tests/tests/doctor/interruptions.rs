//! `doctor` that is interrupted: it ends at once, starts nothing more, and leaves nothing running.

use std::fs;
use std::net::TcpListener;

use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::process::{Running, into_file, read};
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::world_with_vault_at;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;

use super::examined::{doctor, prepared, processes_left, scratch, sound};

/// Longer than a test waits, so that only the interruption ends a trial.
const ENDLESS: &str = "server-start-timeout = \"10m\"";

/// Sends the signal to `doctor` when the condition holds, and asserts that it leaves nothing.
#[track_caller]
fn assert_interrupted(world: &World, signal: Signal, code: i32, mut condition: impl FnMut() -> bool) {
    let mut command = doctor(world);
    let (out, err) = (world.layout().root().join("out"), world.layout().root().join("err"));
    command.stdout(into_file(&out)).stderr(into_file(&err));
    let mut doctor = Running::spawn(command, "cofferdam doctor");
    wait_until("the probe runs", || {
        assert!(doctor.is_running(), "{}", String::from_utf8_lossy(&read(&err)));
        condition()
    });
    doctor.signal(signal);
    let status = doctor.wait(PATIENCE);
    let printed = String::from_utf8_lossy(&read(&err)).into_owned();
    assert_eq!(status.code(), Some(code), "{status}: {printed}");
    assert_eq!(printed, "error: interrupted before every probe was done\n");
    assert_eq!(read(&out), b"");
    let left: Vec<_> = fs::read_dir(scratch(world)).expect("it was made").flatten().collect();
    assert!(left.is_empty(), "doctor left files: {left:?}");
}

#[test]
fn during_the_start_of_a_server_every_process_is_ended() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let silent = Server::fixture_that("never-answers");
        let world = prepared(sound().limit(ENDLESS).server("silent", silent));
        assert_interrupted(&world, signal, code, || !world.fixture_processes("silent").is_empty());
        assert_eq!(processes_left(&world, "silent"), Vec::<u32>::new());
        assert_eq!(processes_left(&world, "tools"), Vec::<u32>::new());
    }
}

#[test]
fn while_vault_does_not_answer_no_server_is_started_afterwards() {
    let vault = TcpListener::bind("127.0.0.1:0").expect("a port of the loopback is free");
    vault.set_nonblocking(true).expect("a socket can be changed");
    let address = format!("http://{}", vault.local_addr().expect("it is bound"));
    let token = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let auth = format!("auth = {{ method = \"token-file\", path = \"{}\" }}", token.path().display());
    let world = prepared(world_with_vault_at(&address, &auth).server("tools", Server::fixture()));
    let mut asked = Vec::new();
    assert_interrupted(&world, Signal::SIGINT, 130, || {
        asked.extend(vault.accept());
        !asked.is_empty()
    });
    assert_eq!(world.fixture_processes("tools"), Vec::<u32>::new());
}
