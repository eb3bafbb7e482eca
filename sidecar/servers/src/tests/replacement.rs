//! A changed credential: the process that has the old one is replaced, without an effect on calls.

use cofferdam_secrets::SecretUse;

use super::*;
use crate::scripted::{Reaction, Reading, Start, default_response};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than the longest wait between two attempts.
const LONG: Duration = Duration::from_secs(120);

/// A fixture whose process 0 runs, has had its handshake and has answered a call.
async fn running(script: Script, server: &Setup) -> LinkFixture {
    let mut fixture = LinkFixture::with(script, server);
    fixture.make_handshake().await;
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    // Long enough that a crash does not count as a failed start.
    fixture.run_for(20 * SECOND).await;
    fixture
}

impl LinkFixture {
    fn outcomes(&self) -> Vec<ReplacementOutcome> {
        self.reports.iter().map(|(outcome, _)| *outcome).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn calls_finish_where_they_began_and_later_ones_go_to_the_new_process() {
    let mut fixture = running(Script::responding(answer_after_wait), &SERVER).await;
    let long = fixture.call("echo", 30 * SECOND);
    fixture.run_for(SECOND).await;
    fixture.change("key", "key-2", None);
    fixture
        .until("another process took over", |fixture| fixture.outcomes() == [ReplacementOutcome::Replaced])
        .await;
    assert_eq!(fixture.handed_over.len(), 1);
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(1));
    assert!(!ended(&fixture.script, 0), "the call is still running");
    fixture.script.write(0, r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
    assert_eq!(fixture.wait_for_outcome(long).await, answered_by(0));
    assert_eq!(fixture.notifications, ["notifications/progress"]);
    fixture.run_for(SECOND).await;
    assert!(ended(&fixture.script, 0), "it has no call left");
    assert_eq!(methods(&fixture.script.received_by(1))[..2], ["initialize", "notifications/initialized"]);
    assert_eq!(fixture.servers.secrets(None).unwrap()[&name("key")].version, 2);
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn no_call_reaches_a_new_process_before_it_took_over() {
    let mut fixture = running(Script::responding(answer_after_wait), &SERVER).await;
    fixture.script.queue_start(Start::RunAfter(10 * SECOND));
    fixture.change("key", "key-2", None);
    for _ in 0..9 {
        assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
        fixture.run_for(SECOND).await;
    }
    fixture.run_for(10 * SECOND).await;
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(1));
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_replacement_keeps_the_old_process_and_is_retried_with_backoff() {
    let mut fixture = running(Script::responding(answer_after_wait), &SERVER).await;
    for _ in 0..3 {
        fixture.script.queue_start(Start::FailAfter(Duration::ZERO, launch_error()));
    }
    fixture.change("key", "key-2", None);
    let began = Instant::now();
    fixture.until("the first attempt failed", |fixture| !fixture.reports.is_empty()).await;
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    fixture
        .until("another process took over", |fixture| {
            fixture.outcomes().contains(&ReplacementOutcome::Replaced)
        })
        .await;
    assert_eq!(
        fixture.outcomes(),
        [
            ReplacementOutcome::Failed,
            ReplacementOutcome::Failed,
            ReplacementOutcome::Failed,
            ReplacementOutcome::Replaced
        ]
    );
    assert!(began.elapsed() >= (1 + 2 + 4) * SECOND, "the waits double");
    fixture.run_for(SECOND).await;
    assert_eq!(fixture.servers.describe_replacement(), None);
    fixture.finish().await;
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
    let mut fixture = running(script, &SERVER).await;
    fixture.change("key", "key-2", None);
    fixture.until("the attempt failed", |fixture| !fixture.reports.is_empty()).await;
    assert_eq!(fixture.outcomes(), [ReplacementOutcome::Failed]);
    assert!(fixture.reports[0].1.contains("tools"), "{:?}", fixture.reports);
    assert!(fixture.servers.describe_replacement().unwrap().contains("tools"));
    fixture.until("the process that cannot take over is ended", |fixture| ended(&fixture.script, 1)).await;
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    fixture.finish().await;
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
        let mut fixture = running(script, &SERVER).await;
        fixture.change("key", "key-2", None);
        fixture.until("the attempt failed", |fixture| !fixture.reports.is_empty()).await;
        assert!(fixture.reports[0].1.contains(why), "{:?}", fixture.reports);
        assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
        fixture.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_calls_wait_for_the_process_that_is_already_starting() {
    let mut fixture = running(Script::responding(answer_after_wait), &SERVER).await;
    fixture.script.queue_start(Start::RunAfter(5 * SECOND));
    fixture.change("key", "key-2", None);
    fixture.run_for(SECOND).await;
    let lost = fixture.call("echo", 60 * SECOND);
    fixture.run_for(SECOND).await;
    fixture.script.exit(0);
    assert!(matches!(fixture.wait_for_outcome(lost).await, CallResult::Unknown(_)));
    let next = fixture.call("echo", Duration::ZERO);
    assert_eq!(
        fixture.wait_for_outcome(next).await,
        answered_by(1),
        "the call waits for the process that is starting"
    );
    assert_eq!(fixture.script.started(), 2, "no third one was started");
    let received = fixture.script.received_by(1);
    assert_eq!(methods(&received)[..2], ["initialize", "notifications/initialized"]);
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_a_process_that_is_ready_takes_over_at_once() {
    let mut fixture =
        running(Script::responding(answer_after_wait), &Setup { replace: Replace::Idle, ..SERVER }).await;
    let lost = fixture.call("echo", 60 * SECOND);
    fixture.change("key", "key-2", None);
    fixture
        .until("a process is ready", |fixture| {
            fixture.servers.describe_replacement().is_some_and(|text| text.contains("waits to take over"))
        })
        .await;
    fixture.script.exit(0);
    assert!(matches!(fixture.wait_for_outcome(lost).await, CallResult::Unknown(_)));
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(1));
    assert_eq!(fixture.script.started(), 2);
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn replace_idle_waits_until_no_call_is_running() {
    let mut fixture =
        running(Script::responding(answer_after_wait), &Setup { replace: Replace::Idle, ..SERVER }).await;
    let long = fixture.call("echo", 10 * SECOND);
    fixture.change("key", "key-2", None);
    fixture.run_for(5 * SECOND).await;
    let second = fixture.call("echo", 10 * SECOND);
    assert_eq!(fixture.wait_for_outcome(long).await, answered_by(0));
    assert_eq!(fixture.outcomes(), [], "the second call is under way");
    assert_eq!(fixture.wait_for_outcome(second).await, answered_by(0));
    fixture
        .until("another process took over", |fixture| fixture.outcomes() == [ReplacementOutcome::Replaced])
        .await;
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn replace_never_keeps_the_process_after_its_credential_expired() {
    let mut fixture = LinkFixture::with(
        Script::responding(answer_after_wait),
        &Setup { replace: Replace::Never, ..SERVER },
    );
    fixture.change("key", "key-2", Some(10 * SECOND));
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    fixture.run_for(9 * SECOND).await;
    assert_eq!(fixture.servers.describe_replacement(), None);
    fixture.run_for(11 * SECOND).await;
    let shown = fixture.servers.describe_replacement().expect("the credential has expired");
    assert!(shown.contains("has expired") && shown.contains("never"), "{shown}");
    fixture.change("key", "key-3", None);
    fixture.run_for(LONG).await;
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    assert!(fixture.servers.describe_replacement().unwrap().contains("never"));
    assert_eq!(fixture.script.started(), 1);
    fixture.finish().await;
}

#[tokio::test]
async fn a_secret_is_kept_only_by_a_process_that_can_neither_be_replaced_nor_reloaded() {
    let in_file = Setup { key: "", scope_tools: &[], file: Some("{key.value}"), ..SERVER };
    let uses = |setup: Setup| LinkFixture::with(Script::default(), &setup).launcher.secret_uses();
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
    let mut fixture = running(Script::responding(answer_after_wait), &server).await;
    fixture.change("key", "key-2", None);
    fixture
        .until("the files were reloaded", |fixture| fixture.outcomes() == [ReplacementOutcome::Reloaded])
        .await;
    assert!(fixture.script.log().contains(&Entry::SighupSent(0)));
    assert_eq!(fixture.servers.secrets(None).unwrap()[&name("key")].version, 2);
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    fixture.run_for(LONG).await;
    assert_eq!(fixture.script.started(), 1);
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_whose_credential_expired_finishes_its_calls_and_gets_no_new_ones() {
    let mut fixture = LinkFixture::with(Script::responding(answer_after_wait), &SERVER);
    fixture.change("key", "key-2", Some(10 * SECOND));
    fixture.make_handshake().await;
    let long = fixture.call("echo", 20 * SECOND);
    fixture
        .until("process 0 is retired", |fixture| fixture.outcomes() == [ReplacementOutcome::Retired])
        .await;
    fixture.change("key", "key-3", None);
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(1));
    assert!(!ended(&fixture.script, 0));
    assert_eq!(fixture.wait_for_outcome(long).await, answered_by(0));
    fixture.run_for(SECOND).await;
    assert!(ended(&fixture.script, 0));
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_finish_is_ended_after_its_drain_time() {
    let mut fixture = running(Script::responding(answer_after_wait), &SERVER).await;
    let drain = fixture.launcher.limits.replace_drain;
    let endless = fixture.call("echo", 10 * drain);
    fixture.change("key", "key-2", None);
    fixture
        .until("another process took over", |fixture| fixture.outcomes() == [ReplacementOutcome::Replaced])
        .await;
    let began = Instant::now();
    let unknown = fixture.wait_for_outcome(endless).await;
    assert!(matches!(&unknown, CallResult::Unknown(why) if why.contains("replace-drain")), "{unknown:?}");
    assert!(began.elapsed() >= drain - SECOND);
    fixture.run_for(SECOND).await;
    assert_eq!(fixture.script.alive(), [1]);
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn at_most_eight_replaced_processes_finish_their_calls_at_a_time() {
    let mut fixture = running(Script::responding(answer_after_wait), &SERVER).await;
    for round in 0..12 {
        let long = fixture.call("echo", 250 * SECOND);
        assert!(!fixture.results.contains_key(&long));
        fixture.change("key", &format!("key-round-{round}"), None);
        fixture.run_for(2 * SECOND).await;
    }
    assert!(fixture.script.alive().len() <= 9, "eight that finish, and the current one");
    assert_eq!(fixture.results.values().filter(|result| matches!(result, CallResult::Unknown(_))).count(), 0);
    fixture.run_for(400 * SECOND).await;
    assert_eq!(fixture.script.alive().len(), 1);
    assert_eq!(fixture.servers.secrets(None).unwrap()[&name("key")].version, 13);
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_takes_over_while_the_harness_makes_a_handshake() {
    let script = Script::responding(|received| match (received.method.as_deref(), received.id.as_deref()) {
        (Some("initialize"), Some("3")) => {
            vec![Reaction::WriteAfter(20 * SECOND, default_response(received).unwrap())]
        }
        _ => answer_after_wait(received),
    });
    let mut fixture = running(script, &SERVER).await;
    let again = fixture.request("initialize", "{}", None);
    assert_eq!(again, 3);
    fixture.change("key", "key-2", None);
    fixture.run_for(15 * SECOND).await;
    assert_eq!(fixture.outcomes(), []);
    assert!(matches!(fixture.wait_for_outcome(again).await, CallResult::Answered(_)));
    fixture
        .until("another process took over", |fixture| fixture.outcomes() == [ReplacementOutcome::Replaced])
        .await;
    // Process 1 was started before the handshake, so it must not take over.
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(2));
    fixture.finish().await;
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
    let mut fixture = running(script, &SERVER).await;
    let list = fixture.request("tools/list", "{}", None);
    fixture.wait_for_outcome(list).await;
    fixture.script.exit(0);
    fixture.until("the process is gone", |fixture| ended(&fixture.script, 0)).await;
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(1));
    fixture.run_for(SECOND).await;
    assert_eq!(fixture.notifications, ["notifications/tools/list_changed"]);
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn settings_reach_the_process_that_takes_over_and_the_one_that_drains() {
    let mut fixture = running(Script::responding(answer_after_wait), &SERVER).await;
    let level = |fixture: &mut LinkFixture, level: &str| {
        fixture.request("logging/setLevel", &format!(r#"{{"level":"{level}"}}"#), None)
    };
    let list = fixture.request("tools/list", "{}", None);
    fixture.wait_for_outcome(list).await;
    let first = level(&mut fixture, "debug");
    fixture.wait_for_outcome(first).await;
    let long = fixture.call("echo", 10 * SECOND);
    fixture.change("key", "key-2", None);
    fixture
        .until("another process took over", |fixture| fixture.outcomes() == [ReplacementOutcome::Replaced])
        .await;
    let second = level(&mut fixture, "error");
    fixture.wait_for_outcome(second).await;
    assert_eq!(fixture.wait_for_outcome(long).await, answered_by(0));
    for process in [0, 1] {
        let received = fixture.script.received_by(process);
        let levels =
            received.iter().filter(|received| received.method.as_deref() == Some("logging/setLevel"));
        let levels: Vec<bool> = levels.map(|received| received.message.contains("error")).collect();
        assert_eq!(levels, [false, true], "process {process}: {received:?}");
    }
    let received = fixture.script.received_by(1);
    let lists = methods(&received).into_iter().filter(|method| *method == "tools/list").count();
    assert_eq!(
        lists, 1,
        "its tools were compared before it took over, and are not asked for again: {received:?}"
    );
    fixture.finish().await;
}

/// Without a handshake of the harness the sidecar cannot list the tools, so the successor only has to stay alive.
#[tokio::test(start_paused = true)]
async fn a_successor_whose_tools_cannot_be_listed_runs_for_a_while_before_it_takes_over() {
    let mut fixture = LinkFixture::with(Script::responding(answer_after_wait), &SERVER);
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    fixture.run_for(20 * SECOND).await;
    fixture.change("key", "key-2", None);
    fixture.run_for(SECOND).await;
    fixture.script.exit(1);
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    fixture.until("the attempt failed", |fixture| fixture.outcomes() == [ReplacementOutcome::Failed]).await;
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_draining_process_is_not_ended_before_everything_is_written_to_it() {
    let mut fixture = running(Script::responding(answer_after_wait), &SERVER).await;
    fixture.script.set_reading(0, Reading::Nothing);
    let changed = br#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    fixture.notify("notifications/roots/list_changed", changed);
    fixture.change("key", "key-2", None);
    fixture
        .until("another process took over", |fixture| fixture.outcomes() == [ReplacementOutcome::Replaced])
        .await;
    fixture.run_for(SECOND).await;
    assert!(!ended(&fixture.script, 0), "it has not read everything");
    fixture.script.set_reading(0, Reading::Everything);
    fixture.until("process 0 is ended", |fixture| ended(&fixture.script, 0)).await;
    let received = fixture.script.received_by(0);
    assert!(methods(&received).contains(&"notifications/roots/list_changed"), "{received:?}");
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_oldest_process_is_cut_off_where_credentials_expire_faster_than_calls_finish() {
    let mut fixture = LinkFixture::with(Script::responding(answer_after_wait), &SERVER);
    let mut calls = Vec::new();
    for round in 0..11 {
        fixture.change("key", &format!("key-round-{round}"), Some(2 * SECOND));
        calls.push(fixture.call("echo", 250 * SECOND));
        fixture.run_for(SECOND).await;
        assert!(fixture.script.alive().len() <= 9, "eight that finish, and the current one");
        fixture.run_for(2 * SECOND).await;
    }
    let cut = |id: &&u32| matches!(fixture.results.get(id), Some(CallResult::Unknown(why)) if why.contains("replaced processes were still finishing calls"));
    assert_eq!(calls.iter().filter(cut).collect::<Vec<_>>(), calls[..3].iter().collect::<Vec<_>>());
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_changes_all_the_time_starts_a_bounded_number_of_processes() {
    let mut fixture = running(Script::responding(answer_after_wait), &SERVER).await;
    for round in 0..150 {
        fixture.change("key", &format!("key-round-{round}"), None);
        fixture.run_for(SECOND / 5).await;
    }
    assert!((30..=61).contains(&fixture.script.started()), "{}", fixture.script.started());
    fixture.run_for(LONG).await;
    assert_eq!(fixture.servers.secrets(None).unwrap()[&name("key")].version, 151);
    fixture.finish().await;
}
