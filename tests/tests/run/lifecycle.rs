//! The sidecar of runs, exit codes, and signals.

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::process::{Running, built, is_alive, output_of, send};
use cofferdam_tests::tools::Tool;
use nix::sys::signal::Signal;
use serde_json::json;

use super::{text, user};

#[test]
fn the_exit_code_is_that_of_the_command() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    assert_eq!(user.output(&["--", "sh", "-c", "exit 42"]).status.code(), Some(42));
    assert_eq!(user.output(&["--", "sh", "-c", "kill -TERM $$"]).status.code(), Some(128 + 15));
    user.assert_nothing_left();
}

#[test]
fn two_runs_share_a_sidecar_that_exits_with_the_last_run() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let mut clients = [user.client(&[], "tools"), user.client(&[], "tools")];
    for client in &mut clients {
        client.initialize();
        assert_eq!(client.call_text("add", json!({"a": 20, "b": 22})), "42");
    }
    assert_eq!(user.sidecars().len(), 1);
    let sessions = user.world.sessions();
    let names: std::collections::BTreeSet<&str> =
        sessions.as_array().into_iter().flatten().filter_map(|link| link["session"].as_str()).collect();
    assert_eq!(names.len(), 2, "the runs do not have two sessions: {sessions}");
    let [mut first, mut second] = clients;
    first.close_stdin();
    assert!(first.wait_for_exit().success(), "{}", first.stderr());
    assert_eq!(second.call_text("echo", json!({"text": "still here"})), "still here");
    assert_eq!(user.sidecars().len(), 1);
    second.close_stdin();
    assert!(second.wait_for_exit().success(), "{}", second.stderr());
    user.assert_nothing_left();
}

#[test]
fn a_sidecar_that_no_run_has_started_is_used_and_not_stopped() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let mut user = user();
    user.world.start_sidecar();
    let mut client = user.client(&[], "tools");
    client.initialize();
    client.close_stdin();
    assert!(client.wait_for_exit().success(), "{}", client.stderr());
    assert_eq!(user.sidecars().len(), 1);
    wait_until("the session is over", || user.world.sessions() == json!([]));
}

#[test]
fn when_a_run_is_killed_its_sandbox_servers_and_sidecar_exit() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let mut client = user.client(&[], "tools");
    client.initialize();
    client.call("echo", json!({"text": "x"}));
    client.kill9();
    wait_until("the sidecar ends", || user.sidecars().is_empty());
    let servers = user.world.fixture_processes("tools");
    wait_until("the servers end", || !servers.iter().any(|id| is_alive(*id)));
    // The next run removes the files of the killed one.
    assert!(user.output(&["--", "true"]).status.success());
    user.assert_nothing_left();
}

#[test]
fn signals_reach_the_command() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    for (signal, name) in [(Signal::SIGINT, "INT"), (Signal::SIGTERM, "TERM"), (Signal::SIGHUP, "HUP")] {
        let script = format!("trap 'exit 9' {name}; touch ready; while :; do sleep 0.1; done");
        let run = user.command(&["--", "sh", "-c", &script]);
        let mut run = Running::spawn(run, "cofferdam run");
        wait_until("the command runs", || user.project().join("ready").exists());
        run.signal(signal);
        assert_eq!(run.wait(cofferdam_tests::deadline::PATIENCE).code(), Some(9), "{signal}");
        std::fs::remove_file(user.project().join("ready")).expect("it is there");
        user.assert_nothing_left();
    }
}

#[test]
fn without_an_option_the_shim_in_the_directory_of_the_program_is_used() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    // In one directory, as after `cargo build --release --workspace`.
    let programs = user.home().join("built");
    std::fs::create_dir(&programs).expect("a temporary directory is writable");
    for (variable, name) in [("COFFERDAM_BIN", "cofferdam"), ("COFFERDAM_SHIM_BIN", "cofferdam-shim")] {
        std::fs::copy(built(variable, name), programs.join(name)).expect("the program was built");
    }
    let mut command = user.command_of(&programs.join("cofferdam"));
    command.args(["--", "cofferdam-shim", "--version"]);
    let output = output_of(command, "cofferdam run");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("cofferdam-shim "));
}

#[test]
fn a_killed_sidecar_is_restarted_for_every_run() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let mut clients = [user.client(&[], "tools"), user.client(&[], "tools")];
    clients.iter_mut().for_each(|client| drop(client.initialize()));
    let sidecar = user.wait_for_sidecar();
    send(sidecar, Signal::SIGKILL);
    for client in &mut clients {
        assert_eq!(client.call_text("echo", json!({"text": "again"})), "again");
    }
    assert_eq!(user.sidecars().len(), 1);
    for client in &mut clients {
        client.close_stdin();
        assert!(client.wait_for_exit().success(), "{}", client.stderr());
    }
    user.assert_nothing_left();
}
