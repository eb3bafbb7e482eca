//! Tests with fixed sequences of events: when a request that may have run is retried.

use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl ModelLink {
    /// A link with a known list of tools and a call of this tool in flight.
    async fn calling(tool: &str) -> Self {
        let mut model = Self::new(Retry::WhereSafe);
        model.request("tools/list", "{}");
        model.pass(20 * SECOND).await;
        model.request("tools/call", &format!(r#"{{"name":"{tool}","arguments":{{"call":CALL}}}}"#));
        model.pass(MILLISECOND).await;
        model
    }

    fn last_response(&self, id: u64) -> &str {
        &self.requests[&id].last_response
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_runs_twice_at_most() {
    let mut model = ModelLink::calling("safe_exit_always").await;
    model.pass(SECOND).await;
    assert_eq!((model.responses(), model.log.runs(2), model.script.started()), (vec![1, 1], 2, 2));
    assert!(model.last_response(2).contains("outcome_unknown"), "{}", model.last_response(2));
    assert_eq!(outcomes::missing(&model.fixture.audit()), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_second_attempt_has_the_deadline_of_the_first() {
    let mut model = ModelLink::calling("safe_exit_then_never").await;
    model.pass(CALL_TIMEOUT - SECOND).await;
    assert_eq!((model.responses(), model.log.runs(2)), (vec![1, 0], 2));
    model.pass(2 * SECOND).await;
    assert_eq!(model.responses(), [1, 1]);
    assert!(model.last_response(2).contains("outcome_unknown"), "{}", model.last_response(2));
}

#[tokio::test(start_paused = true)]
async fn a_second_attempt_that_cannot_be_made_leaves_the_outcome_unknown() {
    let mut model = ModelLink::new(Retry::WhereSafe);
    model.request("tools/list", "{}");
    model.pass(20 * SECOND).await;
    model.script.queue_start(Start::FailAfter(SECOND, StartError::LimitReached(LimitReached::Processes)));
    model.request("tools/call", r#"{"name":"safe_exit_always","arguments":{"call":CALL}}"#);
    model.pass(2 * SECOND).await;
    assert_eq!((model.responses(), model.log.runs(2)), (vec![1, 1], 1));
    let last_response = model.last_response(2);
    assert!(
        last_response.contains("outcome_unknown") && last_response.contains("may or may not have run before"),
        "{last_response}"
    );
}

/// It is not known whether the tool may be repeated, and the server that would list its tools does not start.
#[tokio::test(start_paused = true)]
async fn a_request_does_not_wait_for_a_tool_list_that_failed() {
    let mut model = ModelLink::new(Retry::WhereSafe);
    model.call(0, MaybeRan::No);
    model.pass(20 * SECOND).await;
    model.script.queue_start(Start::FailAfter(SECOND, StartError::LimitReached(LimitReached::Processes)));
    model.request("tools/call", r#"{"name":"safe_exit_always","arguments":{"call":CALL}}"#);
    model.pass(2 * SECOND).await;
    assert_eq!((model.responses(), model.log.runs(2)), (vec![1, 1], 1));
    assert!(model.last_response(2).contains("outcome_unknown"), "{}", model.last_response(2));
}

#[tokio::test(start_paused = true)]
async fn a_tool_list_is_not_requested_once_no_request_waits_for_it() {
    let mut model = ModelLink::new(Retry::WhereSafe);
    model.call(0, MaybeRan::No);
    model.pass(20 * SECOND).await;
    model.script.queue_start(Start::RunAfter(2 * CALL_TIMEOUT));
    model.request("tools/call", r#"{"name":"safe_exit_always","arguments":{"call":CALL}}"#);
    model.pass(CALL_TIMEOUT + SECOND).await;
    assert_eq!((model.responses(), model.log.runs(2)), (vec![1, 1], 1));
    model.pass(2 * CALL_TIMEOUT).await;
    assert_eq!((model.script.started(), model.messages_received_by(1)), (2, Vec::new()));
}

/// There is no room to park the request until the audit was searched, so it is treated as one that may have run.
#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_wait_for_the_audit_is_treated_as_having_run() {
    let mut model = ModelLink::new(Retry::Never);
    let _permit =
        model.session.acquire_lookup_permit().await.expect("no other audit look-up holds the permit");
    for seq in [1, 2] {
        let id = model.requests.len() as u64 + 1;
        let (call, message) = model.message(id, 0);
        let padding = format!("\"p\":\"{}\",\"call\"", "x".repeat(600 * 1024));
        let origin = Origin { link: "l-0".into(), seq };
        model.send(id, call, message.replace("\"call\"", &padding), MaybeRan::Yes(origin));
    }
    model.pass(SECOND).await;
    assert_eq!((model.responses(), model.log.runs(2)), (vec![0, 1], 0));
    assert!(model.last_response(2).contains("outcome_unknown"), "{}", model.last_response(2));
}
