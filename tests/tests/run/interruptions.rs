//! SIGINT at every step of a run: the run exits with the code of an interrupt, and leaves nothing behind.

use std::fs::File;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use cofferdam_tests::deadline::{PATIENCE, holds_within, wait_until};
use cofferdam_tests::http::{Reply, listen};
use cofferdam_tests::local_run::LocalRun;
use cofferdam_tests::process::{Running, children_of, into_file, is_alive};
use cofferdam_tests::sandboxes::PodmanEngine;
use cofferdam_tests::tools::Tool;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;

use super::{text, user};

/// The exit code of a process that SIGINT has ended.
const INTERRUPTED: i32 = 130;

/// Starts a run whose stderr is written to the returned file.
fn start(mut command: Command, user: &LocalRun) -> (Running, std::path::PathBuf) {
    let errors = user.world.layout().root().join("errors");
    command.stderr(into_file(&errors));
    (Running::spawn(command, "cofferdam run"), errors)
}

#[track_caller]
fn assert_interrupt_ends(run: &mut Running) {
    let code = exit_code_after_interrupt(run);
    assert_eq!(code, INTERRUPTED);
}

#[track_caller]
fn exit_code_after_interrupt(run: &mut Running) -> i32 {
    run.signal(Signal::SIGINT);
    // Before the handler is installed, the signal itself terminates the process.
    run.wait(PATIENCE).code().unwrap_or(INTERRUPTED)
}

/// The delay before the signal increases, so that every step is interrupted once.
#[test]
fn an_interrupt_at_any_time_leaves_nothing_with_bubblewrap() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    for step in 0..24 {
        let mut run = Running::spawn(user.command(&["--quiet", "--", "sleep", "1000"]), "cofferdam run");
        let _ = holds_within(Duration::from_millis(step * 8), || !run.is_running());
        assert_interrupt_ends(&mut run);
        user.assert_nothing_left();
    }
}

#[test]
fn an_interrupt_at_any_time_leaves_nothing_with_podman() {
    let Some(podman) = PodmanEngine::open() else { return };
    let user = user();
    // The first process of a container ignores signals for which it has no handler.
    let script = "trap 'exit 130' INT; while :; do sleep 0.1; done";
    for step in 0..8 {
        let mut command = user.command(&["--quiet", "--sandbox", "podman", "--", "sh", "-c", script]);
        podman.configure(&mut command);
        let mut run = Running::spawn(command, "cofferdam run");
        let _ = holds_within(Duration::from_millis(step * 80), || !run.is_running());
        let code = exit_code_after_interrupt(&mut run);
        // Podman exits with 1 if it is interrupted before the container runs.
        assert!(code == INTERRUPTED || code == 1, "step {step}: {code}");
        user.assert_nothing_left();
        assert_eq!(podman.containers(), "", "step {step}");
    }
}

#[test]
fn an_interrupt_before_the_sidecar_is_up_leaves_nothing() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    // Holds the lock as another run does while it starts the sidecar.
    let lock = user.world.layout().state.join("run/start.lock");
    std::fs::create_dir_all(lock.parent().expect("it is in a directory")).expect("the state is writable");
    let held = Flock::lock(File::create(&lock).expect("the state is writable"), FlockArg::LockExclusive);
    let held = held.expect("no other process has it");
    let mut run = Running::spawn(user.command(&["--", "sleep", "1000"]), "cofferdam run");
    // The run has this lock open when it looks for a sidecar.
    let holders = user.world.layout().state.join("run/holders.lock");
    wait_until("the run looks for a sidecar", || {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", run.id())).into_iter().flatten().flatten();
        descriptors.flat_map(|entry| std::fs::read_link(entry.path())).any(|path| path == holders)
    });
    assert_interrupt_ends(&mut run);
    drop(held);
    user.assert_nothing_left();
}

/// The registry accepts the connection and never responds.
#[test]
fn an_interrupt_during_the_pull_of_an_image_leaves_nothing() {
    let Some(podman) = PodmanEngine::open() else { return };
    let user = user();
    let (sender, disconnected) = mpsc::channel();
    let registry = listen(move |_| Reply::Held(sender.clone()));
    let registries = podman.directory().join("registries.conf");
    let insecure = format!("[[registry]]\nlocation = \"{registry}\"\ninsecure = true\n");
    std::fs::write(&registries, insecure).expect("a temporary directory is writable");
    let image = format!("{registry}/image");
    let mut command = user.command(&["--sandbox", "podman", "--image", &image, "--", "true"]);
    podman.configure(&mut command);
    command.env("CONTAINERS_REGISTRIES_CONF", registries);
    let (mut run, errors) = start(command, &user);
    let stderr = || text(&std::fs::read(&errors).unwrap_or_default());
    wait_until("the pull is under way", || stderr().contains("pulling the image"));
    let mut pull = Vec::new();
    wait_until("podman pulls", || {
        pull = children_of(run.id());
        !pull.is_empty()
    });
    assert_interrupt_ends(&mut run);
    assert!(!pull.iter().any(|id| is_alive(*id)), "the pull still runs");
    drop(disconnected);
    user.assert_nothing_left();
}

#[test]
fn an_interrupt_of_the_command_leaves_nothing() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let script = "touch ready; exec sleep 1000";
    let mut run = Running::spawn(user.command(&["--", "sh", "-c", script]), "cofferdam run");
    wait_until("the command runs", || user.project().join("ready").exists());
    assert_interrupt_ends(&mut run);
    user.assert_nothing_left();
}
