//! Tools with credentials of their own run in processes of their own.

use super::*;
use crate::scripted::Start;

const SECOND: Duration = Duration::from_secs(1);

async fn running(server: &Setup) -> LinkFixture {
    let mut fixture = LinkFixture::with(Script::responding(answer_after_wait), server);
    fixture.make_handshake().await;
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    assert_eq!(fixture.call_and_wait("write_file").await, answered_by(1));
    fixture.run_for(20 * SECOND).await;
    fixture
}

#[tokio::test(start_paused = true)]
async fn only_calls_of_its_tools_go_to_the_process_of_a_scope() {
    let mut fixture = running(&SERVER).await;
    for method in ["tools/list", "ping", "prompts/list"] {
        let id = fixture.request(method, "{}", None);
        fixture.wait_for_outcome(id).await;
    }
    assert_eq!(fixture.call_and_wait("write_other").await, answered_by(1));
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    let received = fixture.script.received_by(1);
    assert_eq!(methods(&received), ["initialize", "notifications/initialized", "tools/call", "tools/call"]);
    assert!(received.iter().all(|received| received.scope.is_some()));
    assert!(
        fixture
            .script
            .received_by(0)
            .iter()
            .all(|received| received.scope.is_none() && !received.message.contains("write_"))
    );
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_setting_of_the_harness_reaches_every_process_under_an_id_of_the_sidecar() {
    let mut fixture = running(&SERVER).await;
    let level = fixture.request("logging/setLevel", r#"{"level":"debug"}"#, None);
    fixture.wait_for_outcome(level).await;
    fixture.run_for(SECOND).await;
    let set = fixture
        .script
        .received_by(1)
        .into_iter()
        .find(|received| received.method.as_deref() == Some("logging/setLevel"));
    assert!(set.unwrap().id.unwrap().starts_with(r#""cofferdam-replay-"#));
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_of_a_scope_gets_the_settings_made_before_and_during_its_start() {
    let mut fixture = LinkFixture::with(Script::responding(answer_after_wait), &SERVER);
    fixture.make_handshake().await;
    let level = fixture.request("logging/setLevel", r#"{"level":"debug"}"#, None);
    fixture.wait_for_outcome(level).await;
    fixture.script.queue_start(Start::RunAfter(5 * SECOND));
    let scoped = fixture.call("write_file", Duration::ZERO);
    fixture.run_for(SECOND).await;
    let watch = fixture.request("resources/subscribe", r#"{"uri":"file:///a"}"#, None);
    fixture.wait_for_outcome(watch).await;
    assert_eq!(fixture.wait_for_outcome(scoped).await, answered_by(1));
    fixture.run_for(SECOND).await;
    let expected =
        ["initialize", "notifications/initialized", "logging/setLevel", "tools/call", "resources/subscribe"];
    assert_eq!(methods(&fixture.script.received_by(1)), expected);
    fixture.finish().await;
}

/// The predecessor got these settings as requests of the harness. They must be replayed to the successor.
#[tokio::test(start_paused = true)]
async fn the_successor_in_a_scope_gets_the_settings_made_since_its_predecessor_started() {
    // Whether the server has answered `logging/setLevel` by the time of the replacement.
    for is_answered in [true, false] {
        let script =
            Script::responding(move |received| match (received.method.as_deref(), received.process) {
                (Some("logging/setLevel"), 0) if !is_answered => Vec::new(),
                _ => answer_after_wait(received),
            });
        let mut fixture = LinkFixture::with(script, &SERVER);
        fixture.make_handshake().await;
        assert_eq!(fixture.call_and_wait("write_file").await, answered_by(1));
        fixture.run_for(20 * SECOND).await;
        fixture.request("logging/setLevel", r#"{"level":"debug"}"#, None);
        let watch = fixture.request("resources/subscribe", r#"{"uri":"file:///a"}"#, None);
        fixture.wait_for_outcome(watch).await;
        fixture.run_for(SECOND).await;
        fixture.change("write", "write-2", None);
        fixture.until("another process took over", |fixture| !fixture.reports.is_empty()).await;
        assert_eq!(fixture.call_and_wait("write_file").await, answered_by(2));
        let received = fixture.script.received_by(2);
        let received_before_call = |method: &str, what: &str| {
            let call = received.iter().position(|received| received.method.as_deref() == Some("tools/call"));
            received
                .iter()
                .take(call.unwrap())
                .any(|received| received.method.as_deref() == Some(method) && received.message.contains(what))
        };
        assert!(received_before_call("logging/setLevel", "debug"), "{received:?}");
        assert!(received_before_call("resources/subscribe", "file:///a"), "{received:?}");
        fixture.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_process_whose_secret_changed_is_replaced() {
    let mut fixture = running(&SERVER).await;
    fixture.change("write", "write-2", None);
    fixture.until("another process took over", |fixture| !fixture.reports.is_empty()).await;
    assert_eq!(fixture.call_and_wait("write_file").await, answered_by(2));
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    fixture.run_for(SECOND).await;
    assert_eq!(fixture.script.alive(), [0, 2]);
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_one_process_does_not_affect_another() {
    let mut fixture = running(&SERVER).await;
    let long = fixture.call("echo", 10 * SECOND);
    let lost = fixture.call("write_file", 10 * SECOND);
    fixture.run_for(SECOND).await;
    fixture.script.exit(1);
    assert!(matches!(fixture.wait_for_outcome(lost).await, CallResult::Unknown(_)));
    assert_eq!(fixture.wait_for_outcome(long).await, answered_by(0));
    assert_eq!(fixture.call_and_wait("write_file").await, answered_by(2));
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_reload_changes_a_scope_its_old_process_gets_no_more_calls() {
    let mut fixture = running(&SERVER).await;
    let long = fixture.call("write_file", 10 * SECOND);
    fixture.run_for(SECOND).await;
    fixture.reconfigure(&Setup { scope_tools: &["write_*", "set_*"], scope_key: "x{write.value}", ..SERVER });
    assert_eq!(fixture.call_and_wait("write_file").await, answered_by(2));
    assert!(!ended(&fixture.script, 1), "the call is still running");
    assert_eq!(fixture.wait_for_outcome(long).await, answered_by(1));
    fixture.run_for(SECOND).await;
    assert_eq!(fixture.script.alive(), [0, 2]);
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_changes_the_server_itself_replaces_the_unscoped_process_and_repeats_its_handshake() {
    let mut fixture = running(&SERVER).await;
    let long = fixture.call("echo", 10 * SECOND);
    fixture.run_for(SECOND).await;
    fixture.reconfigure(&Setup { key: "x{key.value}", ..SERVER });
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(2));
    assert_eq!(methods(&fixture.script.received_by(2))[..2], ["initialize", "notifications/initialized"]);
    assert_eq!(fixture.wait_for_outcome(long).await, answered_by(0));
    fixture.run_for(SECOND).await;
    assert!(ended(&fixture.script, 0));
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn another_handshake_ends_the_processes_of_scopes() {
    let mut fixture = running(&SERVER).await;
    fixture.make_handshake().await;
    fixture.until("the process of the scope is ended", |fixture| ended(&fixture.script, 1)).await;
    assert_eq!(fixture.call_and_wait("write_file").await, answered_by(2));
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    fixture.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_scope_that_starts_slowly_does_not_delay_the_unscoped_process() {
    let mut fixture = LinkFixture::with(Script::responding(answer_after_wait), &SERVER);
    fixture.make_handshake().await;
    fixture.script.queue_start(Start::RunAfter(10 * SECOND));
    let scoped = fixture.call("write_file", Duration::ZERO);
    assert_eq!(fixture.call_and_wait("echo").await, answered_by(0));
    assert!(!fixture.results.contains_key(&scoped));
    assert_eq!(fixture.wait_for_outcome(scoped).await, answered_by(1));
    fixture.finish().await;
}
