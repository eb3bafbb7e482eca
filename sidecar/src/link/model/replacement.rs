//! A credential changes while calls are in flight: messages of the old and the new process.

use cofferdam_secrets::renewal::{RenewalClass, Terms};
use cofferdam_secrets::{Material, Secret};
use zeroize::Zeroizing;

use super::*;

const LATE: u8 = 2;
const NEVER: u8 = 3;

const MOMENT: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl ModelLink {
    /// Changes the value of the server's secret; the new value expires after `lifetime`, or never.
    fn change_secret(&mut self, value: &str, lifetime: Option<Duration>) {
        let value = Secret::new(Zeroizing::new(value.as_bytes().to_vec()));
        let material = Material::without_lease([("value".to_owned(), value)].into());
        material.extend(&Terms {
            class: RenewalClass::OwnExpiry,
            requested_at: Instant::now(),
            lifetime,
            token_expiry: None,
        });
        self.session.credentials.hold(&"token".parse().expect("a name"), material);
    }

    /// Changes the secret and waits until another process has taken over.
    async fn replace(&mut self) {
        self.change_secret("another-secret-value", None);
        // The new process takes over after it has run for a while, because it gets no request before.
        self.pass(SECOND * 5 / 2).await;
        assert_eq!(self.script.started(), 2, "{:?}", self.script.log());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_in_flight_finishes_in_the_old_process_and_the_next_call_goes_to_the_new() {
    let mut model = ModelLink::running("").await;
    model.call(LATE, MaybeRan::No);
    model.pass(MOMENT).await;
    model.replace().await;
    model.call(0, MaybeRan::No);
    model.pass(MOMENT).await;
    assert_eq!(model.messages_received_by(1).last().map(String::as_str), Some("tools/call 3"));
    assert_eq!((model.responses(), model.script.alive()), (vec![1, 0, 1], vec![0, 1]));
    model.notify();
    model.pass(MOMENT).await;
    for process in [0, 1] {
        let last = model.messages_received_by(process).pop();
        assert_eq!(
            last.as_deref(),
            Some("notifications/roots/list_changed"),
            "both processes get the notification"
        );
    }
    model.pass(3 * SECOND).await;
    assert!(model.requests[&2].last_response.contains("late"), "{}", model.requests[&2].last_response);
    assert_eq!((model.responses(), model.script.alive()), (vec![1, 1, 1], vec![1]));
    assert!(
        model.fixture.audit().contains("\"detail\":\"replaced: process 1000001 took over from 1000000\"")
    );
}

#[tokio::test(start_paused = true)]
async fn a_listener_is_opened_again_in_the_new_process_and_closed_in_the_old() {
    let mut model = ModelLink::running("").await;
    let listener = model.request("subscriptions/listen", r#"{"notifications":{}}"#);
    model.pass(MOMENT).await;
    model.replace().await;
    assert_eq!(model.messages_received_by(0)[1..], ["subscriptions/listen 2", "notifications/cancelled"]);
    assert!(
        model.messages_received_by(1).contains(&"subscriptions/listen 2".to_owned()),
        "{:?}",
        model.messages_received_by(1)
    );
    assert_eq!((model.requests[&listener].responses, model.script.alive()), (0, vec![1]));
}

#[tokio::test(start_paused = true)]
async fn a_draining_process_sends_no_server_wide_notification_and_a_successor_none_at_all() {
    let mut model = ModelLink::running("servers.tools.replace = \"idle\"").await;
    let notify = |model: &ModelLink, process, method: &str| {
        model.script.write(process, &format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#));
    };
    model.call(LATE, MaybeRan::No);
    model.pass(MOMENT).await;
    model.replace().await;
    notify(&model, 1, "notifications/message");
    model.pass(MOMENT).await;
    assert_eq!(model.notifications(), [""; 0], "the harness has sent it no request yet");
    model.pass(5 * SECOND).await;
    assert_eq!(model.script.alive(), [1]);

    let mut model = ModelLink::running("").await;
    model.call(LATE, MaybeRan::No);
    model.pass(MOMENT).await;
    model.replace().await;
    notify(&model, 0, "notifications/resources/list_changed");
    notify(&model, 0, "notifications/progress");
    notify(&model, 1, "notifications/resources/list_changed");
    model.pass(MOMENT).await;
    let mut received = model.notifications();
    received.sort_unstable();
    assert_eq!(received, ["notifications/progress", "notifications/resources/list_changed"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_about_a_task_goes_to_its_process_which_stays_alive_until_the_result() {
    let mut model = ModelLink::running("").await;
    model.request("tools/call", r#"{"name":"task","arguments":{"call":CALL}}"#);
    model.pass(MOMENT).await;
    model.replace().await;
    let status = model.request("tasks/get", r#"{"taskId":"t"}"#);
    model.pass(SECOND).await;
    assert_eq!(model.messages_received_by(0).last(), Some(&format!("tasks/get {status}")));
    let result = model.request("tasks/result", r#"{"taskId":"t"}"#);
    model.pass(SECOND).await;
    assert_eq!(model.messages_received_by(0).last(), Some(&format!("tasks/result {result}")));
    assert_eq!((model.responses(), model.script.alive()), (vec![1; 4], vec![1]), "the task has finished");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_id_is_free_again_once_its_process_has_ended() {
    let mut model = ModelLink::running("").await;
    model.call(NEVER, MaybeRan::No);
    model.pass(MOMENT).await;
    model.cancel(2).await;
    let (_, again) = model.message(2, 0);
    model.shim.push(again.as_bytes(), MaybeRan::No);
    model.pass(MOMENT).await;
    assert_eq!(
        model.responses_without_id, 1,
        "a late response could be taken for that of the second request"
    );
    model.replace().await;
    assert_eq!(model.script.alive(), [1]);
    let (call, again) = model.message(2, 0);
    model.requests.remove(&2);
    model.send(2, call, again, MaybeRan::No);
    model.pass(MOMENT).await;
    assert_eq!((model.requests[&2].responses, model.responses_without_id), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_draining_process_that_is_cut_off_are_answered_at_once() {
    let mut model = ModelLink::running("").await;
    for round in 0..10 {
        model.change_secret(&format!("secret-of-round-{round}"), Some(2 * SECOND));
        model.pass(SECOND).await;
        model.call(NEVER, MaybeRan::No);
        model.pass(SECOND / 2).await;
    }
    let unknown = model
        .requests
        .values()
        .filter(|request| request.last_response.contains("replaced processes were still finishing calls"));
    assert!(unknown.count() > 0, "{:?}", model.responses());
    assert!(model.script.alive().len() <= 9, "eight draining processes and the current one");
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_successor_that_never_took_over_are_cancelled() {
    let mut model = ModelLink::running("servers.tools.replace = \"idle\"").await;
    model.answers_server = false;
    model.call(LATE, MaybeRan::No);
    model.pass(MOMENT).await;
    model.replace().await;
    model.script.write(1, r#"{"jsonrpc":"2.0","id":7,"method":"roots/list"}"#);
    model.pass(MOMENT).await;
    model.script.exit(1);
    model.pass(MOMENT).await;
    assert_eq!(model.notifications(), ["notifications/cancelled"]);
}

/// One of the tools runs with another credential, in a process of its own.
const SCOPE: &str = "servers.tools.scopes = [{ tools = [\"never\"], env = { TOKEN = \"x{token.value}\" } }]";

#[tokio::test(start_paused = true)]
async fn the_cancellation_of_a_call_goes_to_its_process() {
    let mut model = ModelLink::running(SCOPE).await;
    model.call(NEVER, MaybeRan::No);
    model.pass(MOMENT).await;
    model.cancel(2).await;
    model.pass(SECOND).await;
    assert_eq!(model.messages_received_by(0), ["tools/call 1"]);
    assert_eq!(model.messages_received_by(1), ["tools/call 2", "notifications/cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn another_handshake_moves_calls_parked_for_a_scope_to_a_new_process() {
    let mut model = ModelLink::running(SCOPE).await;
    model.script.queue_start(Start::RunAfter(5 * SECOND));
    model.call(NEVER, MaybeRan::No);
    model.pass(SECOND).await;
    model.request("initialize", r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#);
    model.pass(10 * SECOND).await;
    assert_eq!(model.responses(), [1, 0, 1]);
    // The start in progress is abandoned for another.
    let [0, last] = model.script.alive()[..] else { panic!("{:?}", model.script.log()) };
    let received = model.messages_received_by(last);
    assert!(received[0].starts_with("initialize"), "{received:?}");
    assert_eq!(received.last().map(String::as_str), Some("tools/call 2"));
    assert!((1..last).all(|process| model.messages_received_by(process).is_empty()));
}
