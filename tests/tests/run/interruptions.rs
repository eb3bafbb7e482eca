//! SIGINT at every step of a run: the run exits with the code of an interrupt, and leaves nothing behind.

use std::fs::File;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use cofferdam_tests::deadline::{PATIENCE, holds_within, wait_until};
use cofferdam_tests::http::{Reply, listen};
use cofferdam_tests::process::{Running, children_of, into_file, is_alive};
use cofferdam_tests::run_user::RunUser;
use cofferdam_tests::sandboxes::PodmanEngine;
use cofferdam_tests::tools::Tool;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;

use super::sandbox_kind::SandboxKind;
use super::{text, user};

/// The exit code of a process that SIGINT has ended.
const INTERRUPTED: i32 = 130;

/// Starts a run whose stderr is written to the returned file.
fn start(mut command: Command, user: &RunUser) -> (Running, std::path::PathBuf) {
    let errors = user.world.layout().root().join("errors");
    command.stderr(into_file(&errors));
    (Running::spawn(command, "cofferdam run"), errors)
}

/// Sends SIGINT and waits for the end of the run.
#[track_caller]
pub(crate) fn assert_interrupt_ends(run: &mut Running, when: &str) {
    run.signal(Signal::SIGINT);
    // Before the handler is installed, the signal itself terminates the process.
    let code = run.wait(PATIENCE).code().unwrap_or(INTERRUPTED);
    assert_eq!(code, INTERRUPTED, "{when}");
}

#[test]
fn an_interrupt_at_any_time_leaves_nothing_with_bubblewrap() {
    // Bubblewrap starts much faster than the others.
    assert_interrupt_at_any_time_leaves_nothing(SandboxKind::bubblewrap(), 24, Duration::from_millis(8));
}

#[test]
fn an_interrupt_at_any_time_leaves_nothing_with_podman() {
    assert_interrupt_at_any_time_leaves_nothing(SandboxKind::podman(), 12, Duration::from_millis(80));
}

#[test]
fn an_interrupt_at_any_time_leaves_nothing_with_docker() {
    assert_interrupt_at_any_time_leaves_nothing(SandboxKind::docker(), 12, Duration::from_millis(80));
}

#[test]
fn an_interrupt_at_any_time_leaves_nothing_with_gvisor() {
    assert_interrupt_at_any_time_leaves_nothing(SandboxKind::gvisor(), 12, Duration::from_millis(80));
}

#[test]
fn an_interrupt_at_any_time_leaves_nothing_with_srt() {
    assert_interrupt_at_any_time_leaves_nothing(SandboxKind::srt(), 12, Duration::from_millis(120));
}

/// The delay before the signal increases by `interval`, so that every step of a run is interrupted once.
fn assert_interrupt_at_any_time_leaves_nothing(kind: Option<SandboxKind>, steps: u32, interval: Duration) {
    let Some(kind) = kind else { return };
    let user = user();
    // The first process of a container ignores signals for which it has no handler.
    let script = "trap 'exit 130' INT; while :; do sleep 0.1; done";
    for step in 0..steps {
        let command = kind.command(&user, &["--quiet", "--", "sh", "-c", script]);
        let mut run = Running::spawn(command, "cofferdam run");
        let _ = holds_within(interval * step, || !run.is_running());
        assert_interrupt_ends(&mut run, &format!("{}, step {step}", kind.name()));
        kind.assert_nothing_left(&user);
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
    assert_interrupt_ends(&mut run, "while it looks for a sidecar");
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
    assert_interrupt_ends(&mut run, "during the pull");
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
    assert_interrupt_ends(&mut run, "while the command runs");
    user.assert_nothing_left();
}
