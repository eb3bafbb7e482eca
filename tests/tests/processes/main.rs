//! Processes end with their session, and a request that may have run is never run again.

mod shell_servers;

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam_tests::deadline::holds_within;
use cofferdam_tests::harness::{refusal_of, text_of};
use cofferdam_tests::process::{command_line, is_alive, is_stopped, keeper_of, peak_memory_kib, send};
use cofferdam_tests::relay::RawRelay;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use relay_proto::frame::{MaybeRan, Origin};
use serde_json::{Value, json};

/// The timeout for processes to exit: the promise is 5 s, doubled for a loaded machine.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn after_kill_9_of_the_sidecar_no_server_process_is_left() {
    for mode in ["plain", "ignores-term", "double-fork"] {
        let mut world = World::new().server("tools", Server::fixture_that(mode)).start();
        let _shim = world.connected("tools");
        wait_until_all_started(&world, mode);
        world.kill9_sidecar();
        assert_all_gone(&world, mode);
    }
}

#[test]
fn after_kill_9_of_the_shim_no_server_process_is_left() {
    for mode in ["plain", "ignores-term", "double-fork"] {
        let world =
            World::new().server("tools", Server::fixture_that(mode)).relay("resume-grace = \"1s\"").start();
        let mut shim = world.connected("tools");
        wait_until_all_started(&world, mode);
        shim.kill9();
        assert_all_gone(&world, mode);
    }
}

#[test]
fn after_kill_9_of_the_keeper_no_server_process_is_left() {
    for mode in ["plain", "ignores-term", "double-fork"] {
        let mut world = World::new().server("tools", Server::fixture_that(mode)).start();
        let mut shim = world.connected("tools");
        wait_until_all_started(&world, mode);
        let before = world.fixture_processes("tools");
        let keeper = keeper_of(before[0], world.sidecar().id()).expect("the server runs");
        let slow = shim.send_call("slow", json!({"ms": 60_000}));
        world.wait_until("the call runs", || world.times_executed("tools", "slow") == 1);
        send(keeper, Signal::SIGKILL);
        assert_eq!(refusal_of(&shim.answer_to(&slow)), "outcome_unknown", "{mode}");
        assert!(
            holds_within(EXIT_TIMEOUT, || before.iter().all(|id| !is_alive(*id))),
            "{mode}: {}",
            survivors(&before)
        );
        assert_eq!(shim.call_text("echo", json!({"text": "again"})), "again");
    }
}

#[test]
fn the_end_of_input_ends_stubborn_servers_too() {
    for mode in ["ignores-term", "double-fork"] {
        let world = World::new().server("tools", Server::fixture_that(mode)).start();
        let mut shim = world.connected("tools");
        wait_until_all_started(&world, mode);
        shim.close_stdin();
        assert_all_gone(&world, mode);
    }
}

#[test]
fn an_orderly_stop_ends_everything() {
    for mode in ["plain", "double-fork"] {
        let mut world = World::new().server("tools", Server::fixture_that(mode)).start();
        let mut shim = world.connected("tools");
        wait_until_all_started(&world, mode);
        world.stop_sidecar();
        assert_all_gone(&world, mode);
        assert!(shim.is_running(), "the shim exited although its stdin is open");
    }
}

#[test]
fn a_killed_session_ends() {
    let world = World::new().server("tools", Server::fixture_that("double-fork")).start();
    let mut shim = world.connected("tools");
    wait_until_all_started(&world, "double-fork");
    shim.call("echo", json!({"text": "x"}));
    let session = world.decisions()[0]["session"].as_str().unwrap().to_owned();
    assert!(world.sessions().to_string().contains(&session));
    let printed = world.cofferdam_text(&["kill", &session]);
    assert!(
        printed.contains("link ") && printed.contains(" ms") && printed.contains("ended after "),
        "{printed}"
    );
    assert_all_gone(&world, "double-fork");
    let ends: Vec<_> = world.audit().into_iter().filter(|record| record["event"] == "link_end").collect();
    let detail = ends[0]["detail"].as_str().unwrap_or_default();
    assert!(detail.starts_with("killed; server ended after ") && detail.ends_with(" ms"), "{detail}");
    assert_eq!(refusal_of(&shim.call("echo", json!({"text": "y"}))), "session_ended");
    assert!(shim.is_running());
    assert!(!world.sessions().to_string().contains(&session));
    assert!(!world.cofferdam(&["kill", "no-such-session"]).status.success());
}

#[test]
fn a_session_can_be_killed_while_the_configuration_is_invalid() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    let valid = std::fs::read_to_string(&world.layout().config).unwrap();
    std::fs::write(&world.layout().config, format!("no-such-key = true\n{valid}")).unwrap();
    world.cofferdam_text(&["kill", &session]);
    assert_eq!(refusal_of(&shim.call("echo", json!({"text": "x"}))), "session_ended");
}

#[test]
fn calls_of_a_crashed_server_are_answered_at_once_and_it_is_restarted() {
    let world = World::new().server("tools", Server::fixture_that("demands-handshake")).start();
    let mut shim = world.connected("tools");
    let slow = shim.send_call("slow", json!({"ms": 60_000}));
    let crash = shim.send_call("crash", json!({}));
    assert_eq!(refusal_of(&shim.answer_to(&slow)), "outcome_unknown");
    assert_eq!(refusal_of(&shim.answer_to(&crash)), "outcome_unknown");
    // The harness makes no new handshake: the sidecar replays the first.
    assert_eq!(shim.call_text("echo", json!({"text": "back"})), "back");
    assert_eq!((world.times_executed("tools", "crash"), world.times_executed("tools", "slow")), (1, 1));
}

#[test]
fn a_cut_connection_is_resumed_unnoticed() {
    let world = World::new().server("tools", Server::fixture()).capturing().start();
    let mut shim = world.connected("tools");
    for round in 1..=3 {
        let slow = shim.send_call("slow", json!({"ms": 500}));
        world.wait_until("the call runs", || world.times_executed("tools", "slow") == round);
        world.cut_connections();
        assert_eq!(text_of(&shim.answer_to(&slow)), "late");
        assert_eq!(shim.call_text("echo", json!({"text": "again"})), "again");
    }
    assert_eq!(world.times_executed("tools", "slow"), 3, "a call ran twice");
    assert_eq!(world.fixture_processes("tools").len(), 1, "another process was started");
}

#[test]
fn a_restarted_sidecar_runs_nothing_twice() {
    for end in [End::Kill9, End::Orderly] {
        let mut world = World::new().server("tools", Server::fixture_that("demands-handshake")).start();
        let mut shim = world.connected("tools");
        let slow = shim.send_call("slow", json!({"ms": 60_000}));
        world.wait_until("the call runs", || world.times_executed("tools", "slow") == 1);
        match end {
            End::Kill9 => world.kill9_sidecar(),
            End::Orderly => world.stop_sidecar(),
        }
        world.start_sidecar();
        assert_eq!(refusal_of(&shim.answer_to(&slow)), "outcome_unknown");
        assert_eq!(shim.call_text("echo", json!({"text": "new sidecar"})), "new sidecar");
        assert_eq!(world.times_executed("tools", "slow"), 1);
    }
}

/// The sidecar is stopped before it can read the request, and killed: the audit shows that it was never forwarded.
#[test]
fn a_request_that_the_old_sidecar_never_decided_runs_on_the_new_one() {
    let mut world = World::new().server("tools", Server::fixture_that("demands-handshake")).start();
    let mut shim = world.connected("tools");
    assert_eq!(shim.call_text("echo", json!({"text": "before"})), "before");
    let sidecar = world.sidecar().id();
    send(sidecar, Signal::SIGSTOP);
    world.wait_until("every thread of the sidecar has stopped", || is_stopped(sidecar));
    let call = shim.send_call("count", json!({}));
    // The shim refuses this line itself, after it has sent the earlier message.
    shim.send_raw(b"no message\n");
    assert_eq!(refusal_of(&shim.answer_to(&Value::Null)), "message_malformed");
    world.kill9_sidecar();
    assert_eq!(world.decisions().len(), 1, "the request was decided: {:?}", world.decisions());
    world.start_sidecar();
    assert_eq!(text_of(&shim.answer_to(&call)), "ran count");
    assert_eq!(world.times_executed("tools", "count"), 1);
}

/// The same without a shim: the test claims in its message that a request may have run.
#[test]
fn the_audit_decides_what_may_have_run() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut sandbox = RawRelay::welcomed(&world.layout().relay, "tools");
    let call = |id: u32| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"count"}}}}"#)
    };
    let seq = sandbox.send_message(call(1).as_bytes(), MaybeRan::No);
    assert_eq!(text_of(&sandbox.next_message()), "ran count");
    let link: Box<str> = world.decisions()[0]["link"].as_str().expect("a decision names its link").into();
    let mut another = RawRelay::welcomed(&world.layout().relay, "tools");
    let claim = |seq| MaybeRan::Yes(Origin { link: link.clone(), seq });
    another.send_message(call(2).as_bytes(), claim(seq));
    assert_eq!(refusal_of(&another.next_message()), "outcome_unknown", "it was decided, so it may have run");
    assert_eq!(world.times_executed("tools", "count"), 1);
    another.send_message(call(3).as_bytes(), claim(seq + 1));
    assert_eq!(text_of(&another.next_message()), "ran count", "it was never decided, so it did not run");
}

#[test]
fn an_expired_session_ends() {
    let mut world = World::new().server("tools", Server::fixture_that("double-fork")).prepare();
    // The grant is the last table.
    let text = std::fs::read_to_string(&world.layout().config).unwrap();
    std::fs::write(&world.layout().config, format!("{text}ttl = \"2s\"\n")).unwrap();
    world.start_sidecar();
    let mut shim = world.connected("tools");
    wait_until_all_started(&world, "double-fork");
    let first = world.fixture_processes("tools");
    let slow = shim.send_call("slow", json!({"ms": 60_000}));
    assert_eq!(refusal_of(&shim.answer_to(&slow)), "outcome_unknown");
    assert!(holds_within(EXIT_TIMEOUT, || first.iter().all(|id| !is_alive(*id))), "{}", survivors(&first));
    assert!(shim.is_running());
}

#[test]
fn a_call_that_takes_too_long_is_answered_and_its_late_answer_dropped() {
    let world = World::new().server("tools", Server::fixture().line("call-timeout = \"1s\"")).start();
    let mut shim = world.connected("tools");
    let slow = shim.send_call("slow", json!({"ms": 2500}));
    assert_eq!(refusal_of(&shim.answer_to(&slow)), "outcome_unknown");
    // The fixture's late response is sent before this call, so the sidecar has received it before this response.
    std::thread::sleep(Duration::from_millis(2000));
    shim.call("echo", json!({"text": "x"}));
    assert_eq!(shim.answer_within(&slow, Duration::from_millis(50)), None, "a second response arrived");
}

#[test]
fn a_server_that_does_not_start_is_unavailable() {
    let world = World::new()
        .server("missing", Server::command(["/no/such/program"]))
        .server("exits", Server::fixture_that("exits-at-once"))
        .server("silent", Server::fixture_that("never-answers"))
        .server("valid", Server::fixture())
        .limit("server-start-timeout = \"2s\"")
        .start();
    for server in ["missing", "exits", "silent"] {
        let mut shim = world.shim(server);
        let answer = shim.initialize();
        assert_eq!(refusal_of(&answer), "server_unavailable", "{server}: {answer}");
        assert!(shim.is_running());
    }
    let mut shim = world.shim("valid");
    shim.initialize();
    assert_eq!(shim.call_text("echo", json!({"text": "undisturbed"})), "undisturbed");
}

#[test]
fn a_server_that_keeps_failing_is_not_started_for_every_request() {
    let world = World::new().server("tools", Server::fixture_that("exits-at-once")).start();
    let mut shim = world.shim("tools");
    const REQUESTS: usize = 20;
    let answers: Vec<Value> = (0..REQUESTS).map(|_| shim.request("ping", json!({}))).collect();
    assert!(answers.iter().all(|answer| answer.get("error").is_some()), "{answers:?}");
    let refused = answers.iter().filter(|answer| answer.to_string().contains("keeps failing")).count();
    assert!(refused > REQUESTS / 2, "{answers:?}");
    // A `ping` that had reached a process when it died is repeated once, on a process of its own.
    let processes = world.fixture_processes("tools").len();
    assert!(processes <= 2 * (REQUESTS - refused), "{processes} processes for {answers:?}");
}

#[test]
fn fifty_megabytes_without_a_newline_take_no_memory() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    let before = peak_memory_kib(world.sidecar().id());
    let call = shim.send_call("no_newline", json!({"bytes": 50_000_000}));
    let answer = shim.answer_to(&call);
    assert!(answer.get("result").is_some(), "the response after the long line: {answer}");
    assert_eq!(shim.call_text("echo", json!({"text": "still here"})), "still here");
    // The buffer doubles as it grows, up to the largest allowed line; a buffer for all 50 MB would be larger.
    let grown = peak_memory_kib(world.sidecar().id()) - before;
    assert!(grown < 28 * 1024, "the sidecar grew by {grown} KiB");
}

#[test]
fn a_flood_on_stderr_neither_blocks_nor_fills_the_log() {
    const LINES: usize = 100_000;
    const LIMIT: usize = 5;
    let world = World::new()
        .server("tools", Server::fixture())
        .limit(&format!("stderr-lines-per-second = {LIMIT}"))
        .start();
    let mut shim = world.connected("tools");
    assert_eq!(shim.call_text("flood_stderr", json!({"lines": LINES})), "flooded");
    // The last dropped lines are reported when the server has exited.
    shim.close_stdin();
    world.wait_until("every line is logged or counted as dropped", || {
        let log = world.log();
        let counts = log.lines().filter(|line| line.contains("stderr lines dropped")).filter_map(|line| {
            line.split_once(" lines=")?.1.split_whitespace().next()?.parse::<usize>().ok()
        });
        let dropped: usize = counts.sum();
        dropped > 0 && dropped + logged_flood(&log).values().sum::<usize>() == LINES
    });
    // A line may be logged a moment after it was counted, in the next second: so at most twice the limit.
    let log = world.log();
    let logged = logged_flood(&log);
    assert!(!logged.is_empty() && logged.values().all(|lines| *lines <= 2 * LIMIT), "{logged:?}");
}

/// How many lines of the fixture's flood the log has, by the second of their timestamps.
fn logged_flood(log: &str) -> BTreeMap<&str, usize> {
    let mut lines_by_second = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains(" of a flood ~")) {
        let second = line.split_once('.').map_or(line, |(second, _)| second);
        *lines_by_second.entry(second).or_default() += 1;
    }
    lines_by_second
}

#[test]
fn a_connect_and_kill_loop_accumulates_no_processes() {
    let world = World::new()
        .server("tools", Server::fixture_that("ignores-term"))
        .limit("processes = 3")
        .relay("resume-grace = \"1s\"")
        .start();
    for _ in 0..12 {
        let mut shim = world.shim("tools");
        let id = shim.send_initialize();
        shim.answer_to(&id);
        shim.kill9();
        let alive = world.fixture_processes("tools").into_iter().filter(|id| is_alive(*id)).count();
        assert!(alive <= 3, "{alive} processes at once");
    }
    assert_all_gone(&world, "a loop of shims");
    // The sidecar releases the place of a process shortly after its exit.
    let mut connected = None;
    world.wait_until("a process may start again", || {
        let mut harness = world.shim("tools");
        let started = harness.initialize().get("result").is_some();
        connected = started.then_some(harness);
        started
    });
    let mut harness = connected.expect("the wait ends with a harness");
    assert!(harness.call("echo", json!({"text": "room again"})).get("result").is_some());
}

#[test]
fn starts_are_limited_per_minute() {
    // One sandbox gets half of them.
    let world = World::new().server("tools", Server::fixture()).limit("starts-per-minute = 4").start();
    drop((world.connected("tools"), world.connected("tools")));
    let answer = world.shim("tools").initialize();
    assert_eq!(refusal_of(&answer), "server_unavailable");
    assert!(answer.to_string().contains("limits.starts-per-minute"), "{answer}");
    assert_eq!(world.fixture_processes("tools").len(), 2);
}

#[test]
fn a_server_is_not_restarted_during_a_long_first_call() {
    let world =
        World::new().server("tools", Server::fixture()).limit("server-start-timeout = \"1s\"").start();
    let mut shim = world.shim("tools");
    assert_eq!(shim.call_text("slow", json!({"ms": 3000})), "late");
}

#[test]
fn a_session_that_is_killed_while_its_server_starts_ends_too() {
    let world = World::new()
        .secret_exec("slow", &["sleep", "60"])
        .server("tools", Server::fixture().env("SECRET", "{slow.value}"))
        .start();
    let mut shim = world.shim("tools");
    shim.send_initialize();
    let mut session = String::new();
    world.wait_until("the session is there", || {
        session = world.sessions()[0]["session"].as_str().unwrap_or_default().to_owned();
        !session.is_empty()
    });
    let printed = world.cofferdam_text(&["kill", &session]);
    assert!(
        printed.contains("have not exited yet"),
        "processes that were not seen to exit are not reported as ended: {printed}"
    );
    assert!(!world.sessions().to_string().contains(&session));
}

#[derive(Clone, Copy)]
enum End {
    Kill9,
    Orderly,
}

fn wait_until_all_started(world: &World, mode: &str) {
    let count = if mode == "double-fork" { 3 } else { 1 };
    world.wait_until("all processes have recorded their ids", || {
        world.fixture_processes("tools").len() >= count
    });
}

#[track_caller]
fn assert_all_gone(world: &World, what: &str) {
    let all = world.fixture_processes("tools");
    assert!(!all.is_empty());
    let gone = || world.fixture_processes("tools").iter().all(|id| !is_alive(*id));
    assert!(holds_within(EXIT_TIMEOUT, gone), "{what}: {}", survivors(&all));
}

fn survivors(all: &[u32]) -> String {
    let alive = all.iter().filter(|id| is_alive(**id));
    alive.map(|id| format!("{id} ({}) ", command_line(*id))).collect()
}
