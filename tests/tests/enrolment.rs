//! Enrolments: they survive restarts of shims and sidecars and lost responses, and invalid ones are refused with the
//! reason.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use cofferdam_tests::cuttable_tcp::CuttableTcp;
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::{Harness, refusal_of};
use cofferdam_tests::sandbox_files::{SandboxFiles, enroll};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

/// A sidecar with a port, and the TCP connections to it, which can be cut.
fn world_with_port() -> (World, CuttableTcp) {
    let tcp = CuttableTcp::start();
    let world = World::new().server("tools", Server::fixture()).relay(&tcp.relay_lines()).start();
    (world, tcp)
}

#[track_caller]
fn assert_echo(harness: &mut Harness, text: &str) {
    assert_eq!(harness.call_text("echo", json!({"text": text})), text);
}

/// Asserts that the message reached the waiting call, stderr and `status`.
#[track_caller]
fn assert_refused_everywhere(sandbox: &SandboxFiles, code: &str, word: &str) {
    let mut shim = sandbox.shim();
    let answer = shim.initialize();
    assert_eq!(refusal_of(&answer), code, "{answer}");
    let printed = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(printed.contains(word) && printed.contains("`cofferdam enroll`"), "{printed}");
    wait_until("the message is on stderr", || shim.stderr().contains(word));
    let trouble = &sandbox.status()["trouble"];
    assert_eq!(trouble["code"], code, "{trouble}");
    assert!(trouble["message"].as_str().unwrap_or_default().contains(word), "{trouble}");
    assert!(shim.is_running(), "the shim exited although its stdin is open");
}

fn alerts(world: &World) -> Vec<Value> {
    world.audit().into_iter().filter(|record| record["event"] == "alert").collect()
}

#[test]
fn an_enrolment_string_in_a_file_admits_one_sandbox() {
    let (world, _tcp) = world_with_port();
    let sandbox = SandboxFiles::new();
    let string = enroll(&world, &["--name", "bench 7", "--ttl", "1h"]);
    let pin = world.cofferdam_text(&["key"]);
    assert!(string.starts_with(&format!("cofferdam:1:{}:", pin.trim())), "{string}");
    sandbox.put(&string);
    let mut shim = sandbox.connected();
    assert_echo(&mut shim, "hello");
    assert!(!sandbox.enrolment_file().exists(), "the enrolment file was not removed after it was read");
    let file = std::fs::metadata(sandbox.state().join("enrolment.json")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);

    let status = sandbox.status();
    assert_eq!((&status["name"], &status["grant"]), (&json!("bench 7"), &json!("dev")), "{status}");
    assert_eq!((&status["servers"], &status["links"]), (&json!(["tools"]), &json!(1)), "{status}");
    assert_eq!(status["session"], world.sessions()[0]["session"], "{status}");
    assert!((1..=3600).contains(&status["expires-in-seconds"].as_u64().unwrap()), "{status}");
    assert!(status["link"].as_str().unwrap().starts_with("tls://127.0.0.1:"), "{status}");
    let text = String::from_utf8(sandbox.run(&["status"]).stdout).unwrap();
    for word in ["bench 7", "dev", "tools", "tls://"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert_echo(&mut shim, "undisturbed");
    assert!(alerts(&world).is_empty());
}

#[test]
fn a_restarted_sandbox_reconnects_although_its_environment_has_a_used_ticket() {
    let (world, _tcp) = world_with_port();
    let sandbox = SandboxFiles::new();
    let string = enroll(&world, &[]);
    let shim = |sandbox: &SandboxFiles| {
        let mut command = sandbox.command();
        command.env("COFFERDAM_ENROLL", &string);
        Harness::start(command, "cofferdam-shim")
    };
    for round in 0..3 {
        let mut harness = shim(&sandbox);
        harness.initialize();
        assert_echo(&mut harness, &format!("round {round}"));
        harness.close_stdin();
        harness.wait_for_exit();
    }
    // A new string beside a valid key is not used.
    sandbox.put(&enroll(&world, &[]));
    let mut harness = shim(&sandbox);
    harness.initialize();
    assert_echo(&mut harness, "still the key");
    assert!(sandbox.enrolment_file().exists());
    assert!(alerts(&world).is_empty(), "{:?}", alerts(&world));
}

#[test]
fn after_a_restart_of_the_sidecar_every_sandbox_reconnects() {
    let (mut world, _tcp) = world_with_port();
    let sandbox = SandboxFiles::enrolled(&world);
    let unused = enroll(&world, &["--ticket-ttl", "1h"]);
    let mut shim = sandbox.connected();
    assert_echo(&mut shim, "before");
    world.stop_sidecar();
    world.start_sidecar();
    assert_echo(&mut shim, "after an orderly stop");
    let mut other = sandbox.connected();
    world.kill9_sidecar();
    world.start_sidecar();
    assert_echo(&mut shim, "after kill -9");
    assert_echo(&mut other, "the other one too");
    let mut later = sandbox.connected();
    assert_echo(&mut later, "and a new one");
    let newcomer = SandboxFiles::new();
    newcomer.put(&unused);
    assert_echo(&mut newcomer.connected(), "a ticket from before");
    assert!(alerts(&world).is_empty(), "{:?}", alerts(&world));
}

#[test]
fn a_lost_welcome_does_not_use_up_the_ticket() {
    let (world, tcp) = world_with_port();
    let sandbox = SandboxFiles::enrolled(&world);
    // The first Hello has the ticket, later ones an epoch.
    for round in 1..=3 {
        tcp.drop_the_next_welcome();
        let mut shim = sandbox.connected();
        assert_eq!(tcp.dropped(), round, "the response to the Hello was not dropped");
        assert_echo(&mut shim, "after a lost answer");
        shim.close_stdin();
        shim.wait_for_exit();
    }
    assert!(alerts(&world).is_empty(), "{:?}", alerts(&world));
}

#[test]
fn shims_that_start_together_share_one_ticket_and_one_session() {
    let (world, _tcp) = world_with_port();
    let sandbox = SandboxFiles::enrolled(&world);
    let mut shims: Vec<Harness> = (0..5).map(|_| sandbox.shim()).collect();
    let ids: Vec<Value> = shims.iter_mut().map(Harness::send_initialize).collect();
    for (shim, id) in shims.iter_mut().zip(&ids) {
        let answer = shim.answer_to(id);
        assert!(answer.get("result").is_some(), "{answer}");
    }
    let sessions = world.sessions();
    let sessions = sessions.as_array().unwrap();
    assert_eq!(sessions.len(), 5);
    assert!(sessions.iter().all(|link| link["session"] == sessions[0]["session"]), "{sessions:?}");
    assert!(alerts(&world).is_empty(), "{:?}", alerts(&world));
}

#[test]
fn a_running_shim_finds_its_enrolment_string() {
    let (world, _tcp) = world_with_port();
    let sandbox = SandboxFiles::new();
    let mut shim = sandbox.shim();
    let id = shim.send_initialize();
    wait_until("stderr says what is missing", || shim.stderr().contains("no enrolment"));
    assert!(shim.stderr().contains("`cofferdam enroll`"), "{}", shim.stderr());
    sandbox.put("cofferdam:1:torn");
    wait_until("stderr says what is wrong", || shim.stderr().contains("cannot be used"));
    sandbox.put(&enroll(&world, &[]));
    let answer = shim.answer_to(&id);
    assert!(answer.get("result").is_some(), "{answer}");
    let printed = shim.stderr();
    let missing = printed.lines().filter(|line| line.contains("no enrolment")).count();
    assert_eq!(missing, 1, "each problem is reported once: {printed}");
}

#[test]
fn invalid_tickets_are_refused_with_distinct_reasons() {
    let (world, _tcp) = world_with_port();
    let string = enroll(&world, &[]);
    let (other_world, _other_tcp) = world_with_port();

    let first = SandboxFiles::new();
    first.put(&string);
    assert_echo(&mut first.connected(), "first");
    let second = SandboxFiles::new();
    second.put(&string);
    assert_refused_everywhere(&second, "ticket_refused", "used before");
    assert_eq!(
        alerts(&world).len(),
        2,
        "not two alerts, for the shim and for `status`: {:?}",
        alerts(&world)
    );
    assert!(alerts(&world)[0]["detail"].as_str().unwrap().contains("ticket was used a second time"));

    let late = SandboxFiles::new();
    late.put(&enroll(&world, &["--ticket-ttl", "1s"]));
    let string = std::fs::read_to_string(late.enrolment_file()).unwrap();
    wait_until("the ticket expires", || world.log().contains("enrolment expired"));
    late.put(&string);
    assert_refused_everywhere(&late, "ticket_refused", "expired before it was used");

    // The right sidecar and key, with the ticket of another sidecar.
    let parts = |string: &str| string.splitn(5, ':').map(str::to_owned).collect::<Vec<_>>();
    let (mut mixed, of_other) = (parts(&enroll(&world, &[])), parts(&enroll(&other_world, &[])));
    mixed[3].clone_from(&of_other[3]);
    let foreign = SandboxFiles::new();
    foreign.put(&mixed.join(":"));
    assert_refused_everywhere(&foreign, "ticket_refused", "unknown to this sidecar");
    assert_echo(&mut first.connected(), "undisturbed");
}

#[test]
fn a_refused_sandbox_is_enrolled_again_without_a_restart() {
    let (world, _tcp) = world_with_port();
    let sandbox = SandboxFiles::new();
    sandbox.put(&enroll(&world, &["--ttl", "2s"]));
    let mut shim = sandbox.connected();
    assert_echo(&mut shim, "while it lasts");
    wait_until("the enrolment expires", || shim.stderr().contains("the enrolment has expired"));
    let answer = shim.call("echo", json!({"text": "too late"}));
    assert_eq!(refusal_of(&answer), "session_ended", "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("`cofferdam enroll`"), "{answer}");
    assert_eq!(world.sessions(), json!([]));

    sandbox.put(&enroll(&world, &[]));
    wait_until("the sandbox is connected again", || !world.sessions().as_array().unwrap().is_empty());
    assert_echo(&mut shim, "anew");
    assert_echo(&mut sandbox.connected(), "and so does the next one");
    assert!(alerts(&world).is_empty(), "{:?}", alerts(&world));
}

#[test]
fn a_new_enrolment_string_is_used_at_once_if_the_old_enrolment_has_ended() {
    let (world, _tcp) = world_with_port();
    let sandbox = SandboxFiles::enrolled(&world);
    let mut shim = sandbox.connected();
    assert_echo(&mut shim, "before");
    shim.close_stdin();
    shim.wait_for_exit();
    let session_file = std::fs::read_dir(world.layout().state.join("enrolments")).unwrap().next().unwrap();
    let enrolment = session_file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned();
    world.cofferdam_text(&["kill", &enrolment]);
    sandbox.put(&enroll(&world, &[]));
    assert_echo(&mut sandbox.connected(), "the harness saw no refusal");
}

#[test]
fn kill_ends_the_enrolment_and_its_shims_get_the_next_step() {
    let (world, _tcp) = world_with_port();
    let (sandbox, neighbour) = (SandboxFiles::enrolled(&world), SandboxFiles::enrolled(&world));
    let mut shims: Vec<Harness> = (0..2).map(|_| sandbox.connected()).collect();
    let mut other = neighbour.connected();
    let session = sandbox.status()["session"].as_str().unwrap().to_owned();
    let killed = world.cofferdam_text(&["kill", &session]);
    assert_eq!(killed.matches("link l").count(), 2, "{killed}");
    assert!(killed.contains("ended after") && killed.contains("enrolment e"), "{killed}");
    for shim in &mut shims {
        let answer = shim.call("echo", json!({"text": "after the end"}));
        assert_eq!(refusal_of(&answer), "session_ended", "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("`cofferdam enroll`"), "{answer}");
        wait_until("the message is on stderr", || shim.stderr().contains("`cofferdam enroll`"));
    }
    assert_refused_everywhere(&sandbox, "session_ended", "ended on the host");
    assert_echo(&mut other, "undisturbed");
    let ends = world.audit().into_iter().filter(|record| record["event"] == "link_end");
    assert!(ends.filter(|end| end["detail"].as_str().unwrap().starts_with("killed")).count() >= 2);
}

#[test]
fn a_sidecar_with_another_key_than_the_pinned_one_is_refused() {
    let (world, _tcp) = world_with_port();
    let sandbox = SandboxFiles::new();
    let string = enroll(&world, &[]);
    let (start, rest) = string.split_at("cofferdam:1:".len());
    let flipped = if rest.starts_with('0') { "1" } else { "0" };
    sandbox.put(&format!("{start}{flipped}{}", &rest[1..]));
    let mut shim = sandbox.shim();
    shim.send_initialize();
    wait_until("stderr has the problem", || shim.stderr().contains("connect to tls://"));
    let message = sandbox.status()["trouble"]["message"].as_str().unwrap().to_owned();
    assert!(
        shim.stderr().contains(&message),
        "stderr does not have the message of `status`: {message} / {}",
        shim.stderr()
    );
    assert_eq!(world.sessions(), json!([]));
    let second = SandboxFiles::new();
    second.put(&string);
    assert_echo(&mut second.connected(), "the ticket was not used up");
}

#[test]
fn an_unwritable_state_directory_is_reported_and_uses_up_no_ticket() {
    let (world, _tcp) = world_with_port();
    let sandbox = SandboxFiles::enrolled(&world);
    std::fs::write(sandbox.state(), "a file in the way").unwrap();
    let mut shim = sandbox.shim();
    let id = shim.send_initialize();
    wait_until("stderr has the problem", || shim.stderr().contains("COFFERDAM_STATE"));
    assert!(sandbox.status()["trouble"]["message"].as_str().unwrap().contains("COFFERDAM_STATE"));
    std::fs::remove_file(sandbox.state()).unwrap();
    let answer = shim.answer_to(&id);
    assert!(answer.get("result").is_some(), "{answer}");
}

#[test]
fn a_socket_is_created_for_one_sandbox() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    let directory = world.layout().root().join("box");
    let link = enroll(&world, &["--socket", directory.to_str().unwrap(), "--name", "box"]);
    assert_eq!(link, format!("unix:{}/relay.sock", directory.display()));
    let sandbox = SandboxFiles::new();
    let shim = |link: &str| {
        let mut command = sandbox.command();
        command.args(["--relay", link]);
        let mut harness = Harness::start(command, "cofferdam-shim");
        let answer = harness.initialize();
        (harness, answer)
    };
    let ((mut first, _), (mut second, _)) = (shim(&link), shim(&link));
    assert_echo(&mut first, "one");
    assert_echo(&mut second, "two");
    let sessions = world.sessions();
    assert_eq!(
        sessions[0]["session"], sessions[1]["session"],
        "the links have different sessions: {sessions}"
    );
    let status: Value =
        serde_json::from_slice(&sandbox.run(&["status", "--json", "--relay", &link]).stdout).unwrap();
    assert_eq!((&status["name"], &status["links"]), (&json!("box"), &json!(2)), "{status}");

    world.kill9_sidecar();
    world.start_sidecar();
    assert_echo(&mut first, "the socket is there again");
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    world.cofferdam_text(&["kill", &session]);
    assert_eq!(refusal_of(&first.call("echo", json!({"text": "x"}))), "session_ended");
    assert!(!directory.join("relay.sock").exists(), "the socket exists although its enrolment has ended");
    enroll(&world, &["--socket", directory.to_str().unwrap()]);
    assert_echo(&mut shim(&link).0, "another sandbox has it now");
}

#[test]
fn a_socket_is_not_created_in_a_directory_in_use() {
    let world = World::new().server("tools", Server::fixture()).start();
    let root = world.layout().root().to_owned();
    let in_use = root.join("in-use");
    enroll(&world, &["--socket", in_use.to_str().unwrap()]);
    let (full, open, link) = (root.join("full"), root.join("open"), root.join("link"));
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("file"), "").unwrap();
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::os::unix::fs::symlink(&world.layout().state, &link).unwrap();
    let inside = |path: &std::path::Path, name: &str| path.join(name).to_str().unwrap().to_owned();
    let refused = [
        ("relative", "absolute"),
        ("/tmp", "other users"),
        (root.to_str().unwrap(), "not for this sandbox alone"),
        (world.layout().state.to_str().unwrap(), "state-dir"),
        (&inside(&world.layout().state, "box"), "state-dir"),
        (&inside(&link, "box"), "state-dir"),
        (world.layout().relay.parent().unwrap().to_str().unwrap(), "relay.unix"),
        (world.layout().admin.parent().unwrap().to_str().unwrap(), "admin.socket"),
        (in_use.to_str().unwrap(), "cofferdam kill"),
        (&inside(&in_use, "below"), "in-use"),
        (full.to_str().unwrap(), "file"),
        (open.to_str().unwrap(), "other users"),
    ];
    for (directory, word) in refused {
        let output = world.cofferdam(&["enroll", "--grant", "dev", "--socket", directory]);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{directory}: {printed}");
        assert!(printed.contains(word), "{directory}: {word} in {printed}");
    }
    assert!(std::fs::metadata(in_use.join("relay.sock")).unwrap().file_type().is_socket());
}

#[test]
fn users_that_are_not_listed_may_not_use_a_sandboxs_own_socket() {
    let mut world = World::new().server("tools", Server::fixture()).relay("unix-uids = [4242]").prepare();
    world.launch();
    let directory = world.layout().root().join("box");
    wait_until("the sidecar answers", || world.cofferdam(&["sessions"]).status.success());
    let link = enroll(&world, &["--socket", directory.to_str().unwrap()]);
    let output = SandboxFiles::new().run(&["status", "--json", "--relay", &link]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(status["trouble"]["message"].as_str().unwrap().contains("unix-uids"), "{status}");
}

#[test]
fn invalid_enrolments_are_refused_with_the_reason() {
    let world = World::new().server("tools", Server::fixture()).start();
    let refused: [(&[&str], &str); 5] = [
        (&["--grant", "dev"], "relay.tls"),
        (&["--grant", "unknown"], "`dev`"),
        (&["--grant", "dev", "--ttl", "9h"], "allows (8h)"),
        (&["--grant", "dev", "--ttl", "10ms", "--socket", "/x"], "at least a second"),
        (&["--grant", "dev", "--name", "a\u{1b}b", "--socket", "/x/y"], "control characters"),
    ];
    for (arguments, word) in refused {
        let output = world.cofferdam(&[&["enroll"], arguments].concat());
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}: {printed}");
        assert!(printed.contains(word), "{arguments:?}: {word} in {printed}");
    }
    let output = world.cofferdam(&["kill", "s0000000000000000"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no session, enrolment or sandbox"));
}

#[test]
fn the_shared_socket_has_a_status_too() {
    let world = World::new().server("tools", Server::fixture()).start();
    let output = SandboxFiles::new().run(&["status", "--json", "--relay", &world.link()]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&status["grant"], &status["servers"]), (&json!("dev"), &json!(["tools"])), "{status}");
    assert_eq!(world.sessions(), json!([]), "nothing was opened");
    let unreachable = SandboxFiles::new().run(&["status", "--relay", "unix:/nonexistent"]);
    assert_eq!(unreachable.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&unreachable.stderr).contains("unix:/nonexistent"));
}
