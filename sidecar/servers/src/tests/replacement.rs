//! A changed credential: the process that has the old one is replaced, without an effect on calls.

use cofferdam_secrets::SecretUse;

use super::*;
use crate::scripted::{Reaction, Reading, Start, default_response};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than the longest wait between two attempts.
const LONG: Duration = Duration::from_secs(120);

/// A world whose process 0 runs, has had its handshake and has answered a call.
async fn running(script: Script, server: &Setup) -> World {
    let mut world = World::with(script, server);
    world.make_handshake().await;
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    // Long enough that a crash does not count as a failed start.
    world.run_for(20 * SECOND).await;
    world
}

impl World {
    fn outcomes(&self) -> Vec<ReplacementOutcome> {
        self.reports.iter().map(|(outcome, _)| *outcome).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn calls_finish_where_they_began_and_later_ones_go_to_the_new_process() {
    let mut world = running(Script::responding(answer_after_wait), &SERVER).await;
    let long = world.call("echo", 30 * SECOND);
    world.run_for(SECOND).await;
    world.change("key", "key-2", None);
    world
        .until("another process took over", |world| world.outcomes() == [ReplacementOutcome::Replaced])
        .await;
    assert_eq!(world.handed_over.len(), 1);
    assert_eq!(world.call_and_wait("echo").await, answered_by(1));
    assert!(!ended(&world.script, 0), "the call is still running");
    world.script.write(0, r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
    assert_eq!(world.settled(long).await, answered_by(0));
    assert_eq!(world.notifications, ["notifications/progress"]);
    world.run_for(SECOND).await;
    assert!(ended(&world.script, 0), "it has no call left");
    assert_eq!(methods(&world.script.received_by(1))[..2], ["initialize", "notifications/initialized"]);
    assert_eq!(world.servers.secrets(None).unwrap()[&name("key")].generation, 2);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn no_call_reaches_a_new_process_before_it_took_over() {
    let mut world = running(Script::responding(answer_after_wait), &SERVER).await;
    world.script.queue_start(Start::RunAfter(10 * SECOND));
    world.change("key", "key-2", None);
    for _ in 0..9 {
        assert_eq!(world.call_and_wait("echo").await, answered_by(0));
        world.run_for(SECOND).await;
    }
    world.run_for(10 * SECOND).await;
    assert_eq!(world.call_and_wait("echo").await, answered_by(1));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_replacement_keeps_the_old_process_and_is_retried_with_backoff() {
    let mut world = running(Script::responding(answer_after_wait), &SERVER).await;
    for _ in 0..3 {
        world.script.queue_start(Start::FailAfter(Duration::ZERO, launch_error()));
    }
    world.change("key", "key-2", None);
    let began = Instant::now();
    world.until("the first attempt failed", |world| !world.reports.is_empty()).await;
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    world
        .until("another process took over", |world| world.outcomes().contains(&ReplacementOutcome::Replaced))
        .await;
    assert_eq!(
        world.outcomes(),
        [
            ReplacementOutcome::Failed,
            ReplacementOutcome::Failed,
            ReplacementOutcome::Failed,
            ReplacementOutcome::Replaced
        ]
    );
    assert!(began.elapsed() >= (1 + 2 + 4) * SECOND, "the waits double");
    world.run_for(SECOND).await;
    assert_eq!(world.servers.describe_replacement(), None);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_with_other_tools_does_not_take_over() {
    let script = Script::responding(|received| match (received.method.as_deref(), received.process) {
        (Some("tools/list"), 1..) => {
            let id = received.id.as_deref().unwrap();
            vec![Reaction::Write(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":[{{"name":"other"}}]}}}}"#
            ))]
        }
        _ => answer_after_wait(received),
    });
    let mut world = running(script, &SERVER).await;
    world.change("key", "key-2", None);
    world.until("the attempt failed", |world| !world.reports.is_empty()).await;
    assert_eq!(world.outcomes(), [ReplacementOutcome::Failed]);
    assert!(world.reports[0].1.contains("tools"), "{:?}", world.reports);
    assert!(world.servers.describe_replacement().unwrap().contains("tools"));
    world.until("the process that cannot take over is ended", |world| ended(&world.script, 1)).await;
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_whose_handshake_differs_does_not_take_over() {
    for (result, why) in [
        (r#""result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}"#, "differ"),
        (r#""error":{"code":1,"message":"no"}"#, "refused"),
    ] {
        let script =
            Script::responding(move |received| match (received.method.as_deref(), received.process) {
                (Some("initialize"), 1..) => {
                    let id = received.id.as_deref().unwrap();
                    vec![Reaction::Write(format!(r#"{{"jsonrpc":"2.0","id":{id},{result}}}"#))]
                }
                _ => answer_after_wait(received),
            });
        let mut world = running(script, &SERVER).await;
        world.change("key", "key-2", None);
        world.until("the attempt failed", |world| !world.reports.is_empty()).await;
        assert!(world.reports[0].1.contains(why), "{:?}", world.reports);
        assert_eq!(world.call_and_wait("echo").await, answered_by(0));
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_calls_wait_for_the_process_that_is_already_starting() {
    let mut world = running(Script::responding(answer_after_wait), &SERVER).await;
    world.script.queue_start(Start::RunAfter(5 * SECOND));
    world.change("key", "key-2", None);
    world.run_for(SECOND).await;
    let lost = world.call("echo", 60 * SECOND);
    world.run_for(SECOND).await;
    world.script.exit(0);
    assert!(matches!(world.settled(lost).await, CallResult::Unknown(_)));
    let next = world.call("echo", Duration::ZERO);
    assert_eq!(world.settled(next).await, answered_by(1), "the call waits for the process that is starting");
    assert_eq!(world.script.started(), 2, "no third one was started");
    let received = world.script.received_by(1);
    assert_eq!(methods(&received)[..2], ["initialize", "notifications/initialized"]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_a_process_that_is_ready_takes_over_at_once() {
    let mut world =
        running(Script::responding(answer_after_wait), &Setup { replace: Replace::Idle, ..SERVER }).await;
    let lost = world.call("echo", 60 * SECOND);
    world.change("key", "key-2", None);
    world
        .until("a process is ready", |world| {
            world.servers.describe_replacement().is_some_and(|text| text.contains("waits to take over"))
        })
        .await;
    world.script.exit(0);
    assert!(matches!(world.settled(lost).await, CallResult::Unknown(_)));
    assert_eq!(world.call_and_wait("echo").await, answered_by(1));
    assert_eq!(world.script.started(), 2);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn replace_idle_waits_until_no_call_is_running() {
    let mut world =
        running(Script::responding(answer_after_wait), &Setup { replace: Replace::Idle, ..SERVER }).await;
    let long = world.call("echo", 10 * SECOND);
    world.change("key", "key-2", None);
    world.run_for(5 * SECOND).await;
    let second = world.call("echo", 10 * SECOND);
    assert_eq!(world.settled(long).await, answered_by(0));
    assert_eq!(world.outcomes(), [], "the second call is under way");
    assert_eq!(world.settled(second).await, answered_by(0));
    world
        .until("another process took over", |world| world.outcomes() == [ReplacementOutcome::Replaced])
        .await;
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn replace_never_keeps_the_process_after_its_credential_expired() {
    let mut world =
        World::with(Script::responding(answer_after_wait), &Setup { replace: Replace::Never, ..SERVER });
    world.change("key", "key-2", Some(10 * SECOND));
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    world.run_for(9 * SECOND).await;
    assert_eq!(world.servers.describe_replacement(), None);
    world.run_for(11 * SECOND).await;
    let shown = world.servers.describe_replacement().expect("the credential has expired");
    assert!(shown.contains("has expired") && shown.contains("never"), "{shown}");
    world.change("key", "key-3", None);
    world.run_for(LONG).await;
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    assert!(world.servers.describe_replacement().unwrap().contains("never"));
    assert_eq!(world.script.started(), 1);
    world.finish().await;
}

#[tokio::test]
async fn a_secret_is_kept_only_by_a_process_that_can_neither_be_replaced_nor_reloaded() {
    let in_file = Setup { key: "", scope_tools: &[], file: Some("{key.value}"), ..SERVER };
    let uses = |setup: Setup| World::with(Script::default(), &setup).launcher.secret_uses();
    let (keeps, takes) = (SecretUse::KeepsFirstValue, SecretUse::TakesNewValues);
    for (setup, expected) in [
        (SERVER, takes),
        (Setup { replace: Replace::Idle, ..SERVER }, takes),
        (Setup { replace: Replace::Never, ..SERVER }, keeps),
        (Setup { replace: Replace::Never, reload: Some(Reload::File), ..SERVER }, keeps),
        (Setup { replace: Replace::Never, ..in_file.clone() }, keeps),
        (Setup { replace: Replace::Never, reload: Some(Reload::File), ..in_file }, takes),
    ] {
        assert_eq!(uses(setup), [(name("key"), expected)]);
    }
}

#[tokio::test(start_paused = true)]
async fn files_are_rewritten_where_the_server_reads_them_again() {
    let server = Setup {
        key: "",
        scope_tools: &[],
        file: Some("{key.value}"),
        reload: Some(Reload::Sighup),
        ..SERVER
    };
    let mut world = running(Script::responding(answer_after_wait), &server).await;
    world.change("key", "key-2", None);
    world.until("the files were reloaded", |world| world.outcomes() == [ReplacementOutcome::Reloaded]).await;
    assert!(world.script.log().contains(&Entry::SighupSent(0)));
    assert_eq!(world.servers.secrets(None).unwrap()[&name("key")].generation, 2);
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    world.run_for(LONG).await;
    assert_eq!(world.script.started(), 1);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_whose_credential_expired_finishes_its_calls_and_gets_no_new_ones() {
    let mut world = World::with(Script::responding(answer_after_wait), &SERVER);
    world.change("key", "key-2", Some(10 * SECOND));
    world.make_handshake().await;
    let long = world.call("echo", 20 * SECOND);
    world.until("process 0 is retired", |world| world.outcomes() == [ReplacementOutcome::Retired]).await;
    world.change("key", "key-3", None);
    assert_eq!(world.call_and_wait("echo").await, answered_by(1));
    assert!(!ended(&world.script, 0));
    assert_eq!(world.settled(long).await, answered_by(0));
    world.run_for(SECOND).await;
    assert!(ended(&world.script, 0));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_finish_is_ended_after_its_drain_time() {
    let mut world = running(Script::responding(answer_after_wait), &SERVER).await;
    let drain = world.launcher.limits.replace_drain;
    let endless = world.call("echo", 10 * drain);
    world.change("key", "key-2", None);
    world
        .until("another process took over", |world| world.outcomes() == [ReplacementOutcome::Replaced])
        .await;
    let began = Instant::now();
    let unknown = world.settled(endless).await;
    assert!(matches!(&unknown, CallResult::Unknown(why) if why.contains("replace-drain")), "{unknown:?}");
    assert!(began.elapsed() >= drain - SECOND);
    world.run_for(SECOND).await;
    assert_eq!(world.script.alive(), [1]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn at_most_eight_replaced_processes_finish_their_calls_at_a_time() {
    let mut world = running(Script::responding(answer_after_wait), &SERVER).await;
    for round in 0..12 {
        let long = world.call("echo", 250 * SECOND);
        assert!(!world.results.contains_key(&long));
        world.change("key", &format!("key-round-{round}"), None);
        world.run_for(2 * SECOND).await;
    }
    assert!(world.script.alive().len() <= 9, "eight that finish, and the current one");
    assert_eq!(world.results.values().filter(|result| matches!(result, CallResult::Unknown(_))).count(), 0);
    world.run_for(400 * SECOND).await;
    assert_eq!(world.script.alive().len(), 1);
    assert_eq!(world.servers.secrets(None).unwrap()[&name("key")].generation, 13);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_takes_over_while_the_harness_makes_a_handshake() {
    let script = Script::responding(|received| match (received.method.as_deref(), received.id.as_deref()) {
        (Some("initialize"), Some("3")) => {
            vec![Reaction::WriteAfter(20 * SECOND, default_response(received).unwrap())]
        }
        _ => answer_after_wait(received),
    });
    let mut world = running(script, &SERVER).await;
    let again = world.request("initialize", "{}", None);
    assert_eq!(again, 3);
    world.change("key", "key-2", None);
    world.run_for(15 * SECOND).await;
    assert_eq!(world.outcomes(), []);
    assert!(matches!(world.settled(again).await, CallResult::Answered(_)));
    world
        .until("another process took over", |world| world.outcomes() == [ReplacementOutcome::Replaced])
        .await;
    // Process 1 was started before the handshake, so it must not take over.
    assert_eq!(world.call_and_wait("echo").await, answered_by(2));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_harness_is_notified_when_a_process_after_a_crash_has_other_tools() {
    let script = Script::responding(|received| match (received.method.as_deref(), received.process) {
        (Some("tools/list"), 1..) => {
            let id = received.id.as_deref().unwrap();
            vec![Reaction::Write(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":[{{"name":"other"}}]}}}}"#
            ))]
        }
        _ => answer_after_wait(received),
    });
    let mut world = running(script, &SERVER).await;
    let list = world.request("tools/list", "{}", None);
    world.settled(list).await;
    world.script.exit(0);
    world.until("the process is gone", |world| ended(&world.script, 0)).await;
    assert_eq!(world.call_and_wait("echo").await, answered_by(1));
    world.run_for(SECOND).await;
    assert_eq!(world.notifications, ["notifications/tools/list_changed"]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn settings_reach_the_process_that_takes_over_and_the_one_that_drains() {
    let mut world = running(Script::responding(answer_after_wait), &SERVER).await;
    let level = |world: &mut World, level: &str| {
        world.request("logging/setLevel", &format!(r#"{{"level":"{level}"}}"#), None)
    };
    let list = world.request("tools/list", "{}", None);
    world.settled(list).await;
    let first = level(&mut world, "debug");
    world.settled(first).await;
    let long = world.call("echo", 10 * SECOND);
    world.change("key", "key-2", None);
    world
        .until("another process took over", |world| world.outcomes() == [ReplacementOutcome::Replaced])
        .await;
    let second = level(&mut world, "error");
    world.settled(second).await;
    assert_eq!(world.settled(long).await, answered_by(0));
    for process in [0, 1] {
        let received = world.script.received_by(process);
        let levels =
            received.iter().filter(|received| received.method.as_deref() == Some("logging/setLevel"));
        let levels: Vec<bool> = levels.map(|received| received.message.contains("error")).collect();
        assert_eq!(levels, [false, true], "process {process}: {received:?}");
    }
    let received = world.script.received_by(1);
    let lists = methods(&received).into_iter().filter(|method| *method == "tools/list").count();
    assert_eq!(
        lists, 1,
        "its tools were compared before it took over, and are not asked for again: {received:?}"
    );
    world.finish().await;
}

/// Without a handshake of the harness the sidecar cannot list the tools, so the successor only has to stay alive.
#[tokio::test(start_paused = true)]
async fn a_successor_whose_tools_cannot_be_listed_runs_for_a_while_before_it_takes_over() {
    let mut world = World::with(Script::responding(answer_after_wait), &SERVER);
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    world.run_for(20 * SECOND).await;
    world.change("key", "key-2", None);
    world.run_for(SECOND).await;
    world.script.exit(1);
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    world.until("the attempt failed", |world| world.outcomes() == [ReplacementOutcome::Failed]).await;
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_draining_process_is_not_ended_before_everything_is_written_to_it() {
    let mut world = running(Script::responding(answer_after_wait), &SERVER).await;
    world.script.set_reading(0, Reading::Nothing);
    let changed = br#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    world.notify("notifications/roots/list_changed", changed);
    world.change("key", "key-2", None);
    world
        .until("another process took over", |world| world.outcomes() == [ReplacementOutcome::Replaced])
        .await;
    world.run_for(SECOND).await;
    assert!(!ended(&world.script, 0), "it has not read everything");
    world.script.set_reading(0, Reading::Everything);
    world.until("process 0 is ended", |world| ended(&world.script, 0)).await;
    let received = world.script.received_by(0);
    assert!(methods(&received).contains(&"notifications/roots/list_changed"), "{received:?}");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_oldest_process_is_cut_off_where_credentials_expire_faster_than_calls_finish() {
    let mut world = World::with(Script::responding(answer_after_wait), &SERVER);
    let mut calls = Vec::new();
    for round in 0..11 {
        world.change("key", &format!("key-round-{round}"), Some(2 * SECOND));
        calls.push(world.call("echo", 250 * SECOND));
        world.run_for(SECOND).await;
        assert!(world.script.alive().len() <= 9, "eight that finish, and the current one");
        world.run_for(2 * SECOND).await;
    }
    let cut = |id: &&u32| matches!(world.results.get(id), Some(CallResult::Unknown(why)) if why.contains("too many of its successors"));
    assert_eq!(calls.iter().filter(cut).collect::<Vec<_>>(), calls[..3].iter().collect::<Vec<_>>());
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_changes_all_the_time_starts_a_bounded_number_of_processes() {
    let mut world = running(Script::responding(answer_after_wait), &SERVER).await;
    for round in 0..150 {
        world.change("key", &format!("key-round-{round}"), None);
        world.run_for(SECOND / 5).await;
    }
    assert!((30..=61).contains(&world.script.started()), "{}", world.script.started());
    world.run_for(LONG).await;
    assert_eq!(world.servers.secrets(None).unwrap()[&name("key")].generation, 151);
    world.finish().await;
}
