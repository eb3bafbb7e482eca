//! Fixed schedules of calls: ids, starts, limits, cancellation, credit, the end of a link.

use std::fs::File;

use super::*;

/// The index of a tool that responds at once.
const NOW: u8 = 0;
/// The index of a tool that responds after three seconds.
const LATE: u8 = 2;
const NEVER: u8 = 3;
const EXIT: u8 = 4;
const LARGE: u8 = 12;

const MOMENT: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl ModelLink {
    /// A link whose process 0 runs and has answered a first call.
    pub(super) async fn running(configuration: &str) -> Self {
        let configuration = format!("{}\n{configuration}", server_configuration(Retry::Never, "ask"));
        let mut model = Self::in_fixture(Fixture::with_server("", &configuration), Retry::Never);
        model.call(NOW, MaybeRan::No);
        model.pass(MOMENT).await;
        assert_eq!(model.responses(), [1]);
        // Long enough that a crash does not count towards a crash loop.
        model.pass(20 * SECOND).await;
        model
    }

    /// The requests and notifications that a process received, in order.
    pub(super) fn messages_received_by(&self, process: usize) -> Vec<String> {
        let describe = |received: &ReceivedMessage| match &received.id {
            Some(id) => format!("{} {id}", received.method.as_deref().unwrap_or_default()),
            None => received.method.clone().unwrap_or_default(),
        };
        self.script.received_by(process).iter().map(describe).collect()
    }

    /// The methods of notifications that the harness received, in order.
    pub(super) fn notifications(&self) -> Vec<&str> {
        self.arrived
            .iter()
            .map(String::as_str)
            .filter(|method| method.starts_with("notifications/"))
            .collect()
    }

    pub(super) fn outcomes(&self, tool: &str) -> Vec<(String, String)> {
        outcomes::of_tool(&self.fixture.audit(), tool)
    }
}

pub(super) fn outcome(result: &str, code: &str) -> (String, String) {
    (result.into(), code.into())
}

#[tokio::test(start_paused = true)]
async fn a_second_request_under_an_id_in_use_is_refused_and_does_not_end_the_first() {
    // The first request is in flight, in the same chunk as the second, or parked for its process.
    for (first, between, start) in
        [(2, MOMENT, Duration::ZERO), (2, Duration::ZERO, Duration::ZERO), (1, MOMENT, 2 * SECOND)]
    {
        let mut model = match start {
            Duration::ZERO => ModelLink::running("").await,
            _ => ModelLink::new(Retry::Never),
        };
        model.script.queue_start(Start::RunAfter(start));
        model.call(LATE, MaybeRan::No);
        if !between.is_zero() {
            model.pass(between).await;
        }
        let ((again, _), message) = model.message(first, NOW);
        model.shim.push(message.as_bytes(), MaybeRan::No);
        model.pass(SECOND).await;
        assert_eq!((model.responses_without_id, model.requests[&first].responses), (1, 0));
        model.pass(5 * SECOND).await;
        assert_eq!((model.requests[&first].responses, model.log.runs(again)), (1, 0));
        assert!(
            model.requests[&first].last_response.contains("late"),
            "{}",
            model.requests[&first].last_response
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_refused_at_once_is_answered_at_once() {
    let mut model = ModelLink::new(Retry::Never);
    for _ in 0..2 {
        model.call(EXIT, MaybeRan::No);
        model.pass(MOMENT).await;
    }
    model.call(NOW, MaybeRan::No);
    model.pass(MOMENT).await;
    assert_eq!((model.responses(), model.script.started()), (vec![1, 1, 1], 2));
    let last_response = &model.requests[&3].last_response;
    assert!(
        last_response.contains("server_unavailable") && last_response.contains("it did not run"),
        "{last_response}"
    );
    model.pass(SECOND).await;
    assert_eq!(model.outcomes("now"), [outcome("refused", "server_unavailable")]);
}

#[tokio::test(start_paused = true)]
async fn an_exit_ends_the_calls_in_flight_at_once() {
    let mut model = ModelLink::running("").await;
    model.call(NEVER, MaybeRan::No);
    model.pass(MOMENT).await;
    model.script.exit(0);
    model.pass(MOMENT).await;
    assert_eq!(model.responses(), [1, 1]);
    assert!(
        model.requests[&2].last_response.contains("outcome_unknown"),
        "{}",
        model.requests[&2].last_response
    );
    model.pass(SECOND).await;
    assert_eq!(model.outcomes("never"), [outcome("outcome_unknown", "outcome_unknown")]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_refuses_the_parked_calls_at_once() {
    let mut model = ModelLink::new(Retry::Never);
    model.script.queue_start(Start::FailAfter(2 * SECOND, StartError::LimitReached(LimitReached::Processes)));
    model.call(NOW, MaybeRan::No);
    model.pass(SECOND).await;
    assert_eq!(model.responses(), [0]);
    model.pass(SECOND + MOMENT).await;
    assert_eq!((model.responses(), model.log.runs(1)), (vec![1], 0));
    assert!(
        model.requests[&1].last_response.contains("it did not run"),
        "{}",
        model.requests[&1].last_response
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_start_is_refused_at_its_deadline() {
    let mut model = ModelLink::new(Retry::Never);
    model.script.queue_start(Start::Never);
    model.call(NOW, MaybeRan::No);
    model.pass(CALL_TIMEOUT - SECOND).await;
    assert_eq!(model.responses(), [0]);
    model.pass(2 * SECOND).await;
    assert_eq!(model.responses(), [1]);
    assert!(
        model.requests[&1].last_response.contains("server_unavailable"),
        "{}",
        model.requests[&1].last_response
    );
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_a_start_count_among_those_in_flight() {
    // Received one by one, and together.
    for between in [MOMENT, Duration::ZERO] {
        let limit = "limits.requests-in-flight = 2";
        let fixture = Fixture::with_sync(limit, &server_configuration(Retry::Never, "ask"), File::sync_data);
        let mut model = ModelLink::in_fixture(fixture, Retry::Never);
        model.script.queue_start(Start::RunAfter(5 * SECOND));
        for _ in 0..3 {
            model.call(NOW, MaybeRan::No);
            if !between.is_zero() {
                model.pass(between).await;
            }
        }
        model.pass(SECOND).await;
        assert_eq!(model.responses(), [0, 0, 1]);
        let last_response = &model.requests[&3].last_response;
        assert!(last_response.contains("too many requests are in flight"), "{last_response}");
        model.pass(5 * SECOND).await;
        assert_eq!((model.responses(), model.log.runs(3)), (vec![1, 1, 1], 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_that_waited_for_a_start_is_never_sent_and_frees_its_id_at_once() {
    let mut model = ModelLink::new(Retry::Never);
    model.script.queue_start(Start::RunAfter(2 * SECOND));
    model.call(NEVER, MaybeRan::No);
    model.pass(MOMENT).await;
    // The next request under this id comes together with the cancellation.
    let cancelled = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    model.shim.push(cancelled.as_bytes(), MaybeRan::No);
    let (_, message) = model.message(1, NOW);
    model.shim.push(message.as_bytes(), MaybeRan::No);
    model.pass(5 * SECOND).await;
    assert_eq!((model.responses(), model.responses_without_id), (vec![1], 0));
    assert_eq!((model.log.runs(1), model.log.runs(2)), (0, 1));
    assert_eq!(model.messages_received_by(0), ["tools/call 1"], "the cancelled call was never sent");
    assert_eq!(model.outcomes("never"), [outcome("cancelled", "")]);
}

#[tokio::test(start_paused = true)]
async fn the_server_is_notified_that_a_call_was_cancelled() {
    let mut model = ModelLink::running("").await;
    model.call(NEVER, MaybeRan::No);
    model.pass(MOMENT).await;
    model.cancel(2).await;
    model.pass(SECOND).await;
    assert_eq!(model.messages_received_by(0)[1..], ["tools/call 2", "notifications/cancelled"]);
    assert_eq!(model.outcomes("never"), [outcome("cancelled", "")]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_link_gives_every_call_an_outcome_and_counts_those_without_a_response() {
    for (start, expected) in [
        (Start::RunAfter(Duration::ZERO), outcome("outcome_unknown", "session_ended")),
        (Start::Never, outcome("refused", "session_ended")),
    ] {
        let mut model = ModelLink::new(Retry::Never);
        model.script.queue_start(start);
        model.call(NEVER, MaybeRan::No);
        model.pass(MOMENT).await;
        assert_eq!(model.end().await.calls_unanswered, 1);
        assert_eq!(model.outcomes("never"), [expected]);
    }
}

/// Messages for a server that does not read them queue in the shim, not in the sidecar.
#[tokio::test(start_paused = true)]
async fn a_shim_gets_no_credit_while_too_many_bytes_are_queued_for_its_server() {
    for is_running in [false, true] {
        let mut model = match is_running {
            true => ModelLink::running("").await,
            false => ModelLink::new(Retry::Never),
        };
        model.script.queue_start(Start::RunAfter(5 * SECOND));
        if is_running {
            model.script.set_reading(0, Reading::Nothing);
        }
        let padding = "x".repeat(600 * 1024);
        for _ in 0..3 {
            let id = model.requests.len() as u64 + 1;
            let (call, message) = model.message(id, NOW);
            model.send(
                id,
                call,
                message.replace("\"call\"", &format!("\"p\":\"{padding}\",\"call\"")),
                MaybeRan::No,
            );
        }
        model.pass(3 * SECOND).await;
        assert!(!model.shim.is_acknowledged(), "running: {is_running}");
        if is_running {
            model.script.set_reading(0, Reading::Everything);
        }
        model.pass(5 * SECOND).await;
        assert!(model.shim.is_acknowledged() && model.responses().iter().all(|count| *count == 1));
    }
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_for_a_start_are_sent_in_order() {
    let mut model = ModelLink::new(Retry::Never);
    model.script.queue_start(Start::RunAfter(2 * SECOND));
    model.call(NOW, MaybeRan::No);
    model.pass(MOMENT).await;
    model.notify();
    model.call(NOW, MaybeRan::No);
    model.pass(5 * SECOND).await;
    assert_eq!(
        model.messages_received_by(0),
        ["tools/call 1", "notifications/roots/list_changed", "tools/call 2"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_exit_during_the_repeated_handshake_refuses_the_parked_calls() {
    let mut model = ModelLink::new(Retry::Never);
    model.request("initialize", r#"{"protocolVersion":"2025-11-25","capabilities":{},"exit_again":1}"#);
    model.pass(20 * SECOND).await;
    model.script.exit(0);
    model.pass(MOMENT).await;
    model.call(NOW, MaybeRan::No);
    model.pass(MOMENT).await;
    assert_eq!((model.responses(), model.log.runs(2), model.script.started()), (vec![1, 1], 0, 2));
    assert!(
        model.requests[&2].last_response.contains("it did not run"),
        "{}",
        model.requests[&2].last_response
    );
}

#[tokio::test(start_paused = true)]
async fn the_id_of_a_call_that_was_not_answered_in_time_stays_in_use() {
    let mut model = ModelLink::running("").await;
    model.call(NEVER, MaybeRan::No);
    model.pass(CALL_TIMEOUT + SECOND).await;
    assert_eq!(model.responses(), [1, 1]);
    let ((again, _), message) = model.message(2, NOW);
    model.shim.push(message.as_bytes(), MaybeRan::No);
    model.pass(SECOND).await;
    assert_eq!((model.responses_without_id, model.log.runs(again)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_harness_is_notified_that_requests_of_an_exited_server_are_cancelled() {
    let mut model = ModelLink::running("").await;
    model.answers_server = false;
    model.request("tools/call", r#"{"name":"asks","arguments":{"call":CALL}}"#);
    model.pass(MOMENT).await;
    model.script.exit(0);
    model.pass(MOMENT).await;
    assert_eq!(model.notifications(), ["notifications/cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_larger_than_the_harness_accepts_is_not_relayed() {
    let limit = "limits.message-bytes = \"64KiB\"";
    let fixture = Fixture::with_sync(limit, &server_configuration(Retry::Never, "ask"), File::sync_data);
    let mut model = ModelLink::in_fixture(fixture, Retry::Never);
    model.call(LARGE, MaybeRan::No);
    model.until_responses(&[1]).await;
    assert!(
        model.requests[&1].last_response.contains("message_too_large"),
        "{}",
        model.requests[&1].last_response
    );
}

/// The session's budget in the audit is used up.
#[tokio::test(start_paused = true)]
async fn a_decision_that_is_not_written_refuses_its_call() {
    let limit = "limits.audit-session-bytes = \"16KiB\"";
    let fixture = Fixture::with_sync(limit, &server_configuration(Retry::Never, "ask"), File::sync_data);
    let mut model = ModelLink::in_fixture(fixture, Retry::Never);
    for _ in 0..20 {
        model.call(NOW, MaybeRan::No);
        model.pass(MOMENT).await;
    }
    assert_eq!(model.responses(), [1; 20]);
    let refused = |id: &u64| model.requests[id].last_response.contains("could not be recorded");
    let (refused, made): (Vec<u64>, Vec<u64>) = (1..=20).partition(refused);
    assert!(!refused.is_empty() && !made.is_empty(), "{refused:?} {made:?}");
    assert!(
        made.iter().all(|call| model.log.runs(*call) == 1)
            && refused.iter().all(|call| model.log.runs(*call) == 0)
    );
    assert_eq!(model.log.violations(), [""; 0]);
}
