//! The decision is written before the call is made, and a changed record is found.

use std::process::Output;

use cofferdam_tests::harness::Harness;
use cofferdam_tests::own_socket::OwnSocket;
use cofferdam_tests::relay::{Next, RawRelay, hello};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use relay_proto::control::{Goodbye, Retry};
use relay_proto::frame::Frame;
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

/// The beginning of a record.
const TORN: &str = "{\"time\":\"2026-01-01T00:00:00Z\",\"ki";

#[test]
fn an_incomplete_last_line_is_marked_at_the_next_start() {
    let mut world = world_with_three_calls();
    world.kill9_sidecar();
    let file = world.audit_files().pop().expect("there is an audit file");
    let mut text = std::fs::read_to_string(&file).unwrap();
    let torn_line = text.lines().count() + 1;
    text.push_str(TORN);
    std::fs::write(&file, text).unwrap();
    world.start_sidecar();
    let mut shim = world.connected("tools");
    shim.call("echo", json!({"text": "after the restart"}));
    let verified = verify(&world, &[]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let printed = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(
        printed.contains(&format!("audit-00000001.jsonl:{torn_line}")),
        "the line is not named: {printed}"
    );
    let lines = std::fs::read_to_string(&file).unwrap();
    let kept = lines.lines().nth(torn_line - 1).expect("the incomplete line is kept");
    assert_eq!(kept, TORN);
    let mark: Value = serde_json::from_str(lines.lines().nth(torn_line).expect("a record follows")).unwrap();
    assert_eq!((&mark["event"], &mark["torn_bytes"]), (&json!("torn"), &json!(TORN.len())));
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

/// The budget belongs to the sandbox, not to its session, and comes back with time.
#[test]
fn one_sandbox_cannot_fill_the_disk_with_new_sessions() {
    OwnSocket::for_both(world_with_a_small_budget, assert_new_sessions_get_no_new_budget);
}

#[test]
fn a_used_up_audit_budget_refills() {
    let world = world_with_a_small_budget().start();
    let mut flooding = world.connected("tools");
    call_until_refused(&mut flooding);
    world.wait_until("the budget has refilled", || {
        flooding.call("echo", json!({"text": "x"})).get("result").is_some()
    });
}

/// The records of a link count, although it makes no call; those of its end were reserved, so that none is missing.
#[test]
fn links_in_a_loop_write_no_more_than_the_budget_of_their_sandbox() {
    let builder = || World::new().server("tools", Server::fixture()).limit("audit-session-bytes = \"64KiB\"");
    OwnSocket::for_both(builder, assert_links_are_bounded);
}

fn assert_links_are_bounded(world: &World, sandbox: &OwnSocket<'_>) {
    let mut other = OwnSocket::enrolled(world, "other").connected("tools");
    let size = || world.audit_bytes().len();
    let before = size();
    let goodbye = || {
        let (code, message) = ("done".into(), String::new());
        Frame::Goodbye(Goodbye { code, message, retry: Retry::Never })
    };
    let (mut opened, mut refusals) = (0, Vec::new());
    // A link that is still ending holds some bytes, which the next one may use.
    while refusals.len() < 50 {
        let mut relay = RawRelay::connect(sandbox.path());
        match relay.open_with(hello("tools", &[1])) {
            Frame::Welcome(_) => {
                opened += 1;
                assert!(opened < 300, "{} bytes were written", size() - before);
                relay.send_frame(&goodbye());
                while !matches!(relay.next_frame(), Next::Closed) {}
            }
            Frame::Refusal(refusal) => refusals.push(refusal),
            frame => panic!("expected a Welcome or a Refusal, not {frame:?}"),
        }
    }
    let refusal = &refusals[0];
    assert!(opened > 10, "{opened} links");
    assert_eq!(refusal.code, "relay_unavailable");
    assert!(
        refusal.message.contains("`audit-session-bytes`") && refusal.message.contains("audit-refill-time"),
        "the refusal does not name the limit: {}",
        refusal.message
    );
    assert!(matches!(refusal.retry, Retry::AfterMs(pause) if pause >= 2000), "{:?}", refusal.retry);
    let starts_and_ends = || {
        let audit = world.audit();
        let count = |event: &str| audit.iter().filter(|record| record["event"] == event).count();
        // Without those of the other sandbox.
        (count("link_start") - 1, count("link_end"))
    };
    world.wait_until("the end of each link is in the audit", || starts_and_ends() == (opened, opened));
    // The budget, and one record that it is used up.
    assert!(size() - before <= 64 * 1024 + 1024, "{} bytes", size() - before);
    assert_eq!(other.call_text("echo", json!({"text": "others go on"})), "others go on");
    assert!(verify(world, &[]).status.success());
}

fn world_with_a_small_budget() -> Builder {
    World::new()
        .server("tools", Server::fixture())
        .limit("audit-session-bytes = \"64KiB\"\naudit-refill-time = \"2m\"")
}

fn assert_new_sessions_get_no_new_budget(world: &World, sandbox: &OwnSocket<'_>) {
    let mut other = OwnSocket::enrolled(world, "other").connected("tools");
    let mut flooding = sandbox.connected("tools");
    let refusal = call_until_refused(&mut flooding);
    assert!(
        refusal.contains("`audit-session-bytes`") && refusal.contains("audit-refill-time"),
        "the refusal does not name the limit: {refusal}"
    );
    let executed = world.times_executed("tools", "echo");
    flooding.call("echo", json!({"text": "x"}));
    assert_eq!(world.times_executed("tools", "echo"), executed);
    let end_session = |harness: &mut Harness| {
        harness.close_stdin();
        world.wait_until("only the other sandbox has a session", || {
            world.sessions().as_array().is_some_and(|sessions| sessions.len() == 1)
        });
    };
    end_session(&mut flooding);
    for _ in 0..3 {
        let mut new_session = sandbox.shim("tools");
        let response = new_session.initialize();
        assert!(response.get("error").is_some(), "a new session got a new budget: {response}");
        end_session(&mut new_session);
    }
    assert_eq!(other.call_text("echo", json!({"text": "others go on"})), "others go on");
}

#[test]
fn one_sandbox_leaves_room_on_the_disk_for_the_others() {
    let world = World::new().server("tools", Server::fixture()).state_on_tmpfs(512).start();
    let mut enrolled = OwnSocket::enrolled(&world, "other").connected("tools");
    let refusal = call_until_refused(&mut world.connected("tools"));
    assert!(refusal.contains("`audit-total-bytes`") && refusal.contains("audit prune"), "{refusal}");
    for _ in 0..20 {
        assert_eq!(enrolled.call_text("echo", json!({"text": "others go on"})), "others go on");
    }
}

#[test]
fn old_files_are_pruned_while_the_sidecar_runs_and_the_rest_verifies() {
    let mut world =
        World::new().server("tools", Server::fixture()).limit("audit-file-bytes = \"4KiB\"").start();
    let mut shim = world.connected("tools");
    for _ in 0..100 {
        shim.call("echo", json!({"text": "x"}));
    }
    let before = world.audit_files().len();
    let pruned = world.cofferdam_text(&["audit", "prune", "--keep", "16KiB"]);
    assert!(pruned.starts_with("removed ") && world.audit_files().len() < before, "{pruned}");
    shim.call("echo", json!({"text": "the chain goes on"}));
    world.stop_sidecar();
    world.start_sidecar();
    assert_eq!(world.connected("tools").call_text("echo", json!({"text": "restarted"})), "restarted");
    let verified = verify(&world, &[]);
    let printed = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(
        verified.status.success() && printed.contains("were removed by `cofferdam audit prune`"),
        "{printed}"
    );

    assert!(!world.cofferdam(&["audit", "prune"]).status.success(), "it is not said what to keep");
    std::fs::remove_file(world.audit_files().first().expect("some files are left")).unwrap();
    assert_eq!(verify(&world, &[]).status.code(), Some(65), "a file was removed without `prune`");
    let refused = world.cofferdam(&["audit", "prune", "--keep", "0B"]);
    assert_eq!(refused.status.code(), Some(65), "a damaged audit was pruned");
}

#[test]
fn a_mistyped_head_and_a_missing_audit_are_no_tamper_alarm() {
    let mut world = world_with_three_calls();
    world.stop_sidecar();
    let printed = verify(&world, &[]);
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let head = printed.lines().find_map(|line| line.strip_prefix("head ")).expect("`verify` prints the head");
    let wrong_digit = if head.ends_with('0') { '1' } else { '0' };
    for mistyped in [&head[..63], &format!("{}{wrong_digit}", &head[..63])] {
        let failed = verify(&world, &["--head", mistyped]);
        let message = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert_eq!(failed.status.code(), Some(64), "{message}");
        assert!(!message.contains("changed") && message.contains("copy the whole hash"), "{message}");
    }
    for file in world.audit_files() {
        std::fs::remove_file(file).unwrap();
    }
    assert_eq!(verify(&world, &[]).status.code(), Some(66), "an empty directory");
    std::fs::remove_dir_all(world.layout().state.join("audit")).unwrap();
    let failed = verify(&world, &[]);
    assert_eq!(failed.status.code(), Some(66), "no directory");
    assert!(String::from_utf8_lossy(&failed.stderr).contains("state-dir"));
}

#[test]
fn a_full_disk_does_not_flood_the_log() {
    let world = World::new().server("tools", Server::fixture()).state_on_tmpfs(512).start();
    let mut shim = world.connected("tools");
    shim.call("count", json!({}));
    world.fill_the_state_directory();
    let began = tokio::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_millis(2500) {
        shim.call("count", json!({}));
    }
    let log = world.log();
    let lines = log.lines().filter(|line| line.contains("not recorded")).count();
    assert!(lines > 0, "nothing is logged");
    // Ten a second of each of three kinds, and some for the beginning of a window.
    let most = 30 * (began.elapsed().as_secs() as usize + 2);
    assert!(lines <= most, "{lines} lines in {:?}", began.elapsed());
    assert!(
        log.lines().any(|line| line.contains("not recorded")
            && line.contains("left_out=")
            && !line.contains("left_out=0")),
        "no line tells how many were left out: {log}"
    );
}

/// Calls until a call is refused; the text of the refusal.
#[track_caller]
fn call_until_refused(harness: &mut Harness) -> String {
    for _ in 0..2000 {
        let response = harness.call("echo", json!({"text": "x"}));
        if let Some(error) = response.get("error") {
            return error["message"].as_str().expect("errors have a message").to_owned();
        }
    }
    panic!("no call was refused although the audit budget is used up")
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

/// Applies `change` to the only audit file; `verify` must fail and name the line that `change` returns (counted from zero).
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
    assert!(printed.contains(&format!(".jsonl:{place}: ")), "line {place} is not named: {printed}");
}

fn verify(world: &World, arguments: &[&str]) -> Output {
    world.cofferdam(&[&["audit", "verify"], arguments].concat())
}
