//! Requests that may have run, and may be repeated or not.

use super::*;

const MOMENT: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl Life {
    /// The server's tools are known, and a call of one of them is under way.
    async fn calling(tool: &str) -> Self {
        let mut life = Self::new(Retry::WhereSafe);
        life.request("tools/list", "{}");
        life.pass(20 * SECOND).await;
        life.request("tools/call", &format!(r#"{{"name":"{tool}","arguments":{{"call":CALL}}}}"#));
        life.pass(MOMENT).await;
        life
    }

    fn answer(&self, id: u64) -> &str {
        &self.requests[&id].answer
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_runs_twice_at_most() {
    let mut life = Life::calling("safe_exit_always").await;
    life.pass(SECOND).await;
    assert_eq!((life.responses(), life.seen.runs(2), life.script.started()), (vec![1, 1], 2, 2));
    assert!(life.answer(2).contains("outcome_unknown"), "{}", life.answer(2));
    assert_eq!(outcomes::missing(&life.fixture.audit()), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_second_attempt_has_the_time_that_the_first_one_left() {
    let mut life = Life::calling("safe_exit_then_never").await;
    life.pass(CALL_TIMEOUT - SECOND).await;
    assert_eq!((life.responses(), life.seen.runs(2)), (vec![1, 0], 2));
    life.pass(2 * SECOND).await;
    assert_eq!(life.responses(), [1, 1]);
    assert!(life.answer(2).contains("outcome_unknown"), "{}", life.answer(2));
}

#[tokio::test(start_paused = true)]
async fn a_second_attempt_that_cannot_be_made_leaves_the_outcome_unknown() {
    let mut life = Life::new(Retry::WhereSafe);
    life.request("tools/list", "{}");
    life.pass(20 * SECOND).await;
    life.script.then(Start::FailAfter(SECOND, StartError::LimitReached(LimitReached::Processes)));
    life.request("tools/call", r#"{"name":"safe_exit_always","arguments":{"call":CALL}}"#);
    life.pass(2 * SECOND).await;
    assert_eq!((life.responses(), life.seen.runs(2)), (vec![1, 1], 1));
    let answer = life.answer(2);
    assert!(
        answer.contains("outcome_unknown") && answer.contains("may or may not have run before"),
        "{answer}"
    );
}

/// Whether the tool may be repeated is not known, and the server that would say so does not start.
#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_for_a_list_that_will_not_come() {
    let mut life = Life::new(Retry::WhereSafe);
    life.call(0, MaybeRan::No);
    life.pass(20 * SECOND).await;
    life.script.then(Start::FailAfter(SECOND, StartError::LimitReached(LimitReached::Processes)));
    life.request("tools/call", r#"{"name":"safe_exit_always","arguments":{"call":CALL}}"#);
    life.pass(2 * SECOND).await;
    assert_eq!((life.responses(), life.seen.runs(2)), (vec![1, 1], 1));
    assert!(life.answer(2).contains("outcome_unknown"), "{}", life.answer(2));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_no_request_waits_for_any_more_is_not_asked_for() {
    let mut life = Life::new(Retry::WhereSafe);
    life.call(0, MaybeRan::No);
    life.pass(20 * SECOND).await;
    life.script.then(Start::RunAfter(2 * CALL_TIMEOUT));
    life.request("tools/call", r#"{"name":"safe_exit_always","arguments":{"call":CALL}}"#);
    life.pass(CALL_TIMEOUT + SECOND).await;
    assert_eq!((life.responses(), life.seen.runs(2)), (vec![1, 1], 1));
    life.pass(2 * CALL_TIMEOUT).await;
    assert_eq!((life.script.started(), life.taken_by(1)), (2, Vec::new()));
}

/// There is no room to wait for the audit: what it would say is not known, so the request may have run.
#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_wait_for_the_audit_may_have_run() {
    let mut life = Life::new(Retry::Never);
    let _permit = life.session.lookup_permit().await.expect("nothing else searches");
    for seq in [1, 2] {
        let id = life.requests.len() as u64 + 1;
        let (call, message) = life.message(id, 0);
        let padding = format!("\"p\":\"{}\",\"call\"", "x".repeat(600 * 1024));
        let origin = Origin { link: "l-0".into(), seq };
        life.send(id, call, message.replace("\"call\"", &padding), MaybeRan::Yes(origin));
    }
    life.pass(SECOND).await;
    assert_eq!((life.responses(), life.seen.runs(2)), (vec![0, 1], 0));
    assert!(life.answer(2).contains("outcome_unknown"), "{}", life.answer(2));
}
