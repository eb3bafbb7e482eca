//! A credential changes while calls are in flight: what the pipeline does with the two processes.

use cofferdam_secrets::renewal::{Class, Terms};
use cofferdam_secrets::{Material, Secret};
use zeroize::Zeroizing;

use super::*;

const LATE: u8 = 2;
const NEVER: u8 = 3;

const MOMENT: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl Life {
    /// The server's secret gets another value, which ends after some time or never.
    fn change_secret(&mut self, value: &str, life: Option<Duration>) {
        let value = Secret::new(Zeroizing::new(value.as_bytes().to_vec()));
        let material = Material::of([("value".to_owned(), value)].into());
        material.extend(&Terms { class: Class::OwnEnd, asked_at: Instant::now(), life, bound: None });
        self.session.credentials.hold(&"token".parse().expect("a name"), material);
    }

    /// Another process has taken over.
    async fn replace(&mut self) {
        self.change_secret("another-secret-value", None);
        // It is asked nothing before it takes over, so it has to live a little.
        self.pass(SECOND * 5 / 2).await;
        assert_eq!(self.script.started(), 2, "{:?}", self.script.log());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_finishes_in_the_old_process_and_the_next_one_goes_to_the_new() {
    let mut life = Life::running("").await;
    life.call(LATE, MaybeRan::No);
    life.pass(MOMENT).await;
    life.replace().await;
    life.call(0, MaybeRan::No);
    life.pass(MOMENT).await;
    assert_eq!(life.taken_by(1).last().map(String::as_str), Some("tools/call 3"));
    assert_eq!((life.responses(), life.script.alive()), (vec![1, 0, 1], vec![0, 1]));
    life.notify();
    life.pass(MOMENT).await;
    for process in [0, 1] {
        let last = life.taken_by(process).pop();
        assert_eq!(last.as_deref(), Some("notifications/roots/list_changed"), "it concerns both");
    }
    life.pass(3 * SECOND).await;
    assert!(life.requests[&2].answer.contains("late"), "{}", life.requests[&2].answer);
    assert_eq!((life.responses(), life.script.alive()), (vec![1, 1, 1], vec![1]));
    assert!(life.fixture.audit().contains("\"detail\":\"replaced: process 1000001 took over from 1000000\""));
}

#[tokio::test(start_paused = true)]
async fn a_listener_is_opened_again_in_the_new_process_and_closed_in_the_old() {
    let mut life = Life::running("").await;
    let listener = life.request("subscriptions/listen", r#"{"notifications":{}}"#);
    life.pass(MOMENT).await;
    life.replace().await;
    assert_eq!(life.taken_by(0)[1..], ["subscriptions/listen 2", "notifications/cancelled"]);
    assert!(life.taken_by(1).contains(&"subscriptions/listen 2".to_owned()), "{:?}", life.taken_by(1));
    assert_eq!((life.requests[&listener].responses, life.script.alive()), (0, vec![1]));
}

#[tokio::test(start_paused = true)]
async fn a_draining_process_sends_no_server_wide_notification_and_a_successor_none_at_all() {
    let mut life = Life::running("servers.tools.replace = \"idle\"").await;
    let says = |life: &Life, process, method: &str| {
        life.script.say(process, &format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#));
    };
    life.call(LATE, MaybeRan::No);
    life.pass(MOMENT).await;
    life.replace().await;
    says(&life, 1, "notifications/message");
    life.pass(MOMENT).await;
    assert_eq!(life.notifications(), [""; 0], "the harness has asked it nothing yet");
    life.pass(5 * SECOND).await;
    assert_eq!(life.script.alive(), [1]);

    let mut life = Life::running("").await;
    life.call(LATE, MaybeRan::No);
    life.pass(MOMENT).await;
    life.replace().await;
    says(&life, 0, "notifications/resources/list_changed");
    says(&life, 0, "notifications/progress");
    says(&life, 1, "notifications/resources/list_changed");
    life.pass(MOMENT).await;
    let mut heard = life.notifications();
    heard.sort_unstable();
    assert_eq!(heard, ["notifications/progress", "notifications/resources/list_changed"]);
}

#[tokio::test(start_paused = true)]
async fn a_request_about_a_task_goes_to_the_process_that_has_it_and_keeps_it_alive() {
    let mut life = Life::running("").await;
    life.request("tools/call", r#"{"name":"task","arguments":{"call":CALL}}"#);
    life.pass(MOMENT).await;
    life.replace().await;
    let asked = life.request("tasks/get", r#"{"taskId":"t"}"#);
    life.pass(SECOND).await;
    assert_eq!(life.taken_by(0).last(), Some(&format!("tasks/get {asked}")));
    let result = life.request("tasks/result", r#"{"taskId":"t"}"#);
    life.pass(SECOND).await;
    assert_eq!(life.taken_by(0).last(), Some(&format!("tasks/result {result}")));
    assert_eq!((life.responses(), life.script.alive()), (vec![1; 4], vec![1]), "the task is over");
}

#[tokio::test(start_paused = true)]
async fn an_id_that_was_cancelled_is_free_again_once_its_process_is_over() {
    let mut life = Life::running("").await;
    life.call(NEVER, MaybeRan::No);
    life.pass(MOMENT).await;
    life.cancel(2).await;
    let (_, again) = life.message(2, 0);
    life.shim.push(again.as_bytes(), MaybeRan::No);
    life.pass(MOMENT).await;
    assert_eq!(life.nameless, 1, "a late response could be taken for that of the second request");
    life.replace().await;
    assert_eq!(life.script.alive(), [1]);
    let (call, again) = life.message(2, 0);
    life.requests.remove(&2);
    life.send(2, call, again, MaybeRan::No);
    life.pass(MOMENT).await;
    assert_eq!((life.requests[&2].responses, life.nameless), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_draining_process_that_is_cut_off_are_answered_at_once() {
    let mut life = Life::running("").await;
    for round in 0..10 {
        life.change_secret(&format!("secret-of-round-{round}"), Some(2 * SECOND));
        life.pass(SECOND).await;
        life.call(NEVER, MaybeRan::No);
        life.pass(SECOND / 2).await;
    }
    let unknown =
        life.requests.values().filter(|request| request.answer.contains("too many of its successors"));
    assert!(unknown.count() > 0, "{:?}", life.responses());
    assert!(life.script.alive().len() <= 9, "eight that finish, and the current one");
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_successor_that_never_took_over_are_cancelled() {
    let mut life = Life::running("servers.tools.replace = \"idle\"").await;
    life.answers_server = false;
    life.call(LATE, MaybeRan::No);
    life.pass(MOMENT).await;
    life.replace().await;
    life.script.say(1, r#"{"jsonrpc":"2.0","id":7,"method":"roots/list"}"#);
    life.pass(MOMENT).await;
    life.script.exit(1);
    life.pass(MOMENT).await;
    assert_eq!(life.notifications(), ["notifications/cancelled"]);
}

/// One of the tools runs with another credential, in a process of its own.
const SCOPE: &str = "servers.tools.scopes = [{ tools = [\"never\"], env = { TOKEN = \"x{token.value}\" } }]";

#[tokio::test(start_paused = true)]
async fn the_cancellation_of_a_call_goes_to_the_process_that_has_it() {
    let mut life = Life::running(SCOPE).await;
    life.call(NEVER, MaybeRan::No);
    life.pass(MOMENT).await;
    life.cancel(2).await;
    life.pass(SECOND).await;
    assert_eq!(life.taken_by(0), ["tools/call 1"]);
    assert_eq!(life.taken_by(1), ["tools/call 2", "notifications/cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn another_handshake_moves_calls_that_wait_for_a_scope_to_a_new_process() {
    let mut life = Life::running(SCOPE).await;
    life.script.then(Start::RunAfter(5 * SECOND));
    life.call(NEVER, MaybeRan::No);
    life.pass(SECOND).await;
    life.request("initialize", r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#);
    life.pass(10 * SECOND).await;
    assert_eq!(life.responses(), [1, 0, 1]);
    // The start that was under way is given up for another.
    let [0, last] = life.script.alive()[..] else { panic!("{:?}", life.script.log()) };
    let taken = life.taken_by(last);
    assert!(taken[0].starts_with("initialize"), "{taken:?}");
    assert_eq!(taken.last().map(String::as_str), Some("tools/call 2"));
    assert!((1..last).all(|process| life.taken_by(process).is_empty()));
}
