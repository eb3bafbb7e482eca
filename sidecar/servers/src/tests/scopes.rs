//! Tools with credentials of their own run in processes of their own.

use super::*;
use crate::scripted::Start;

const SECOND: Duration = Duration::from_secs(1);

async fn running(server: &Setup) -> World {
    let mut world = World::with(Script::responding(answer_after_wait), server);
    world.make_handshake().await;
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    assert_eq!(world.call_and_wait("write_file").await, answered_by(1));
    world.run_for(20 * SECOND).await;
    world
}

#[tokio::test(start_paused = true)]
async fn only_calls_of_its_tools_go_to_the_process_of_a_scope() {
    let mut world = running(&SERVER).await;
    for method in ["tools/list", "ping", "prompts/list"] {
        let id = world.request(method, "{}", None);
        world.settled(id).await;
    }
    assert_eq!(world.call_and_wait("write_other").await, answered_by(1));
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    let received = world.script.received_by(1);
    assert_eq!(methods(&received), ["initialize", "notifications/initialized", "tools/call", "tools/call"]);
    assert!(received.iter().all(|received| received.scope.is_some()));
    assert!(
        world
            .script
            .received_by(0)
            .iter()
            .all(|received| received.scope.is_none() && !received.message.contains("write_"))
    );
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_setting_of_the_harness_reaches_every_process_under_an_id_of_the_sidecar() {
    let mut world = running(&SERVER).await;
    let level = world.request("logging/setLevel", r#"{"level":"debug"}"#, None);
    world.settled(level).await;
    world.run_for(SECOND).await;
    let set = world
        .script
        .received_by(1)
        .into_iter()
        .find(|received| received.method.as_deref() == Some("logging/setLevel"));
    assert!(set.unwrap().id.unwrap().starts_with(r#""cofferdam-replay-"#));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_of_a_scope_gets_the_settings_made_before_and_during_its_start() {
    let mut world = World::with(Script::responding(answer_after_wait), &SERVER);
    world.make_handshake().await;
    let level = world.request("logging/setLevel", r#"{"level":"debug"}"#, None);
    world.settled(level).await;
    world.script.queue_start(Start::RunAfter(5 * SECOND));
    let scoped = world.call("write_file", Duration::ZERO);
    world.run_for(SECOND).await;
    let watch = world.request("resources/subscribe", r#"{"uri":"file:///a"}"#, None);
    world.settled(watch).await;
    assert_eq!(world.settled(scoped).await, answered_by(1));
    world.run_for(SECOND).await;
    let expected =
        ["initialize", "notifications/initialized", "logging/setLevel", "tools/call", "resources/subscribe"];
    assert_eq!(methods(&world.script.received_by(1)), expected);
    world.finish().await;
}

/// The predecessor received these settings as requests, which are not sent a second time.
#[tokio::test(start_paused = true)]
async fn the_successor_in_a_scope_gets_the_settings_made_since_its_predecessor_started() {
    // Whether the server has answered `logging/setLevel` by the time of the replacement.
    for is_answered in [true, false] {
        let script =
            Script::responding(move |received| match (received.method.as_deref(), received.process) {
                (Some("logging/setLevel"), 0) if !is_answered => Vec::new(),
                _ => answer_after_wait(received),
            });
        let mut world = World::with(script, &SERVER);
        world.make_handshake().await;
        assert_eq!(world.call_and_wait("write_file").await, answered_by(1));
        world.run_for(20 * SECOND).await;
        world.request("logging/setLevel", r#"{"level":"debug"}"#, None);
        let watch = world.request("resources/subscribe", r#"{"uri":"file:///a"}"#, None);
        world.settled(watch).await;
        world.run_for(SECOND).await;
        world.change("write", "write-2", None);
        world.until("another process took over", |world| !world.reports.is_empty()).await;
        assert_eq!(world.call_and_wait("write_file").await, answered_by(2));
        let received = world.script.received_by(2);
        let received_before_call = |method: &str, what: &str| {
            let call = received.iter().position(|received| received.method.as_deref() == Some("tools/call"));
            received
                .iter()
                .take(call.unwrap())
                .any(|received| received.method.as_deref() == Some(method) && received.message.contains(what))
        };
        assert!(received_before_call("logging/setLevel", "debug"), "{received:?}");
        assert!(received_before_call("resources/subscribe", "file:///a"), "{received:?}");
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_process_whose_secret_changed_is_replaced() {
    let mut world = running(&SERVER).await;
    world.change("write", "write-2", None);
    world.until("another process took over", |world| !world.reports.is_empty()).await;
    assert_eq!(world.call_and_wait("write_file").await, answered_by(2));
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    world.run_for(SECOND).await;
    assert_eq!(world.script.alive(), [0, 2]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_one_process_does_not_affect_another() {
    let mut world = running(&SERVER).await;
    let long = world.call("echo", 10 * SECOND);
    let lost = world.call("write_file", 10 * SECOND);
    world.run_for(SECOND).await;
    world.script.exit(1);
    assert!(matches!(world.settled(lost).await, CallResult::Unknown(_)));
    assert_eq!(world.settled(long).await, answered_by(0));
    assert_eq!(world.call_and_wait("write_file").await, answered_by(2));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_changes_a_scope_gives_its_process_no_further_call() {
    let mut world = running(&SERVER).await;
    let long = world.call("write_file", 10 * SECOND);
    world.run_for(SECOND).await;
    world.reconfigure(&Setup { scope_tools: &["write_*", "set_*"], scope_key: "x{write.value}", ..SERVER });
    assert_eq!(world.call_and_wait("write_file").await, answered_by(2));
    assert!(!ended(&world.script, 1), "the call is still running");
    assert_eq!(world.settled(long).await, answered_by(1));
    world.run_for(SECOND).await;
    assert_eq!(world.script.alive(), [0, 2]);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_changes_the_server_itself_replaces_the_base_and_repeats_its_handshake() {
    let mut world = running(&SERVER).await;
    let long = world.call("echo", 10 * SECOND);
    world.run_for(SECOND).await;
    world.reconfigure(&Setup { key: "x{key.value}", ..SERVER });
    assert_eq!(world.call_and_wait("echo").await, answered_by(2));
    assert_eq!(methods(&world.script.received_by(2))[..2], ["initialize", "notifications/initialized"]);
    assert_eq!(world.settled(long).await, answered_by(0));
    world.run_for(SECOND).await;
    assert!(ended(&world.script, 0));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn another_handshake_ends_the_processes_of_scopes() {
    let mut world = running(&SERVER).await;
    world.make_handshake().await;
    world.until("the process of the scope is ended", |world| ended(&world.script, 1)).await;
    assert_eq!(world.call_and_wait("write_file").await, answered_by(2));
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_scope_that_starts_slowly_does_not_delay_the_base() {
    let mut world = World::with(Script::responding(answer_after_wait), &SERVER);
    world.make_handshake().await;
    world.script.queue_start(Start::RunAfter(10 * SECOND));
    let scoped = world.call("write_file", Duration::ZERO);
    assert_eq!(world.call_and_wait("echo").await, answered_by(0));
    assert!(!world.results.contains_key(&scoped));
    assert_eq!(world.settled(scoped).await, answered_by(1));
    world.finish().await;
}
