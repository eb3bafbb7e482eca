//! What survives a cut connection, and which errors a harness gets when its server dies.

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::{Harness, refusal_of, text_of};
use cofferdam_tests::process::send;
use cofferdam_tests::relay::{Next, RawRelay, hello};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use relay_proto::control::{Hello, Resume};
use relay_proto::frame::{Frame, PREFACE};
use serde_json::{Value, json};

#[test]
fn progress_survives_a_cut_and_comes_once_and_in_order() {
    let world = World::new().server("tools", Server::fixture()).capturing().start();
    let mut shim = world.connected("tools");
    const STEPS: u64 = 12;
    let call =
        json!({"name": "slow", "arguments": {"ms": 3000, "steps": STEPS}, "_meta": {"progressToken": "p"}});
    let id = shim.send_request("tools/call", call);
    for step in 1..=STEPS {
        let progress = shim.message_with_method("notifications/progress");
        assert_eq!(progress["params"]["progress"], step, "{progress}");
        if step % 4 == 1 {
            world.cut_connections();
        }
    }
    assert_eq!(text_of(&shim.answer_to(&id)), "late");
    assert_eq!(count_received(&shim, "notifications/progress"), STEPS as usize);
    assert_eq!((world.times_executed("tools", "slow"), world.fixture_processes("tools").len()), (1, 1));
}

#[test]
fn a_cancellation_survives_a_cut_and_is_delivered_once() {
    let world = World::new().server("tools", Server::fixture()).capturing().start();
    let mut shim = world.connected("tools");
    let slow = shim.send_call("slow", json!({"ms": 2000}));
    wait_until("the call runs", || world.times_executed("tools", "slow") == 1);
    world.cut_connections();
    shim.notify("notifications/cancelled", json!({"requestId": slow}));
    world.cut_connections();
    let cancellations = || count_received_by_process(&world, 0, "notifications/cancelled");
    wait_until("the server receives it", || cancellations() == 1);
    // The fixture responds nevertheless. The response to a later, longer call arrives after that late response.
    assert_eq!(shim.call_text("slow", json!({"ms": 2500})), "late");
    assert!(
        shim.answer_within(&slow, std::time::Duration::ZERO).is_none(),
        "a cancelled call got a response"
    );
    assert_eq!(cancellations(), 1);
}

#[test]
fn a_listener_survives_a_cut() {
    let world = World::new().server("tools", Server::fixture()).capturing().start();
    let mut shim = world.shim("tools");
    shim.discover();
    let listener =
        shim.send_request("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    shim.message_with_method("notifications/subscriptions/acknowledged");
    world.cut_connections();
    assert_eq!(shim.call_text("change_tools", json!({})), "changed");
    assert_eq!(changed_for(&mut shim), listener);
    assert_eq!(count_received_by_process(&world, 0, "subscriptions/listen"), 1);
    assert_eq!(world.fixture_processes("tools").len(), 1, "another process was started");
}

#[test]
fn a_request_of_a_server_survives_a_cut() {
    let world = World::new().server("tools", Server::fixture()).capturing().start();
    let mut shim = world.connected("tools");
    let call =
        shim.send_call("ask_client", json!({"method": "elicitation/create", "params": {"message": "?"}}));
    let asked = shim.message_with_method("elicitation/create");
    world.cut_connections();
    shim.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}));
    world.cut_connections();
    assert!(text_of(&shim.answer_to(&call)).contains("decline"));
    assert_eq!(count_received(&shim, "elicitation/create"), 1);
    assert_eq!(count_received(&shim, "notifications/cancelled"), 0);
}

#[test]
fn after_kill_9_of_the_server_its_settings_are_replayed_to_the_next_process() {
    let world = World::new().server("tools", Server::fixture_that("gains-a-tool")).start();
    let mut shim = world.connected("tools");
    send_settings(&mut shim);
    let call =
        json!({"name": "slow", "arguments": {"ms": 60_000, "steps": 600}, "_meta": {"progressToken": "p"}});
    let slow = shim.send_request("tools/call", call);
    shim.message_with_method("notifications/progress");
    let asking = shim.send_call("ask_client", json!({"method": "roots/list"}));
    let asked = shim.message_with_method("roots/list");
    send(world.fixture_processes("tools")[0], Signal::SIGKILL);
    for call in [slow, asking] {
        assert_eq!(refusal_of(&shim.answer_to(&call)), "outcome_unknown");
    }
    assert_eq!(shim.call_text("echo", json!({"text": "back"})), "back");
    shim.message_with_method("notifications/tools/list_changed");
    assert_cancelled_and_late_response_dropped(&mut shim, &asked, &world);
    assert_settings_were_replayed(&world, "cofferdam-replay-");
    assert_eq!(world.times_executed("tools", "slow"), 1);
    assert_eq!(count_received(&shim, "notifications/tools/list_changed"), 1, "once");
}

#[test]
fn after_kill_9_of_the_sidecar_settings_are_replayed_to_the_new_server() {
    let mut world = World::new().server("tools", Server::fixture_that("gains-a-tool")).start();
    let mut shim = world.connected("tools");
    send_settings(&mut shim);
    let asking = shim.send_call("ask_client", json!({"method": "sampling/createMessage"}));
    let asked = shim.message_with_method("sampling/createMessage");
    world.kill9_sidecar();
    world.start_sidecar();
    assert_eq!(refusal_of(&shim.answer_to(&asking)), "outcome_unknown");
    assert_eq!(shim.call_text("echo", json!({"text": "back"})), "back");
    shim.message_with_method("notifications/tools/list_changed");
    assert_cancelled_and_late_response_dropped(&mut shim, &asked, &world);
    assert_settings_were_replayed(&world, "cofferdam-shim:replay:");
    assert_eq!(count_received(&shim, "notifications/tools/list_changed"), 1, "once");
}

#[test]
fn a_stateless_listener_is_opened_again_and_changed_tools_are_announced() {
    for end in [End::Server, End::Sidecar] {
        let mut world = World::new().server("tools", Server::fixture_that("gains-a-tool")).start();
        let mut shim = world.shim("tools");
        shim.discover();
        shim.request("tools/list", json!({}));
        let listener =
            shim.send_request("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
        shim.message_with_method("notifications/subscriptions/acknowledged");
        match end {
            End::Server => send(world.fixture_processes("tools")[0], Signal::SIGKILL),
            End::Sidecar => {
                world.kill9_sidecar();
                world.start_sidecar();
            }
        }
        // The notification comes without a further request.
        assert_eq!(changed_for(&mut shim), listener, "{end:?}: the changed tools were not announced");
        assert_eq!(shim.call_text("change_tools", json!({})), "changed");
        assert_eq!(
            changed_for(&mut shim),
            listener,
            "{end:?}: the listener gets no notification of the new process"
        );
        assert!(
            shim.answer_within(&listener, std::time::Duration::ZERO).is_none(),
            "{end:?}: the listener was ended"
        );
    }
}

#[test]
fn a_server_that_crashes_on_its_listener_is_not_restarted_without_limit() {
    let world = World::new().server("tools", Server::command(["/bin/sh", "-c", DIES_LISTENING])).start();
    let mut shim = world.shim("tools");
    shim.discover();
    let listener = shim.request("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    assert_eq!(refusal_of(&listener), "outcome_unknown", "{listener}");
    assert!(listener.to_string().contains("keeps failing"), "{listener}");
}

#[test]
fn a_shim_that_is_stopped_longer_than_the_heartbeats_reconnects() {
    let world = World::new().server("tools", Server::fixture()).relay("heartbeat = \"200ms\"").start();
    let mut shim = world.connected("tools");
    let slow = shim.send_call("slow", json!({"ms": 1500, "steps": 5}));
    wait_until("the call runs", || world.times_executed("tools", "slow") == 1);
    shim.signal(Signal::SIGSTOP);
    wait_until("the sidecar closes the connection", || world.log().contains("the peer stopped responding"));
    let waiting = shim.send_call("count", json!({}));
    shim.signal(Signal::SIGCONT);
    assert_eq!(text_of(&shim.answer_to(&slow)), "late");
    assert_eq!(text_of(&shim.answer_to(&waiting)), "ran count");
    assert_eq!((world.times_executed("tools", "slow"), world.times_executed("tools", "count")), (1, 1));
    assert_eq!(world.fixture_processes("tools").len(), 1, "another process was started");
}

/// The sidecar would detect the dead connection only after three heartbeats, a minute; this test does not wait that
/// long.
#[test]
fn a_shim_whose_connection_died_unnoticed_resumes_its_link_at_once() {
    let world = World::new().server("tools", Server::fixture()).capturing().start();
    let mut shim = world.connected("tools");
    let slow = shim.send_call("slow", json!({"ms": 500}));
    wait_until("the call runs", || world.times_executed("tools", "slow") == 1);
    world.half_cut_connections();
    assert_eq!(text_of(&shim.answer_to(&slow)), "late");
    assert_eq!(shim.call_text("echo", json!({"text": "again"})), "again");
    assert_eq!((world.times_executed("tools", "slow"), world.fixture_processes("tools").len()), (1, 1));
    assert!(
        !world.audit().iter().any(|record| record["event"] == "alert"),
        "the shim was mistaken for a clone"
    );
}

#[test]
fn a_copy_of_a_link_in_use_is_refused_and_reported() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut owner = RawRelay::connect(&world.layout().relay);
    let welcome = owner.await_welcome("tools");
    let resume = Resume { link: welcome.link, token: welcome.token, received: 0 };
    let mut copy = RawRelay::connect(&world.layout().relay);
    copy.send(PREFACE);
    copy.send_frame(&Frame::Hello(Hello { resume: Some(resume), ..hello("tools", &[1]) }));
    assert!(matches!(owner.next_frame(), Next::Frame(frame) if *frame == Frame::Ping));
    owner.send_frame(&Frame::Pong);
    let Next::Frame(refusal) = copy.next_frame() else { panic!("expected a refusal") };
    assert!(matches!(&*refusal, Frame::Refusal(refusal) if refusal.code == "clone_refused"), "{refusal:?}");
    owner.send_frame(&Frame::Ping);
    assert!(
        matches!(owner.next_frame(), Next::Frame(frame) if *frame == Frame::Pong),
        "the owner lost its link"
    );
    wait_until("it is reported", || world.audit().iter().any(|record| record["event"] == "alert"));
}

/// A server in a few lines of shell that exits when a listener is opened.
const DIES_LISTENING: &str = r#"
    while read -r line; do
        id=$(printf '%s' "$line" | sed -n 's/.*"id":\([^,}]*\).*/\1/p')
        case "$line" in
            *subscriptions/listen*) exit 9;;
            *) printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id";;
        esac
    done"#;

#[derive(Clone, Copy, Debug)]
enum End {
    Server,
    Sidecar,
}

/// Messages that a harness sends once, and that must be replayed to a new process.
fn send_settings(harness: &mut Harness) {
    harness.request("tools/list", json!({}));
    harness.request("logging/setLevel", json!({"level": "info"}));
    harness.request("logging/setLevel", json!({"level": "debug"}));
    harness.request("resources/subscribe", json!({"uri": "file:///kept"}));
    harness.request("resources/subscribe", json!({"uri": "file:///dropped"}));
    harness.request("resources/unsubscribe", json!({"uri": "file:///dropped"}));
}

/// Asserts that the second process got the settings before any call, under ids that begin with `ids`.
#[track_caller]
fn assert_settings_were_replayed(world: &World, ids: &str) {
    let received = world.received("tools");
    assert_eq!(received.len(), 2, "{received:?}");
    let methods: Vec<&str> = received[1].iter().filter_map(|message| message["method"].as_str()).collect();
    assert_eq!(
        methods[..6],
        [
            "initialize",
            "notifications/initialized",
            "logging/setLevel",
            "resources/subscribe",
            "tools/list",
            "tools/call"
        ]
    );
    assert_eq!(received[1][2]["params"]["level"], "debug");
    assert_eq!(received[1][3]["params"]["uri"], "file:///kept");
    for message in
        received[1].iter().take(5).filter(|message| message["method"] != "notifications/initialized")
    {
        assert!(message["id"].as_str().is_some_and(|id| id.starts_with(ids)), "{message}");
    }
}

/// Asserts that the request was cancelled once, and that a late response to it is dropped.
#[track_caller]
fn assert_cancelled_and_late_response_dropped(harness: &mut Harness, asked: &Value, world: &World) {
    let cancelled = harness.message_with_method("notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], asked["id"]);
    harness.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {}}));
    // If the new process had received the late response, it would have done so before this call.
    let call = harness.send_call("ask_client", json!({"method": "roots/list", "id": "own"}));
    let next = harness.message_with_method("roots/list");
    assert_ne!(next["id"], asked["id"]);
    harness.send(&json!({"jsonrpc": "2.0", "id": next["id"], "result": {"roots": ["the answer"]}}));
    assert!(text_of(&harness.answer_to(&call)).contains("the answer"));
    assert_eq!(count_received(harness, "notifications/cancelled"), 1, "not cancelled once: {}", world.log());
}

/// The listener that was notified of changed tools.
fn changed_for(harness: &mut Harness) -> Value {
    let changed = harness.message_with_method("notifications/tools/list_changed");
    changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].clone()
}

/// How many messages with this method the harness has got.
fn count_received(harness: &Harness, method: &str) -> usize {
    let text = String::from_utf8_lossy(harness.received());
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter(|message| message["method"] == method).count()
}

/// How often a process of the fixture got this method.
fn count_received_by_process(world: &World, process: usize, method: &str) -> usize {
    let received = world.received("tools");
    received
        .get(process)
        .map_or(0, |received| received.iter().filter(|message| message["method"] == method).count())
}
