//! The decision is written before the call is made, and a changed record is found.

use std::process::Output;

use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

#[test]
fn a_call_has_a_decision_and_an_outcome() {
    let world = World::new()
        .secret_file("local", "value-of-the-secret-1")
        .server("tools", Server::fixture().env("SECRET", "{local.value}"))
        .start();
    let mut shim = world.connected("tools");
    shim.call("echo", json!({"text": "argument-that-is-not-recorded"}));
    world.wait_until("the outcome is written", || !world.outcomes().is_empty());
    let (decision, outcome) = (&world.decisions()[0], &world.outcomes()[0]);
    assert_eq!(
        (&decision["verdict"], &decision["tool"], &decision["server"]),
        (&json!("allow"), &json!("echo"), &json!("tools"))
    );
    assert_eq!(decision["secrets"][0]["name"], "local");
    for key in ["session", "link", "seq", "rule", "policy", "args"] {
        assert!(decision.get(key).is_some(), "{key} in {decision}");
    }
    for key in ["session", "link", "seq"] {
        assert_eq!(decision[key], outcome[key]);
    }
    assert_eq!(outcome["result"], "result");
    assert!(!String::from_utf8_lossy(&world.audit_bytes()).contains("argument-that-is-not-recorded"));
}

/// The server dies in the call, so the decision was recorded before it.
#[test]
fn the_decision_of_a_call_that_killed_its_server_is_recorded() {
    let world = World::new().server("tools", Server::fixture()).start();
    world.connected("tools").call("crash", json!({}));
    assert_eq!(world.decisions()[0]["tool"], "crash");
    world.wait_until("the audit records an unknown outcome", || {
        world.outcomes().first().is_some_and(|outcome| outcome["result"] == "outcome_unknown")
    });
}

#[test]
fn an_unchanged_audit_verifies() {
    let world = world_with_three_calls();
    assert!(verify(&world, &[]).status.success());
    let tail = world.cofferdam_text(&["audit", "tail"]);
    assert!(tail.contains("echo"), "{tail}");
    let session = world.decisions()[0]["session"].as_str().unwrap().to_owned();
    let shown = world.cofferdam_text(&["audit", "show", &session]);
    assert!(shown.contains("echo"), "{shown}");
}

#[test]
fn one_session_link_or_call_can_be_shown() {
    let world = world_with_three_calls();
    let other = world.connected("tools").call_text("count", json!({}));
    assert_eq!(other, "ran count");
    let decision = &world.decisions()[1];
    let name = |key: &str| decision[key].as_str().expect("a decision names it").to_owned();
    let (session, link, seq) = (name("session"), name("link"), decision["seq"].to_string());
    let show = |id: &str| -> Vec<Value> {
        let text = world.cofferdam_text(&["audit", "show", id, "--json"]);
        text.lines().map(|line| serde_json::from_str(line).expect("each line is a record")).collect()
    };
    for id in [session.clone(), link.clone(), format!("{session}/{link}")] {
        let records = show(&id);
        assert!(records.iter().filter(|record| record["tool"] == "echo").count() == 6, "{id}: {records:?}");
        assert!(records.iter().all(|record| record["session"] == json!(session)), "{id}: {records:?}");
    }
    let one = show(&format!("{session}/{link}/{seq}"));
    assert_eq!(one.len(), 2, "a decision and an outcome: {one:?}");
    assert!(one.contains(decision) && one[1]["result"] == "result", "{one:?}");
    assert!(!world.cofferdam(&["audit", "show", "s0000000000000000"]).status.success());
}

#[test]
fn sessions_lists_the_sessions() {
    let world = World::new()
        .secret_file("local", "value-of-the-secret-2")
        .server("tools", Server::fixture().env("SECRET", "{local.value}").deny(&["write_*"]))
        .start();
    assert_eq!(world.sessions(), json!([]));
    let mut shim = world.connected("tools");
    shim.call("leak", json!({}));
    shim.call("write_file", json!({}));
    let slow = shim.send_call("slow", json!({"ms": 60_000}));
    world.wait_until("the call runs", || world.times_executed("tools", "slow") == 1);
    let sessions = world.sessions();
    let (session, decision) = (&sessions[0], &world.decisions()[0]);
    for key in ["session", "link", "server"] {
        assert_eq!(session[key], decision[key], "{key} in {session}");
    }
    let expected = json!({
        "grant": "dev", "connected": true, "pid": world.fixture_processes("tools")[0], "in-flight": 1,
        "calls": 3, "refused": 1, "redactions": 1, "secrets": ["local"],
    });
    for (key, value) in expected.as_object().expect("it is one") {
        assert_eq!(session[key], *value, "{key} in {session}");
    }
    let table = world.cofferdam_text(&["sessions"]);
    assert!(table.contains(session["session"].as_str().expect("it has a name")), "{table}");
    shim.kill9();
    world
        .wait_until("the link is shown as disconnected", || world.sessions()[0]["connected"] == json!(false));
    drop(slow);
}

#[test]
fn a_changed_line_is_found() {
    let mut world = world_with_three_calls();
    world.stop_sidecar();
    tamper(&world, |lines| {
        let place = lines.iter().position(|line| line.contains("\"echo\"")).expect("there was a call");
        lines[place] = lines[place].replace("\"echo\"", "\"ohce\"");
        place
    });
}

#[test]
fn a_missing_line_is_found() {
    let mut world = world_with_three_calls();
    world.stop_sidecar();
    tamper(&world, |lines| {
        lines.remove(2);
        2
    });
}

#[test]
fn reordered_lines_are_found() {
    let mut world = world_with_three_calls();
    world.stop_sidecar();
    tamper(&world, |lines| {
        lines.swap(2, 3);
        2
    });
}

#[test]
fn a_truncated_audit_is_detected_with_its_last_hash() {
    let mut world = world_with_three_calls();
    world.stop_sidecar();
    let head = world
        .audit()
        .last()
        .and_then(|record| record["chain"].as_str().map(str::to_owned))
        .expect("records carry their hash");
    assert!(verify(&world, &["--head", &head]).status.success());
    let file = world.audit_files().pop().expect("there is an audit file");
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    std::fs::write(&file, lines[..lines.len() - 2].join("\n") + "\n").unwrap();
    assert!(verify(&world, &[]).status.success(), "a shorter chain is valid by itself");
    assert!(!verify(&world, &["--head", &head]).status.success());
}

#[test]
fn an_incomplete_last_line_is_marked_at_the_next_start() {
    let mut world = world_with_three_calls();
    world.kill9_sidecar();
    let file = world.audit_files().pop().expect("there is an audit file");
    let mut text = std::fs::read_to_string(&file).unwrap();
    text.push_str("{\"time\":\"2026-01-01T00:00:00Z\",\"ki");
    std::fs::write(&file, text).unwrap();
    world.start_sidecar();
    let mut shim = world.connected("tools");
    shim.call("echo", json!({"text": "after the restart"}));
    let verified = verify(&world, &[]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
}

#[test]
fn files_rotate_and_the_chain_continues() {
    let world = World::new().server("tools", Server::fixture()).limit("audit-file-bytes = \"64KiB\"").start();
    let mut shim = world.connected("tools");
    for _ in 0..200 {
        shim.call("echo", json!({"text": "x"}));
    }
    assert!(world.audit_files().len() > 1, "{:?}", world.audit_files());
    assert!(verify(&world, &[]).status.success());
}

#[test]
fn one_session_cannot_fill_the_disk() {
    let world =
        World::new().server("tools", Server::fixture()).limit("audit-session-bytes = \"64KiB\"").start();
    let mut flooding = world.connected("tools");
    let mut refused = None;
    for _ in 0..400 {
        let response = flooding.call("echo", json!({"text": "x"}));
        if response.get("error").is_some() {
            refused = Some(response);
            break;
        }
    }
    assert!(refused.is_some(), "no call was refused although the audit budget is used up");
    let executed = world.times_executed("tools", "echo");
    flooding.call("echo", json!({"text": "x"}));
    assert_eq!(world.times_executed("tools", "echo"), executed);
    assert_eq!(world.connected("tools").call_text("echo", json!({"text": "others go on"})), "others go on");
}

#[test]
fn the_audit_can_be_synced_at_every_call() {
    let world = World::new().line("audit-sync = \"call\"").server("tools", Server::fixture()).start();
    assert_eq!(world.connected("tools").call_text("echo", json!({"text": "synced"})), "synced");
}

fn world_with_three_calls() -> World {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    for number in 0..3 {
        shim.call("echo", json!({"text": number.to_string()}));
    }
    world.wait_until("three outcomes are written", || world.outcomes().len() == 3);
    world
}

/// Applies `change` to the only audit file; `verify` must fail and name the line (counted from one) or the next.
#[track_caller]
fn tamper(world: &World, change: impl FnOnce(&mut Vec<String>) -> usize) {
    let file = world.audit_files().pop().expect("there is an audit file");
    let mut lines: Vec<String> =
        std::fs::read_to_string(&file).expect("it is readable").lines().map(str::to_owned).collect();
    let place = change(&mut lines) + 1;
    std::fs::write(&file, lines.join("\n") + "\n").expect("it is writable");
    let verified = verify(world, &[]);
    let printed =
        String::from_utf8_lossy(&[verified.stdout.clone(), verified.stderr.clone()].concat()).into_owned();
    assert!(!verified.status.success(), "{printed}");
    let names =
        |line: usize| printed.contains(&format!(":{line}")) || printed.contains(&format!("line {line}"));
    assert!(names(place) || names(place + 1), "neither line {place} nor the next is named: {printed}");
}

fn verify(world: &World, arguments: &[&str]) -> Output {
    world.cofferdam(&[&["audit", "verify"], arguments].concat())
}
