//! The sidecar of runs, exit codes, and signals.

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::{built, is_alive, output_of, send};
use cofferdam_tests::tools::Tool;
use nix::sys::signal::Signal;
use serde_json::json;

use super::kinds::assert_tools_work_and_nothing_is_left;
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

/// Two runs are told apart by their names in `sessions`, in the audit and by `kill`.
#[test]
fn runs_are_told_apart_by_name_and_kill_ends_only_the_named_one() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    // The sandbox's name begins with that of the command.
    let mut clients = ["first", "second"].map(|name| {
        let program =
            user.program(name, "#!/bin/sh\nexec cofferdam-shim --server tools\n").display().to_string();
        Harness::start(user.command(&["--", &program]), name)
    });
    for (client, text) in clients.iter_mut().zip(["of first", "of second"]) {
        client.initialize();
        assert_eq!(client.call_text("echo", json!({"text": text})), text);
    }
    let sessions = user.world.sessions();
    let name_of = |command: &str| {
        let mut names = sessions.as_array().into_iter().flatten().filter_map(|link| link["name"].as_str());
        let found = names.find(|name| name.strip_prefix(command).is_some_and(|rest| rest.len() == 9));
        found.unwrap_or_else(|| panic!("no session is named after `{command}`: {sessions}")).to_owned()
    };
    let names = [name_of("first"), name_of("second")];
    let list = user.world.cofferdam_text(&["sessions"]);
    assert!(names.iter().all(|name| list.contains(name.as_str())), "{list}");
    // The audit names the sandbox where its session starts; decisions name the session.
    let audit = user.world.audit();
    let session_of = |name: &str| {
        let detail = format!("grant dev, sandbox {name}");
        let start = audit.iter().find(|record| record["detail"] == detail.as_str());
        start.unwrap_or_else(|| panic!("no session of `{name}` has started: {audit:?}"))["session"].clone()
    };
    let [first_session, second_session] = [session_of(&names[0]), session_of(&names[1])];
    assert_ne!(first_session, second_session);
    let decisions = user.world.decisions();
    let sessions: Vec<_> = decisions.iter().map(|decision| decision["session"].clone()).collect();
    assert_eq!(sessions, [first_session, second_session]);

    user.world.cofferdam_text(&["kill", &names[0]]);
    let [mut first, mut second] = clients;
    wait_until("only the named run has no session", || {
        let left = user.world.sessions().to_string();
        !left.contains(&names[0]) && left.contains(&names[1])
    });
    let refused = first.call("echo", json!({"text": "after the end"}));
    assert!(refused["error"].is_object(), "{refused}");
    assert_eq!(second.call_text("echo", json!({"text": "still here"})), "still here");
    for client in [&mut first, &mut second] {
        client.close_stdin();
        client.wait_for_exit();
    }
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

/// The programs are in one directory, as after `cargo build --release --workspace`, which builds no static shim.
#[test]
fn without_an_option_the_dynamic_shim_in_the_directory_of_the_program_is_used_where_it_can_run() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let programs = user.home().join("built");
    std::fs::create_dir(&programs).expect("a temporary directory is writable");
    let dynamic_shim = ("COFFERDAM_DYNAMIC_SHIM_BIN", "cofferdam-shim");
    for (variable, name) in [("COFFERDAM_BIN", "cofferdam"), dynamic_shim] {
        std::fs::copy(built(variable, name), programs.join(name)).expect("the program was built");
    }
    let command = |options: &[&str]| {
        let mut command = user.command_of(&programs.join("cofferdam"));
        command.args(options).args(["--", "cofferdam-shim", "--server", "tools"]);
        command
    };
    let client = Harness::start(command(&[]), "cofferdam run");
    assert_tools_work_and_nothing_is_left(&user, client);
    // An image has other libraries, or none.
    let output = output_of(command(&["--sandbox", "podman", "--image", "localhost/any"]), "cofferdam run");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(66), "{stderr}");
    let why = format!(
        "the shim `{}` needs the libraries of this machine",
        programs.join("cofferdam-shim").display()
    );
    assert!(stderr.contains(&why), "{stderr}");
    assert!(stderr.contains("just shim") && stderr.contains("--shim"), "{stderr}");
    user.assert_nothing_left();
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
